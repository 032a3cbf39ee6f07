"""`LLM` with the real client side of SmolLM2 (tokenizer, template, checks) and an engine that emits prepared ids."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.engine.engine import FAILED_STEPS_UNTIL_DEAD
from octavo.engine.intake import Intake, open_intake
from octavo.engine.plan import StepPlan
from octavo.errors import ConfigError, EngineDeadError, UnavailableError, ValidationError
from octavo.outputs import Logprob
from tests.scripted import Script, ScriptedRunner, scripted_engine

GREETING = " Bonjour à tous."


@pytest.fixture(scope="module")
def intake(smollm2: Path) -> Intake:
    return open_intake(EngineConfig(model=str(smollm2)), smollm2)


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner(script=Script(num_blocks=256, max_model_len=8192))


@pytest.fixture
def llm(runner: ScriptedRunner, intake: Intake, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr("octavo.llm.open_intake", lambda config, path: intake)
    monkeypatch.setattr("octavo.llm.build_engine", lambda config, report: scripted_engine(runner))
    with LLM(str(smollm2), disable_progress=True) as llm:
        yield llm


def says(llm: LLM, runner: ScriptedRunner, request_id: str, text: str) -> list[int]:
    """Prepare the answer to a request: the text, and the end of it."""
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.eos_token_id is not None
    runner.outputs[request_id] = [*ids, tokenizer.eos_token_id]
    return ids


def test_all_forms_of_prompts_in_their_order(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("One two")
    prompts = ["One two", ids, {"prompt": "One two"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=3))
    assert [output.request_id for output in outputs] == ["0", "1", "2", "3"]
    assert [output.prompt for output in outputs] == ["One two", None, "One two", None]
    assert [output.prompt_token_ids for output in outputs] == [ids] * 4
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)


@pytest.mark.parametrize("alone", ["One", [1, 2, 3], {"prompt": "One"}, {"prompt_token_ids": [1, 2, 3]}])
def test_one_prompt_gives_a_list_of_one(llm: LLM, alone: Any) -> None:
    assert len(llm.generate(alone, SamplingParams(max_tokens=1))) == 1


@pytest.mark.parametrize(
    ("kwargs", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, range(15, 20)),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, range(5)),
        ({"truncate_prompt_tokens": -1}, range(20)),
        ({}, range(20)),
        (None, range(20)),
    ],
)
def test_c106_prompts_are_cut_where_asked(llm: LLM, kwargs: Any, kept: range) -> None:
    ids = list(range(1000, 1020))
    (output,) = llm.generate([ids], SamplingParams(max_tokens=1), tokenization_kwargs=kwargs)
    assert output.prompt_token_ids == [ids[i] for i in kept]
    chat = [{"role": "user", "content": "word " * 100}]
    (answer,) = llm.chat(chat, SamplingParams(max_tokens=1), tokenization_kwargs=kwargs)
    (whole,) = llm.chat(chat, SamplingParams(max_tokens=1))
    assert whole.prompt_token_ids is not None
    if kwargs and kwargs["truncate_prompt_tokens"] == 5:
        cut = whole.prompt_token_ids[:5] if "truncation_side" in kwargs else whole.prompt_token_ids[-5:]
        assert answer.prompt_token_ids == cut
    else:
        assert answer.prompt_token_ids == whole.prompt_token_ids


@pytest.mark.parametrize("kwargs", [{"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": 9000}, {"padding": True}])
def test_c106_lengths_that_are_none(llm: LLM, kwargs: Any) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(kwargs))}|tokenization_kwargs has"):
        llm.generate(["a"], SamplingParams(max_tokens=1), tokenization_kwargs=kwargs)


def test_c106_a_prompt_of_any_length(llm: LLM) -> None:
    cut = {"truncate_prompt_tokens": -1}
    (output,) = llm.generate(["word " * 20_000], SamplingParams(max_tokens=92), tokenization_kwargs=cut)
    assert len(output.prompt_token_ids or ()) == 8100


def test_no_prompts(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert llm.chat([]) == []


def test_results_keep_their_order_when_they_end_in_another(llm: LLM) -> None:
    lengths = [9, 1, 5, 2, 7]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.generate([f"Prompt {i}" for i in range(5)], params)
    assert [output.prompt for output in outputs] == [f"Prompt {i}" for i in range(5)]
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_text_reasons_and_metrics(llm: LLM, runner: ScriptedRunner) -> None:
    ids = says(llm, runner, "0", GREETING)
    (output,) = llm.generate("Hello", SamplingParams(max_tokens=50))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (GREETING, "stop", None)
    assert answer.token_ids == [*ids, llm.get_tokenizer().eos_token_id]
    assert (answer.logprobs, answer.cumulative_logprob, output.prompt_logprobs, output.error) == (None, None, None, None)
    metrics = output.metrics
    assert metrics is not None
    assert metrics.num_generation_tokens == len(ids) + 1
    assert metrics.arrival_time <= metrics.scheduled_ts <= metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.arrival_time


def test_the_prefix_cache_and_how_it_is_emptied(llm: LLM) -> None:
    one, ids = SamplingParams(max_tokens=1), list(range(100, 140))

    def cached(prompt: Any) -> int:
        return llm.generate(prompt, one)[0].num_cached_tokens

    assert [cached(ids), cached(ids), cached({"prompt_token_ids": ids, "cache_salt": "a"})] == [0, 32, 0]
    for empty in (llm.reset_prefix_cache, llm.engine.clear_cache, lambda: llm.reset_prefix_cache(True, True)):
        assert empty() is True
        assert [cached(ids), cached(ids)] == [0, 32]
    with pytest.raises(ValidationError, match="'cache_salt' must be a non-empty string"):
        cached({"prompt": "a", "cache_salt": ""})


def test_stop_string_ends_the_sequence_in_the_engine(llm: LLM, runner: ScriptedRunner) -> None:
    says(llm, runner, "0", "one two three four five")
    (output,) = llm.generate("Count", SamplingParams(max_tokens=100, stop=["three"]))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("one two ", "stop", "three")
    (after,) = llm.generate("Again", SamplingParams(max_tokens=2))
    assert after.finished
    assert runner.num_steps < 10


def test_logprobs(llm: LLM, runner: ScriptedRunner) -> None:
    first, second = says(llm, runner, "0", "one two")
    (output,) = llm.generate([5, 6, 7], SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=1))
    answer = output.outputs[0]
    assert answer.logprobs == [{first: Logprob(-1.0, 1, "one")}, {second: Logprob(-2.0, 1, " two")}]
    assert answer.cumulative_logprob == -3.0
    decode = llm.get_tokenizer().decode
    assert output.prompt_logprobs == [
        None,
        {6: Logprob(-1.0, 1, decode([6], skip_special_tokens=False))},
        {7: Logprob(-2.0, 1, decode([7], skip_special_tokens=False))},
    ]


def test_n_answers(llm: LLM) -> None:
    (output,) = llm.generate("Hello", SamplingParams(n=3, temperature=1.0, max_tokens=4, ignore_eos=True))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3
    assert output.metrics is not None
    assert output.metrics.num_generation_tokens == 12


def test_a_bad_prompt_does_not_spoil_the_others(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    bad: list[Any] = ["", [10**6], 5, {"prompt": "a", "multi_modal_data": {}}, {}, ["a", "b"], "x " * 10000]
    prompts = ["Good", *bad, "Good"]
    with caplog.at_level(logging.WARNING):
        first, *refused, last = llm.generate(prompts, SamplingParams(max_tokens=2))
    assert first.outputs[0].token_ids == last.outputs[0].token_ids
    assert (first.error, last.error) == (None, None)
    assert [one.prompt for one in refused] == ["", None, None, None, None, None, "x " * 10000]
    for one in refused:
        assert one.error
        assert (one.finished, one.outputs[0].finish_reason, one.outputs[0].token_ids) == (True, "error", [])
    assert refused[1].prompt_token_ids == [10**6]
    assert refused[2].error == "a prompt must be text, token ids or a dict, got int"
    assert (
        refused[3].error
        == "a prompt's multi_modal_data is not supported; it may have prompt or prompt_token_ids, and cache_salt"
    )
    assert refused[4].error == "a prompt must have either prompt or prompt_token_ids"
    assert refused[5].error == "a prompt must be text, token ids or a dict, got a list of str"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].getMessage().startswith("7 of 9 prompts cannot be served; the first because: ")


@pytest.mark.parametrize("prompts", ["", [""], ["", [10**6]], [[10**6]], {"prompt": ""}])
def test_where_no_prompt_is_good_the_error_is_raised(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ValidationError):
        llm.generate(prompts, SamplingParams(max_tokens=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), "prompts must be text, token ids, a dict or a list of these, got int"),
        ((["a", "b"], [SamplingParams()]), "sampling_params has 1 entries for 2 prompts; give one for all, or one for each"),
        (("a", {"max_tokens": 5}), "sampling_params must be SamplingParams, got dict"),
    ],
)
def test_wrong_arguments(llm: LLM, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        llm.generate(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (None, {}),
        (5, {}),
        ({"role": "user", "content": "x"}, {}),
        ([{"role": "user", "content": "x"}], {"chat_template": 5}),
        ([{"role": "user", "content": "x"}], {"chat_template_kwargs": 5}),
        ([{"role": "user", "content": "x"}], {"chat_template_kwargs": {5: 6}}),
    ],
)
def test_wrong_arguments_of_chat(llm: LLM, messages: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="must"):
        llm.chat(messages, **options)


def test_priorities(runner: ScriptedRunner, intake: Intake, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.script.max_num_seqs = 1
    monkeypatch.setattr("octavo.llm.open_intake", lambda config, path: replace(intake, scheduling_policy="priority"))
    monkeypatch.setattr("octavo.llm.build_engine", lambda *_: scripted_engine(runner, scheduling_policy="priority"))
    order: list[str] = []
    runner.on_step = lambda plan: order.extend(new.request.request_id for new in plan.new_rows)
    with LLM(str(smollm2), scheduling_policy="priority", disable_progress=True) as llm:
        params = SamplingParams(max_tokens=1)
        assert [output.request_id for output in llm.generate(["a", "b", "c"], params, priority=[2, 3, 1])] == ["0", "1", "2"]
        llm.chat([[{"role": "user", "content": "a"}]] * 2, params, priority=[1, 0])
        llm.generate(["a", "b"], params, priority=7)
        assert order == ["2", "0", "1", "4", "3", "5", "6"]
        with pytest.raises(ValidationError, match="priority has 1 entries for 2 prompts; give one for all, or one for each"):
            llm.generate(["a", "b"], params, priority=[1])
        with pytest.raises(ValidationError, match="priority must be an integer of 64 bits, got 'high'"):
            llm.generate("a", params, priority=["high"])


def test_a_priority_without_the_policy_is_refused(llm: LLM) -> None:
    with pytest.raises(ValidationError, match="Got priority 1 but Priority scheduling is not enabled"):
        llm.generate("a", priority=[1])


def test_arguments_of_vllm_that_are_not_supported(llm: LLM) -> None:
    assert llm.generate("a", SamplingParams(max_tokens=1), lora_request=None)
    for name in ("lora_request", "mm_processor_kwargs"):
        with pytest.raises(ValidationError, match=f"{name} is not supported"):
            llm.generate("a", **{name: [1]})


def test_a_request_that_fails_inside_is_reported_in_its_place(llm: LLM, runner: ScriptedRunner) -> None:
    runner.script.row_errors["1"] = 2
    outputs = llm.generate(["a", "b", "c"], SamplingParams(max_tokens=4, ignore_eos=True))
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [4, 2, 4]
    assert outputs[1].error == "row error by script at output position 2"


def test_chat(llm: LLM, runner: ScriptedRunner) -> None:
    says(llm, runner, "0", GREETING)
    (output,) = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=50))
    assert output.outputs[0].text == GREETING
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt, add_special_tokens=False)


def test_chat_options(llm: LLM) -> None:
    asked = {"role": "user", "content": "Hello"}
    begun = [asked, {"role": "assistant", "content": "I am"}]
    one = SamplingParams(max_tokens=1)
    (output,) = llm.chat(begun, one, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("I am")
    template = "{{ word }}{% for m in messages %}[{{ m.content }}]{% endfor %}{{ tools | length }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    (output,) = llm.chat([asked], one, chat_template=template, chat_template_kwargs={"word": "W"}, tools=tools)
    assert output.prompt == "W[Hello]1"


def test_several_conversations_one_of_them_bad(llm: LLM) -> None:
    good = [{"role": "user", "content": "Hello"}]
    outputs = llm.chat([good, [], [{"role": "nobody", "content": ""}], good], SamplingParams(max_tokens=2))
    assert [output.error is None for output in outputs] == [True, False, False, True]
    with pytest.raises(ValidationError):
        llm.chat([{"role": "nobody", "content": ""}])


def test_default_sampling_comes_from_the_model(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams(**llm.default_sampling)


def test_stream_yields_what_has_come_so_far(llm: LLM, runner: ScriptedRunner) -> None:
    ids = says(llm, runner, "0", GREETING)
    seen = list(llm.stream("Hello", SamplingParams(max_tokens=50)))
    assert [len(output.outputs[0].token_ids) for output in seen] == list(range(1, len(ids) + 2))
    texts = [output.outputs[0].text for output in seen]
    assert all(GREETING.startswith(text) for text in texts)
    assert texts[-1] == GREETING
    assert [output.finished for output in seen] == [False] * len(ids) + [True]


def test_stream_refuses_at_once(llm: LLM) -> None:
    with pytest.raises(ValidationError):
        llm.stream("")
    with pytest.raises(ValidationError, match="one prompt can be streamed at a time, got 2"):
        llm.stream(["a", "b"])  # type: ignore[arg-type]


def test_a_closed_stream_is_aborted(llm: LLM, runner: ScriptedRunner) -> None:
    stream = llm.stream("Hello", SamplingParams(max_tokens=None, ignore_eos=True))
    next(stream)
    stream.close()
    llm.generate("Hello", SamplingParams(max_tokens=1))
    assert runner.num_steps < 5
    assert {row.request_name for row in runner.rows.values()} <= {"1"}


def test_streams_and_threads_share_steps(llm: LLM, runner: ScriptedRunner) -> None:
    """Two streams on one thread and two other threads, all at once, each with the ids that it gets alone."""
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    alone = [llm.generate(prompt, params)[0].outputs[0].token_ids for prompt in ("a", "b", "c", "d")]
    results: dict[str, list[int]] = {}

    def generate(prompt: str) -> None:
        results[prompt] = llm.generate(prompt, params)[0].outputs[0].token_ids

    threads = [threading.Thread(target=generate, args=(prompt,)) for prompt in ("c", "d")]
    a, b = llm.stream("a", params), llm.stream("b", params)
    next(a), next(b)
    for thread in threads:
        thread.start()
    for prompt, stream in (("b", b), ("a", a)):
        results[prompt] = list(stream)[-1].outputs[0].token_ids
    for thread in threads:
        thread.join()
    assert [results[prompt] for prompt in ("a", "b", "c", "d")] == alone


def test_works_where_an_event_loop_runs(llm: LLM) -> None:
    async def cell() -> int:
        return len(llm.generate(["a", "b"], SamplingParams(max_tokens=2)))

    assert asyncio.run(cell()) == 2


@pytest.fixture
def python_interrupts() -> Iterator[None]:
    """Ctrl-C as Python has it: a shell's background jobs start with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_interrupts")
