"""What a model is for, and how it pools: by its architecture, its files and the options."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, PoolingParams
from octavo.cache.plan import resolve_limits
from octavo.config import EngineConfig
from octavo.engine.planning import plan_model
from octavo.errors import ConfigError, LoadError, ValidationError
from octavo.pooling.resolve import Served, open_served
from octavo.weights.hub_files import HubId, select_files
from tests.models.tiny import tiny_config
from tests.pooling import small


def write_config(folder: Path, architecture: str, **changes: Any) -> Path:
    """config.json, and tensors that nobody reads here."""
    config = small.bert_config() if architecture.startswith(("Bert", "Roberta", "XLM")) else tiny_config()
    small.write_model(folder, {**config, "architectures": [architecture], **changes}, {"x": np.zeros(1, np.float32)})
    return folder


def served(folder: Path, **options: Any) -> Served:
    return open_served(EngineConfig(**options), folder)


@pytest.mark.parametrize(
    ("architecture", "options", "task", "pooling_type"),
    [
        ("BertModel", {}, "embed", "CLS"),
        ("BertModel", {"pooler_config": {"pooling_type": "MEAN"}}, "embed", "MEAN"),
        ("BertModel", {"pooler_config": {"pooling_type": "ALL"}}, "token_embed", "CLS"),
        ("BertModel", {"pooler_config": {"task": "token_embed"}, "runner": "pooling"}, "token_embed", "CLS"),
        ("BertForSequenceClassification", {}, "classify", "CLS"),
        ("BertForSequenceClassification", {"task": "score"}, "classify", "CLS"),
        ("XLMRobertaForSequenceClassification", {"convert": "classify"}, "classify", "CLS"),
        ("LlamaModel", {}, "embed", "LAST"),
        ("LlamaForSequenceClassification", {}, "classify", "LAST"),
        ("LlamaForCausalLM", {"runner": "pooling"}, "embed", "LAST"),
        ("LlamaForCausalLM", {"convert": "embed"}, "embed", "LAST"),
        ("LlamaForCausalLM", {"task": "embedding"}, "embed", "LAST"),
        ("LlamaForCausalLM", {"convert": "classify"}, "classify", "LAST"),
        ("LlamaForCausalLM", {}, None, None),
        ("ChatGLMModel", {}, None, None),
        ("LlamaForCausalLM", {"runner": "generate"}, None, None),
    ],
)
def test_what_a_model_serves(
    tmp_path: Path, architecture: str, options: dict[str, Any], task: str | None, pooling_type: str | None
) -> None:
    pooling = served(write_config(tmp_path, architecture), **options).pooling
    assert (pooling and pooling.task) == task
    assert (pooling and pooling.pooling_type) == pooling_type


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("BertModel", {"runner": "generate"}, "BertModel is a pooling model and generates no text"),
        ("BertModel", {"task": "generate"}, "--task generate: BertModel is a pooling model"),
        ("BertModel", {"convert": "classify"}, "BertModel serves embed and cannot classify"),
        ("BertModel", {"pooler_config": {"task": "classify"}}, "serves embed and cannot classify"),
        ("LlamaForCausalLM", {"pooler_config": {"pooling_type": "MEAN"}}, "--pooler-config needs --runner pooling"),
    ],
)
def test_options_that_do_not_fit_the_model(tmp_path: Path, architecture: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        served(write_config(tmp_path, architecture), **options)


def test_the_size_of_vectors_that_leave_a_projection(tmp_path: Path) -> None:
    pooling = served(write_config(tmp_path, "OPTModel", word_embed_proj_dim=32)).pooling
    assert pooling is not None
    assert pooling.describe() == "embed, LAST, normalised, 32 dimensions"


def test_c154_unknown_pooling_architectures_are_named(tmp_path: Path) -> None:
    for name in ("FooModel", "FooForSequenceClassification"):
        with pytest.raises(
            LoadError, match=f"architecture '{name}' is not supported; supported: .*BertModel.*LlamaForCausalLM"
        ):
            served(write_config(tmp_path, name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner": "generate", "convert": "embed"}, "--runner generate has no use for"),
        ({"runner": "pooling", "task": "generate"}, "--task generate and --runner pooling contradict each other"),
        ({"runner": "draft"}, "--runner must be one of auto, generate, pooling"),
        ({"convert": "reward"}, "--convert must be one of"),
        ({"pooler_config": "MEAN"}, "must be a JSON object"),
        ({"pooler_config": "[1]"}, "must be a JSON object"),
        ({"pooler_config": {"pooling": "MEAN"}}, "has no 'pooling'; it has task, pooling_type"),
        ({"pooler_config": {"pooling_type": "MAX"}}, "pooling_type must be CLS, LAST, MEAN or ALL"),
        ({"pooler_config": {"dimensions": 0}}, "dimensions must be a positive integer"),
        ({"pooler_config": {"logit_sigma": 0}}, "logit_sigma must be a number other than 0"),
        ({"pooler_config": {"enable_chunked_processing": True}}, "enable_chunked_processing must be false"),
        ({"pooler_config": {"pooling_type": "CLS", "seq_pooling_type": "CLS"}}, "cannot set both"),
        ({"pooler_config": {"task": object()}}, "takes values that JSON has"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)


def test_files_of_sentence_transformers(tmp_path: Path) -> None:
    write_config(tmp_path, "LlamaForCausalLM")
    prompts = {"query": "Find: ", "document": ""}
    small.write_modules(tmp_path, "mean_tokens", normalises=False, prompts=prompts, default_prompt_name="query")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100, "do_lower_case": True}))
    found = served(tmp_path)
    assert found.pooling is not None
    assert (found.pooling.pooling_type, found.pooling.use_activation, found.pooling.lower_case) == ("MEAN", False, True)
    assert (found.pooling.prompts, found.pooling.default_prompt) == (prompts, "query")
    assert resolve_limits(EngineConfig(), found.model).max_model_len == 100
    assert resolve_limits(EngineConfig(max_model_len=1024), found.model).max_model_len == 1024
    small.write_modules(tmp_path, "lasttoken", normalises=True)
    found = served(tmp_path)
    assert found.pooling is not None
    assert (found.pooling.pooling_type, found.pooling.use_activation) == ("LAST", True)
    assert served(tmp_path, convert="none").pooling is None


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "modules of type Dense"),
        ("modules.json", {"type": 1}, "must be a list of modules"),
        ("modules.json", [5], "must be a list of modules"),
        ("modules.json", [{"type": "sentence_transformers.models.Pooling", "path": 2}], "must be a list of modules"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling by pooling_mode_max_tokens is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling by max is not supported"),
        ("1_Pooling/config.json", {}, "pooling by nothing is not supported"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "must map names to texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "a"}, "'a' is none of the prompts"),
        ("config_sentence_transformers.json", {"default_prompt_name": ["a"]}, "is none of the prompts"),
    ],
)
def test_files_that_say_what_there_is_not(tmp_path: Path, file: str, content: Any, message: str) -> None:
    small.write_modules(write_config(tmp_path, "BertModel"), "mean_tokens", normalises=True)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(LoadError, match=message):
        served(tmp_path)


def test_newer_pooling_files(tmp_path: Path) -> None:
    small.write_modules(write_config(tmp_path, "BertModel"), "mean_tokens", normalises=True)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    found = served(tmp_path).pooling
    assert found is not None
    assert found.pooling_type == "LAST"


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({"id2label": {"0": "only"}}, 1, "sigmoid"),
        ({"id2label": {"0": "a", "1": "b"}}, 2, "softmax"),
        ({"num_labels": 3}, 3, "softmax"),
        ({}, 2, "softmax"),
        ({"num_labels": 1, "problem_type": "regression"}, 1, "identity"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, 3, "sigmoid"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, 1, "sigmoid"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, "identity"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, 1, "sigmoid"),
    ],
)
def test_labels_and_what_turns_logits_to_scores(tmp_path: Path, config: Any, labels: int, activation: str) -> None:
    found = served(write_config(tmp_path, "BertForSequenceClassification", **config)).pooling
    assert found is not None
    assert (len(found.labels), found.activation, found.scores) == (labels, activation, labels == 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "must name the labels 0 to 1"),
        ({"num_labels": 0}, "num_labels .* must be a positive integer"),
        ({"problem_type": "other"}, "problem_type 'other' is not supported"),
        ({"problem_type": ["regression"]}, "problem_type .* is not supported"),
        ({"matryoshka_dimensions": 64}, "matryoshka_dimensions must be a list of positive integers, but is 64"),
        ({"sbert_ce_default_activation_function": "torch.nn.Tanh"}, "activation function 'torch.nn.Tanh' is not supported"),
    ],
)
def test_classifiers_that_there_are_not(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        served(write_config(tmp_path, "BertForSequenceClassification", **config))


def test_the_plan_of_an_encoder_has_one_layer_and_one_step(tmp_path: Path) -> None:
    config = small.bert_config()
    small.write_model(tmp_path, config, small.bert_tensors(config, "", {}))
    planned = plan_model(EngineConfig(max_num_seqs=8, max_num_batched_tokens=512, backend="numpy"), tmp_path, 1 << 30)
    assert planned.memory.num_blocks == 512 // 16 + 8
    assert planned.memory.sizes.block == 16 * 2 * 48 * 4
    assert planned.table()["pooling"] == "embed, CLS, normalised, 48 dimensions"
    for options in ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 64, "max_model_len": 100}):
        with pytest.raises(ConfigError, match=r"encoder computes in one step; --max-num-batched-tokens .* works"):
            plan_model(EngineConfig(max_num_seqs=8, **options), tmp_path, 1 << 30)


def test_prompts_and_lower_case(minilm: Path, tmp_path: Path) -> None:
    small.copy_tokenizer(minilm, tmp_path)
    config = small.bert_config()
    small.write_model(tmp_path, config, small.bert_tensors(config, "", {}))
    prompts = {"query": "Find: ", "document": ""}
    small.write_modules(tmp_path, "mean_tokens", normalises=True, prompts=prompts, default_prompt_name="query")
    with LLM(str(tmp_path), disable_progress=True) as llm:
        ids = llm.get_tokenizer().encode("Find: bells")
        assert llm.embed("bells")[0].prompt_token_ids == ids
        assert llm.embed([ids])[0].outputs == llm.embed("bells")[0].outputs


def test_matryoshka_dimensions(minilm: Path) -> None:
    options = {"pooler_config": {"matryoshka_dimensions": [32, 64], "dimensions": 64}, "disable_progress": True}
    with LLM(str(minilm), **options) as llm:
        whole = np.array(llm.embed("bells", pooling_params=PoolingParams(dimensions=384))[0].outputs.embedding)
        cut = np.array(llm.embed("bells")[0].outputs.embedding)
        assert cut.shape == (64,)
        assert np.abs(cut - whole[:64] / np.linalg.norm(whole[:64])).max() < 1e-6
        assert len(llm.embed("bells", pooling_params=PoolingParams(dimensions=32))[0].outputs.embedding) == 32
        with pytest.raises(ValidationError, match=r"only supports \[32, 64\] matryoshka dimensions"):
            llm.embed("bells", pooling_params=PoolingParams(dimensions=33))


def test_calibrated_logits(minilm: Path, tmp_path: Path) -> None:
    folder = small.bert_classifier(tmp_path, minilm, 2)
    raw = PoolingParams(use_activation=False)
    with LLM(str(folder), disable_progress=True) as llm:
        plain = np.array(llm.classify("bells", pooling_params=raw)[0].outputs.probs)
    with LLM(str(folder), disable_progress=True, pooler_config={"logit_mean": 0.5, "logit_scale": 2.0}) as llm:
        scaled = np.array(llm.classify("bells", pooling_params=raw)[0].outputs.probs)
    assert np.abs(scaled - (plain - 0.5) * 2).max() < 1e-5


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_a_decoder_ends_texts_as_its_tokenizer_says(tmp_path: Path, flags: dict[str, bool]) -> None:
    """C139: the state of the end-of-text token is what is pooled. (Qwen3-Embedding says add_bos_token false, and nothing of
    EOS.)"""
    folder = small.decoder_embedder(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", **flags}))
    with LLM(str(folder), disable_progress=True) as llm:
        (one,) = llm.embed("the harbour")
        tokenizer = llm.get_tokenizer()
        assert one.prompt_token_ids[-1] == tokenizer.eos_token_id
        assert one.prompt_token_ids[:-1] == tokenizer.encode("the harbour", add_special_tokens=False)


@pytest.mark.parametrize("pooling_type", ["LAST", "MEAN", "CLS", "ALL"])
def test_decoders_share_prefixes_and_cut_prompts_without_a_trace(tmp_path: Path, pooling_type: str) -> None:
    folder = small.decoder_embedder(tmp_path)
    task = "token_embed" if pooling_type == "ALL" else "embed"
    shared = list(range(3, 120))
    prompts = [shared, [*shared, 5], [*shared[:64], 9, 9], [7], shared[::-1]]
    results = []
    for options in ({}, {"max_num_batched_tokens": 16, "max_num_seqs": 2}, {"enable_prefix_caching": False}):
        options |= {"backend": "cpu", "pooler_config": {"pooling_type": pooling_type}, "disable_progress": True}
        with LLM(str(folder), **options) as llm:
            for _ in range(2):
                outputs = llm.encode(prompts, pooling_task=task)
                results.append([one.outputs.data.tobytes() for one in outputs])
            skips = pooling_type == "LAST" and options.get("enable_prefix_caching", True)
            assert (outputs[0].num_cached_tokens > 0) == skips
    assert all(result == results[0] for result in results)


def test_the_hub_gives_the_files_of_modules() -> None:
    files = [
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "onnx/config.json",
        "1_Pooling/x.bin",
    ]
    chosen, _ = select_files(HubId("o/m"), files)
    assert chosen == ["model.safetensors", "config.json", "modules.json", "1_Pooling/config.json"]


def test_a_decoder_reads_pairs_one_behind_the_other_or_as_a_template_joins_them(tmp_path: Path) -> None:
    folder = small.decoder_embedder(tmp_path, labels=1)
    template = "{{ messages[0].role }}: {{ messages[0].content }}; {{ messages[1].role }}: {{ messages[1].content }}"
    limits = PoolingParams(extra_kwargs={"max_tokens_per_query": 2, "max_tokens_per_doc": 1})
    with LLM(str(folder), disable_progress=True) as llm:
        encode = llm.get_tokenizer().encode
        plain, templated = (llm.score("the water", "the boats", chat_template=text)[0] for text in (None, template))
        assert plain.prompt_token_ids == encode("the waterthe boats")
        assert templated.prompt_token_ids == encode("query: the water; document: the boats")
        assert plain.outputs.score != templated.outputs.score
        query = encode("the water", False)[:2]
        cut = llm.score("the water", "the boats", pooling_params=limits)[0].prompt_token_ids
        assert cut[:2] == query
        assert len(cut) <= 4
    with LLM(str(folder), disable_progress=True, chat_template=template) as llm:
        assert llm.score("the water", "the boats")[0] == dataclasses.replace(templated, request_id="1")
