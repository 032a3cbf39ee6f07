"""Seconds from the start of `octavo serve` until it is ready, and until its first answer."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import StartupError
from octavo.options.description import option

SHOWS_ENGINE = False
_LOOK_EVERY = 0.02  # seconds
_MOST_SECONDS = 600.0
_SECONDS_TO_END = 20.0


@dataclass
class Options:
    """Only starts in whatever state the machine's page cache is: what to drop from it is the user's decision."""

    num_iters: int = option(3, "How many starts", minimum=1)
    output_json: str | None = option(None, "Write the result to this file, too")


def run(options: Options, flags: Sequence[str]) -> dict[str, Any]:
    """Prints a line for each start. `flags` go to `octavo serve` as they are. StartupError if a server does not start."""
    starts = []
    for number in range(1, options.num_iters + 1):
        starts.append(_start(flags))
        print(f"Start {number}: {_times(*starts[-1])}", flush=True)
    ready, first = [[start[i] for start in starts] for i in (0, 1)]
    return {
        "num_iters": options.num_iters,
        "ready_seconds": ready,
        "first_answer_seconds": first,
        "median_ready_seconds": statistics.median(ready),
        "median_first_answer_seconds": statistics.median(first),
    }


def text(result: dict[str, Any]) -> str:
    """The medians."""
    return f"Median: {_times(result['median_ready_seconds'], result['median_first_answer_seconds'])}"


def _times(ready: float, first_answer: float) -> str:
    return f"ready after {ready:.2f} s, first answer after {first_answer:.2f} s"


def _start(flags: Sequence[str]) -> tuple[float, float]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "octavo", "serve", *flags, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as server:
        assert server.stderr is not None
        url, said = _url(server.stderr)
        reader = threading.Thread(target=said.extend, args=(server.stderr,))  # a full pipe would stop the server
        reader.start()
        try:
            while url is None or not _is_ready(url):
                if url is None or server.poll() is not None or time.perf_counter() - began > _MOST_SECONDS:
                    reader.join(_SECONDS_TO_END)
                    last = next((line.strip() for line in reversed(said) if line.strip()), f"exit code {server.poll()}")
                    raise StartupError(f"octavo serve did not start: {last.removeprefix('octavo: error: ')}")
                time.sleep(_LOOK_EVERY)
            ready = time.perf_counter() - began
            _ask(url)
            return ready, time.perf_counter() - began
        finally:
            server.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_SECONDS_TO_END)
            server.kill()
            reader.join()


def _url(log: Iterable[str]) -> tuple[str | None, list[str]]:
    """Where the server listens, from its log, and what it has said before."""
    seen: list[str] = []
    for line in log:
        found = re.search(r"Listening on (http\S+)", line)
        if found:
            return found[1], seen
        seen.append(line.strip())
    return None, seen


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _ask(url: str) -> None:
    body = json.dumps({"prompt": "Hello", "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=_MOST_SECONDS) as answer:
        answer.read()
