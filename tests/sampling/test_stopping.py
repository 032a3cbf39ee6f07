"""When a sequence ends by its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams
from octavo.sampling.stopping import finish_reason

OWN_EOS, OTHER_EOS, STOP, PLAIN = 2, 32007, 50, 7
GOES_ON = (None, None)

CASES: list[tuple[str, dict[str, Any], list[int], tuple[str | None, int | None]]] = [
    ("plain token", {}, [PLAIN], GOES_ON),
    ("own EOS", {}, [PLAIN, OWN_EOS], ("stop", None)),
    ("EOS of the generation config", {}, [OTHER_EOS], ("stop", OTHER_EOS)),
    ("only the newest counts", {}, [OWN_EOS, PLAIN], GOES_ON),
    ("stop token", {"stop_token_ids": [STOP]}, [STOP], ("stop", STOP)),
    ("own EOS named as a stop token", {"stop_token_ids": [OWN_EOS]}, [OWN_EOS], ("stop", OWN_EOS)),
    ("ignored EOS", {"ignore_eos": True}, [OWN_EOS], GOES_ON),
    ("ignored EOS of the generation config", {"ignore_eos": True}, [OTHER_EOS], GOES_ON),
    ("stop token under ignore_eos", {"ignore_eos": True, "stop_token_ids": [STOP]}, [STOP], ("stop", STOP)),
    ("EOS as stop token under ignore_eos", {"ignore_eos": True, "stop_token_ids": [OWN_EOS]}, [OWN_EOS], ("stop", OWN_EOS)),
    ("EOS before min_tokens", {"min_tokens": 4}, [PLAIN, PLAIN, OWN_EOS], GOES_ON),
    ("EOS as the last of min_tokens", {"min_tokens": 3}, [PLAIN, PLAIN, OWN_EOS], ("stop", None)),
    ("stop token before min_tokens", {"min_tokens": 2, "stop_token_ids": [STOP]}, [STOP], GOES_ON),
    ("max_tokens", {"max_tokens": 2}, [PLAIN, PLAIN], ("length", None)),
    ("max_tokens under ignore_eos", {"max_tokens": 1, "ignore_eos": True}, [OWN_EOS], ("length", None)),
    ("EOS is the last of max_tokens", {"max_tokens": 2}, [PLAIN, OWN_EOS], ("stop", None)),
    ("no max_tokens", {"max_tokens": None}, [PLAIN] * 90, GOES_ON),
    ("context full", {"max_tokens": None}, [PLAIN] * 97, ("length", None)),
    ("context full before min_tokens", {"max_tokens": None, "min_tokens": 200}, [OWN_EOS] * 97, ("length", None)),
]


@pytest.mark.parametrize(("fields", "output", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_finish_reason(fields: dict[str, Any], output: list[int], expected: tuple[str | None, int | None]) -> None:
    request = Request("r", [5, 5, 5], SamplingParams(**fields), 0.0, [OWN_EOS, OTHER_EOS])
    assert finish_reason(request, output, max_model_len=100) == expected
