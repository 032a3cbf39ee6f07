"""`octavo bench throughput|latency|serve|startup [MODEL]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from octavo.bench.options import read_options
from octavo.cli.arguments import Parser, add_option, add_options, given_options
from octavo.errors import ConfigError
from octavo.options.description import describe

BENCHMARKS = {
    "throughput": "tokens per second of many prompts at once, in this process",
    "latency": "seconds that one batch of prompts takes, in this process",
    "serve": "latencies and tokens per second of a running server",
    "startup": "seconds until `octavo serve` is ready, and until its first answer",
}


def run(arguments: Sequence[str], program: str) -> int:
    """Run one benchmark, print what it measured, write it as JSON if asked to; the exit code."""
    name, *rest = [*arguments] or ["--help"]
    if name in ("-h", "--help"):
        rows = [f"  {each:<12}{text}" for each, text in BENCHMARKS.items()]
        print("\n".join([f"usage: {program} BENCHMARK [MODEL] [options]", "", *rows, "", f"{program} BENCHMARK --help"]))
        return 0
    if name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name}; there are {', '.join(BENCHMARKS)}")
    return _run(name, rest, f"{program} {name}")


def _run(name: str, arguments: Sequence[str], program: str) -> int:
    benchmark = import_module(f"octavo.bench.{name}")
    parser = Parser(prog=program, usage="%(prog)s [MODEL] [options]", description=BENCHMARKS[name].capitalize() + ".")
    own = parser.add_argument_group("benchmark")
    for option in describe(benchmark.Options).values():
        add_option(own, option)
    add_options(parser, ("model", "engine") if benchmark.SHOWS_ENGINE else ("model",))
    found = parser.parse(arguments)
    options = read_options(benchmark.Options, found)
    own_names = set(describe(benchmark.Options))
    config = given_options({key: value for key, value in found.items() if key not in own_names})
    if name == "startup":  # its servers read the other arguments themselves
        result = benchmark.run(options, _without(parser, own_names, arguments))
    else:
        result = benchmark.run(config, options)
    print(benchmark.text(result))
    if options.output_json is not None:
        _write(options.output_json, result)
    return 0


def _without(parser: Parser, names: set[str], arguments: Sequence[str]) -> list[str]:
    """The arguments less the benchmark's own options, each of which takes one value."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, _ = argument.partition("=")
        action = parser._option_string_actions.get(flag.replace("_", "-"))
        if action is None or action.dest not in names:
            kept.append(argument)
        elif not equals:
            next(rest, None)
    return kept


def _write(path: str, result: dict[str, Any]) -> None:
    try:
        Path(path).write_text(json.dumps(result, indent=4) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--output-json {path} cannot be written: {error.strerror}", parameter="output_json") from None
