"""Small tokenizers, made in the tests: byte-level BPE and SentencePiece-like BPE with byte fallback."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.hf_tokenizer import tokenizer_from_directory
from octavo.text.tokenizer import Tokenizer

TEXT = [
    "the harbour was quiet that morning and the only sound came from the bells of the boats",
    "water boils at a lower temperature on a mountain because the air is thin there",
    "the meeting moved from Monday to Wednesday because two of the five members were ill, it was said",
    "Gr\u00fc\u00dfe aus M\u00fcnchen, gr\u00fc\u00dfe aus K\u00f6ln \u2014 4 20 100 2000",
    "\u6771\u4eac \u6771\u4eac\u90fd \u4eac\u90fd \U0001f642\U0001f642 \U0001f600",
]
ADDED = ["<think>", "</think>", "<|end|>", "<tool>"]


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE with 400 tokens; `<|end|>` is special, the other added tokens are not."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
    )
    backend.train_from_iterator(TEXT, trainer)
    backend.add_tokens([AddedToken(text, special=text == "<|end|>", normalized=False) for text in ADDED])
    return Tokenizer(backend, {"eos_token": "<|end|>"})


def sentencepiece_tokens() -> list[tuple[str, int]]:
    """(token, type) as a GGUF file lists them: special tokens, bytes, words by falling score, single characters."""
    tokens = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{byte:02X}>", 6) for byte in range(256))]
    words = sorted({piece for text in TEXT for word in text.split() for piece in _pieces("\u2581" + word)}, key=_rank)
    return [*tokens, ("<tool>", 4), *((word, 1) for word in words)]


def _pieces(word: str) -> set[str]:
    """Beginnings of the word, its short parts and its characters; those above U+0370 are left to the byte tokens."""
    parts = {word[start : start + length] for start in range(len(word)) for length in (1, 2, 3)}
    pieces = {word[:end] for end in range(1, min(len(word), 9) + 1)} | parts
    return {piece for piece in pieces if all(character < "\u0370" or character == "\u2581" for character in piece)}


def _rank(piece: str) -> tuple[int, str]:
    return len(piece), piece


def sentencepiece_metadata(**more: Any) -> dict[str, Any]:
    """A GGUF file's keys for the small SentencePiece tokenizer: scores, no merges."""
    tokens = sentencepiece_tokens()
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.scores": [-float(id) if kind == 1 else 0.0 for id, (_, kind) in enumerate(tokens)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


@cache
def sentencepiece() -> Tokenizer:
    """The small SentencePiece tokenizer."""
    return tokenizer_from_gguf(sentencepiece_metadata())


def write_directory(directory: Path, backend: tokenizers.Tokenizer, **config: Any) -> Path:
    """A Hugging Face directory with tokenizer.json and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def loaded(directory: Path, backend: tokenizers.Tokenizer, **config: Any) -> Tokenizer:
    """Written there and read back."""
    return tokenizer_from_directory(write_directory(directory, backend, **config))


def llama2_backend() -> tokenizers.Tokenizer:
    """The small SentencePiece tokenizer as Llama 2's tokenizer.json describes itself (to compare with the GGUF reading)."""
    tokens = [token for token, _ in sentencepiece_tokens()]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    pairs = [(a, token[len(a) :], token) for token in tokens for a in (token[:cut] for cut in range(1, len(token)))]
    merges = [
        (a, b) for a, b, _ in sorted((p for p in pairs if p[0] in vocabulary and p[1] in vocabulary), key=_order(tokens))
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return backend


def _order(tokens: list[str]) -> Any:
    place = {token: id for id, token in enumerate(tokens)}
    return lambda pair: (place[pair[2]], -len(pair[0]))
