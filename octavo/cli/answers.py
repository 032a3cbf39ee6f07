"""What `octavo chat` and `octavo complete` share: their flags, where answers come from, and how these are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.cli.arguments import Parser, add_option, add_options, given_options
from octavo.config import OPTIONS
from octavo.errors import ConfigError, RequestError
from octavo.options.configure import parse_value
from octavo.options.description import describe, flag_of, option


@dataclass(frozen=True)
class Sampling:
    """The fields of SamplingParams that have a flag here. SamplingParams itself, or the server, checks the values."""

    max_tokens: int | None = option(None, "Longest answer, in tokens")
    temperature: float | None = option(None, "0: always the likeliest token; the higher, the more surprising")
    top_p: float | None = option(None, "Draw among the likeliest tokens that make up this share")
    top_k: int | None = option(None, "Draw among so many of the likeliest tokens (0: among all)")
    min_p: float | None = option(None, "Leave out tokens below this share of the likeliest one's probability")
    repetition_penalty: float | None = option(None, "Above 1: fewer repetitions")
    stop: tuple[str, ...] = option((), "End the answer before any of these texts")


SAMPLING = describe(Sampling)
_WITH_URL = ("model", "api_key", "seed")  # options of the server that mean something to its client as well


class Model(Protocol):
    """A source of answers. Closing a generator ends its answer."""

    def chat(self, messages: list[dict[str, Any]]) -> Generator[str, None, None]:
        """Pieces of the answer to a conversation."""

    def complete(self, prompt: str) -> Generator[str, None, None]:
        """Pieces of the continuation of a text."""

    def close(self) -> None:
        """Give back what it holds."""


def make_parser(program: str, description: str) -> Parser:
    """A parser with the flags for the model, its engine and sampling, and --url and --prompt."""
    parser = Parser(prog=program, usage="%(prog)s [MODEL] [options]", description=description)
    parser.add_argument("--url", metavar="URL", help="ask the server there (http://127.0.0.1:8000) and load no model")
    parser.add_argument("--prompt", "--quick", dest="prompt", metavar="TEXT", help="answer this and end")
    group = parser.add_argument_group("sampling")
    for one in SAMPLING.values():
        add_option(group, one)
    add_options(parser, ("model", "engine"))
    return parser


def open_model(found: dict[str, Any], **defaults: Any) -> Model:
    """The model that the flags speak of: on a server with --url, else in this process. `defaults` are sampling parameters
    that flags go before. Raises StartupError."""
    given = {name: parse_value(SAMPLING[name], found.pop(name), flag_of(name)) for name in SAMPLING if name in found}
    parameters = {**defaults, **{name: list(value) if name == "stop" else value for name, value in given.items()}}
    url = found.pop("url", None)
    if url is None:
        from octavo.cli.local import LocalModel  # with numpy and all the rest, which a client does not need

        return LocalModel(given_options(found), parameters)
    from octavo.cli.remote import RemoteModel

    pointless = next((name for name in found if name in OPTIONS and name not in _WITH_URL), None)
    if pointless is not None:
        raise ConfigError(f"{flag_of(pointless)} is the server's to choose; leave it out with --url", parameter=pointless)
    config = given_options(found)
    if config.seed is not None:
        parameters["seed"] = config.seed
    return RemoteModel(url, config.model, config.api_key[0] if config.api_key else None, parameters)


def one_shot_text(found: dict[str, Any]) -> str | None:
    """What --prompt says, or standard input when that is no terminal; None when there is a person to talk to.

    The line end with which `echo` and text files close is no part of the text: the model would answer it as well.
    """
    if "prompt" in found:
        text: str = found.pop("prompt")
        return text
    return None if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")


def print_answer(pieces: Generator[str, None, None], said: list[str] | None = None) -> None:
    """Print the pieces as they come, and add them to `said`."""
    with closing(pieces):
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
                if said is not None:
                    said.append(piece)
        finally:
            print(flush=True)


def converse(answer: Callable[[str], None]) -> None:
    """Read lines and have each answered, until the end of input. Ctrl-C ends an answer and drops a line, and no more than
    that; an error is printed and the conversation goes on."""
    print("Ctrl-C stops an answer; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            line = input("> ")
            if line.strip():
                answer(line)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except RequestError as error:
            print(error, file=sys.stderr)
