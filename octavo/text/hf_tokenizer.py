"""A tokenizer from a Hugging Face directory: tokenizer.json or what can be converted to it, and beside it
tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja and additional_chat_templates/."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import LoadError
from octavo.text.conversion import convert
from octavo.text.converted import Converted
from octavo.text.tokenizer import Tokenizer
from octavo.weights.json_file import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """Reads what is there; only a tokenizer must be. LoadError for one that cannot be read or converted."""
    names = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
    special_map, own_config, added = (read_json(directory / name, optional=True) for name in names)
    config = {**special_map, **own_config}
    declared = _declared_tokens(config, added)
    file = directory / "tokenizer.json"
    if file.is_file():
        converted = Converted(_read(file))
    else:
        converted = convert(directory, config, {id: text for id, token in declared.items() if (text := _text(token))})
    config = {**converted.defaults, **config}
    backend, special_tokens = converted.backend, named_tokens(config)
    backend.no_truncation()
    backend.no_padding()
    _add_tokens(backend, declared)
    _mark_special(backend, special_tokens, config)
    if converted.front or "add_bos_token" in config or "add_eos_token" in config:
        bos, eos = (
            special_tokens.get(f"{name}_token") if config.get(f"add_{name}_token") else None for name in ("bos", "eos")
        )
        frame_with(backend, [*converted.front, bos], [eos if "add_eos_token" in config else _stored_end(backend)])
    return Tokenizer(backend, special_tokens, _chat_templates(directory, config))


def _read(file: Path) -> Backend:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise LoadError(f"{file} cannot be read: {' '.join(str(error).split())}") from None


def named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The texts of bos_token, eos_token, ... and of a model's own named tokens (`extra_special_tokens`)."""
    extra = config.get("extra_special_tokens")
    named = {**(extra if isinstance(extra, dict) else {}), **{name: config.get(name) for name in NAMED_TOKENS}}
    return {name: text for name, value in named.items() if (text := _text(value)) is not None}


def frame_with(backend: Backend, front: Sequence[str | None], back: Sequence[str | None]) -> None:
    """Make `encode` put those of these tokens that it has before and after a text, and nothing else."""
    from tokenizers.processors import TemplateProcessing

    known = {text: id for text in (*front, *back) if text is not None and (id := backend.token_to_id(text)) is not None}
    template = [*(text for text in front if text in known), "$A", *(text for text in back if text in known)]
    backend.post_processor = TemplateProcessing(single=template, special_tokens=list(known.items()))


def _stored_end(backend: Backend) -> str | None:
    """The token that tokenizer.json puts behind a text: models that embed by the last state are trained with one."""
    ids, bare = (backend.encode("a", add_special_tokens=special).ids for special in (True, False))
    return None if ids[-1:] == bare[-1:] else backend.id_to_token(ids[-1])


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _declared_tokens(config: dict[str, Any], legacy: dict[str, Any]) -> dict[int, Any]:
    """Id -> the text, or the description, of each token that tokenizer_config.json or added_tokens.json declares."""
    declared: dict[int, Any] = {id: text for text, id in legacy.items() if isinstance(id, int)}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(id.isdecimal() for id in decoder):
        raise LoadError("tokenizer_config.json: added_tokens_decoder must map token ids to tokens")
    declared.update({int(id): token for id, token in decoder.items()})
    return declared


def _add_tokens(backend: Backend, declared: dict[int, Any]) -> None:
    """Those that the backend does not add already, in the order of their ids."""
    from tokenizers import AddedToken

    known = backend.get_added_tokens_decoder()
    added = []
    for id, token in sorted(declared.items()):
        text = _text(token)
        if id in known or text is None:
            continue
        flags = token if isinstance(token, dict) else {}
        options = {name: bool(flags[name]) for name in ("lstrip", "rstrip", "normalized", "single_word") if name in flags}
        options.setdefault("normalized", not flags.get("special"))
        added.append(AddedToken(text, special=bool(flags.get("special")), **options))
    backend.add_tokens(added)  # all at once: the library looks through all of them every time


def _mark_special(backend: Backend, special_tokens: dict[str, str], config: dict[str, Any]) -> None:
    """The named tokens are special even where tokenizer.json does not say so. No new ids are made."""
    from tokenizers import AddedToken

    extra = [*_list(config.get("additional_special_tokens")), *(_list(config.get("extra_special_tokens")))]
    texts = [*special_tokens.values(), *(text for token in extra if (text := _text(token)) is not None)]
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in dict.fromkeys(texts) if text not in special and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name. chat_template.jinja wins over the configuration's text, or list of named texts."""
    stored = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stored, str):
        templates["default"] = stored
    for entry in _list(stored):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("name", "template")):
            raise LoadError("tokenizer_config.json: a list of chat templates must hold a name and a template each")
        templates[entry["name"]] = entry["template"]
    for file in sorted(directory.glob("additional_chat_templates/*.jinja")):
        templates[file.stem] = _read_text(file)
    if (file := directory / "chat_template.jinja").is_file():
        templates["default"] = _read_text(file)
    return templates


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"{file} is not UTF-8: {error}") from None
