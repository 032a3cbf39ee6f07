"""Architectures without a family here, by the modelling code of Transformers: its layers and its loading of weights, with
attention over the paged cache.

torch and transformers are loaded when a model is, never before. The promise that a row's result is the same to the last bit
whatever is computed beside it does not hold here: it is as good as torch's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import LoadError
from octavo.kernels.ops import Array, KVCache, Ops
from octavo.models.config import ModelConfig, read_model_config
from octavo.models.keys import complete
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Checkpoint

EXTRA = "pip install 'octavo[transformers]'"
_ATTENTION = "octavo"  # the name under which Transformers knows ours
_FORWARD = {"input_ids", "position_ids", "use_cache", "logits_to_keep"}
_CHECKED_TOKENS = 2


def is_installed() -> bool:
    """Whether the packages are there that this needs."""
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def read_foreign_config(checkpoint: Checkpoint) -> ModelConfig:
    """The shape of a model that Transformers' code computes, as far as config.json tells it. LoadError where the weights are
    no directory of safetensors."""
    if not checkpoint.path.is_dir():
        raise LoadError(f"{checkpoint.path}: --model-impl transformers needs a model directory, not a single file")
    raw = complete(checkpoint.hf_config, "")
    if raw.get("intermediate_size") is None and isinstance(raw.get("hidden_size"), int):
        checkpoint = copy(checkpoint)
        checkpoint.hf_config = {**checkpoint.hf_config, "intermediate_size": 4 * raw["hidden_size"]}  # for the memory plan
    config = replace(read_model_config(checkpoint), windows=(), is_foreign=True)  # windows are the code's affair
    nope, rope, value = (config.raw.get(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if isinstance(nope, int) and isinstance(rope, int) and isinstance(value, int):
        # keys and values are made from latents for every head
        config = replace(config, num_kv_heads=config.num_heads, head_dim=max(nope + rope, value))
    return config


def foreign_bytes(checkpoint: Checkpoint, dtype: np.dtype[Any]) -> int:
    """Of the weights in memory: as many as are stored."""
    return sum(int(np.prod(shape)) for shape in checkpoint.shapes().values()) * dtype.itemsize


@dataclass
class _Step:
    """What attention needs to know of the step that is computed. Without `cache` it only notes what it is asked for."""

    heads: tuple[int, int, int]
    ops: Ops
    batch: Batch | None = None
    cache: KVCache | None = None
    layers: list[int] = field(default_factory=list)


_STEP: ContextVar[_Step] = ContextVar("octavo_transformers_step")


class TransformersModel:
    """`octavo.models.registry.Model`, which cannot be recorded. What `forward` returns are logits already, since every
    architecture makes them of its hidden states in its own way."""

    def __init__(
        self,
        config: ModelConfig,
        path: Path,
        dtype: np.dtype[Any],
        ops: Ops,
        *,
        trust_remote_code: bool,
        threads: int | None,
    ) -> None:
        """`path`: a model directory. `threads` of torch; None: as many as it likes. LoadError where Transformers cannot run
        the model, where its code would have to be trusted, or where its attention cannot be ours."""
        self.config = config
        self._ops = ops
        self._torch: Any = import_module("torch")
        if threads is not None:
            self._torch.set_num_threads(threads)
        self._model = self._load(path, dtype, trust_remote_code)
        self._check(path)

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Logits [r, vocabulary] of `batch.logits_rows`."""
        with _step(_Step(self.config.qkv_heads, self._ops, batch, cache)):
            return self._run(batch.token_ids, batch.positions, batch.logits_rows)

    def logits(self, hidden: Array) -> Array:
        """[r, vocabulary], as they are."""
        return hidden

    def _run(self, token_ids: Any, positions: Any, rows: Any) -> Array:
        torch = self._torch
        ids, places, kept = (torch.from_numpy(np.asarray(array, np.int64)) for array in (token_ids, positions, rows))
        with torch.inference_mode():
            output = self._model(input_ids=ids[None], position_ids=places[None], use_cache=False, logits_to_keep=kept)
            logits: Array = output.logits[0].float().contiguous().numpy()
        return logits

    def _load(self, path: Path, dtype: np.dtype[Any], trust_remote_code: bool) -> Any:
        transformers: Any = import_module("transformers")
        transformers.AttentionInterface.register(_ATTENTION, _attention)
        transformers.utils.logging.disable_progress_bar()
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path,
                dtype=getattr(self._torch, dtype.name),
                attn_implementation=_ATTENTION,
                trust_remote_code=trust_remote_code,
            )
        except Exception as error:  # whatever the library or the model's own code may raise
            raise LoadError(f"{path}: {_why(error, trust_remote_code)}") from None
        return model.eval()

    def _check(self, path: Path) -> None:
        """A step of two tokens that shows whether every layer asks for attention once, and for keys of the expected size."""
        missing = _FORWARD - set(inspect.signature(self._model.forward).parameters)
        if missing:
            raise LoadError(
                f"{path}: its code in Transformers takes no {', '.join(sorted(missing))}, so it cannot be served"
            )
        tokens = np.arange(_CHECKED_TOKENS)
        with _step(_Step(self.config.qkv_heads, self._ops)) as step:
            try:
                self._run(tokens, tokens, tokens)
            except (TypeError, ValueError) as error:
                raise LoadError(f"{path}: its code in Transformers cannot be served: {_first_line(error)}") from None
        if sorted(step.layers) != list(range(self.config.num_layers)):
            raise LoadError(
                f"{path}: {len(set(step.layers))} of its {self.config.num_layers} layers have attention that can be taken "
                "over in Transformers' code (others may keep a state of another kind), so it cannot be served"
            )


