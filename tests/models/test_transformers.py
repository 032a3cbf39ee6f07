"""Models by the code of Transformers: which are, what is said where the extra is missing, and (`make oracle`) how they
compare with Transformers alone and with Octavo's own code."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.request import Request
from octavo.errors import ConfigError, LoadError, StartupError
from octavo.models import transformers as foreign
from octavo.pooling.resolve import open_served
from octavo.sampling.params import SamplingParams
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.tiny import tiny_checkpoint, tiny_config
from tests.tools.write_safetensors import write_safetensors

PROMPT = np.random.RandomState(3).randint(3, 150, 64).tolist()
OUTPUT_LENGTH = 16


def tiny_directory(folder: Path, **changes: Any) -> Path:
    """A small random Llama, perhaps under another name."""
    checkpoint = tiny_checkpoint(tiny_config(**changes))
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint.hf_config))
    write_safetensors(folder / "model.safetensors", "float32", checkpoint.shapes(), iter(checkpoint.tensors.values()))
    return folder


def options(folder: Path, **more: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        kv_cache_dtype="float32",
        max_model_len=128,
        max_num_batched_tokens=24,
        num_gpu_blocks_override=24,
        **more,
    )


def test_c154_an_unknown_architecture_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.pooling.resolve.is_installed", lambda: False)
    folder = tiny_directory(tmp_path, architectures=["FooForCausalLM"])
    for implementation in ("auto", "octavo"):
        with pytest.raises(LoadError) as error:
            build_engine(options(folder, model_impl=implementation), lambda _: None)
        assert "'FooForCausalLM' is not supported; supported: " in error.value.message
        assert "pip install 'octavo[transformers]'" in error.value.message
        assert "\n" not in error.value.message
    with pytest.raises(ConfigError, match=r"--model-impl transformers needs torch and transformers: pip install"):
        build_engine(options(folder, model_impl="transformers"), lambda _: None)


def test_whose_code_computes_a_model(tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tiny_directory(tmp_path / "known")
    unknown = tiny_directory(tmp_path / "unknown", architectures=["FooForCausalLM"])

    def is_foreign(folder: Path, implementation: str) -> bool:
        return open_served(EngineConfig(model=str(folder), model_impl=implementation), folder).model.is_foreign

    monkeypatch.setattr("octavo.pooling.resolve.is_installed", lambda: True)
    assert [is_foreign(known, each) for each in ("auto", "octavo", "transformers")] == [False, False, True]
    assert [is_foreign(unknown, each) for each in ("auto", "octavo", "transformers")] == [True, False, True]
    with pytest.raises(LoadError, match="needs a model directory"):
        is_foreign(smollm2, "transformers")
    with pytest.raises(ConfigError, match="generates text only"):
        open_served(EngineConfig(model=str(known), model_impl="transformers", runner="pooling"), known)
    with pytest.raises(ConfigError, match="--quantization is not for models that Transformers' code computes"):
        build_engine(options(known, model_impl="transformers", quantization="int8"), lambda _: None)


def family(name: str) -> dict[str, Any]:
    """config.json of a small model, most of them of families that only Transformers has."""
    shape = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    latents = {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16}
    latents |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    return {
        "cohere": {**shape, "logit_scale": 0.25, "use_qk_norm": True},
        "cohere2": {**shape, "sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
        "stablelm": {**shape, "use_qkv_bias": True, "use_parallel_residual": True, "partial_rotary_factor": 0.25},
        "olmoe": {**shape, **experts},
        "gpt_oss": {**shape, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20},
        "minicpm3": {**shape, **latents},
        "llama": shape,
    }[name]


def written(folder: Path, name: str) -> Any:
    """Transformers' own model of the family, with random weights that are large enough to matter, saved in the folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **family(name)), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
    model.save_pretrained(folder)
    return model


