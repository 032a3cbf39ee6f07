"""Stop strings over characters: against a plain search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.stop import StopStrings

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end, stop string) of the match that ends first; the longest of those that end there."""
    ends = [(end, -len(stop), stop) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    return (min(ends)[0], min(ends)[2]) if ends else None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Length of the longest suffix of the text with which a stop string begins."""
    cuts = [n for n in range(1, len(text) + 1) if any(stop.startswith(text[-n:]) and stop != text[-n:] for stop in stops)]
    return max(cuts, default=0)


@given(stops=STOPS, pieces=st.lists(st.text("abc", max_size=6), max_size=8), include=st.booleans())
def test_any_pieces_give_what_the_whole_text_gives(stops: list[str], pieces: list[str], include: bool) -> None:
    searcher = StopStrings(stops, include_in_output=include)
    seen = released = ""
    for piece in pieces:
        seen += piece
        text, matched = searcher.push(piece)
        released += text
        found = first_match(seen, stops)
        if found is not None:
            end, stop = found
            assert matched == stop
            assert released == seen[: end if include else end - len(stop)]
            assert searcher.finish() == ""
            return
        assert matched is None
        assert released == seen[: len(seen) - longest_beginning(seen, stops)]  # held back no longer than needed
    assert released + searcher.finish() == seen


@given(stops=STOPS, early=st.text("abc", max_size=8), late=st.text("abc", max_size=8))
def test_matches_that_end_too_early_do_not_count(stops: list[str], early: str, late: str) -> None:
    searcher = StopStrings(stops)
    first, none = searcher.push(early, armed=False)
    assert none is None
    assert first == early[: len(early) - longest_beginning(early, stops)]
    text, matched = searcher.push(late)
    ends = [
        end for end in range(len(early) + 1, len(early + late) + 1) if any((early + late)[:end].endswith(s) for s in stops)
    ]
    if ends:
        stop = max((s for s in stops if (early + late)[: ends[0]].endswith(s)), key=len)
        assert (first + text, matched) == ((early + late)[: ends[0] - len(stop)], stop)
    else:
        assert first + text + searcher.finish() == early + late


@pytest.mark.parametrize("include", [True, False])
def test_c68_the_pieces_of_a_bug_report(include: bool) -> None:
    searcher = StopStrings(["QRSTUVW"], include_in_output=include)
    results = [searcher.push(piece) for piece in ("ABC Q", "RS", "T", "UV", "W XYZ")]
    assert results[:-1] == [("ABC ", None), ("", None), ("", None), ("", None)]
    assert results[-1] == ("QRSTUVW" if include else "", "QRSTUVW")


def test_the_longest_of_those_that_end_together_is_cut() -> None:
    assert StopStrings(["b", "ab"]).push("xab") == ("x", "ab")
    assert StopStrings(["ab", "b"]).push("xab") == ("x", "ab")


def test_no_stop_strings_hold_nothing() -> None:
    searcher = StopStrings([])
    assert searcher.push("anything") == ("anything", None)
    assert searcher.finish() == ""


def test_a_beginning_that_does_not_continue_is_released_at_once() -> None:
    searcher = StopStrings(["abcd", "bcx"])
    assert searcher.push("abc") == ("", None)
    assert searcher.push("y") == ("abcy", None)
    assert searcher.push("zabc") == ("z", None)
    assert searcher.push("x") == ("a", "bcx")
