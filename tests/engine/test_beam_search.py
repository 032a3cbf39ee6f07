"""Beam search over a made-up model, against a plain search of all answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import LLM
from octavo.engine.beam_search import BeamSearch, step_request
from octavo.engine.request import TokenLogprobs
from octavo.errors import ValidationError
from octavo.sampling.params import BeamSearchParams
from tests.scripted import make_request

VOCABULARY = 4
EOS = 0


class TableModel:
    """Logprobs that depend on the last two tokens."""

    def __init__(self, seed: int) -> None:
        logits = np.random.default_rng(seed).standard_normal((VOCABULARY + 1, VOCABULARY, VOCABULARY)) * 2
        self._logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        before = token_ids[-2] if len(token_ids) > 1 else VOCABULARY
        values: list[float] = self._logprobs[before, token_ids[-1]].tolist()
        return values

    def position(self, token_ids: Sequence[int], count: int) -> TokenLogprobs:
        values = self.logprobs(token_ids)
        ids = sorted(range(VOCABULARY), key=lambda token: -values[token])[:count]
        return TokenLogprobs([ids[0], *ids], [values[ids[0]], *(values[token] for token in ids)], 1)


def search(model: TableModel, width: int, max_tokens: int, penalty: float = 1.0, **params: object) -> BeamSearch:
    request = make_request("r", [3, 1], max_tokens, eos=(EOS,), n=width, temperature=1.0, **params)
    result = BeamSearch.of(request, penalty)
    while result.is_open:
        result.take([model.position(prompt, 2 * width) for prompt in result.prompts])
    return result


def all_answers(model: TableModel, max_tokens: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every answer with its score, the best first."""
    found = []
    for length in range(1, max_tokens + 1):
        for answer in itertools.product(range(VOCABULARY), repeat=length):
            ends = answer[-1] == EOS
            if EOS in answer[:-1] or (length < max_tokens and not ends):
                continue
            total = sum(model.logprobs([3, 1, *answer[:i]])[token] for i, token in enumerate(answer))
            found.append((total / (2 + length - ends) ** penalty, answer))
    return sorted(found, reverse=True)


@given(st.integers(0, 10_000), st.sampled_from([-1.0, 0.0, 1.0, 2.0]))
def test_a_beam_as_wide_as_the_tree_finds_the_best(seed: int, penalty: float) -> None:
    model = TableModel(seed)
    width = 64
    best = search(model, width, 3, penalty).best()
    expected = all_answers(model, 3, penalty)
    assert [beam.token_ids for beam in best] == [answer for _, answer in expected]
    for beam, (score, _) in zip(best, expected, strict=True):
        length = 2 + len(beam.token_ids) - (beam.finish_reason == "stop")
        assert math.isclose(beam.logprob / length**penalty, score)
        assert beam.finish_reason == ("stop" if beam.token_ids[-1] == EOS else "length")


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6))
def test_beams_are_sorted_distinct_and_as_likely_as_they_say(seed: int, width: int, max_tokens: int) -> None:
    model = TableModel(seed)
    best = search(model, width, max_tokens, logprobs=2).best()
    assert 1 <= len(best) <= width
    assert len({beam.token_ids for beam in best}) == len(best)
    for beam in best:
        values = [model.logprobs([3, 1, *beam.token_ids[:i]])[token] for i, token in enumerate(beam.token_ids)]
        assert math.isclose(beam.logprob, sum(values))
        assert [position.logprobs[0] for position in beam.logprobs] == values
        assert all(len(position.token_ids) == 3 for position in beam.logprobs)


def test_a_width_of_one_is_greedy() -> None:
    model = TableModel(5)
    tokens: list[int] = []
    while len(tokens) < 8 and (not tokens or tokens[-1] != EOS):
        values = model.logprobs([3, 1, *tokens])
        tokens.append(max(range(VOCABULARY), key=lambda token: values[token]))
    greedy = [beam.token_ids for beam in search(model, 1, 8)._complete]
    assert tuple(tokens) in greedy


def test_ends() -> None:
    """Under ignore_eos an EOS is a token as others are; a stop token ends an answer with its id."""
    model = TableModel(1)
    assert {beam.finish_reason for beam in search(model, 3, 4, ignore_eos=True).best()} == {"length"}
    stopped = [beam for beam in search(model, 4, 3, stop_token_ids=[2]).best() if beam.token_ids[-1] == 2]
    assert stopped
    assert {(beam.finish_reason, beam.stop_reason) for beam in stopped} == {("stop", 2)}


def test_a_step_asks_for_one_token() -> None:
    step = step_request(make_request("r", [1, 2], 9, n=3, min_tokens=4, temperature=1.0), "s", [1, 2, 7])
    assert (step.request_id, step.prompt_token_ids) == ("s", [1, 2, 7])
    assert (step.params.n, step.params.max_tokens, step.params.min_tokens, step.params.logprobs) == (1, 1, 0, 6)
    assert step.params.is_greedy


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"beam_width": 0}, r"The beam width must be in \[1, 64\], got 0"),
        ({"beam_width": 65}, r"The beam width must be in \[1, 64\], got 65"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"length_penalty": float("nan")}, "length_penalty must be a number"),
        ({"structured_outputs": 1}, "structured_outputs cannot be used with beam search"),
    ],
)
def test_what_is_wrong_is_told(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **fields})  # type: ignore[arg-type]


def test_the_real_model(smollm2: Path) -> None:
    """A wider beam's best answer is at least as likely; several prompts are what each is alone."""
    with LLM(str(smollm2), max_model_len=64, num_gpu_blocks_override=64) as llm:
        prompts = ["The capital of France is", "One, two,"]
        narrow, wide = (llm.beam_search(prompts, BeamSearchParams(width, 5, length_penalty=0.0)) for width in (1, 3))
        for few, many in zip(narrow, wide, strict=True):
            assert len(many.sequences) == 3
            assert many.sequences[0].cum_logprob >= few.sequences[0].cum_logprob
        num_prompt_tokens = len(llm.get_tokenizer().encode(prompts[0]))
        assert all(len(one.logprobs) == len(one.tokens) - num_prompt_tokens for one in wide[0].sequences)
        assert "Paris" in (wide[0].sequences[0].text or "")
        alone = llm.beam_search(prompts[1], BeamSearchParams(3, 5, length_penalty=0.0))
        assert [one.tokens for one in alone[0].sequences] == [one.tokens for one in wide[1].sequences]
