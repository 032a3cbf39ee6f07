"""Small tokenizer files of other kinds than tokenizer.json, written here, and what they mean written a second time."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from octavo.text.pieces import byte_alphabet
from tests.text.small import byte_level, sentencepiece_tokens

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = "\u2581"
Pieces = list[tuple[str, float, int]]


@cache
def pieces() -> Pieces:
    """(text, score, type): those of `small.sentencepiece_tokens` with rising cost, so that no two are equal."""
    kinds = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 6: BYTE}
    return [(text, -0.25 * id if kind == 1 else 0.0, kinds[kind]) for id, (text, kind) in enumerate(sentencepiece_tokens())]


def sentencepiece_file(pieces: Pieces, trainer: Mapping[int, Any], normalizer: Mapping[int, Any] | None = None) -> bytes:
    """A ModelProto with the fields of its two specifications by number."""
    parts = [_field(1, _message({1: text, 2: score, 3: kind})) for text, score, kind in pieces]
    return b"".join([*parts, _field(2, _message(trainer)), _field(3, _message(normalizer or {}))])


BPE: dict[int, Any] = {3: 2, 35: True}
UNIGRAM: dict[int, Any] = {3: 1, 35: True}
AS_IT_IS: dict[int, Any] = {4: False}  # spaces are not joined


def _message(fields: Mapping[int, Any]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields.items())


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % (1 << 64))
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def bpe_ids(text: str, pieces: Pieces) -> list[int]:
    """What SentencePiece's BPE makes of a text without special tokens: the best pair first, of equal ones the leftmost."""
    scores = {piece: score for piece, score, kind in pieces if kind == NORMAL}
    symbols = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return list(_ids(symbols, pieces))
        i = -max(pairs)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def unigram_ids(text: str, pieces: Pieces) -> list[int]:
    """The pieces with the largest sum of scores; a character that none has costs 10 more than the worst of them."""
    scores = {piece: score for piece, score, kind in pieces if kind == NORMAL}
    unknown = min(scores.values()) - 10.0
    text = SPACE + text.replace(" ", SPACE) if text else ""
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        found = []
        for start in range(end):
            piece = text[start:end]
            if piece in scores or end - start == 1:
                found.append((best[start][0] + scores.get(piece, unknown), [*best[start][1], piece]))
        best.append(max(found, key=lambda each: each[0]))
    return list(_ids(best[-1][1], pieces))


def _ids(symbols: list[str], pieces: Pieces) -> Iterator[int]:
    places = {piece: id for id, (piece, _, _) in enumerate(pieces)}
    for symbol in symbols:
        if symbol in places:
            yield places[symbol]
        else:
            yield from (places[f"<0x{byte:02X}>"] for byte in symbol.encode())


@cache
def ranks() -> dict[bytes, int]:
    """All bytes, then the merges that `small.byte_level` was trained to."""
    alphabet, tokenizer = byte_alphabet(), byte_level()
    words = [tokenizer.token_text(id) for id in range(tokenizer.vocab_size) if id not in tokenizer.added_ids]
    merged = [bytes(alphabet[character] for character in word) for word in words if len(word) > 1]
    return {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *merged])}


def ranks_file(ranks: Mapping[bytes, int]) -> bytes:
    """As tiktoken writes them."""
    return b"".join(b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items())


def tekken_json(pattern: str, **changes: Any) -> dict[str, Any]:
    """A vocabulary of which the last ten ranks are not used, with 24 ids before it."""
    vocabulary = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None} for token, rank in ranks().items()
    ]
    settings = {
        "pattern": pattern,
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) - 10 + 24,
        "default_num_special_tokens": 24,
        "version": "v3",
    }
    return {"config": settings, "vocab": vocabulary, "version": 1, "type": "Tekken", **changes}


def rank_ids(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """What tiktoken makes of a piece of a text: the pair of the lowest rank first, of equal ones the leftmost."""
    symbols = [word] if word in ranks else [bytes([byte]) for byte in word]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ranks]
        if not pairs:
            return [ranks[symbol] for symbol in symbols]
        i = min(pairs)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def write(directory: Path, name: str, data: bytes | dict[str, Any], **config: Any) -> Path:
    """A directory with the file and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
