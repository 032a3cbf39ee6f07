"""The permanent rows of running sequences."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.runner.rows import Rows


def test_more_tokens_than_there_are_addresses_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="--max-model-len 2147483647 times --max-num-seqs 1048576") as caught:
        Rows(1 << 20, (1 << 31) - 1, 16)
    assert "\n" not in str(caught.value)
