"""The progress bar of `LLM` and of benchmarks: rich's by default, or any class that is called and used as tqdm's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class ProgressBar:
    """Counts finished prompts, or what `desc` and `unit` say; a context manager. `use_tqdm` False shows nothing."""

    def __init__(
        self, total: int, use_tqdm: bool | Callable[..., Any], desc: str = "Processed prompts", unit: str = "prompt"
    ) -> None:
        self._bar: Any = None
        if use_tqdm and total:
            make: Callable[..., Any] = use_tqdm if callable(use_tqdm) else _RichBar
            self._bar = make(total=total, desc=desc, unit=unit)

    def update(self, count: int) -> None:
        """So many more are done."""
        if self._bar is not None:
            self._bar.update(count)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


_REFRESHES = 2  # a second: each takes 1 ms from the thread that runs the engine


class _RichBar:
    """tqdm's two methods over rich, on standard error, as plain text in a notebook."""

    def __init__(self, total: int, desc: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(file=sys.stderr, force_jupyter=False)
        self._progress = Progress(*columns, console=console, refresh_per_second=_REFRESHES)
        self._task = self._progress.add_task(desc, total=total)
        self._progress.start()

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def close(self) -> None:
        self._progress.stop()
