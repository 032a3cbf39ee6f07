"""The client side's knowledge of a model, and the one gate through which every request passes.

Whatever a client could be told is told here, before the engine sees the request: texts become token ids, lengths and ids
are checked, defaults and the seed are filled in. The server and `LLM` both use it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from octavo.cache.plan import resolve_limits
from octavo.config import EngineConfig, default_template_variables
from octavo.engine import request_checks as checks
from octavo.engine.request import Grammar, Request, Thinking
from octavo.engine.truncation import Truncation
from octavo.errors import ConfigError, LoadError, ValidationError
from octavo.grammar.compiler import GrammarCompiler
from octavo.models.config import ModelConfig
from octavo.pooling.resolve import open_served, pooling_options
from octavo.pooling.settings import Pooling
from octavo.sampling.params import SamplingParams
from octavo.text.chat_template import ChatTemplate, check_template_variables
from octavo.text.messages import normalize_messages
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.json_file import read_json
from octavo.weights.loader import open_checkpoint

logger = logging.getLogger(__name__)

MAX_DIGITS = 32
"""In a row, in JSON: more than any number of 64 bits has."""

_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass
class Intake:
    """One model, as clients see it. Safe to use from several threads; `request` may take long for a long text.

    `eos_token_ids` is the union of those of the tokenizer (first), config.json and generation_config.json.
    `default_sampling` are the fields of SamplingParams that generation_config.json sets, to be used where a request says
    nothing (`max_tokens` among them, from max_new_tokens).
    """

    model_config: ModelConfig
    max_model_len: int
    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: dict[str, Any] = field(default_factory=dict)
    max_logprobs: int = 20
    seed: int | None = None
    scheduling_policy: str = "fcfs"
    pooling: Pooling | None = None  # of a model that generates no text
    score_template: ChatTemplate | None = None  # that joins a query and a document, where the start was given one
    name: str = ""  # what messages call the model
    fold_system_message: bool = False
    default_template_variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seeds = random.Random(self.seed)
        self._lock = threading.Lock()
        self.grammars = GrammarCompiler(self._special_tokens)

    def render_chat(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of an OpenAI conversation, to be tokenized with `add_special_tokens=False`. `chat_template`
        replaces the model's; `template_variables` is `chat_template_kwargs`, which go before --default-chat-template-kwargs.
        ValidationError as `normalize_messages` and `ChatTemplate.render` say."""
        template = self.chat_template
        if chat_template is not None:
            if not isinstance(chat_template, str):
                raise ValidationError("chat_template must be the text of a template", parameter="chat_template")
            template = ChatTemplate(chat_template, self.tokenizer.special_tokens if self.tokenizer else {})
        if template is None:
            raise ValidationError(
                "The model has no chat template: use /v1/completions, or start the server with --chat-template"
            )
        if template_variables is not None:
            check_template_variables(template_variables)
        variables = {**self.default_template_variables, **(template_variables or {})}
        return template.render(
            normalize_messages(messages, template, fold_system=self.fold_system_message),
            tools,
            documents,
            add_generation_prompt,
            continue_final_message,
            **variables,
        )

    def request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        add_special_tokens: bool = True,
        max_tokens_name: str = "max_tokens",
        cache_salt: str | None = None,
        priority: int = 0,
        grammar_start: tuple[str, str] = ("", ""),
        reasoning_marks: tuple[str, str] | None = None,
        truncation: Truncation | None = None,
        clamp: bool = True,
        offline: bool = False,
    ) -> Request:
        """The request for the engine; `params` stays as it is. ValidationError for everything that can be refused.

        `max_tokens` is clamped to what fits, unless `clamp` is off: then one that does not fit is refused. Where it is None
        it becomes the model's own default, else what fits. `params.structured_outputs` begin to hold behind the second text
        of `grammar_start` (the end of a reasoning block); the first one begins such a block, where there may also be none
        (that counts if it is one token). Compiling may take a while where `grammars` does not know it yet.
        `reasoning_marks` are what opens and closes the block that `params.thinking_token_budget` bounds; the first is ""
        where the prompt has opened it, both where it has closed it. `truncation` cuts a long prompt. `offline` chooses the
        texts of vLLM's `LLM` for one that is too long.
        """
        vocab_size = self.model_config.vocab_size
        checks.check_cache_salt(cache_salt)
        checks.check_priority(priority, self.scheduling_policy)
        if params.stop and self.tokenizer is None:
            text = (
                "stop strings need a tokenizer, and the model runs without one (--skip-tokenizer-init): use stop_token_ids"
            )
            raise ValidationError(text, parameter="stop")
        checks.check_vocabulary(params, vocab_size)
        logprobs = checks.check_logprobs(params, vocab_size, self.max_logprobs)
        checks.check_max_tokens(params.max_tokens, self.max_model_len, max_tokens_name)
        token_ids = self.token_ids(prompt, add_special_tokens=add_special_tokens, any_length=truncation is not None)
        if truncation is not None:
            token_ids = truncation.apply(token_ids, params.max_tokens, self.max_model_len)
        only_scores = params.prompt_logprobs is not None
        if offline:
            checks.check_offline_length(len(token_ids), self.max_model_len, needs_output=not only_scores)
        checks.check_prompt_length(len(token_ids), self.max_model_len, is_text=isinstance(prompt, str))
        room = checks.room_for_output(len(token_ids), self.max_model_len, only_scores=only_scores)
        if not clamp:
            checks.check_room(params.max_tokens, room, len(token_ids), self.max_model_len, max_tokens_name)
        wanted = self.default_sampling.get("max_tokens", room) if params.max_tokens is None else params.max_tokens
        seed = self._next_seed() if params.seed is None else params.seed
        grammar = self._grammar(params, *grammar_start)
        checked = {**logprobs, "max_tokens": min(room, wanted), "seed": seed, "structured_outputs": None}
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=msgspec.structs.replace(params, **checked),
            arrival_time=time.time(),
            eos_token_ids=list(self.eos_token_ids),
            cache_salt=cache_salt,
            vocab_size=self.tokenizer.vocab_size if self.tokenizer else None,
            priority=priority,
            grammar=grammar,
            thinking=self._thinking(params.thinking_token_budget, reasoning_marks),
            bad_words_token_ids=self._bad_words(params.bad_words),
        )

    def token_ids(
        self, prompt: str | Sequence[int], *, add_special_tokens: bool = True, any_length: bool = False
    ) -> list[int]:
        """The prompt as ids of the model. ValidationError for an empty one, one that cannot fit for its mere number of
        characters (unless it may have any length), ids outside the vocabulary and values that are no ids (it names their
        place)."""
        if not isinstance(prompt, str | list | tuple):
            raise ValidationError("prompt must be a text or a list of token ids", parameter="prompt")
        if not prompt:
            raise ValidationError("Either prompt or prompt_embeds must be provided and non-empty.", parameter="prompt")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                text = "The model runs without a tokenizer (--skip-tokenizer-init): send the prompt as token ids"
                raise ValidationError(text, parameter="prompt")
            if len(prompt) > self.max_model_len and not any_length:  # else no need to know the longest token
                checks.check_characters(prompt, self.max_model_len, self.tokenizer.max_chars_per_token)
            prompt = self.tokenizer.encode(prompt, add_special_tokens)
            if not prompt:
                raise ValidationError("The decoder prompt cannot be empty")
        return checks.check_token_ids(prompt, self.model_config.vocab_size)

    def _grammar(self, params: SamplingParams, opening: str, after: str) -> Grammar | None:
        if params.structured_outputs is None:
            return None
        tokenizer = checks.can_be_structured(self.tokenizer, self.eos_token_ids)
        text = self.grammars.compile(params.structured_outputs)
        digits = MAX_DIGITS if params.structured_outputs.given[0] in ("json", "json_object") else None
        if not opening:
            return Grammar(text, after, None, digits)
        ids = tokenizer.encode(opening, add_special_tokens=False)
        return Grammar(text, after, ids[0], digits) if len(ids) == 1 else Grammar(text, max_digits=digits)

    def _thinking(self, budget: int | None, marks: tuple[str, str] | None) -> Thinking | None:
        if budget is None or (marks is not None and not marks[1]):
            return None
        name = "thinking_token_budget"
        if marks is None or self.tokenizer is None:
            text = f"{name} is for chats whose reasoning is told from content: start the server with --reasoning-parser"
            raise ValidationError(text, parameter=name)
        opening, closing = (self.tokenizer.encode(mark, False) for mark in marks)
        for mark, ids in zip(marks, (opening, closing), strict=True):
            if mark and ids[0] not in self.tokenizer.added_ids:
                raise ValidationError(
                    f"{name} cannot be kept by this model: {mark!r} is no token of its own", parameter=name
                )
        return Thinking(budget, opening[0] if opening else None, closing)

    def _special_tokens(self) -> list[str]:
        tokenizer = self.tokenizer
        return [] if tokenizer is None else [tokenizer.token_text(token_id) for token_id in sorted(tokenizer.special_ids)]

    def _bad_words(self, words: list[str] | None) -> list[list[int]]:
        """Each word's tokens as it stands at the start of a text and, where it begins with another token then, behind a
        space; by vLLM's rules."""
        if not words:
            return []
        if self.tokenizer is None:
            text = "bad_words need a tokenizer, and the model runs without one (--skip-tokenizer-init)"
            raise ValidationError(text, parameter="bad_words")
        found: list[list[int]] = []
        for word in words:
            bare, spaced = (self.tokenizer.encode(start + word.lstrip(), False) for start in ("", " "))
            found.append(bare)
            if spaced[0] != bare[0] and len(spaced) == len(bare):
                found.append(spaced)
        return found

    def _next_seed(self) -> int:
        """Of a request that has none: from `--seed` and the order of the requests, else from entropy."""
        with self._lock:
            return self._seeds.getrandbits(63)


