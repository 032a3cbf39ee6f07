"""Greedy text of SmolLM2 in every form in which weights are kept, against Transformers with the numbers they stand for.

Transformers computes in float32 and rounds no activations, whatever a checkpoint says of them (W8A8, FP8): what is compared
is the model that the weights alone make. Octavo rounds activations as it does when it serves: beside integers to 16 bits,
to 8 only where that is asked for, and there the texts are less alike. (Rounding in Transformers too does not bring them
nearer: in 30 layers the last digit of a float32 decides how the next layer rounds.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from tests.golden.derive_llama import load
from tests.models.smollm2_forms import Form, forms
from tests.tools.write_safetensors import smollm2_directory

pytestmark = pytest.mark.oracle
COUNT = 32
FORMS = forms()
PROMPTS: list[list[int]] = [each["prompt"] for each in load()["smollm2"]["greedy"]][::4]
# How far below the largest logit, which is about 20, the chosen token's may be: a tie to the precision of the products.
TIE = 0.1
TIE_OF_8_BITS = 1.0


@pytest.fixture(scope="module")
def reference() -> Any:
    """Transformers' model, whose weights the tests replace."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2_directory("float32"), dtype="float32").eval()


@pytest.mark.parametrize("name", ["w4a16-32", "int8"])
def test_text_is_that_of_the_dequantized_model(reference: Any, tmp_path: Path, name: str) -> None:
    check(reference, FORMS[name](tmp_path), "bfloat16", PROMPTS[:1])


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMS)
def test_texts_are_those_of_the_dequantized_model(reference: Any, tmp_path: Path, name: str) -> None:
    form = FORMS[name](tmp_path)
    for dtype in ("float32", "bfloat16"):
        check(reference, form, dtype, PROMPTS)


def check(reference: Any, form: Form, dtype: str, prompts: list[list[int]]) -> None:
    outputs = greedy(form, dtype, prompts)
    model = with_weights(reference, form)
    gaps = np.array([gaps_of(model, prompt, output) for prompt, output in zip(prompts, outputs, strict=True)])
    print(f"{dtype}: {np.count_nonzero(gaps)} of {gaps.size} tokens are not the most likely, by {gaps.max():.4f} at most")
    assert gaps.max() <= (TIE_OF_8_BITS if form.has_8_bit_activations else TIE)


def greedy(form: Form, dtype: str, prompts: list[list[int]]) -> list[list[int]]:
    """Token ids after each prompt, past any EOS."""
    limits: dict[str, Any] = {
        "max_model_len": 128,
        "max_num_seqs": len(prompts),
        "kv_cache_memory_bytes": 64 << 20,
        "skip_tokenizer_init": True,
    }
    params = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True, detokenize=False)
    with LLM(str(form.path), dtype=dtype, **limits, **form.options) as llm:
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(result.outputs[0].token_ids) for result in results]


def with_weights(reference: Any, form: Form) -> Any:
    """Transformers' model with the form's numbers."""
    from transformers import AutoModelForCausalLM

    from tests.golden.transformers_reference import load_tensors

    if form.tensors is None:
        return AutoModelForCausalLM.from_pretrained(form.path.parent, gguf_file=form.path.name, dtype="float32").eval()
    load_tensors(reference, form.tensors)
    return reference


def gaps_of(model: Any, prompt: list[int], output: list[int]) -> np.ndarray:
    """How far the logit of each token is below the largest, after the tokens before it; all zero: the same text."""
    from tests.golden.transformers_reference import reference_logits

    logits = reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :]
    gaps: np.ndarray = logits.max(axis=1) - logits[np.arange(COUNT), output]
    return gaps
