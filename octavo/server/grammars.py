"""Compiling what requests ask their answers to be, the small before the large, while the event loop and all others go on."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from octavo.errors import UnavailableError, ValidationError
from octavo.grammar.shortest_first import ShortestFirst

if TYPE_CHECKING:
    from octavo.engine.intake import Intake
    from octavo.grammar.compiler import GrammarCompiler
    from octavo.sampling.params import SamplingParams
    from octavo.sampling.structured import StructuredOutputsParams

MAX_WAITING = 64


class GrammarQueue:
    """A thread that waits for the grammar process, so that those which tokenize never do."""

    def __init__(self) -> None:
        self._jobs: ShortestFirst | None = None
        self._num_waiting = 0

    async def compile(self, intake: Intake, params: SamplingParams, parameter: str) -> None:
        """Make the intake know the grammar of `params`, which the client asked for by `parameter`. ValidationError as
        `GrammarCompiler.compile` says, about that parameter; UnavailableError while too many wait."""
        structured = params.structured_outputs
        if structured is None or intake.tokenizer is None:
            return
        try:
            if intake.grammars.known(structured) is None:
                await self._wait(intake.grammars, structured)
        except ValidationError as error:
            raise error.about(parameter) from None

    async def _wait(self, grammars: GrammarCompiler, structured: StructuredOutputsParams) -> None:
        if self._num_waiting >= MAX_WAITING:
            raise UnavailableError("Too many requests with new schemas or grammars wait to be compiled. Please try again.")
        if self._jobs is None:
            self._jobs = ShortestFirst(ThreadPoolExecutor(1, thread_name_prefix="grammar queue"))
        self._num_waiting += 1
        try:
            cost = grammars.size(structured)
            await asyncio.wrap_future(self._jobs.submit(cost, partial(grammars.compile, structured)))
        finally:
            self._num_waiting -= 1
