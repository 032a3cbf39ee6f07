"""Which file of a model directory without tokenizer.json holds its tokenizer, and the tokenizer made from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.text.converted import Converted
from octavo.text.pre_tokenizers import PRE_TOKENIZATIONS
from octavo.text.sentencepiece import convert_sentencepiece, read_sentencepiece
from octavo.text.tiktoken import FAMILIES, convert_ranks, convert_tekken, is_ranks, read_ranks
from octavo.weights.json_file import read_json

_PATTERNS = ("tekken.json", "tokenizer.model", "*.tiktoken", "tiktoken.model", "tokenizer.model.v*", "vocab.json")
# How vocabularies with merges cut texts, by tokenizer_class; those of GPT-2 and its descendants have the last.
_RULES = {"Qwen2Tokenizer": "qwen2", "Starcoder2Tokenizer": "starcoder"}
_HOW_ELSE = "give a tokenizer with --tokenizer, or --skip-tokenizer-init"
_GPT2_END = "<|endoftext|>"
# ChatGLM's tokens behind its SentencePiece model, which its code has and no file.
_CHATGLM = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")


def convert(directory: Path, config: Mapping[str, Any], declared: Mapping[int, str]) -> Converted:
    """From the best file there is. `config` is tokenizer_config.json, `declared` the tokens that were added to the model by
    id. LoadError where there is none, and for one that cannot be converted."""
    files = [file for pattern in _PATTERNS for file in sorted(directory.glob(pattern)) if file.is_file()]
    if not files:
        kinds = "tokenizer.json, tokenizer.model, tekken.json, vocab.json or tiktoken file"
        raise LoadError(f"{directory} has no {kinds}: {_HOW_ELSE}")
    try:
        return _convert(files[0], config, declared)
    except ValueError as error:
        raise LoadError(f"{files[0]} cannot be converted: {error}; {_HOW_ELSE}") from None


def _convert(file: Path, config: Mapping[str, Any], declared: Mapping[int, str]) -> Converted:
    if file.name == "tekken.json":
        return convert_tekken(read_json(file))
    if file.name == "vocab.json":
        return _byte_level(file, config, declared)
    data = file.read_bytes()
    kind = str(config.get("tokenizer_class"))
    if not is_ranks(data):
        return _sentencepiece(data, kind, config, declared)
    model_type = read_json(file.parent / "config.json", optional=True).get("model_type")
    family = FAMILIES.get(kind) or FAMILIES.get("qwen" if file.name == "qwen.tiktoken" else str(model_type))
    if family is None:
        raise ValueError(
            f"it holds ranks for a tokenizer of class {kind}, and how that cuts texts is not known "
            f"(known: {', '.join(FAMILIES)})"
        )
    return convert_ranks(read_ranks(data), family, declared)


def _byte_level(file: Path, config: Mapping[str, Any], declared: Mapping[int, str]) -> Converted:
    """GPT-2's form: vocab.json maps tokens to ids, merges.txt has a pair a line, the first merged first."""
    merges_file = file.with_name("merges.txt")
    if not merges_file.is_file():
        raise ValueError("there is no merges.txt beside it")
    lines = merges_file.read_text("utf-8").split("\n")
    pairs = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    vocabulary = read_json(file) | {text: id for id, text in declared.items()}
    if not all(isinstance(id, int) for id in vocabulary.values()) or not all(len(pair) == 2 for pair in pairs):
        raise ValueError("it must map tokens to ids, and merges.txt hold two tokens a line")
    rules = PRE_TOKENIZATIONS[_RULES.get(str(config.get("tokenizer_class")), "gpt-2")]
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), _GPT2_END) if _GPT2_END in vocabulary else {}
    return Converted(rules.backend(vocabulary, [(left, right) for left, right in pairs]), ends)


def _sentencepiece(data: bytes, kind: str, config: Mapping[str, Any], declared: Mapping[int, str]) -> Converted:
    model = read_sentencepiece(data)
    if kind != "ChatGLMTokenizer":
        return convert_sentencepiece(model, declared, legacy=config.get("legacy") is not False)
    own = {len(model.pieces) + number: text for number, text in enumerate(_CHATGLM)}
    converted = convert_sentencepiece(model, {**own, **declared})
    from tokenizers import AddedToken

    converted.backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in own.values()])
    return Converted(converted.backend, {**converted.defaults, "add_bos_token": False}, ("[gMASK]", "sop"))