@contextmanager
def _step(step: _Step) -> Iterator[_Step]:
    token = _STEP.set(step)
    try:
        yield step
    finally:
        _STEP.reset(token)


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **more: Any
) -> tuple[Any, None]:
    """An attention function of Transformers: query [1, n, t, d], key and value [1, k, t, d] -> [1, t, n, d of value]."""
    torch: Any = import_module("torch")
    step = _STEP.get()
    if more.get("position_bias") is not None:
        raise ValueError("its attention adds biases to the scores")
    heads, size = query.shape[1], query.shape[3]
    parts = [_widened(torch, part, step.heads[2]) for part in (query, key, value)]
    found = heads, key.shape[1], parts[1].shape[3]
    if found != step.heads or value.shape[1] != found[1]:
        raise ValueError(
            f"its attention has {found} heads, KV heads and sizes of heads, and not the {step.heads} of config.json"
        )
    step.layers.append(module.layer_idx)
    window = _window(module, more)
    if step.cache is None or step.batch is None:
        return torch.zeros_like(query[..., : value.shape[3]]).transpose(1, 2), None
    qkv = torch.cat(parts, dim=1)[0].transpose(0, 1).flatten(1).float().contiguous().numpy()  # [t, (n + 2k) * d]
    step.ops.write_cache(qkv, step.cache, module.layer_idx, step.batch, step.heads)
    sinks = more.get("s_aux")
    mixed = step.ops.attention(
        qkv,
        step.cache,
        module.layer_idx,
        step.batch,
        step.heads,
        size**-0.5 if scaling is None else float(scaling),
        window=window,
        soft_cap=more.get("softcap"),
        sinks=None if sinks is None else sinks.float().contiguous().numpy(),
    )
    result = torch.from_numpy(mixed).view(1, len(mixed), heads, step.heads[2])[..., : value.shape[3]]
    return result.to(query.dtype), None


def _widened(torch: Any, part: Any, size: int) -> Any:
    """Heads of keys and values may differ in size: the smaller ones get zeros behind them."""
    return torch.nn.functional.pad(part, (0, size - part.shape[3])) if part.shape[3] < size else part


def _window(module: Any, more: dict[str, Any]) -> int | None:
    """How many positions up to its own a token sees."""
    if more.get("sliding_window") is not None:
        return int(more["sliding_window"])
    config = module.config
    types = getattr(config, "layer_types", None)
    kind = types[module.layer_idx] if types else "full_attention"
    if kind == "full_attention" or "sliding_window" in more:
        return None
    if kind == "sliding_attention":
        return int(config.sliding_window)
    raise ValueError(f"its attention is of the type {kind}")


def _why(error: Exception, trust_remote_code: bool) -> str:
    text = _first_line(error)
    if not trust_remote_code and "trust_remote_code" in str(error):
        return "the code of its repository would have to be run; read it, and give --trust-remote-code if you trust it"
    if isinstance(error, KeyError) and _ATTENTION in str(error):
        return "its code in Transformers brings its own attention, which cannot be taken over"
    return f"Transformers cannot load it: {text}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
