"""SmolLM2 under 30 schemas: whatever seed, temperature and company, an answer that ends is valid."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.outputs import RequestOutput
from octavo.sampling.sampler import MASKED
from tests.grammar.schemas import SCHEMAS, validate

PROMPT = "Here is some JSON:\n"


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[LLM]:
    with LLM(str(smollm2), max_model_len=128, num_gpu_blocks_override=2100, disable_progress=True) as llm:
        yield llm


def params(name: str, seed: int, **more: object) -> SamplingParams:
    schema = StructuredOutputsParams(json=SCHEMAS[name])
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=48, structured_outputs=schema, **more)  # type: ignore[arg-type]


def check(name: str, output: RequestOutput) -> bool:
    """Whether the answer ended; if so, it is valid."""
    answer = output.outputs[0]
    assert answer.finish_reason in ("stop", "length"), output.error
    if answer.finish_reason == "stop":
        validate(json.loads(answer.text), SCHEMAS[name])
    return answer.finish_reason == "stop"


def test_every_schema_alone_and_at_once(llm: LLM) -> None:
    names = list(SCHEMAS)
    outputs = llm.generate([PROMPT] * len(names), [params(name, seed) for seed, name in enumerate(names)])
    for i in range(0, len(names), 8):
        alone = llm.generate(PROMPT, params(names[i], i))[0]
        assert alone.outputs[0].token_ids == outputs[i].outputs[0].token_ids


def test_200_seeds(llm: LLM, request: pytest.FixtureRequest) -> None:
    """Of every schema, all at once: 6,000 answers in some 4 minutes of two cores (by default, 1 seed each)."""
    num_seeds = 200 if request.config.getoption("--nightly") else 1
    jobs = [(name, seed) for seed in range(num_seeds) for name in SCHEMAS]
    outputs = llm.generate([PROMPT] * len(jobs), [params(name, seed) for name, seed in jobs])
    ended = Counter(name for (name, _), output in zip(jobs, outputs, strict=True) if check(name, output))
    assert len(ended) >= 20
    if num_seeds == 200:
        assert min(ended[name] for name in SCHEMAS) >= 5  # of the tree, few come to an end in so few tokens


def test_n_answers_each_follow_the_grammar(llm: LLM) -> None:
    structured = StructuredOutputsParams(regex="[a-z]{3}-[0-9]{2}")
    answers = llm.generate("Code: ", SamplingParams(n=6, seed=3, max_tokens=16, structured_outputs=structured))[0].outputs
    texts = [answer.text for answer in answers]
    assert all(len(text) == 6 and text[3] == "-" for text in texts)
    assert len(set(texts)) > 1
    assert {answer.finish_reason for answer in answers} == {"stop"}


def test_others_in_the_batch_are_free(llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=12)
    alone = llm.generate("The capital of France is", free)[0].outputs[0]
    structured = StructuredOutputsParams(choice=["Madrid", "Rome"])
    outputs = llm.generate(
        ["The capital of France is"] * 3, [free, SamplingParams(temperature=0, structured_outputs=structured), free]
    )
    assert [output.outputs[0].token_ids == alone.token_ids for output in outputs] == [True, False, True]
    assert outputs[1].outputs[0].text in ("Madrid", "Rome")


def test_min_tokens_gives_way_to_the_end_of_the_grammar(llm: LLM) -> None:
    structured = StructuredOutputsParams(choice=["yes"])
    answer = llm.generate("Well: ", SamplingParams(min_tokens=10, structured_outputs=structured))[0].outputs[0]
    assert (answer.text, answer.finish_reason) == ("yes", "stop")


def test_c67_logprobs_beside_a_grammar_are_finite(llm: LLM) -> None:
    answer = llm.generate(PROMPT, params("record", 1, logprobs=5))[0].outputs[0]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    values = [entry.logprob for position in answer.logprobs for entry in position.values()]
    assert all(-9999.0 <= value <= 0.0 for value in values)
    json.dumps(values, allow_nan=False)


def test_a_grammar_that_fails_later_ends_its_request_alone(llm: LLM) -> None:
    """All that the other parameters leave is forbidden by the grammar."""
    structured = StructuredOutputsParams(choice=["yes", "no"])
    comma = llm.get_tokenizer().encode(",")
    bad = SamplingParams(structured_outputs=structured, allowed_token_ids=comma)
    good = SamplingParams(structured_outputs=structured, temperature=0)
    outputs = llm.generate(["Well: "] * 3, [good, bad, good])
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "error", "stop"]
    assert outputs[1].error == MASKED
    assert outputs[0].outputs[0].text == outputs[2].outputs[0].text


def test_after_a_marker(llm: LLM) -> None:
    """The grammar begins behind the end of a reasoning block, whichever tokens it came in."""
    session, structured = llm._session, StructuredOutputsParams(choice=["yes", "no"])
    sampling = SamplingParams(temperature=0, max_tokens=40, structured_outputs=structured)
    request = session.intake.request("0", "Count: one, two, three, four, five,", sampling, grammar_start=("", "seven,"))
    from octavo.offline.collector import RequestCollector
    from octavo.offline.session import Job

    job = Job(request, RequestCollector(request, None, session.intake.tokenizer, session._client.abort))
    for _ in session.run([job]):
        pass
    answer = job.collector.output().outputs[0]
    before, _, behind = answer.text.partition("seven,")
    assert before.strip() == "six,"
    assert behind in ("yes", "no")
    assert answer.finish_reason == "stop"