def test_interrupting_leaves_a_working_llm(llm: LLM, runner: ScriptedRunner) -> None:
    def interrupt(plan: StepPlan) -> None:
        if runner.num_steps == 3:
            signal.raise_signal(signal.SIGINT)

    runner.on_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], SamplingParams(max_tokens=50, ignore_eos=True))
    (output,) = llm.generate("a", SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3
    assert {row.request_name for row in runner.rows.values()} <= {"2"}


def test_progress_bar_of_the_users_own(llm: LLM) -> None:
    object.__setattr__(llm.config, "disable_progress", False)
    calls: list[Any] = []

    class Bar:
        def __init__(self, **keywords: Any) -> None:
            calls.append(keywords)

        def update(self, count: int) -> None:
            calls.append(count)

        def close(self) -> None:
            calls.append("closed")

    llm.generate(["a", "b", ""], SamplingParams(max_tokens=2), use_tqdm=Bar)
    assert calls[0] == {"total": 2, "desc": "Processed prompts", "unit": "prompt"}
    assert sum(call for call in calls if isinstance(call, int)) == 2
    assert calls[-1] == "closed"


def test_progress_bar_goes_to_standard_error(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("a", SamplingParams(max_tokens=1))
    assert capsys.readouterr() == ("", "")
    object.__setattr__(llm.config, "disable_progress", False)
    llm.generate(["a", "b"], SamplingParams(max_tokens=1))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Processed prompts" in shown.err
    assert "2/2" in shown.err


def test_a_dead_engine_is_told(llm: LLM, runner: ScriptedRunner) -> None:
    runner.script.failing_steps = list(range(100))
    with pytest.raises(EngineDeadError):
        [llm.generate("a") for _ in range(FAILED_STEPS_UNTIL_DEAD)]
    with pytest.raises(EngineDeadError):
        llm.generate("a")


def test_close(llm: LLM, runner: ScriptedRunner) -> None:
    llm.close()
    llm.close()
    assert runner.closed
    with pytest.raises(UnavailableError, match="this LLM was closed"):
        llm.generate("a")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_length": 5}, "unknown option max_length; did you mean max_model_len?"),
        ({"block_size": 20}, "block_size must be a multiple of 16, got 20"),
        (
            {"max_num_batched_tokens": 5, "max_model_len": 9, "enable_chunked_prefill": False},
            "max_num_batched_tokens (5) must not be smaller than max_model_len (9) with enable_chunked_prefill=False",
        ),
    ],
)
def test_bad_options_load_nothing_and_are_named_as_keywords(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("no-such-model", **keywords)
    assert str(caught.value) == message


def test_too_long_a_context_is_refused_with_the_keywords_that_would_work(smollm2: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(smollm2), num_gpu_blocks_override=20)
    assert caught.value.message.startswith(
        "The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (320). "
        "Try increasing gpu_memory_utilization or decreasing max_model_len. "
    )
    assert caught.value.message.endswith("what works: max_model_len=320 or num_gpu_blocks_override=512.")


def test_auto_is_the_length_that_fits(smollm2: Path) -> None:
    """Both sides know it: the client refuses what is longer, the engine has room for the rest."""
    options = {"max_model_len": "auto", "num_gpu_blocks_override": 3, "disable_progress": True}
    with LLM(str(smollm2), **options) as llm:
        with pytest.raises(ValidationError, match="longer than the maximum model length of 48"):
            llm.generate([[5] * 49])
        (output,) = llm.generate([[5] * 40], SamplingParams(max_tokens=48, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (8, "length")
