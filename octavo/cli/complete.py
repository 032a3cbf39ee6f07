"""`octavo complete [MODEL]`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from octavo.cli.answers import converse, make_parser, one_shot_text, open_model, print_answer

_MAX_TOKENS = 128  # a text has no natural end, so there is a limit unless another is given


def run(arguments: Sequence[str], program: str) -> int:
    """Complete --prompt or standard input, or each line of the terminal on its own; the exit code."""
    parser = make_parser(program, f"Complete a text, by at most {_MAX_TOKENS} tokens unless --max-tokens says otherwise.")
    found = parser.parse(arguments)
    text = one_shot_text(found)
    with closing(open_model(found, max_tokens=_MAX_TOKENS)) as model:
        if text is not None:
            print_answer(model.complete(text))
        else:
            converse(lambda line: print_answer(model.complete(line)))
    return 0
