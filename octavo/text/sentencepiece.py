"""SentencePiece models (Kudo and Richardson, 2018), unigram and BPE, as tokenizers of the `tokenizers` library.

The file is one protocol buffer message, whose schema is sentencepiece_model.proto of github.com/google/sentencepiece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.text.converted import Converted
from octavo.text.pre_tokenizers import check_ids
from octavo.text.protobuf import fields_of, float_of, signed

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPACE = "\u2581"
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of pieces
_UNIGRAM, _BPE = 1, 2  # types of models
_TRIE_STEP = 1024  # bytes: double-array tries grow by 256 units
_KINDS = {3: "words", 4: "characters"}


class Piece(NamedTuple):
    """One token."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """What of the file decides about ids. Fields have the schema's defaults."""

    pieces: tuple[Piece, ...] = ()
    kind: int = _UNIGRAM
    byte_fallback: bool = False
    space_is_suffix: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    charsmap: bytes = b""  # of the normalisation
    adds_space: bool = True  # before the text
    joins_spaces: bool = True  # several become one, and none stay at the ends
    marks_spaces: bool = True
    undoes: bool = False  # a normalisation while decoding


# Message -> number of its field -> name above.
_OF_TRAINER = {3: "kind", 24: "space_is_suffix", 35: "byte_fallback", 40: "unk_id", 41: "bos_id", 42: "eos_id", 43: "pad_id"}
_OF_NORMALIZER = {2: "charsmap", 3: "adds_space", 4: "joins_spaces", 5: "marks_spaces"}


def read_sentencepiece(data: bytes) -> SentencePieceModel:
    """ValueError for what is no such model."""
    pieces: list[Piece] = []
    values: dict[str, Any] = {}
    for number, value in fields_of(data):
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is no message")
        if number == 1:
            pieces.append(_piece(value))
        elif number in (2, 3):
            values.update(_named(value, _OF_TRAINER if number == 2 else _OF_NORMALIZER))
        elif number == 5:
            values["undoes"] = any(inner == 2 and content for inner, content in fields_of(value))
    if not pieces:
        raise ValueError("it has no pieces")
    return replace(SentencePieceModel(), pieces=tuple(pieces), **values)


def _piece(message: bytes) -> Piece:
    fields = {1: b"", 2: bytes(4), 3: _NORMAL, **dict(fields_of(message))}
    text, score, kind = fields[1], fields[2], fields[3]
    if not (isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)):
        raise ValueError("a piece has fields of other types")
    return Piece(text.decode(), float_of(score), kind)