def open_intake(config: EngineConfig, path: Path) -> Intake:
    """What clients need to know of the model at `path` (a directory or .gguf file); no weights are read. LoadError and
    ConfigError name what is wrong with the model's files, or with --max-model-len, --chat-template, --tokenizer and
    --generation-config."""
    checkpoint, served = open_checkpoint(path), open_served(config, path)
    model_config = served.model
    if served.pooling is not None:
        config = pooling_options(config, model_config)
    tokenizer = None
    if not config.skip_tokenizer_init:
        tokenizer = open_tokenizer(config, checkpoint, generates=served.pooling is None)
    chat_template = _open_chat_template(config, tokenizer)
    return Intake(
        model_config=model_config,
        max_model_len=resolve_limits(config, model_config).max_model_len,
        tokenizer=tokenizer,
        chat_template=chat_template,
        eos_token_ids=all_eos_token_ids(tokenizer, model_config),
        default_sampling=_default_sampling(config, checkpoint),
        max_logprobs=config.max_logprobs,
        seed=config.seed,
        scheduling_policy=config.scheduling_policy,
        pooling=served.pooling,
        score_template=chat_template if served.pooling is not None and config.chat_template is not None else None,
        name=config.served_model_name[0] if config.served_model_name else config.model or str(path),
        fold_system_message=config.fold_system_message,
        default_template_variables=_default_template_variables(config),
    )


