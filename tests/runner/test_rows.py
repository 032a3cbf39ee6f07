"""The permanent rows of running sequences."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.plan import NewRow, ScheduledRow
from octavo.errors import ConfigError
from octavo.runner.rows import Rows, is_plain
from tests.scripted import make_request


def test_more_tokens_than_there_are_addresses_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="--max-model-len 2147483647 times --max-num-seqs 1048576") as caught:
        Rows(1 << 20, (1 << 31) - 1, 16)
    assert "\n" not in str(caught.value)


def full_rows() -> Rows:
    """Two rows of four tokens each, one less than there may be."""
    rows = Rows(2, 5, 2)
    for row in range(2):
        rows.add(NewRow(row, make_request(str(row), [1, 2, 3, 4]), 0, []), None)
        rows.append_blocks(row, [3 * row, 3 * row + 1, 3 * row + 2])
    return rows


def test_a_token_behind_the_longest_sequence_is_in_nobodys_way() -> None:
    rows = full_rows()
    for _ in range(2):
        rows.append_tokens(np.array([0]), [7])
    assert rows.tokens(1, 0, 4).tolist() == [1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="plan for row 0: tokens 5 to 6, sample True, but it has 6 tokens and room for 5"):
        rows.plain_batch([ScheduledRow(0, 5, 1, [], True)])


def test_a_row_that_drew_nothing_gets_nothing() -> None:
    rows = full_rows()
    rows.append_tokens(np.array([0, 1]), [None, 9])
    assert rows.num_tokens.tolist() == [4, 5]
    assert rows.tokens(1, 0, 5).tolist() == [1, 2, 3, 4, 9]


def test_only_one_token_and_a_draw_of_each_row_are_plain() -> None:
    usual = ScheduledRow(0, 3, 1, [], True)
    assert is_plain([usual, usual])
    for other in (ScheduledRow(1, 3, 1, [], False), ScheduledRow(1, 3, 2, [], True), ScheduledRow(1, 3, 0, [], True)):
        assert not is_plain([usual, other])


def test_a_plain_plan_that_does_not_fit_its_rows_is_refused() -> None:
    rows = full_rows()
    assert rows.plain_batch([ScheduledRow(1, 3, 1, [], True)])[1].slot_mapping.tolist() == [4 * 2 + 1]
    for start in (2, 4):
        with pytest.raises(RuntimeError, match=f"plan for row 1: tokens {start} to {start + 1}"):
            rows.plain_batch([ScheduledRow(1, start, 1, [], True)])
    rows.add(NewRow(0, make_request("0", [1, 2, 3, 4]), 0, []), None)
    rows.append_blocks(0, [7])
    with pytest.raises(RuntimeError, match="it has 4 tokens and room for 2"):
        rows.plain_batch([ScheduledRow(1, 3, 1, [], True), ScheduledRow(0, 3, 1, [], True)])
