"""Incremental decoding: pieces joined are the whole text, whatever the ids. Case numbers are those of the bug reports."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from octavo.text.detokenizer import Detokenizer
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.text import small

HARD = "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u6771\u4eac \u00e9 \ufffd!"
BYTE_LEVEL_IDS = st.lists(st.integers(0, 403), max_size=24)
SENTENCEPIECE_IDS = st.lists(st.one_of(st.integers(0, 500), st.integers(3, 258), st.integers(130, 258)), max_size=24)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


def deltas(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [], **options)
    return [*(detokenizer.push(id) for id in ids), detokenizer.finish()]


def lossy(data: bytes, *, each_byte: bool) -> str:
    """UTF-8 with U+FFFD for what is none: for every ill-formed sequence, or for every byte of it."""
    text = ""
    while True:
        try:
            return text + data.decode()
        except UnicodeDecodeError as error:
            text += data[: error.start].decode() + "\ufffd" * (error.end - error.start if each_byte else 1)
            data = data[error.end :]


def continuation(before: bytes, after: bytes, *, each_byte: bool) -> str:
    """What `after` adds to the text of `before`; a character cut in two by the border belongs to `after`."""
    text, whole = (lossy(data, each_byte=each_byte) for data in (before, before + after))
    if whole.startswith(text):
        return whole[len(text) :]
    cut = next(n for n in range(1, len(before) + 1) if before[-n] & 0xC0 != 0x80)  # from the last byte that starts one
    return whole[len(lossy(before[:-cut], each_byte=each_byte)) :]


@given(ids=BYTE_LEVEL_IDS, skip=st.booleans())
def test_c74_byte_level_pieces_are_the_whole_text(ids: list[int], skip: bool) -> None:
    tokenizer = small.byte_level()
    joined = "".join(deltas(tokenizer, ids, skip_special_tokens=skip))
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)
    assert joined == tokenizer._backend.decode(ids, skip_special_tokens=skip)


@given(ids=st.lists(st.integers(0, 49_151), max_size=40))
def test_c74_smollm2_pieces_are_the_whole_text(smol: Tokenizer, ids: list[int]) -> None:
    assert "".join(deltas(smol, ids)) == smol._backend.decode(ids)


@pytest.mark.nightly
@given(ids=st.lists(st.integers(0, 49_151), max_size=100), prompt=st.lists(st.integers(0, 49_151), max_size=50))
def test_smollm2_pieces_after_a_prompt(smol: Tokenizer, ids: list[int], prompt: list[int]) -> None:
    before, after = (b"".join(smol.token_bytes(id) for id in part if id not in smol.special_ids) for part in (prompt, ids))
    assert "".join(deltas(smol, ids, prompt)) == continuation(before, after, each_byte=False)


@given(ids=SENTENCEPIECE_IDS, skip=st.booleans())
def test_c74_sentencepiece_pieces_are_the_whole_text(ids: list[int], skip: bool) -> None:
    tokenizer = small.sentencepiece()
    shown = [id for id in ids if not (skip and id in tokenizer.special_ids)]
    whole = lossy(b"".join(map(tokenizer.token_bytes, shown)), each_byte=True).removeprefix(" ")
    assert "".join(deltas(tokenizer, ids, skip_special_tokens=skip)) == whole == tokenizer.decode(ids, skip)


@given(text=st.text(max_size=20), cut=st.integers(0, 3))
def test_sentencepiece_bytes_as_hugging_face_decodes_them(text: str, cut: int) -> None:
    tokenizer = small.sentencepiece()
    words = tokenizer.encode("the harbour", False)
    ids = [*words, *(3 + byte for byte in text.encode("utf-8", "ignore"))]
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)
    cut_off = [*words, *[3 + byte for byte in "\U0001f642".encode()][: 4 - cut]]
    assert tokenizer.decode(cut_off) == tokenizer._backend.decode(cut_off)


@given(prompt=BYTE_LEVEL_IDS, ids=BYTE_LEVEL_IDS)
def test_c76_generated_text_continues_the_prompt(prompt: list[int], ids: list[int]) -> None:
    tokenizer = small.byte_level()
    before, after = (b"".join(map(tokenizer.token_bytes, part)) for part in (prompt, ids))
    pieces = deltas(tokenizer, ids, prompt, skip_special_tokens=False)
    assert "".join(pieces) == continuation(before, after, each_byte=False)


@given(prompt=st.lists(st.integers(4, 500), min_size=1, max_size=8), ids=SENTENCEPIECE_IDS)
def test_generated_text_continues_the_prompt_of_a_sentencepiece_model(prompt: list[int], ids: list[int]) -> None:
    tokenizer = small.sentencepiece()
    before, after = (b"".join(map(tokenizer.token_bytes, part)) for part in (prompt, ids))
    pieces = deltas(tokenizer, ids, prompt, skip_special_tokens=False)
    assert "".join(pieces) == continuation(before, after, each_byte=True)


@pytest.mark.parametrize("tokenizer", [small.byte_level(), small.sentencepiece()], ids=["byte-level", "sentencepiece"])
def test_c74_characters_of_several_tokens_come_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(HARD, add_special_tokens=False)
    assert len(ids) > len(HARD)
    pieces = deltas(tokenizer, ids)
    assert "".join(pieces) == HARD
    assert sum("\ufffd" in piece for piece in pieces) == 1  # the text's own
    ended = next(i for i, piece in enumerate(pieces) if "\u6771" in piece)
    assert any(pieces[:ended])


def test_an_incomplete_character_waits_for_the_end(smol: Tokenizer) -> None:
    ids = smol.encode("a\U0001f642")[:-1]
    pieces = deltas(smol, ids)
    assert pieces == ["a", *[""] * (len(ids) - 1), "\ufffd"]


def test_c76_a_prompt_that_ends_in_half_a_character(smol: Tokenizer) -> None:
    whole = smol.encode("The sign says \u6771\u4eac")
    for cut in range(1, len(whole)):
        prompt, ids = whole[:cut], [*whole[cut:], *smol.encode(" there")]
        joined = "".join(deltas(smol, ids, prompt))
        assert joined.endswith("\u4eac there") or joined == " there"
        assert "\ufffd" not in joined
        assert len(joined) <= sum(len(smol.token_bytes(id)) for id in ids)


def test_half_a_character_that_is_not_continued_is_not_repeated() -> None:
    tokenizer = small.byte_level()
    first, second, _ = (next(id for id in range(256) if tokenizer.token_bytes(id) == bytes([b])) for b in "\u6771".encode())
    letter = tokenizer.encode("a")
    assert deltas(tokenizer, letter, [*letter, first]) == ["a", ""]
    assert deltas(tokenizer, [second], [*letter, first]) == ["", ""]
    assert deltas(tokenizer, [], [first]) == [""]


def test_c77_added_tokens_have_no_spaces_around_them() -> None:
    tokenizer = small.byte_level()
    ids = tokenizer.encode("<think>hm</think>7")
    for spaces in (True, False):
        pieces = deltas(tokenizer, ids, skip_special_tokens=False, spaces_between_special_tokens=spaces)
        assert "".join(pieces) == "<think>hm</think>7"
    assert "".join(deltas(tokenizer, tokenizer.encode("a<|end|>b"))) == "ab"
    assert "".join(deltas(tokenizer, tokenizer.encode("a<|end|>b"), skip_special_tokens=False)) == "a<|end|>b"


def test_c77_spaces_between_special_tokens_where_the_decoder_makes_some() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"x": 0, "y": 1}, unk_token="x"))
    backend.add_special_tokens(["<a>", "<b>"])
    tokenizer = Tokenizer(backend, {})
    ids = [0, 2, 3, 1]
    assert "".join(deltas(tokenizer, ids, skip_special_tokens=False)) == "x <a> <b> y" == backend.decode(ids, False)
    options = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert "".join(deltas(tokenizer, ids, **options)) == "x <a><b> y"
    assert tokenizer.decode(ids) == "x y"


@pytest.mark.parametrize("prompt", [[], [1], [1, 1]], ids=["nothing", "bos", "bos twice"])
def test_sentencepieces_first_space_goes_only_at_the_start(prompt: list[int]) -> None:
    tokenizer = small.sentencepiece()
    ids = tokenizer.encode("the harbour", add_special_tokens=False)
    assert "".join(deltas(tokenizer, ids, prompt)) == "the harbour"
    assert "".join(deltas(tokenizer, ids, [*prompt, *ids])) == " the harbour"
    spaces = tokenizer.encode("  the", add_special_tokens=False)
    assert "".join(deltas(tokenizer, spaces, prompt)) == "  the" == tokenizer._backend.decode(spaces)


def test_metaspace_decoder_drops_the_first_tokens_spaces() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"\u2581a": 0, "\u2581b": 1, "\u2581\u2581": 2}, unk_token="\u2581a"))
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend, {})
    for ids in ([0, 1], [2, 0, 1], [1, 2, 1]):
        assert tokenizer.decode(ids) == backend.decode(ids)
        assert "".join(deltas(tokenizer, ids)) == backend.decode(ids)


def test_cost_does_not_grow_with_the_length(smol: Tokenizer) -> None:
    """Twenty times the tokens, also of a character that is never completed, take about twenty times as long."""
    ids = smol.encode("\U0001f642 the end of it. ") * 200
    spent = []
    for count in (1, 20):
        detokenizer = Detokenizer(smol)
        start = time.process_time()
        for _ in range(count):
            detokenizer.push_all(ids)
        spent.append(time.process_time() - start)
    assert spent[1] < 20 * 4 * max(spent[0], 0.002)
