"""The gate for requests: checks with their exact texts, defaults, seeds. Case numbers are those of the bug reports."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake, open_intake
from octavo.engine.request import Request, Thinking
from octavo.errors import ConfigError, LoadError, ValidationError
from octavo.models.config import ModelConfig
from octavo.sampling.params import SamplingParams
from tests.text import small

CONTEXT = 64
VOCABULARY = 512  # of the model: 404 of the tokenizer, and padding


def model_config(vocab_size: int) -> ModelConfig:
    return ModelConfig("LlamaForCausalLM", vocab_size, 64, 96, 2, 4, 4, 16, 128, 1e-5, False, "float32", {})


def make_intake(**more: Any) -> Intake:
    fields = {"max_model_len": CONTEXT, "tokenizer": small.byte_level(), "eos_token_ids": (402,), **more}
    return Intake(model_config=model_config(VOCABULARY), **fields)


INTAKE = make_intake()


def request(prompt: Any = "the harbour", intake: Intake = INTAKE, **more: Any) -> Request:
    names = ("add_special_tokens", "max_tokens_name", "offline", "priority")
    options = {name: more.pop(name) for name in names if name in more}
    return intake.request("r", prompt, SamplingParams(**more), **options)


def refusal(prompt: Any = "the harbour", intake: Intake = INTAKE, **more: Any) -> tuple[str, str | None]:
    with pytest.raises(ValidationError) as error:
        request(prompt, intake, **more)
    return str(error.value), error.value.parameter


def test_a_request_is_complete() -> None:
    params = SamplingParams(max_tokens=None, stop=["x"])
    made = INTAKE.request("r", "the harbour", params)
    assert made.prompt_token_ids == small.byte_level().encode("the harbour")
    assert made.params.max_tokens == CONTEXT - len(made.prompt_token_ids)
    assert made.params.seed is not None
    assert made.params.stop == ["x"]
    assert (made.request_id, made.eos_token_ids) == ("r", [402])
    assert made.arrival_time > 0
    assert (params.max_tokens, params.seed) == (None, None)  # the caller's are left alone


# -- lengths


def ids(count: int) -> list[int]:
    return [5] * count


TOO_LONG = (
    "This model's maximum context length is 64 tokens. However, your prompt contains {} input tokens, which exceeds this "
    "limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={})"
)


def test_c101_prompts_around_the_limit() -> None:
    made = request(ids(CONTEXT - 1), max_tokens=1)
    assert made.params.max_tokens == 1
    none_left = ("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens")
    assert refusal(ids(CONTEXT), max_tokens=1) == none_left
    assert refusal(ids(CONTEXT), max_tokens=None) == none_left
    assert refusal(ids(CONTEXT + 1)) == (TOO_LONG.format(65, 65), "input_tokens")
    assert refusal("a " * 100) == (TOO_LONG.format("at least 65", 65), "input_tokens")


def test_c101_a_prompt_that_fills_the_context_can_be_scored() -> None:
    for asked in (1, 5, None):
        made = request(ids(CONTEXT), max_tokens=asked, prompt_logprobs=0)
        assert made.params.max_tokens == 1
    assert refusal(ids(CONTEXT + 1), prompt_logprobs=0)[1] == "input_tokens"


def test_c101_the_texts_of_the_offline_class() -> None:
    rule = "Make sure that `max_model_len` is no smaller than the number of text tokens"
    assert refusal(ids(65), offline=True)[0] == (
        f"The decoder prompt (length 65) is longer than the maximum model length of 64. {rule}."
    )
    assert refusal(ids(64), offline=True)[0] == (
        "The decoder prompt (length 64) plus the number of requested output tokens (at least 1) is longer than the maximum "
        f"model length of 64. {rule} (prompt + requested output tokens)."
    )
    assert request(ids(64), offline=True, prompt_logprobs=1).params.max_tokens == 1


def test_a_text_with_too_many_characters_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    most = CONTEXT * small.byte_level().max_chars_per_token
    monkeypatch.setattr(small.byte_level(), "encode", lambda *_: pytest.fail("was tokenized"))
    assert refusal("a" * (most + 1)) == (
        f"This model's maximum context length is 64 tokens. However, your prompt contains {most + 1} characters (more than "
        f"{most} characters, which is the upper bound for 64 input tokens). Please reduce the length of the input prompt. "
        f"(parameter=input_text, value={most + 1})",
        "input_text",
    )


def test_c100_max_tokens_is_clamped_to_what_fits() -> None:
    assert request(ids(8), max_tokens=56).params.max_tokens == 56
    assert request(ids(8), max_tokens=64).params.max_tokens == 56
    for name in ("max_tokens", "max_completion_tokens"):
        message = f"{name}=65 cannot be greater than max_model_len=64. Please request fewer output tokens."
        assert refusal(ids(8), max_tokens=65, max_tokens_name=name) == (f"{message} (parameter={name}, value=65)", name)


def test_max_tokens_where_none_are_given() -> None:
    model_says = make_intake(default_sampling={"max_tokens": 7})
    assert request(ids(8), max_tokens=None).params.max_tokens == 56
    assert request(ids(8), model_says, max_tokens=None).params.max_tokens == 7
    assert request(ids(60), model_says, max_tokens=None).params.max_tokens == 4
    assert request(ids(8), model_says, max_tokens=20).params.max_tokens == 20
    assert "min_tokens must be less than or equal to max_tokens=4" in refusal(ids(60), max_tokens=None, min_tokens=9)[0]


# -- prompts


def test_empty_prompts() -> None:
    nothing = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
    assert refusal("") == (nothing, "prompt")
    assert refusal([]) == (nothing, "prompt")


def test_a_prompt_that_comes_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small.byte_level(), "encode", lambda *_: [])
    assert refusal(" ")[0] == "The decoder prompt cannot be empty"


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([3, 512], "Token id 512 is out of vocabulary: prompt[1] must be in [0, 511]. (parameter=prompt, value=512)"),
        ([200_000], "Token id 200000 is out of vocabulary: prompt[0] must be in [0, 511]. (parameter=prompt, value=200000)"),
        ([1, 2, -1], "Token id -1 is out of vocabulary: prompt[2] must be in [0, 511]. (parameter=prompt, value=-1)"),
        ([1.5], "prompt[0] must be a token id (an integer), got 1.5. (parameter=prompt)"),
        ([1, True], "prompt[1] must be a token id (an integer), got True. (parameter=prompt)"),
        ([1, "a"], "prompt[1] must be a token id (an integer), got 'a'. (parameter=prompt)"),
        ([[[1]]], "prompt[0] must be a token id (an integer), got [[1]]. (parameter=prompt)"),
        (5, "prompt must be a text or a list of token ids (parameter=prompt)"),
        (None, "prompt must be a text or a list of token ids (parameter=prompt)"),
    ],
)
def test_c124_ids_that_are_none(prompt: Any, text: str) -> None:
    assert refusal(prompt) == (text, "prompt")


def test_c92_ids_in_the_padding_are_the_models() -> None:
    assert request([3, 511]).prompt_token_ids == [3, 511]
    assert small.byte_level().vocab_size == 404


def test_c152_padding_is_never_to_be_drawn() -> None:
    assert request().vocab_size == 404
    assert request([5], make_intake(tokenizer=None)).vocab_size is None


def test_a_text_whose_tokens_the_model_lacks_is_refused() -> None:
    narrow = Intake(model_config(300), CONTEXT, small.byte_level())
    assert refusal("a<think>", narrow)[0].startswith("Token id 400 is out of vocabulary: prompt[1]")


def test_c79_special_tokens_are_added_once_or_not_at_all() -> None:
    intake = Intake(model_config(1000), CONTEXT, small.sentencepiece())
    with_bos = request("the", intake).prompt_token_ids
    assert with_bos[0] == 1
    assert request("<s>the", intake).prompt_token_ids == with_bos
    assert request("<s>the", intake, add_special_tokens=False).prompt_token_ids == with_bos
    assert request("the", intake, add_special_tokens=False).prompt_token_ids == with_bos[1:]


def test_c130_a_lone_surrogate() -> None:
    assert "lone surrogate at character 1" in refusal("a\ud800")[0]


# -- parameters


@pytest.mark.parametrize("bad", [999_999_999, -1, VOCABULARY])
def test_c91_ids_in_parameters(bad: int) -> None:
    suffix = f"contain out-of-vocab token ids. Vocabulary size: 512 (parameter={{}}, value=[{bad}])"
    assert refusal(stop_token_ids=[3, bad]) == (
        f"token_id(s) [{bad}] in stop_token_ids " + suffix.format("stop_token_ids"),
        "stop_token_ids",
    )
    assert refusal(logit_bias={bad: 1.0, 3: 1.0}) == (
        f"token_id(s) [{bad}] in logit_bias " + suffix.format("logit_bias"),
        "logit_bias",
    )
    assert request(stop_token_ids=[0, 511], logit_bias={511: 2.0}).params.stop_token_ids == [0, 511]


def test_logprobs_over_the_limit() -> None:
    text = "Requested {} logprobs of {}, which is greater than max allowed: {} (parameter={}, value={})"
    assert refusal(logprobs=50) == (text.format("sample", 50, 20, "logprobs", 50), "logprobs")
    assert refusal(prompt_logprobs=21) == (text.format("prompt", 21, 20, "prompt_logprobs", 21), "prompt_logprobs")
    assert refusal(logprobs=-1)[0] == text.format("sample", 512, 20, "logprobs", -1)
    assert request(logprobs=20, prompt_logprobs=0).params.logprobs == 20
    unlimited = make_intake(max_logprobs=-1)
    assert request("the", unlimited, logprobs=-1, prompt_logprobs=512).params.logprobs == 512


def test_without_a_tokenizer() -> None:
    bare = make_intake(tokenizer=None)
    assert request([1, 2], bare).prompt_token_ids == [1, 2]
    assert "--skip-tokenizer-init" in refusal("the", bare)[0]
    assert refusal([1], bare, stop="x")[1] == "stop"
    with pytest.raises(ValidationError, match="no chat template"):
        bare.render_chat([{"role": "user", "content": "x"}])


def test_priorities_need_the_policy_and_are_64_bit_integers() -> None:
    intake = make_intake(scheduling_policy="priority")
    assert [request(intake=intake, priority=priority).priority for priority in (0, -(2**63), 2**63 - 1)] == [
        *(0, -(2**63), 2**63 - 1)
    ]
    for wrong in (2**63, 1.0, "1", None, True):
        text, parameter = refusal(intake=intake, priority=wrong)
        assert (text.split(", got")[0], parameter) == ("priority must be an integer of 64 bits", "priority")
    assert request(priority=0).priority == 0
    text, parameter = refusal(priority=2)
    assert text.startswith("Got priority 2 but Priority scheduling is not enabled: start with --scheduling-policy priority.")
    assert parameter == "priority"


def test_c95_seeds() -> None:
    first, again = make_intake(seed=7), make_intake(seed=7)
    drawn = [request(intake=first).params.seed for _ in range(3)]
    assert drawn == [request(intake=again).params.seed for _ in range(3)]
    assert len(set(drawn)) == 3
    assert request().params.seed != request(intake=make_intake()).params.seed
    assert request(intake=first, seed=5).params.seed == 5
    assert all(seed is not None and 0 <= seed < 2**63 for seed in drawn)


def test_requests_may_be_made_on_several_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: request("the harbour " * (n % 5 + 1)), range(40)))
    expected = [small.byte_level().encode("the harbour " * (n % 5 + 1)) for n in range(40)]
    assert [one.prompt_token_ids for one in made] == expected
    assert len({one.params.seed for one in made}) == 40


# -- conversations


def test_render_chat(smollm2: Path) -> None:
    intake = open_intake(EngineConfig(), smollm2)
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": "Hi"}]
    prompt = intake.render_chat(messages)
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    prompt = intake.render_chat([{"role": "user", "content": "Say hi"}])
    made = intake.request("r", prompt, SamplingParams(), add_special_tokens=False)
    assert len(made.prompt_token_ids) == 32
    assert made.prompt_token_ids[:8] == [1, 9690, 198, 2683, 359, 253, 5356, 5646]
    assert (
        intake.render_chat(messages, chat_template="{{ messages[1].content }}{{ x }}", template_variables={"x": 1}) == "Hi1"
    )
    for empty in ([], ()):
        with pytest.raises(ValidationError, match=r"^Cannot apply chat template to an empty conversation"):
            intake.render_chat(empty)
    with pytest.raises(ValidationError, match="cannot hold tools"):
        intake.render_chat(messages, template_variables={"tools": []})


# -- opening


def write_model(directory: Path, generation: dict[str, Any] | None = None, tokenizer: Any = None, **config: Any) -> Path:
    """A model directory with a configuration and a tokenizer; its weights are never looked at."""
    from safetensors.numpy import save_file

    small.write_directory(directory, small.byte_level()._backend, eos_token="<|end|>", **(tokenizer or {}))
    keys = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
    }
    (directory / "config.json").write_text(json.dumps({**keys, **config}))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    save_file({}, directory / "model.safetensors")
    return directory


def test_opening_smollm2(smollm2: Path) -> None:
    intake = open_intake(EngineConfig(seed=3, max_logprobs=5), smollm2)
    assert intake.max_model_len == 8192
    assert intake.eos_token_ids == (2,)
    assert intake.default_sampling == {}
    assert (intake.seed, intake.max_logprobs) == (3, 5)
    assert intake.chat_template is not None


def test_c151_every_eos_counts_the_tokenizers_first(tmp_path: Path) -> None:
    model = write_model(tmp_path, {"eos_token_id": [2, 320]}, eos_token_id=2)
    intake = open_intake(EngineConfig(), model)
    assert intake.eos_token_ids == (402, 2, 320)
    assert request([1], intake).eos_token_ids == [402, 2, 320]


def test_c89_sampling_defaults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = {"temperature": 0.6, "top_k": 1, "top_p": None, "max_new_tokens": 30, "do_sample": True, "eos_token_id": 2}
    model = write_model(tmp_path / "model", stored)
    with caplog.at_level(logging.INFO):
        intake = open_intake(EngineConfig(), model)
    assert intake.default_sampling == {"temperature": 0.6, "top_k": 1, "max_tokens": 30}
    assert "'top_k': 1" in caplog.text
    assert "--generation-config vllm" in caplog.text
    assert open_intake(EngineConfig(generation_config="vllm"), model).default_sampling == {}
    assert open_intake(EngineConfig(generation_config="vllm"), model).eos_token_ids == (402, 2)
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_p": 0.9}')
    assert open_intake(EngineConfig(generation_config=str(other)), model).default_sampling == {"top_p": 0.9}


def test_sampling_defaults_that_make_no_sense(tmp_path: Path) -> None:
    model = write_model(tmp_path, {"temperature": -1})
    with pytest.raises(LoadError, match=r"temperature must be non-negative.*--generation-config vllm"):
        open_intake(EngineConfig(), model)
    with pytest.raises(ConfigError, match=r"--generation-config: .*nowhere has no generation_config.json"):
        open_intake(EngineConfig(generation_config=str(tmp_path / "nowhere")), model)


def test_max_model_len(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    assert open_intake(EngineConfig(), model).max_model_len == 128
    assert open_intake(EngineConfig(max_model_len=100), model).max_model_len == 100
    with pytest.raises(ConfigError, match=r"129.*128"):
        open_intake(EngineConfig(max_model_len=129), model)


def test_the_chat_template_option(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", tokenizer={"chat_template": "M{{ eos_token }}"})
    message = [{"role": "user", "content": "x"}]
    file = tmp_path / "own.jinja"
    file.write_text("F{{ eos_token }}")
    for value, expected in ((None, "M<|end|>"), (str(file), "F<|end|>"), ("T{{ eos_token }}", "T<|end|>")):
        assert open_intake(EngineConfig(chat_template=value), model).render_chat(message) == expected
    with pytest.raises(ConfigError, match="neither an existing file nor a Jinja template"):
        open_intake(EngineConfig(chat_template="nowhere.jinja"), model)
    with pytest.raises(ConfigError, match="not valid: line 1"):
        open_intake(EngineConfig(chat_template="{{ x"), model)
    with pytest.raises(ConfigError, match="neither an existing file"):
        open_intake(EngineConfig(chat_template="x" * 100_000), model)


def test_the_tokenizer_options(tmp_path: Path, smollm2: Path) -> None:
    model = write_model(tmp_path)
    bare = open_intake(EngineConfig(skip_tokenizer_init=True), model)
    assert bare.tokenizer is None
    assert bare.chat_template is None
    assert bare.eos_token_ids == ()
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"has no tokenizer.json, .*--tokenizer"):
        open_intake(EngineConfig(), model)
    assert open_intake(EngineConfig(tokenizer=str(smollm2)), model).tokenizer is not None


def test_a_tokenizer_that_generates_no_text_stops_the_start(tmp_path: Path) -> None:
    import tokenizers

    model = write_model(tmp_path)
    backend = tokenizers.Tokenizer.from_str(small.byte_level()._backend.to_str())
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.save(str(model / "tokenizer.json"))
    with pytest.raises(LoadError, match="WordPiece"):
        open_intake(EngineConfig(), model)


# -- reasoning


def thinking(marks: tuple[str, str] | None, budget: int | None = 5, intake: Intake = INTAKE) -> Thinking | None:
    return intake.request("r", "the harbour", SamplingParams(thinking_token_budget=budget), reasoning_marks=marks).thinking


def test_a_budget_of_thinking_goes_along_with_its_marks() -> None:
    opening, closing = (small.byte_level().encode(mark)[0] for mark in ("<think>", "</think>"))
    assert thinking(("<think>", "</think>")) == Thinking(5, opening, [closing])
    assert thinking(("", "</think>")) == Thinking(5, None, [closing])
    assert thinking(("", "")) is None
    assert thinking(None, None) is None


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ValidationError, match="--reasoning-parser"):
        thinking(None)
    with pytest.raises(ValidationError, match=r"\[/THINK\]' is no token of its own"):
        thinking(("", "[/THINK]"))


def test_template_variables_of_the_start_are_those_of_requests_that_give_none(smollm2: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ a }} {{ b }} {{ messages[0].content }}")
    variables: Any = {"a": 1, "b": [2]}
    options = {"model": str(smollm2), "chat_template": str(template)}
    opened = open_intake(EngineConfig(**options, default_chat_template_kwargs=variables), smollm2)
    hello = [{"role": "user", "content": "hello"}]
    assert opened.render_chat(hello) == "1 [2] hello"
    assert opened.render_chat(hello, template_variables={"a": "x"}) == "x [2] hello"
    with pytest.raises(ConfigError, match="takes a JSON object, got 3"):
        EngineConfig(**options, default_chat_template_kwargs="3")
    with pytest.raises(ConfigError, match="--default-chat-template-kwargs: chat_template_kwargs cannot hold messages"):
        open_intake(EngineConfig(**options, default_chat_template_kwargs='{"messages": []}'), smollm2)
