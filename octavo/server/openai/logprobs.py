"""Logprobs in the shapes of the two APIs. Values are finite, as JSON needs them: `octavo.sampling.logprobs` sees to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from octavo.engine.request import TokenLogprobs
from octavo.server.openai.schema import GenerationFields
from octavo.server.state import Model, ServerState
from octavo.text.tokenizer import Tokenizer


class ChatTopLogprob(msgspec.Struct):
    """A likely token at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct):
    """A token of the answer and the likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry per token of the answer."""

    content: list[ChatTokenLogprob]


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry per token. `text_offset` counts characters from the start of the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct):
    """A token at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TokenNames:
    """How tokens are written in logprobs: their text (U+FFFD for what is no whole character), or `token_id:N`."""

    def __init__(self, tokenizer: Tokenizer | None, as_ids: bool) -> None:
        self._tokenizer = None if as_ids else tokenizer
        self._bytes_tokenizer = tokenizer

    def text(self, token_id: int) -> str:
        """The token's name."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def bytes(self, token_id: int) -> list[int] | None:
        """The token's own bytes: joined over the answer's tokens they are its text in UTF-8."""
        return None if self._bytes_tokenizer is None else list(self._bytes_tokenizer.token_bytes(token_id))


def token_names(server: ServerState, model: Model, body: GenerationFields) -> TokenNames:
    """As the request wants them, else as the server is set up to write them."""
    asked = body.return_tokens_as_token_ids
    return TokenNames(model.intake.tokenizer, server.config.return_tokens_as_token_ids if asked is None else asked)


def chat_logprobs(entries: Iterable[TokenLogprobs], top: int, names: TokenNames) -> ChatLogprobs:
    """The chat shape, with the `top` most likely tokens of each position; -1 is all that there are."""
    end = None if top < 0 else top + 1
    content = []
    for entry in entries:
        pairs = zip(entry.token_ids[1:end], entry.logprobs[1:end], strict=True)
        likely = [ChatTopLogprob(names.text(token), value, names.bytes(token)) for token, value in pairs]
        token, value = entry.token_ids[0], entry.logprobs[0]
        content.append(ChatTokenLogprob(names.text(token), value, names.bytes(token), likely))
    return ChatLogprobs(content)


def completion_logprobs(
    entries: Sequence[TokenLogprobs | None], token_ids: Sequence[int], start: int, names: TokenNames
) -> CompletionLogprobs:
    """The completions shape of `token_ids`, whose text begins at character `start`. The token itself is always among its top
    ones; the first token of a prompt has no entry."""
    result = CompletionLogprobs([], [], [], [])
    for token_id, entry in zip(token_ids, entries, strict=True):
        name = names.text(token_id)
        result.tokens.append(name)
        result.text_offset.append(start)
        start += len(name)
        if entry is None:
            result.token_logprobs.append(None)
            result.top_logprobs.append(None)
            continue
        result.token_logprobs.append(entry.logprobs[0])
        top: dict[str, float] = {}
        for token, value in zip(entry.token_ids, entry.logprobs, strict=True):
            top.setdefault(names.text(token), value)  # of two with one text the likelier stays
        result.top_logprobs.append(top)
    return result


def prompt_logprobs(entries: Iterable[TokenLogprobs | None] | None, names: TokenNames) -> PromptLogprobs | None:
    """One entry per prompt token, by token id; the first is null."""
    if entries is None:
        return None
    return [None if entry is None else _prompt_entry(entry, names) for entry in entries]


def _prompt_entry(entry: TokenLogprobs, names: TokenNames) -> dict[str, PromptLogprob]:
    return {str(token): PromptLogprob(value, rank, names.text(token)) for token, (value, rank) in entry.ranked().items()}
