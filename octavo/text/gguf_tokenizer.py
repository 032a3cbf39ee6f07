"""A tokenizer from a GGUF file's metadata (keys `tokenizer.ggml.*` and `tokenizer.chat_template*`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import LoadError
from octavo.text.hf_tokenizer import frame_with
from octavo.text.pre_tokenizers import PRE_TOKENIZATIONS, PreTokenization
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

logger = logging.getLogger(__name__)

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type
_SPACE = "\u2581"
_NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "cls": "cls", "mask": "mask"}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """From all keys of the file, arrays as lists. LoadError for a tokenizer model other than gpt2, llama and gemma4."""
    model = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence) or not tokens:
        raise LoadError("the GGUF file holds no vocabulary: give a tokenizer with --tokenizer, or --skip-tokenizer-init")
    if model == "gpt2":
        backend, add_bos = _byte_level(metadata, tokens)
    elif model in ("llama", "gemma4"):
        backend, add_bos = _sentencepiece(metadata, tokens), model == "llama"
    else:
        raise LoadError(f"the GGUF file's tokenizer model {model!r} is not supported (supported: gpt2, llama, gemma4)")
    _add_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type") or ())
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in _NAMED.items()}
    special_tokens = {f"{name}_token": tokens[id] for name, id in ids.items() if id is not None and 0 <= id < len(tokens)}
    frame_with(
        backend,
        [special_tokens.get("bos_token") if metadata.get("tokenizer.ggml.add_bos_token", add_bos) else None],
        [special_tokens.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token", False) else None],
    )
    turn_ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom"))
    end_ids = [id for id in turn_ends if id is not None]
    return Tokenizer(backend, special_tokens, _chat_templates(metadata), end_ids, vocab_size=len(tokens))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Backend, bool]:
    """Byte-level BPE, and whether it puts a BOS where the file does not say."""
    if "tokenizer.ggml.merges" not in metadata:
        raise LoadError("the GGUF file's gpt2 tokenizer has no merges")
    rules = _pre_tokenization(metadata.get("tokenizer.ggml.pre"))
    try:
        backend = rules.backend(_vocabulary(tokens), _stored_merges(metadata))
    except ValueError as error:
        raise LoadError(f"the GGUF file's {error}") from None
    return backend, rules.add_bos


def _pre_tokenization(name: str | None) -> PreTokenization:
    if name is None:
        logger.warning("the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre); using 'default'")
        return PRE_TOKENIZATIONS["default"]
    rules = PRE_TOKENIZATIONS.get(name)
    if rules is None:
        logger.warning("unknown pre-tokenizer %r (tokenizer.ggml.pre): using GPT-2's, token ids may differ", name)
        return PRE_TOKENIZATIONS["gpt-2"]
    return rules


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Backend:
    """SentencePiece's BPE with byte fallback: spaces become U+2581, and usually one is put before the text."""
    import tokenizers
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    gemma = str(metadata.get("general.architecture", "")).startswith("gemma")
    if gemma:  # stores its tokens of several spaces as spaces
        tokens = [_SPACE * len(token) if token.isspace() and token.strip(" ") == "" else token for token in tokens]
    vocabulary = _vocabulary(tokens)
    if "tokenizer.ggml.merges" in metadata:
        merges = _stored_merges(metadata)
    else:
        scores = metadata.get("tokenizer.ggml.scores")
        if scores is None:
            raise LoadError("the GGUF file's llama tokenizer has neither merges nor scores")
        # Gemma's scores do not follow the order of its merges; the vocabulary does.
        merges = derived_merges(vocabulary, [-float(n) for n in range(len(tokens))] if gemma else scores)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", not gemma))
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    if gemma:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), behavior="isolated")
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def derived_merges(vocabulary: Mapping[str, int], scores: Iterable[float]) -> list[tuple[str, str]]:
    """The merges that a vocabulary with scores implies: every way to put a token together from two others, the best
    score first. The same list that Transformers' conversion of a SentencePiece model makes."""
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(vocabulary, scores, strict=False):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-score, -cut, cut - len(token), left, right))
    found.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in found]


def _stored_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs of "left right"; a left part may begin with a space in vocabularies that are not byte-level."""
    stored: Sequence[str] = metadata["tokenizer.ggml.merges"]
    merges = [merge.split(" ", 1) if merge[:1] != " " else _spaced(merge) for merge in stored]
    if any(len(merge) != 2 for merge in merges):
        raise LoadError("the GGUF file's merges must be pairs of tokens with a space between them")
    return [(left, right) for left, right in merges]


def _spaced(merge: str) -> list[str]:
    left, *right = merge[1:].split(" ", 1)
    return [" " + left, *right]


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    return {token: id for id, token in enumerate(tokens)}


def _add_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens (and the unknown one) are special; user-defined ones are only matched whole."""
    from tokenizers import AddedToken

    special, plain = [], []
    for token, kind in zip(tokens, types, strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {key.removeprefix(prefix + "."): text for key, text in metadata.items() if key.startswith(prefix + ".")}
    if prefix in metadata:
        templates["default"] = metadata[prefix]
    return templates
