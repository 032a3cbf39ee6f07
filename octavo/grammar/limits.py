"""How much work a grammar may cause."""

from __future__ import annotations

import llguidance


def limits() -> llguidance.LLParserLimits:
    """The same for judging a grammar and for following it: compiling one takes less than a second, a mask some 30 ms, at the
    very worst. What goes beyond is an error of that grammar."""
    return llguidance.LLParserLimits(verbose_errors=False)
