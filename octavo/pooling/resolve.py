"""Whether a checkpoint is served as a pooling model, and how it pools: by its architecture, its files and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.cache.plan import whole_prompts_needed
from octavo.config import EngineConfig
from octavo.errors import ConfigError, LoadError
from octavo.models.config import ModelConfig, read_architecture, read_model_config
from octavo.models.converted import BodyCheckpoint
from octavo.models.keys import is_whole
from octavo.models.registry import ENCODERS, FAMILIES, Encoder, unknown_architecture
from octavo.models.transformers import EXTRA, is_installed, read_foreign_config
from octavo.options.pooler import read_pooler_config
from octavo.pooling.files import PoolingFiles, read_pooling_files
from octavo.pooling.settings import ACTIVATIONS, SEQUENCE_TASKS, Pooling
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.loader import open_checkpoint

_CLASSIFIER = "ForSequenceClassification"
_GENERATIVE = ("ForCausalLM", "LMHeadModel")
_FUNCTIONS = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}  # of torch.nn.modules
_BY_PROBLEM = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


@dataclass(frozen=True)
class Served:
    """A model as it is served: `pooling` is None for one that generates text."""

    checkpoint: Checkpoint
    model: ModelConfig
    pooling: Pooling | None


def open_served(config: EngineConfig, path: Path) -> Served:
    """Reads headers and configurations only. LoadError names what is wrong with the model's files, ConfigError an option
    that does not go with them."""
    checkpoint = open_checkpoint(path)
    files = read_pooling_files(checkpoint.path)
    architecture = read_architecture(checkpoint)
    conversion = _conversion(config, architecture, files)
    if conversion is None:
        read = read_foreign_config if _is_foreign(config, architecture) else read_model_config
        return Served(checkpoint, read(checkpoint), None)
    if config.model_impl == "transformers":
        raise ConfigError("--model-impl transformers generates text only, and this is a pooling model; leave it out")
    given = read_pooler_config(config.pooler_config) if config.pooler_config is not None else {}
    if architecture in ENCODERS:
        model = _encoder(read_model_config(checkpoint), ENCODERS[architecture])
        is_classifier = architecture.endswith(_CLASSIFIER)
    else:
        checkpoint = BodyCheckpoint(checkpoint, _generative(architecture))
        model = replace(read_model_config(checkpoint), conversion=conversion)
        is_classifier = conversion == "classify"
    if is_classifier:
        model = replace(model, num_labels=len(_labels(model.raw)))
    pooling = _pooling(model, files or PoolingFiles(), given, is_classifier)
    return Served(checkpoint, replace(model, max_length=pooling.max_length), pooling)


def _encoder(model: ModelConfig, family: Encoder) -> ModelConfig:
    """Every head has keys and values of its own, whatever keys of other families the file has."""
    positions = model.max_position_embeddings - family.reserved_positions(model.raw)
    size = model.hidden_size // model.num_heads
    return replace(model, is_encoder=True, num_kv_heads=model.num_heads, head_dim=size, max_position_embeddings=positions)


def pooling_options(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """The options of a pooling model's engine. Its sequences are over before they could be worth swapping; and an encoder's
    prompt is one step's work, of which nothing is of use to another one."""
    config = replace(config, preemption_mode="recompute", kv_offload_dir=None)
    if not model.is_encoder:
        return config
    batched, length = config.max_num_batched_tokens, config.max_model_len
    if batched is not None and length is not None and batched < length:
        raise whole_prompts_needed(batched, length)
    return replace(
        config,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        long_prefill_token_threshold=0,
        max_itl_ms=None,
    )


def _conversion(config: EngineConfig, architecture: str, files: PoolingFiles | None) -> str | None:
    """What becomes of the model: None: it generates, "embed" or "classify"."""
    own = _own_conversion(architecture)
    task = {"score": "classify"}.get(config.task, config.task)
    asked = next((value for value in (config.convert, task) if value in SEQUENCE_TASKS), None)
    if own == "generate":
        if config.runner == "generate" or config.task == "generate":
            return None
        pools = config.runner == "pooling" or asked is not None
        if not pools and (files is None or files.pooling_type is None or config.convert == "none"):
            if config.pooler_config is not None:
                raise ConfigError(f"--pooler-config needs --runner pooling, for {architecture} generates text")
            return None
        return asked or "embed"
    if config.runner == "generate" or config.task == "generate":
        option = "--runner" if config.runner == "generate" else "--task"
        raise ConfigError(f"{option} generate: {architecture} is a pooling model and generates no text; leave it out")
    if asked is not None and asked != own and not (own == "classify" and config.task == "score"):
        raise ConfigError(f"{architecture} serves {own} and cannot {asked}; leave out --convert and --task")
    return own


def _is_foreign(config: EngineConfig, architecture: str) -> bool:
    """Whether a generative model is computed by the code of Transformers."""
    if config.model_impl == "transformers" and not is_installed():
        raise ConfigError(f"--model-impl transformers needs torch and transformers: {EXTRA}", parameter="model_impl")
    if config.model_impl == "auto" and architecture not in FAMILIES:
        return is_installed()
    return config.model_impl == "transformers"