def all_eos_token_ids(tokenizer: Tokenizer | None, model_config: ModelConfig) -> tuple[int, ...]:
    """The tokenizer's own first, then those of config.json and generation_config.json."""
    own = () if tokenizer is None else tokenizer.eos_token_ids
    return tuple(dict.fromkeys([*own, *model_config.eos_token_ids]))


def open_tokenizer(config: EngineConfig, checkpoint: Checkpoint, *, generates: bool = True) -> Tokenizer:
    """The model's tokenizer, or that of --tokenizer."""
    from octavo.weights.gguf import GGUFCheckpoint

    if config.tokenizer is not None:
        from octavo.weights.hub import resolve_tokenizer

        tokenizer = load_tokenizer(resolve_tokenizer(config.tokenizer, config))
    elif isinstance(checkpoint, GGUFCheckpoint):
        from octavo.text.gguf_tokenizer import tokenizer_from_gguf

        tokenizer = tokenizer_from_gguf(checkpoint.metadata)
    else:
        tokenizer = load_tokenizer(checkpoint.path)
    if generates:
        _ = tokenizer.pieces  # a decoder that cannot generate text stops the start, not the first request
    return tokenizer


def _open_chat_template(config: EngineConfig, tokenizer: Tokenizer | None) -> ChatTemplate | None:
    special_tokens = {} if tokenizer is None else tokenizer.special_tokens
    if config.chat_template is not None:
        template = ChatTemplate(read_template(config.chat_template), special_tokens)
        template.check()
        return template
    if tokenizer is None or not tokenizer.chat_templates:
        return None
    return ChatTemplate(tokenizer.chat_templates, special_tokens)


def _default_template_variables(config: EngineConfig) -> dict[str, Any]:
    variables = default_template_variables(config)
    try:
        check_template_variables(variables)
    except ValidationError as error:
        raise ConfigError(f"--default-chat-template-kwargs: {error.message}") from None
    return variables


def read_template(value: str) -> str:
    """The template that `--chat-template` means: a file's content, or its own text."""
    try:
        if Path(value).is_file():
            return Path(value).read_text("utf-8")
    except (OSError, ValueError):  # too long or too strange for a path
        pass
    if "{{" not in value and "{%" not in value:
        raise ConfigError(f"--chat-template {value!r:.80} is neither an existing file nor a Jinja template")
    return value


def _default_sampling(config: EngineConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """By vLLM's rules for --generation-config: auto, vllm (none) or another directory."""
    if config.generation_config == "vllm":
        return {}
    stored, source = checkpoint.generation_config, checkpoint.path
    if config.generation_config != "auto":
        source = Path(config.generation_config)
        try:
            stored = read_json(source / "generation_config.json")
        except LoadError as error:
            raise ConfigError(f"--generation-config: {error.message}") from None
    named = {**{name: name for name in _SAMPLING_DEFAULTS}, "max_new_tokens": "max_tokens"}
    defaults = {name: stored[key] for key, name in named.items() if stored.get(key) is not None}
    try:
        SamplingParams(**defaults)
    except ValidationError as error:
        raise LoadError(f"{source}: generation_config.json: {error.message} (--generation-config vllm ignores it)") from None
    if defaults:
        logger.info("sampling defaults from generation_config.json: %s (--generation-config vllm: none)", defaults)
    return defaults
