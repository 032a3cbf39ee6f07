"""Deltas to pieces: stop strings, burst deliveries, logprobs, the end. Case numbers are those of the bug reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.request import RequestDelta, TokenLogprobs
from octavo.parsing.pipeline import OutputPipeline, Piece
from octavo.sampling.params import SamplingParams
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.text import small


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


def logprob_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs([token_id], [-float(token_id)], 1)


def deltas(ids: list[int], sizes: list[int], finish: str | None = None) -> list[RequestDelta]:
    """The ids in bursts of these sizes (the last size goes on); the end is in the delta with the last id."""
    result, start = [], 0
    while start < len(ids):
        size = sizes[min(len(result), len(sizes) - 1)]
        part = ids[start : start + size]
        result.append(RequestDelta("r", token_ids=part, logprobs=[logprob_of(id) for id in part]))
        start += size
    if finish is not None:
        result = result or [RequestDelta("r")]
        result[-1].finish_reason = finish
    return result


def run(tokenizer: Tokenizer | None, params: SamplingParams, given: list[RequestDelta]) -> tuple[list[Piece], Piece]:
    """The pieces, and all of them as one."""
    pipeline = OutputPipeline(tokenizer, params)
    pieces = [pipeline.push(delta) for delta in given]
    whole = Piece(
        "".join(piece.text for piece in pieces),
        [id for piece in pieces for id in piece.token_ids],
        [one for piece in pieces for one in piece.logprobs or []],
        next((piece.finish_reason for piece in pieces if piece.finish_reason), None),
        next((piece.stop_reason for piece in pieces if piece.stop_reason is not None), None),
    )
    return pieces, whole


def test_c68_c70_c73_a_stop_string_ends_the_text_and_the_ids(smol: Tokenizer) -> None:
    ids = smol.encode("ABC QRSTUVW XYZ and more")
    for sizes in ([1], [4], [len(ids)]):
        _, whole = run(smol, SamplingParams(stop="QRSTUVW"), deltas(ids, sizes))
        assert (whole.text, whole.finish_reason, whole.stop_reason) == ("ABC ", "stop", "QRSTUVW")
        count = len(whole.token_ids)  # up to the token that completes it
        assert "QRSTUVW" in smol.decode(ids[:count])
        assert "QRSTUVW" not in smol.decode(ids[: count - 1])
        assert whole.logprobs == [logprob_of(id) for id in ids[:count]]
        _, whole = run(smol, SamplingParams(stop=["QRSTUVW"], include_stop_str_in_output=True), deltas(ids, sizes))
        assert whole.text == "ABC QRSTUVW"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("He said it was late", "was", "He said it "),  # within the token " was"
        ("We are going to town", "ing t", "We are go"),  # over two tokens
        ("one. two. three", ["two", "one"], ""),
        ("a\nObservation b\nObservation c", "\nObservation c", "a\nObservation b"),  # C50: nothing earlier is cut
    ],
)
def test_c70_the_text_is_cut_at_the_character(smol: Tokenizer, text: str, stop: str | list[str], expected: str) -> None:
    ids = smol.encode(text)
    _, whole = run(smol, SamplingParams(stop=stop), deltas(ids, [1]))
    assert whole.text == expected
    assert whole.finish_reason == "stop"


@given(
    ids=st.lists(st.integers(0, 403), max_size=16),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    stop=st.lists(st.text("the arbouqi\ufffd\u00fc", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    finish=st.sampled_from(["length", "stop", "abort"]),
    min_tokens=st.integers(0, 8),
)
def test_c73_c85_bursts_change_nothing(
    ids: list[int], sizes: list[int], stop: list[str], include: bool, finish: str, min_tokens: int
) -> None:
    tokenizer = small.byte_level()
    params = SamplingParams(stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens, max_tokens=None)
    _, at_once = run(tokenizer, params, deltas(ids, [max(1, len(ids))], finish))
    _, one_by_one = run(tokenizer, params, deltas(ids, [1], finish))
    _, in_bursts = run(tokenizer, params, deltas(ids, sizes, finish))
    assert at_once == one_by_one == in_bursts
    assert [logprob_of(id) for id in at_once.token_ids] == at_once.logprobs


@given(ids=st.lists(st.integers(0, 403), max_size=20))
def test_without_stop_strings_it_is_the_whole_text(ids: list[int]) -> None:
    _, whole = run(small.byte_level(), SamplingParams(), deltas(ids, [1], "length"))
    assert whole.text == small.byte_level().decode(ids)
    assert whole.token_ids == ids


def test_what_was_held_back_comes_at_the_end(smol: Tokenizer) -> None:
    ids = smol.encode("wait for the end")
    pieces, whole = run(smol, SamplingParams(stop=["the ending"]), deltas(ids, [1], "length"))
    assert whole.text == "wait for the end"
    assert pieces[-1].text.endswith("the end")
    assert whole.finish_reason == "length"


@pytest.mark.parametrize("include", [True, False])
def test_the_token_that_stopped_it_is_no_text(smol: Tokenizer, include: bool) -> None:
    """EOS or one of stop_token_ids: its id is in the output; its text only with include_stop_str_in_output."""
    ids = smol.encode("all done")
    given = deltas(ids, [1], "stop")
    given[-1].stop_reason = ids[-1]
    params = SamplingParams(stop_token_ids=[ids[-1]], include_stop_str_in_output=include)
    _, whole = run(smol, params, given)
    assert whole.token_ids == ids
    assert whole.text == ("all done" if include else smol.decode(ids[:-1]))
    assert (whole.finish_reason, whole.stop_reason) == ("stop", ids[-1])


def test_stop_strings_count_only_after_min_tokens(smol: Tokenizer) -> None:
    ids = smol.encode("one two one two one two")
    assert len(ids) == 6
    _, whole = run(smol, SamplingParams(stop="two", min_tokens=2), deltas(ids, [1]))
    assert whole.text == "one two one "
    assert len(whole.token_ids) == 4
    _, whole = run(smol, SamplingParams(stop="two one", min_tokens=2), deltas(ids, [3]))
    assert whole.text == "one "  # begins before, is complete after


def test_c73_a_stop_string_in_the_last_delta_wins(smol: Tokenizer) -> None:
    ids = smol.encode("go on STOP here")
    given = deltas(ids, [len(ids)], "length")
    _, whole = run(smol, SamplingParams(stop="STOP"), given)
    assert (whole.text, whole.finish_reason, whole.stop_reason) == ("go on ", "stop", "STOP")
    assert len(whole.token_ids) < len(ids)


def test_nothing_follows_the_end(smol: Tokenizer) -> None:
    pipeline = OutputPipeline(smol, SamplingParams(stop="b"))
    assert pipeline.push(RequestDelta("r", token_ids=smol.encode("abc"))).finish_reason == "stop"
    assert pipeline.is_finished
    assert pipeline.push(RequestDelta("r", token_ids=[1, 2], finish_reason="abort")) == Piece()


def test_an_error_releases_what_was_there(smol: Tokenizer) -> None:
    pipeline = OutputPipeline(smol, SamplingParams(stop="abcdef"))
    assert pipeline.push(RequestDelta("r", token_ids=smol.encode("x abc"))).text == "x "
    last = pipeline.push(RequestDelta("r", finish_reason="error", error="it broke"))
    assert (last.text, last.finish_reason, last.error) == ("abc", "error", "it broke")


@pytest.mark.parametrize("detokenize", [True, False])
def test_without_a_tokenizer_there_are_only_ids(smol: Tokenizer, detokenize: bool) -> None:
    params = SamplingParams(detokenize=detokenize)
    _, whole = run(None if detokenize else smol, params, deltas([5, 6, 7], [2], "length"))
    assert (whole.text, whole.token_ids, whole.finish_reason) == ("", [5, 6, 7], "length")


def test_special_tokens_are_shown_when_asked_for(smol: Tokenizer) -> None:
    ids = [1, *smol.encode("hi"), 2]
    _, whole = run(smol, SamplingParams(skip_special_tokens=False), deltas(ids, [1], "length"))
    assert whole.text == "<|im_start|>hi<|im_end|>"
    _, whole = run(smol, SamplingParams(skip_special_tokens=False, stop="<|im_end|>"), deltas(ids, [1], "length"))
    assert whole.text == "<|im_start|>hi"


def test_c85_logprobs_come_with_their_tokens_though_the_text_is_held(smol: Tokenizer) -> None:
    ids = smol.encode("the end")
    pipeline = OutputPipeline(smol, SamplingParams(stop="the ending"))
    for id in ids:
        piece = pipeline.push(RequestDelta("r", token_ids=[id], logprobs=[logprob_of(id)]))
        assert piece.text == ""
        assert piece.token_ids == [id]
        assert piece.logprobs == [logprob_of(id)]
    assert OutputPipeline(smol, SamplingParams()).push(RequestDelta("r", token_ids=ids)).logprobs is None
