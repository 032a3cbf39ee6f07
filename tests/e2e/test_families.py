"""Each family the whole way: a directory of config.json and safetensors, its plan, and `LLM`, beside Transformers' ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from tests.golden.derive_families import OUTPUT_LENGTH, SEED, load, prompt_of
from tests.models.families import FAMILIES
from tests.pooling.small import write_model

GOLDEN = load()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_ids(name: str, tmp_path: Path) -> None:
    golden, family = GOLDEN[name], FAMILIES[name]
    write_model(tmp_path, family.config, family.checkpoint(golden["shapes"], SEED).tensors)
    llm = LLM(str(tmp_path), skip_tokenizer_init=True, num_gpu_blocks_override=16, max_num_seqs=4)
    prompt = {"prompt_token_ids": prompt_of(golden["prompt_seed"])}
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LENGTH, ignore_eos=True, detokenize=False)
    (first, second) = llm.generate([prompt, prompt], params, use_tqdm=False)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == golden["greedy"]