def greedy(config: EngineConfig, prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Continuations by the whole engine, one request after the other, and how much of each prompt was cached."""
    engine = build_engine(config, lambda _: None)
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LENGTH, ignore_eos=True)
    outputs, cached = [], []
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, params, time.time()))
        deltas = []
        while engine.has_work:
            deltas += engine.step().deltas
        outputs.append([token for delta in deltas for token in delta.token_ids])
        cached.append(max(delta.num_cached_tokens or 0 for delta in deltas))
    engine.close()
    return outputs, cached


@pytest.mark.oracle
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["cohere", "cohere2", "stablelm", "olmoe", "gpt_oss", "minicpm3", "llama"])
def test_logits_and_greedy_ids_are_those_of_transformers(tmp_path: Path, name: str, backend: str) -> None:
    from tests.golden.transformers_reference import greedy_ids, reference_logits

    reference = written(tmp_path, name)
    expected = reference_logits(reference, PROMPT)
    ids, _ = greedy_ids(reference, [PROMPT], OUTPUT_LENGTH)
    ways = ["transformers", *(["octavo"] if name == "llama" else [])]
    served = open_served(options(tmp_path, model_impl="transformers"), tmp_path)
    ops = BACKENDS[backend]()
    model = foreign.TransformersModel(served.model, tmp_path, np.dtype(np.float32), ops, trust_remote_code=False, threads=1)
    for chunk in (64, 7, 1):
        error = np.abs(logits_of(model, ops, PROMPT, chunk) - expected).max() / np.abs(expected).max()
        assert error < 1e-4, chunk
    ops.close()
    for way in ways:
        outputs, cached = greedy(options(tmp_path, model_impl=way, backend=backend), [PROMPT, PROMPT])
        assert outputs == ids * 2
        assert cached == [0, 48]


@pytest.mark.oracle
def test_auto_takes_transformers_for_what_has_no_family_here(tmp_path: Path) -> None:
    written(tmp_path, "stablelm")
    statuses: list[Any] = []
    build_engine(options(tmp_path), statuses.append).close()
    assert statuses[-1].table["architecture"] == "StableLmForCausalLM, 2 layers, hidden size 64, by Transformers' code"


MODELLING = """
from transformers import LlamaForCausalLM, LlamaConfig
class FooConfig(LlamaConfig):
    model_type = "foo_of_a_test"
class FooForCausalLM(LlamaForCausalLM):
    config_class = FooConfig
"""


@pytest.mark.oracle
def test_the_repositorys_code_runs_only_where_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.dynamic_module_utils

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    modules = {"AutoConfig": "modelling_foo.FooConfig", "AutoModelForCausalLM": "modelling_foo.FooForCausalLM"}
    folder = tiny_directory(
        tmp_path / "model", architectures=["FooForCausalLM"], model_type="foo_of_a_test", auto_map=modules
    )
    (folder / "modelling_foo.py").write_text(MODELLING)
    with pytest.raises(StartupError, match="give --trust-remote-code if you trust it"):
        build_engine(options(folder), lambda _: None)
    trusted, _ = greedy(options(folder, trust_remote_code=True), [PROMPT])
    own, _ = greedy(options(tiny_directory(tmp_path / "own")), [PROMPT])
    assert trusted == own


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 160, "hidden_size": 64}, "cannot be served"),
    "bloom": ({"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 160}, "takes no position_ids"),
    "falcon": (family("llama") | {"num_kv_heads": 2, "alibi": False}, "brings its own attention"),
    "llama4_text": (family("llama") | {"head_dim": 16, "num_local_experts": 2, "attention_chunk_size": 16}, "chunked"),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", REFUSED)
def test_what_attention_over_a_paged_cache_cannot_compute_is_refused(tmp_path: Path, name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    changes, message = REFUSED[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **changes), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=message) as error:
        build_engine(options(tmp_path, model_impl="transformers"), lambda _: None)
    assert "\n" not in error.value.message