def _own_conversion(architecture: str) -> str:
    if architecture in FAMILIES:
        return "generate"
    if architecture.endswith(_CLASSIFIER):
        return "classify"
    if architecture in ENCODERS or (architecture.endswith("Model") and not architecture.endswith(_GENERATIVE)):
        return "embed"
    return "generate"


def _generative(architecture: str) -> str:
    """The generative family whose body an architecture has. LoadError if there is none here."""
    if architecture in FAMILIES:
        return architecture
    stem = architecture.removesuffix(_CLASSIFIER).removesuffix("Model")
    for ending in _GENERATIVE:
        if stem + ending in FAMILIES:
            return stem + ending
    raise unknown_architecture(architecture)


def _pooling(model: ModelConfig, files: PoolingFiles, given: Mapping[str, Any], is_classifier: bool) -> Pooling:
    pooling_type = given.get("seq_pooling_type", given.get("pooling_type"))
    is_per_token = pooling_type == "ALL" or "tok_pooling_type" in given
    if pooling_type in (None, "ALL"):
        # a classifier's head was trained on the state that its architecture takes
        pooling_type = None if is_classifier else files.pooling_type
    default_task = ("token_" if is_per_token else "") + ("classify" if is_classifier else "embed")
    task = given.get("task", default_task)
    if (task in ("classify", "token_classify")) != is_classifier:
        raise ConfigError(f"--pooler-config: the model serves {default_task} and cannot {task}; leave task out")
    embeds_by_files = files.pooling_type is not None and not is_classifier
    labels = _labels(model.raw) if is_classifier else ()
    mean, sigma = _calibration(given)
    return Pooling(
        pooling_type=pooling_type or ("CLS" if model.is_encoder else "LAST"),
        size=len(labels) or model.output_size,
        task=task,
        is_classifier=is_classifier,
        is_encoder=model.is_encoder,
        num_token_types=model.raw.get("type_vocab_size", 2) if model.is_encoder else 0,
        use_activation=given.get("use_activation", given.get("normalize", files.normalises or not embeds_by_files)),
        activation=_activation(model.raw, len(labels)),
        labels=labels,
        dimensions=_dimensions(model.raw, given),
        default_dimensions=given.get("dimensions"),
        logit_mean=mean,
        logit_sigma=sigma,
        prompts=files.prompts,
        default_prompt=files.default_prompt,
        lower_case=files.lower_case,
        max_length=None if files.max_length is None else min(files.max_length, model.max_position_embeddings),
    )


def _calibration(given: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and sigma, by their names or vLLM's older ones."""
    sigma = given.get("logit_sigma", 1.0 / given["logit_scale"] if "logit_scale" in given else 1.0)
    return float(given.get("logit_mean", given.get("logit_bias", 0.0))), float(sigma)


def _labels(raw: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Of id2label; nameless where only their number is given, and two where not even that is."""
    names = raw.get("id2label")
    if isinstance(names, dict) and names:
        found = {int(key): value for key, value in names.items() if str(key).isdecimal()}
        if sorted(found) != list(range(len(names))):
            raise LoadError(f"id2label in the model's configuration must name the labels 0 to {len(names) - 1}")
        return tuple(str(found[i]) for i in range(len(found)))
    count = raw.get("num_labels", 2)
    if type(count) is not int or count < 1:
        raise LoadError(f"num_labels in the model's configuration must be a positive integer, but is {count!r}")
    return tuple(f"LABEL_{i}" for i in range(count))


def _activation(raw: Mapping[str, Any], num_labels: int) -> str:
    """What turns logits to scores: as the problem type says, else the function that sentence-transformers stored."""
    problem = raw.get("problem_type")
    own = raw.get("sentence_transformers")
    stored = own.get("activation_fn") if isinstance(own, dict) else None
    stored = stored or raw.get("sbert_ce_default_activation_function")
    plain = "sigmoid" if num_labels < 2 else "softmax"
    if problem is not None:
        if not isinstance(problem, str) or problem not in _BY_PROBLEM:
            raise LoadError(f"problem_type {problem!r} is not supported; supported: {', '.join(_BY_PROBLEM)}")
        return plain if problem == "single_label_classification" else _BY_PROBLEM[problem]
    if stored is None:
        return plain
    name = _FUNCTIONS.get(str(stored).rpartition(".")[2])
    if name not in ACTIVATIONS:
        raise LoadError(f"the activation function {stored!r} is not supported; supported: {', '.join(_FUNCTIONS)}")
    return name


def _dimensions(raw: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[int, ...] | None:
    listed = given.get("matryoshka_dimensions", raw.get("matryoshka_dimensions"))
    if listed:
        if not isinstance(listed, (list, tuple)) or not all(is_whole(size, 1) for size in listed):
            raise LoadError(f"matryoshka_dimensions must be a list of positive integers, but is {listed!r}")
        return tuple(listed)
    return () if given.get("is_matryoshka", raw.get("is_matryoshka", False)) else None
