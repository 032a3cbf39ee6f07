"""A model's shape, read from config.json (or the same keys made from GGUF metadata)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from octavo.errors import LoadError
from octavo.models.keys import at_most, complete, is_positive, is_whole, most_of, stored_name
from octavo.models.ropes import read_ropes
from octavo.models.windows import layer_windows
from octavo.weights.checkpoint import Checkpoint

DTYPES = ("float32", "bfloat16", "float16")
_STRETCHING = ("linear", "dynamic", "yarn")  # rope types whose factor says by how much contexts grow


@dataclass(frozen=True)
class ModelConfig:
    """The fields that every decoder shares. What only one family needs stays in `raw`, which is config.json."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_epsilon: float
    tie_word_embeddings: bool
    dtype: str  # of the checkpoint: float32 | bfloat16 | float16
    # rope_theta, rope_type and what the type needs (factor, ...), in one place whatever the file's age. rope_type
    # "factors" (from GGUF): every inverse frequency is divided by its entry of `factors` [rotated / 2]
    rope: dict[str, Any]
    local_rope: dict[str, Any] | None = None  # of layers with a window, where it is another one
    windows: tuple[int | None, ...] = ()  # see layer_windows
    max_model_len: int = 0  # how long sequences may become, where it matters; 0: max_position_embeddings
    eos_token_ids: tuple[int, ...] = ()  # of config.json and generation_config.json
    raw: dict[str, Any] = field(default_factory=dict)  # with the usual name of every key that has another
    # of pooling models (octavo.pooling.resolve)
    is_encoder: bool = False  # sees a prompt as a whole, and needs keys and values within a layer only
    is_foreign: bool = False  # computed by the code of Transformers (octavo.models.transformers)
    conversion: str = "none"  # of a generative architecture: "embed", or "classify" with a head of `num_labels`
    num_labels: int = 0
    max_length: int | None = None  # of a prompt, unless it is asked to be another one

    @property
    def cached_layers(self) -> int:
        """Layers of the KV cache."""
        return 1 if self.is_encoder else self.num_layers

    @property
    def output_size(self) -> int:
        """Of the hidden states that leave the last layer: OPT-350m projects them to the size of its embeddings."""
        return self.size("word_embed_proj_dim") if self.raw.get("word_embed_proj_dim") is not None else self.hidden_size

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """For each layer how many positions up to its own a token sees; None: all before it."""
        return self.windows or (None,) * self.num_layers

    def size(self, key: str) -> int:
        """A positive integer of config.json. LoadError for anything else."""
        value: Any = self.raw.get(key)
        if not is_whole(value, 1, most_of(key)):
            wanted = f"a positive integer{at_most(key, value)}"
            raise LoadError(f"{key} in the model's configuration must be {wanted}, but is {value!r}")
        return int(value)

    def count(self, key: str) -> int:
        """An integer of config.json that may be 0, which it is where it is not given. LoadError for anything else."""
        value: Any = self.raw.get(key) or 0
        if not is_whole(value, 0, most_of("num_hidden_layers")):
            raise LoadError(f"{key} in the model's configuration must be 0 or a positive integer, but is {value!r}")
        return int(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A true or false of config.json. LoadError for anything else."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise LoadError(f"{key} in the model's configuration must be true or false, but is {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number of config.json. LoadError for anything else."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not is_positive(value):
            raise LoadError(f"{key} in the model's configuration must be a positive number, but is {value!r}")
        return float(value)

    @property
    def longest_context(self) -> int:
        """Positions that the model reaches, as vLLM counts: those that it was trained with times the factor of its rotation
        (linear, dynamic, and of YaRN's original ones)."""
        positions, rope = self.max_position_embeddings, self.rope
        if rope.get("rope_type") not in _STRETCHING or self.architecture.startswith("Gemma3"):  # which counts it already
            return positions
        original = rope.get("original_max_position_embeddings") if rope["rope_type"] == "yarn" else None
        return max(positions, int((original or positions) * rope["factor"]))

    def with_sequences_of(self, length: int) -> ModelConfig:
        """The same where sequences become no longer than that, by which some rotations are chosen."""
        depends = self.rope.get("rope_type") in ("dynamic", "longrope")
        return replace(self, max_model_len=length) if depends else self

    @property
    def usual_context(self) -> int:
        """The one where nobody asks for another: all of it only with YaRN, which files have for nothing else."""
        return self.longest_context if self.rope.get("rope_type") == "yarn" else self.max_position_embeddings

    @property
    def context_keys(self) -> str:
        """Where `longest_context` comes from."""
        is_stretched = self.longest_context > self.max_position_embeddings
        return "max_position_embeddings" + (" and the factor of rope_scaling" if is_stretched else "")

    @property
    def qkv_heads(self) -> tuple[int, int, int]:
        """(heads, KV heads, head size), as the ops take them."""
        return self.num_heads, self.num_kv_heads, self.head_dim

    @property
    def cache_window(self) -> int | None:
        """How many positions up to its own a token sees in the layer that sees most; None: all."""
        windows = [window for window in self.layer_windows if window is not None]
        return max(windows) if len(windows) == self.num_layers else None


def read_architecture(checkpoint: Checkpoint) -> str:
    """The first of `architectures`. LoadError where there is none."""
    return _Keys(checkpoint).architecture()


def read_model_config(checkpoint: Checkpoint) -> ModelConfig:
    """Defaults are those of Transformers' LlamaConfig. LoadError names the key whose value makes no sense."""
    keys = _Keys(checkpoint)
    hidden_size, num_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    num_kv_heads = keys.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise keys.error("num_attention_heads", f"a multiple of num_key_value_heads ({num_kv_heads})")
    if keys.raw.get("head_dim") is None and hidden_size % num_heads:
        raise keys.error("hidden_size", f"a multiple of num_attention_heads ({num_heads}) where head_dim is not given")
    head_dim = keys.size("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise keys.error("head_dim", "even", head_dim)
    rope, local_rope = read_ropes(keys.raw, str(checkpoint.path))
    return ModelConfig(
        architecture=keys.architecture(),
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.size("intermediate_size", 4 * hidden_size if "n_embd" in keys.raw else None),
        num_layers=keys.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=keys.size("max_position_embeddings", 2048),
        norm_epsilon=keys.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        dtype=keys.dtype(),
        rope=rope,
        local_rope=local_rope,
        windows=keys.windows(),
        eos_token_ids=keys.eos_token_ids(),
        raw=keys.raw,
    )


class _Keys:
    """Typed access to config.json; a missing key and null are the same."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.raw = checkpoint.hf_config
        self.raw = complete(checkpoint.hf_config, self.architecture())

    def error(self, key: str, wanted: str, value: Any = None) -> LoadError:
        found = self.raw.get(key) if value is None else value
        key = stored_name(self.checkpoint.hf_config, key)
        return LoadError(f"{self.checkpoint.path}: {key} in the model's configuration must be {wanted}, but is {found!r}")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(key)
        if value is not None:
            return value
        if default is None:
            raise LoadError(f"{self.checkpoint.path}: the model's configuration has no {key}")
        return default

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not is_whole(value, 1, most_of(key)):
            raise self.error(key, f"a positive integer{at_most(key, value)}", value)
        return int(value)

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if not is_positive(value):
            raise self.error(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def architecture(self) -> str:
        value = self.raw.get("architectures")
        if isinstance(value, list) and value and isinstance(value[0], str):
            return value[0]
        raise self.error("architectures", "a list with the class name, such as ['LlamaForCausalLM']")

    def dtype(self) -> str:
        """`dtype` (newer) or `torch_dtype`; where neither says it, what the file's tensors are stored as."""
        key = "dtype" if self.raw.get("dtype") is not None else "torch_dtype"
        value = self.raw.get(key)
        if value in (None, "auto"):
            return self.checkpoint.dtype
        name = value.removeprefix("torch.") if isinstance(value, str) else value
        if name not in DTYPES:
            raise self.error(key, f"one of {', '.join(DTYPES)}")
        return str(name)

    def windows(self) -> tuple[int | None, ...]:
        """See `ModelConfig.layer_windows`."""
        layers = self.size("num_hidden_layers")
        types = self.raw.get("layer_types")
        if types is not None and not (
            isinstance(types, list) and len(types) == layers and all(isinstance(each, str) for each in types)
        ):
            raise self.error("layer_types", f"a list with one type for each of the {layers} layers")
        if self.raw.get("sliding_window") is not None:
            self.size("sliding_window")
            for key in ("max_window_layers", "sliding_window_pattern", "no_rope_layer_interval"):
                if self.raw.get(key) is not None and not is_whole(self.raw[key], 0):
                    raise self.error(key, "0 or a positive integer")
        return layer_windows(self.raw, self.architecture(), layers)

    def eos_token_ids(self) -> tuple[int, ...]:
        found: list[int] = []
        for source in (self.raw, self.checkpoint.generation_config):
            value = source.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(_is_int(token_id) for token_id in ids):
                raise self.error("eos_token_id", "an integer or a list of integers", value)
            found += ids
        return tuple(dict.fromkeys(found))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
