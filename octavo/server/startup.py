"""The first seconds: the port, the phases and how they are shown, and the model's client side, opened in a thread."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.engine.request import EngineStatus
from octavo.errors import StartupError
from octavo.weights.local import local_path

if TYPE_CHECKING:
    from octavo.engine.intake import Intake

BACKLOG = 2048
MIN_OPEN_FILES = 64  # the server has some 30 before its first connection
_ENOUGH_OPEN_FILES = 1 << 16
_BAR_WIDTH = 30

logger = logging.getLogger(__name__)


def configure_logging() -> None:
    """Log to stderr, unless whoever embeds the server has set logging up."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(asctime)s [server] %(message)s")


def allow_open_files() -> None:
    """Every connection is an open file: have as many as the system lets this process have. StartupError for too few."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _ENOUGH_OPEN_FILES)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        limit = wanted
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        text = f"only {limit} files may be open at once; raise the limit (ulimit -n) to {MIN_OPEN_FILES} or more"
        raise StartupError(text + ": each connection is one")


def bind(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; what arrives waits until it is read. StartupError when it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"--host {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --host or --port") from None
    return listener


def url(listener: socket.socket, config: EngineConfig) -> str:
    """Where clients find the socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def process_age() -> float:
    """Seconds since this process was started; on systems without /proc, since this module was imported."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return time.monotonic() - _IMPORTED
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


_IMPORTED = time.monotonic()


class Phases:
    """What was reached how many seconds after the process was started, in order."""

    def __init__(self) -> None:
        self.reached: dict[str, float] = {}
        self._lock = threading.Lock()

    def mark(self, name: str) -> float:
        """Note that `name` is reached now."""
        with self._lock:
            self.reached[name] = process_age()
            return self.reached[name]

    def rows(self) -> dict[str, str]:
        """For the start-up table."""
        reached = sorted(self.reached.items(), key=lambda item: item[1])
        return {name: f"{seconds:.2f} s after process start" for name, seconds in reached}


class ModelOpening:
    """Finds the model and reads its tokenizer, template and configs in a thread, started at once.

    `result` is where the model is, and what was read; or what went wrong. A model of the hub is waited for until the
    engine, which shows the progress, has downloaded it: `downloaded` says so.
    """

    def __init__(self, config: EngineConfig, phases: Phases) -> None:
        self._config = config
        self._phases = phases
        self.result: Future[tuple[Path, Intake]] = Future()
        self.result.set_running_or_notify_cancel()  # whoever stops waiting for it does not stop the thread
        self._is_here = threading.Event()
        self._reading = threading.Lock()  # held while libraries below Python are at work
        self._is_closed = False
        if config.model is None or local_path(config.model) is not None:
            self._is_here.set()
        # not an executor's thread: those are waited for at exit, and a download may take its time
        threading.Thread(target=self._open, name="model opening", daemon=True).start()

    def downloaded(self) -> None:
        """The engine has got past the download, or has ended."""
        self._is_here.set()

    def close(self) -> None:
        """Wait until nothing is being read, though not for a download: a thread of Rust's does not survive the end of the
        interpreter."""
        with self._reading:
            self._is_closed = True

    def _open(self) -> None:
        try:
            from octavo.engine.intake import open_intake
            from octavo.weights.hub import resolve_model

            self._is_here.wait()
            path = resolve_model(self._config, lambda percent: None)
            with self._reading:
                if not self._is_closed:
                    self._read(path, open_intake(self._config, path))
        except BaseException as error:  # raised again where the result is awaited
            self.result.set_exception(error)

    def _read(self, path: Path, intake: Intake) -> None:
        self._phases.mark("tokenizer ready")
        self.result.set_result((path, intake))
        _warm_up(intake)


def _warm_up(intake: Intake) -> None:
    """What would else be done first for the first request: compile the template, and the tokenizer's patterns."""
    if intake.tokenizer is not None:
        intake.tokenizer.encode("warm up")
    if intake.chat_template is not None:
        intake.chat_template.check()


class ProgressReport:
    """Shows the engine's phases: a bar that fills on a terminal, else a line when one ends."""

    def __init__(self, show_bar: bool) -> None:
        self._bar = show_bar and sys.stderr.isatty()
        self._shown: set[str] = set()

    def show(self, status: EngineStatus) -> None:
        """Report a status."""
        finished = {name: seconds for name, seconds in status.seconds.items() if name not in self._shown}
        if self._bar:
            self._draw(status, bool(finished) or status.is_ready or status.is_dead)
        for name, seconds in finished.items():
            self._shown.add(name)
            logger.info("%s: %.2f s", name, seconds)

    def _draw(self, status: EngineStatus, clear: bool) -> None:
        filled = round(_BAR_WIDTH * status.percent / 100)
        line = "" if clear else f"{status.phase} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {status.percent:3.0f} %"
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def table(rows: dict[str, str]) -> str:
    """Names and values in two columns."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
