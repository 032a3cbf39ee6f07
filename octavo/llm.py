"""`LLM`: a model in this process, without a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.in_process import InProcessClient
from octavo.engine.intake import open_intake
from octavo.errors import RequestError, ValidationError
from octavo.offline.beam_search import beam_search
from octavo.offline.completions import complete_prompts, stream_prompt
from octavo.offline.pooling import classify_prompts, embed_prompts, pool_prompts, score_pairs
from octavo.offline.progress import ProgressBar
from octavo.offline.prompts import Prompt, PromptType, read_conversations, read_prompts
from octavo.offline.session import Job, Session
from octavo.offline.start_log import StartLog
from octavo.options.configure import from_keywords, named_as_keywords
from octavo.outputs import (
    BeamSearchOutput,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from octavo.pooling.params import PoolingParams
from octavo.sampling.params import BeamSearchParams, SamplingParams
from octavo.text.tokenizer import Tokenizer
from octavo.weights.hub import resolve_model

logger = logging.getLogger(__name__)

Messages = list[dict[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None
Progress = bool | Callable[..., Any]
Priority = int | Sequence[int] | None


class LLM:
    """A model in this process. It may be used from several threads; those that wait together share the engine's steps.

    >>> with LLM("HuggingFaceTB/SmolLM2-135M-Instruct") as llm:
    ...     llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=20))[0].outputs[0].text
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """Load the model (by default SmolLM2-135M-Instruct). `options` are the fields of `EngineConfig`.

        Raises ConfigError for an option that is unknown, unsupported or out of range, or asks for more memory than there is,
        and LoadError when the model cannot be read.
        """
        with named_as_keywords():
            self._start(from_keywords({"model": model, **options}))

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLM:
        """Load the model that a finished configuration speaks of. Raises LoadError."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: EngineConfig) -> None:
        self.config = config
        path = resolve_model(self.config, lambda percent: logger.info("downloading: %.0f %%", percent))
        intake = open_intake(self.config, path)
        self._start_log = StartLog(self.config)
        engine = build_engine(self.config, self._start_log)
        intake.max_model_len = engine.max_model_len
        self._session = Session(intake, InProcessClient(engine))

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        *,
        priority: Priority = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Complete the prompts and return the results in their order.

        `sampling_params` is one for all or one for each; None takes the model's defaults. So is `priority`, which needs
        scheduling_policy="priority": the lower is served first. `tokenization_kwargs` may have `truncate_prompt_tokens`
        (keep so many tokens of each prompt; -1: what leaves room for the answer) and `truncation_side`. `use_tqdm` may be a
        class to use as tqdm is. A prompt that cannot be served (too long, ids outside the vocabulary, parameters that do not
        fit it) does not spoil the others: its RequestOutput has `error` set and the finish_reason "error". When there is no
        other, the ValidationError itself is raised, and so it is for arguments that are wrong as a whole.
        """
        _refuse(unsupported)
        self._check_generates("generate")
        params = sampling_params or self.get_default_sampling_params()
        run = self._runner_of(use_tqdm)
        return complete_prompts(self._session, read_prompts(prompts), params, priority, tokenization_kwargs, run)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        *,
        priority: Priority = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several. `chat_template` is the text of a template, in place of the model's.

        Results and errors are as in `generate`.
        """
        _refuse(unsupported)
        self._check_generates("chat")
        arguments = {
            "chat_template": chat_template,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "template_variables": chat_template_kwargs,
        }
        prompts = [self._render(conversation, arguments) for conversation in read_conversations(messages)]
        params = sampling_params or self.get_default_sampling_params()
        run = self._runner_of(use_tqdm)
        return complete_prompts(self._session, prompts, params, priority, tokenization_kwargs, run)

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        pooling_task: str | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What `pooling_task` (embed, classify, token_embed or token_classify) gives for each prompt.

        `tokenization_kwargs` may have `truncate_prompt_tokens` (-1: as many as the model takes) and `truncation_side`
        ("right" by default). Raises ValidationError for the first prompt that cannot be served, and where the model is not a
        pooling model, or not one for this task.
        """
        _refuse(unsupported)
        self._check_pools("encode")
        if pooling_task is None:
            raise ValidationError(
                "pooling_task required for `LLM.encode`: embed (or `LLM.embed`), classify (or `LLM.classify`), "
                "token_embed or token_classify."
            )
        run = self._runner_of(use_tqdm)
        return pool_prompts(self._session, prompts, pooling_params, pooling_task, tokenization_kwargs, run)

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt. Arguments and errors are as in `encode`."""
        _refuse(unsupported)
        self._check_pools("embed")
        run = self._runner_of(use_tqdm)
        return embed_prompts(self._session, prompts, pooling_params, tokenization_kwargs, run)

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: Progress = True,
        tokenization_kwargs: dict[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of the model's classes for each prompt. Arguments and errors are as in `encode`."""
        _refuse(unsupported)
        self._check_pools("classify")
        run = self._runner_of(use_tqdm)
        return classify_prompts(self._session, prompts, pooling_params, tokenization_kwargs, run)

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        /,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        chat_template: str | None = None,
        **unsupported: Any,
    ) -> list[ScoringRequestOutput]:
        """How relevant texts are to each other: one with each of many, or as many with as many. A model with one label reads
        both at once, as `chat_template` (a text) joins the roles query and document if it is given; of one that embeds it is
        the cosine of the vectors. Errors are as in `encode`."""
        _refuse(unsupported)
        self._check_pools("score")
        run = self._runner_of(use_tqdm)
        return score_pairs(self._session, data_1, data_2, pooling_params, tokenization_kwargs, chat_template, run)

    def beam_search(
        self, prompts: PromptType | Sequence[PromptType], params: BeamSearchParams, **unsupported: Any
    ) -> list[BeamSearchOutput]:
        """The `beam_width` likeliest answers to each prompt that a search of that width finds. Raises ValidationError for
        the first prompt that cannot be served."""
        _refuse({name: value for name, value in unsupported.items() if value is not False})
        self._check_generates("beam_search")
        if not isinstance(params, BeamSearchParams):
            raise ValidationError(f"params must be BeamSearchParams, got {type(params).__name__}")
        return beam_search(self._session, read_prompts(prompts), params)

    def stream(
        self, prompt: PromptType, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Complete one prompt, yielding all that has come so far whenever there is more. Closing the generator aborts.

        Raises ValidationError at once when the prompt cannot be served.
        """
        self._check_generates("stream")
        prompts = read_prompts(prompt)
        if len(prompts) != 1:
            raise ValidationError(f"one prompt can be streamed at a time, got {len(prompts)}")
        return stream_prompt(self._session, prompts[0], sampling_params or self.get_default_sampling_params())

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation, yielding as `stream` does."""
        self._check_generates("stream_chat")
        prompt = self._render(messages, {"template_variables": chat_template_kwargs})
        return stream_prompt(self._session, prompt, sampling_params or self.get_default_sampling_params())

    @property
    def start_table(self) -> dict[str, str]:
        """What runs: the rows of the start-up table ("backend": "cpu (avx2, 2 threads)", "dtype", "KV cache", ...)."""
        return dict(self._start_log.table)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValidationError under skip_tokenizer_init."""
        tokenizer = self._session.intake.tokenizer
        if tokenizer is None:
            raise ValidationError("there is no tokenizer with skip_tokenizer_init=True")
        return tokenizer

    @property
    def default_sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams that the model's generation_config sets."""
        return dict(self._session.intake.default_sampling)

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used where no sampling_params are given: `default_sampling`, and the class's own defaults."""
        return SamplingParams(**self.default_sampling)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Prompts from now on find nothing that was computed before. Running ones (of other threads) keep what they have, or
        start again with `reset_running_requests`. `reset_connector` is vLLM's; there is none. True: it is done."""
        return self._session.reset_prefix_cache(reset_running_requests)

    @property
    def engine(self) -> EngineControl:
        """What can be asked of the engine itself."""
        return EngineControl(self)

    def close(self) -> None:
        """Give back all memory. Idempotent; the object cannot be used afterwards."""
        self._session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_pools(self, method: str) -> None:
        if self._session.intake.pooling is None:
            raise ValidationError(
                f"LLM.{method}() is only supported for pooling models. Try passing `--runner pooling` to use the model as a "
                "pooling model."
            )

    def _check_generates(self, method: str) -> None:
        if self._session.intake.pooling is not None:
            raise ValidationError(
                f"LLM.{method}() is only supported for generative models. Try passing `--runner generate` to use the model "
                "as a generative model."
            )

    def _runner_of(self, use_tqdm: Progress) -> Callable[[Sequence[Job[Any]]], None]:
        return lambda jobs: self._run(jobs, False if self.config.disable_progress else use_tqdm)

    def _render(self, messages: Messages, arguments: dict[str, Any]) -> Prompt | RequestError:
        try:
            return Prompt(self._session.intake.render_chat(messages, **arguments), add_special_tokens=False)
        except ValidationError as error:
            return error

    def _run(self, jobs: Sequence[Job[Any]], use_tqdm: Progress) -> None:
        with ProgressBar(len(jobs), use_tqdm) as bar, closing(self._session.run(jobs)) as steps:
            done = 0
            for _ in steps:
                before, done = done, sum(job.collector.finished for job in jobs)
                bar.update(done - before)


class EngineControl:
    """`LLM.engine`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def clear_cache(self) -> bool:
        """The same as `LLM.reset_prefix_cache()`."""
        return self._llm.reset_prefix_cache()


def _refuse(unsupported: dict[str, Any]) -> None:
    """Arguments of vLLM that Octavo does not have may be there as None."""
    for name, value in unsupported.items():
        if value is not None:
            raise ValidationError(f"{name} is not supported", parameter=name)
