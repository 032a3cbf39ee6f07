"""The progress bar of `LLM`: rich's by default, or any class that is called and used as tqdm's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class ProgressBar:
    """Counts finished prompts; a context manager. `use_tqdm` False shows nothing."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._bar: Any = None
        if use_tqdm and total:
            make: Callable[..., Any] = use_tqdm if callable(use_tqdm) else _RichBar
            self._bar = make(total=total, desc="Processed prompts", unit="prompt")

    def update(self, num_prompts: int) -> None:
        """So many more prompts are done."""
        if self._bar is not None:
            self._bar.update(num_prompts)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


class _RichBar:
    """tqdm's two methods over rich, on standard error, as plain text in a notebook."""

    def __init__(self, total: int, desc: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(file=sys.stderr, force_jupyter=False))
        self._task = self._progress.add_task(desc, total=total)
        self._progress.start()

    def update(self, num_prompts: int) -> None:
        self._progress.update(self._task, advance=num_prompts)

    def close(self) -> None:
        self._progress.stop()
