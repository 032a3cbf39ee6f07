"""How much work and memory a grammar may cause."""

from __future__ import annotations

import llguidance

MAX_SYMBOLS = 20_000
"""Five times what a schema of 60 objects with 20 members each has; so large a grammar takes some 25 MiB."""

MAX_LEXER_STATES = 50_000


def limits() -> llguidance.LLParserLimits:
    """The same for judging a grammar and for following it: compiling one takes less than a second, a mask some 30 ms, at the
    very worst. What goes beyond is an error of that grammar."""
    return llguidance.LLParserLimits(max_grammar_size=MAX_SYMBOLS, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
