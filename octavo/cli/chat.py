"""`octavo chat [MODEL]`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from octavo.cli.answers import Model, converse, make_parser, one_shot_text, open_model, print_answer

Message = dict[str, str]


def run(arguments: Sequence[str], program: str) -> int:
    """Answer --prompt or standard input, or hold a conversation on the terminal; the exit code."""
    parser = make_parser(program, "Talk to a model.")
    parser.add_argument("--system", "--system-prompt", dest="system", metavar="TEXT", help="what the model is told first")
    found = parser.parse(arguments)
    system = found.pop("system", None)
    question = one_shot_text(found)
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    with closing(open_model(found)) as model:
        if question is not None:
            print_answer(model.chat([*messages, {"role": "user", "content": question}]))
        else:
            converse(Conversation(model, messages).answer)
    return 0


class Conversation:
    """All that was said, which the model is given with each new question."""

    def __init__(self, model: Model, messages: list[Message]) -> None:
        self.messages = messages
        self._model = model

    def answer(self, question: str) -> None:
        """Print the answer as it comes. What was printed of an interrupted answer counts as said; a question without any
        answer is forgotten."""
        said: list[str] = []
        asked = [*self.messages, {"role": "user", "content": question}]
        try:
            print_answer(self._model.chat(asked), said)
        finally:
            if said:
                self.messages[:] = [*asked, {"role": "assistant", "content": "".join(said)}]
