"""Flags from EngineConfig: the argparse parser is generated, and what it finds goes the way of YAML and keywords."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from octavo.config import OPTIONS, EngineConfig
from octavo.errors import ConfigError
from octavo.options import vllm
from octavo.options.configure import Given, configure, not_yet, plain_name, unknown
from octavo.options.description import Option, flag_of

GROUPS = {"model": "model", "engine": "engine", "server": "HTTP server"}
_METAVARS = {str: "TEXT", int: "N", float: "X"}


class Parser(argparse.ArgumentParser):
    """Takes dashes or underscores alike, refuses unknown flags with the nearest known one, and raises ConfigError where
    argparse would print its usage and exit."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **keywords)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError in place of argparse's usage and exit."""
        raise ConfigError(message.removeprefix("argument "))

    def parse(self, arguments: Iterable[str]) -> dict[str, Any]:
        """What was given, by destination: nothing that was not."""
        return vars(self.parse_args(list(self._spelled_with_dashes(arguments))))

    def _spelled_with_dashes(self, arguments: Iterable[str]) -> Iterator[str]:
        rest = iter(arguments)
        for argument in rest:
            if argument == "--":
                yield argument
                break
            if not argument.startswith("--"):
                yield argument
                continue
            flag, equals, value = argument.partition("=")
            dashed = flag.replace("_", "-")
            if dashed not in self._option_string_actions:
                raise self._unknown(dashed)
            yield dashed + equals + value
        yield from rest

    def _unknown(self, flag: str) -> ConfigError:
        whole = flag.partition(".")[0]  # vLLM sets one key of a JSON option as --option.key
        if plain_name(whole) in vllm.NEUTRAL_VALUES:
            return not_yet(Given(plain_name(whole), None, flag))
        shown = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        return unknown(flag, shown)


def add_options(parser: Parser, groups: Sequence[str]) -> None:
    """MODEL, --config, a flag for each option of EngineConfig (help shows those of `groups`), and vLLM's others, unseen."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="as --model")
    parser.add_argument("--config", metavar="FILE.yaml", help="take options from a file; flags go before it")
    for group in GROUPS:
        shown = parser.add_argument_group(GROUPS[group]) if group in groups else parser
        for option in OPTIONS.values():
            if option.metadata["group"] == group:
                add_option(shown, option, seen=group in groups)
    for name in (*vllm.NEUTRAL_VALUES, *vllm.RETIRED):
        _add_foreign(parser, name)


def given_options(found: dict[str, Any]) -> EngineConfig:
    """The EngineConfig of what `Parser.parse` found under the names of `add_options`: flag before YAML before default."""
    given = []
    if "config" in found:
        from octavo.options.yaml_file import read_yaml

        given = read_yaml(found["config"])
    model = found.get("model_tag")
    if model is not None and found.get("model", model) != model:
        raise ConfigError(f"--model {found['model']} and the model {model} were both given; give one", parameter="model")
    if model is not None:
        given.append(Given("model", model, "MODEL"))
    known = {*OPTIONS, *vllm.NEUTRAL_VALUES, *vllm.RETIRED}
    given += [Given(name, value, flag_of(name)) for name, value in found.items() if name in known]
    return configure(given)


def parse_arguments(arguments: Sequence[str], program: str = "octavo serve") -> EngineConfig:
    """The EngineConfig of a command line. Raises ConfigError, one line that names the flag; `--help` prints and exits."""
    parser = Parser(prog=program, usage="%(prog)s [MODEL] [options]", description="Serve a model over HTTP.")
    add_options(parser, tuple(GROUPS))
    return given_options(parser.parse(arguments))


def add_option(group: Any, option: Option, *, seen: bool = True) -> None:
    """Add an option's flags to a parser or group; `seen` False keeps them out of the help."""
    text = argparse.SUPPRESS if not seen else _help(option)
    if option.type is bool:
        group.add_argument(*option.spellings, dest=option.name, action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = "{" + ",".join(option.choices) + "}" if option.choices else _METAVARS[option.type]
        many: dict[str, Any] = {"nargs": "+", "action": "extend"} if option.many else {}
        group.add_argument(*option.spellings, dest=option.name, metavar=metavar, help=text, **many)


def _help(option: Option) -> str:
    default = option.default_text
    return (option.help + (f" [{default}]" if default and default != "false" else "")).replace("%", "%%")


def _add_foreign(parser: Parser, name: str) -> None:
    flags = [flag_of(name), *(short for short, long in vllm.SHORT_FLAGS.items() if long == name)]
    if vllm.is_switch(name):
        parser.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    else:
        nargs = "*" if name in vllm.LISTS else None
        parser.add_argument(*flags, dest=name, nargs=nargs, help=argparse.SUPPRESS)
