"""Byte-level BPE that is stored as ranks: tiktoken's files (a line a token: base64 and rank) and Mistral's tekken.json.

Ranks say which merge comes first, and are the ids. Every way to put a token together from two others is then a merge.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.text.converted import Converted
from octavo.text.pieces import byte_alphabet
from octavo.text.pre_tokenizers import PRE_TOKENIZATIONS, PreTokenization

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_MOST_TOKENS = 2**24  # more are no vocabulary
_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+")


@dataclass(frozen=True)
class RankFamily:
    """What a file of ranks does not say: how texts are cut, which tokens come behind the ranks, and which stand before
    a text. `defaults` are keys of tokenizer_config.json."""

    rules: PreTokenization
    specials: tuple[str, ...]
    defaults: Mapping[str, Any]
    front: tuple[str, ...] = ()


_LLAMA3 = RankFamily(
    PRE_TOKENIZATIONS["llama-bpe"],
    (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
        *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
        *(f"<|reserved_special_token_{number}|>" for number in range(2, 247)),
    ),
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "add_bos_token": True},
)
_QWEN = RankFamily(
    PRE_TOKENIZATIONS["qwen2"],
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))),
    {"eos_token": "<|endoftext|>"},
)
_GLM4 = RankFamily(
    PRE_TOKENIZATIONS["glm4"],
    (
        *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
        *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    ),
    {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    ("[gMASK]", "<sop>"),
)
FAMILIES: Mapping[str, RankFamily] = {
    "QWenTokenizer": _QWEN,
    "ChatGLMTokenizer": _GLM4,
    "ChatGLM4Tokenizer": _GLM4,
    "qwen": _QWEN,
    "chatglm": _GLM4,
    "llama": _LLAMA3,
}
"""tokenizer_class of tokenizer_config.json, or model_type of config.json -> family."""


def is_ranks(data: bytes) -> bool:
    """Whether a file begins as tiktoken's do."""
    return _LINE.fullmatch(data[:4096].split(b"\n", 1)[0].strip()) is not None


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Token -> rank. ValueError names a line that is none."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        if _LINE.fullmatch(line.strip()) is None:
            raise ValueError(f"line {number} is not a token in base64 and its rank")
        token, rank = line.split()
        ranks[_from_base64(token, f"line {number}")] = int(rank)
    return ranks


def convert_ranks(ranks: Mapping[bytes, int], family: RankFamily, declared: Mapping[int, str]) -> Converted:
    """`declared` are the tokens beside the ranks, by id, as the model's files say, which go before those that the family's
    own code has."""
    first, known = max(ranks.values(), default=-1) + 1, set(declared.values())
    own = {first + n: text for n, text in enumerate(family.specials) if text not in known and first + n not in declared}
    backend = _backend(ranks, {**own, **declared}, family.rules)
    _add_specials(backend, own)
    return Converted(backend, dict(family.defaults), family.front)


_TEKKEN_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)  # of files that list none


def convert_tekken(content: Mapping[str, Any]) -> Converted:
    """Of the JSON of a tekken.json: special tokens have the first ids, ranks begin behind them. ValueError where it lacks
    something."""
    try:
        settings, vocabulary = content["config"], content["vocab"]
        pattern, size = settings["pattern"], int(settings["default_vocab_size"])
        reserved = int(settings["default_num_special_tokens"])
        listed = content.get("special_tokens")
        if listed is None:
            listed = [{"rank": rank, "token_str": text} for rank, text in enumerate(_TEKKEN_SPECIALS)]
        named = {int(token["rank"]): str(token["token_str"]) for token in listed}
        entries = [(token["token_bytes"], int(token["rank"])) for token in vocabulary]
        if not isinstance(pattern, str) or not all(isinstance(token, str) for token, _ in entries):
            raise TypeError("the pattern and token_bytes must be strings")
        if not 0 <= reserved <= size <= _MOST_TOKENS:
            raise ValueError(f"{reserved} special tokens of {size}")
        _check_pattern(pattern)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"it is no tekken vocabulary ({type(error).__name__}: {error})") from None
    specials = {id: named.get(id, f"<SPECIAL_{id}>") for id in range(reserved)}
    ranks = {_from_base64(token, f"rank {rank}"): reserved + rank for token, rank in entries if rank < size - reserved}
    backend = _backend(ranks, specials, replace(PRE_TOKENIZATIONS["tekken"], splits=(pattern,)))
    _add_specials(backend, specials)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    present = {name: text for name, text in names.items() if text in specials.values()}
    return Converted(backend, {**present, "add_bos_token": True, "add_eos_token": False})


def _check_pattern(pattern: str) -> None:
    """ValueError for what is no regular expression."""
    from tokenizers import Regex

    try:
        Regex(pattern)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"pattern: {error}") from None


def _backend(ranks: Mapping[bytes, int], specials: Mapping[int, str], rules: PreTokenization) -> Backend:
    characters = {byte: character for character, byte in byte_alphabet().items()}
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ValueError(f"its ranks lack the byte {missing[0]:#04x}, so that not every text can be written")
    texts = sorted((rank, token.decode("latin-1").translate(characters)) for token, rank in ranks.items())
    vocabulary = {text: rank for rank, text in texts}
    merges = [pair for text in vocabulary for pair in _splits(text, vocabulary)]
    for id, special in specials.items():
        vocabulary[special] = id
    return replace(rules, ignore_merges=True).backend(vocabulary, merges)


def _add_specials(backend: Backend, specials: Mapping[int, str]) -> None:
    from tokenizers import AddedToken

    backend.add_special_tokens([AddedToken(specials[id], special=True, normalized=False) for id in sorted(specials)])


def _splits(text: str, vocabulary: Mapping[str, int]) -> Sequence[tuple[str, str]]:
    pairs = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
    return [(left, right) for left, right in pairs if left in vocabulary and right in vocabulary]


def _from_base64(token: bytes | str, where: str) -> bytes:
    try:
        return b64decode(token, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{where} holds no base64") from None
