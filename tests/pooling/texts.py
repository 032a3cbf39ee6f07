"""Texts of all lengths, the same on every machine."""

from __future__ import annotations

import numpy as np

_SENTENCES = (
    "the harbour was quiet that morning and the only sound came from the bells of the boats",
    "water boils at a lower temperature on a mountain because the air is thin there",
    "Grüße aus München 東京 naïve café e-mail 3.14 2026 don't re-entrant C++ [MASK] 🙂",
    "https://example.org/a?b=c tokenization unaffordable embeddings quantum physics orchestra",
    "Paris Rome Madrid cat dog bread butter violin invoice payment refund delay train platform",
)


def texts(count: int, longest: int = 120) -> list[str]:
    """From one word to `longest`, short ones more often."""
    random = np.random.RandomState(7)
    words = " ".join(_SENTENCES).split()
    lengths = np.exp(random.uniform(0, np.log(longest), count)).astype(int)
    return [" ".join(random.choice(words, max(1, length))) for length in lengths]


PAIRS = [
    ("When does the train leave?", "The train on platform 3 is delayed by two hours."),
    ("When does the train leave?", "Bread and butter."),
    ("capital of France", "Paris is the capital and largest city of France."),
    ("capital of France", "Rome is the capital of Italy."),
    ("refund", "How to get your payment back: send us the invoice. " * 4),
    ("Grüße", "Greetings from München 🙂"),
]