def _named(message: bytes, names: Mapping[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in fields_of(message):
        if number in names:
            default = getattr(SentencePieceModel, names[number])
            if isinstance(value, bytes) != isinstance(default, bytes):
                raise ValueError(f"its {names[number]} has another type")
            found[names[number]] = value if isinstance(value, bytes) else type(default)(signed(value))
    return found


def convert_sentencepiece(model: SentencePieceModel, declared: Mapping[int, str], *, legacy: bool = True) -> Converted:
    """Control pieces become special tokens; user-defined ones are cut out of a text as they are. `declared` names tokens by
    id that the model has not, or has under another name. `legacy`: a space is put before every part of a text that lies
    between special tokens, else before the first one only. ValueError for what has no counterpart."""
    _refuse(model)
    names = [piece.text for piece in model.pieces]
    for id, text in declared.items():
        if id < len(names):
            names[id] = text
    backend = _bpe(model, names, declared) if model.kind == _BPE else _unigram(model, names, declared)
    known = set(declared.values())  # of these, the library cuts out those that are written as they are
    _set_up(backend, model, [text for text in _user_defined(model) if text not in known or SPACE in text], legacy)
    from tokenizers import AddedToken

    control = [names[id] for id, piece in enumerate(model.pieces) if piece.kind == _CONTROL]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    ids = {"unk_token": model.unk_id, "bos_token": model.bos_id, "eos_token": model.eos_id, "pad_token": model.pad_id}
    special = {name: names[id] for name, id in ids.items() if 0 <= id < len(names)}
    return Converted(backend, {**special, "add_bos_token": "bos_token" in special, "add_eos_token": False})


def _refuse(model: SentencePieceModel) -> None:
    if model.kind not in (_UNIGRAM, _BPE):
        raise ValueError(f"a model of {_KINDS.get(model.kind, f'type {model.kind}')} is not supported (unigram and BPE are)")
    if model.space_is_suffix:
        raise ValueError("a model that puts spaces behind words is not supported")
    if model.undoes:
        raise ValueError("a model that normalises while decoding is not supported")
    for text in _user_defined(model):
        plain = text.replace(SPACE, " ")
        if any(step.normalize_str(plain) != plain for step in _normalisation(model)):
            raise ValueError(f"its token {text!r} stands for itself, and its normalisation would change it")
    if not 0 <= model.unk_id < len(model.pieces):
        raise ValueError(f"its unknown token {model.unk_id} is none of its {len(model.pieces)} pieces")


def _bpe(model: SentencePieceModel, names: list[str], declared: Mapping[int, str]) -> Backend:
    import tokenizers
    from tokenizers import models

    vocabulary = {name: id for id, name in enumerate(names)} | {text: id for id, text in declared.items()}
    normal = {piece.text: (-piece.score, id) for id, piece in enumerate(model.pieces) if piece.kind == _NORMAL}
    ranked = [
        (*rank, left, right)
        for text, rank in normal.items()
        for left, right in ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        if left in normal and right in normal
    ]
    check_ids(vocabulary)
    try:
        bpe = models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for _, _, left, right in sorted(ranked)],
            unk_token=names[model.unk_id],
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
            ignore_merges=bool(_user_defined(model)),  # which nothing is merged into
        )
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"its pieces do not fit the tokens that were added: {error}") from None
    return tokenizers.Tokenizer(bpe)


def _unigram(model: SentencePieceModel, names: list[str], declared: Mapping[int, str]) -> Backend:
    import tokenizers
    from tokenizers import models

    more = {id: text for id, text in declared.items() if id >= len(names)}
    if sorted(more) != list(range(len(names), len(names) + len(more))):
        raise ValueError(f"its {len(names)} pieces and the tokens that were added do not make a row of ids")
    scores = [piece.score for piece in model.pieces]
    lowest = min(scores) - 100.0  # those are found before the model is asked
    vocabulary = [*zip(names, scores, strict=True), *((more[id], lowest) for id in sorted(more))]
    return tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=model.unk_id, byte_fallback=model.byte_fallback))


def _user_defined(model: SentencePieceModel) -> list[str]:
    return sorted((piece.text for piece in model.pieces if piece.kind == _USER_DEFINED), key=len, reverse=True)


def _normalisation(model: SentencePieceModel) -> list[Any]:
    """By the model's own table of characters."""
    from tokenizers import normalizers

    if not model.charsmap:
        return []
    size = int.from_bytes(model.charsmap[:4], "little")
    if not size or size % _TRIE_STEP or len(model.charsmap) < 4 + size:
        raise ValueError("its table of characters is damaged")  # which ends the library's own thread
    table = normalizers.Precompiled(model.charsmap)
    # The library looks up the two as one character, and SentencePiece one after the other.
    ends = table.normalize_str("\r") + table.normalize_str("\n")
    return [normalizers.Replace("\r\n", ends), table]


def _set_up(backend: Backend, model: SentencePieceModel, whole: list[str], legacy: bool) -> None:
    """What is done before the model and after it, in SentencePiece's order. The pieces `whole` are cut out, the longest
    first."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    steps: list[Any] = _normalisation(model)
    if model.joins_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.adds_space and legacy:
        steps.append(normalizers.Prepend(SPACE if model.marks_spaces else " "))
    if model.marks_spaces:
        steps.append(normalizers.Replace(" ", SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    cuts: list[Any] = []
    if model.adds_space and not legacy:
        cuts.append(pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False))
    if whole:
        cuts.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, whole))), behavior="isolated"))
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    after: list[Any] = [decoders.Replace(SPACE, " ")]
    after += [decoders.ByteFallback()] if model.byte_fallback else []
    after += [decoders.Fuse(), *([decoders.Strip(" ", 1, 0)] if model.adds_space else [])]
    backend.decoder = decoders.Sequence(after)
