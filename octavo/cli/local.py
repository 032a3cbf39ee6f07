"""A model in this process as a source of answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import EngineError
from octavo.llm import LLM
from octavo.outputs import RequestOutput
from octavo.sampling.params import SamplingParams


class LocalModel:
    """Streams answers of an `LLM`. Closing a generator ends the answer."""

    def __init__(self, config: EngineConfig, parameters: Mapping[str, Any]) -> None:
        """`parameters` are fields of SamplingParams; the model's defaults fill the others."""
        self._llm = LLM.from_config(config)
        self._params = SamplingParams(**{"max_tokens": None, **self._llm.default_sampling, **parameters})

    def chat(self, messages: list[dict[str, Any]]) -> Generator[str, None, None]:
        """Pieces of the answer to a conversation. Raises RequestError when it cannot be given."""
        return _pieces(self._llm.stream_chat(messages, self._params))

    def complete(self, prompt: str) -> Generator[str, None, None]:
        """Pieces of the continuation of a text. Raises RequestError when it cannot be given."""
        return _pieces(self._llm.stream(prompt, self._params))

    def close(self) -> None:
        """Give back all memory."""
        self._llm.close()


def _pieces(outputs: Generator[RequestOutput, None, None]) -> Generator[str, None, None]:
    with closing(outputs):
        length = 0
        for output in outputs:
            text = output.outputs[0].text
            yield text[length:]
            length = len(text)
            if output.error is not None:
                raise EngineError(output.error)
