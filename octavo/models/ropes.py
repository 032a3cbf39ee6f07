"""The rotation's keys in config.json, in the spellings of all ages."""

from __future__ import annotations

from typing import Any

from octavo.errors import LoadError
from octavo.models.keys import is_positive

_LONGROPE = "longrope"
_ORIGINAL = "original_max_position_embeddings"
# Keys without which a rope type means nothing. What a type computes is the rotary layer's affair.
_NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    _LONGROPE: ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "factors": ("factors",),
}


def read_ropes(raw: dict[str, Any], path: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The rotation of most layers, and that of layers with a window where it is another. Newer files have `rope_parameters`
    with rope_theta inside, perhaps one for each type of layer; older ones rope_theta beside `rope_scaling`, which says
    `type` in the oldest, and rope_local_base_freq. LoadError, with `path`, for what makes no sense."""
    key = "rope_parameters" if raw.get("rope_parameters") is not None else "rope_scaling"
    found = raw.get(key)
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise LoadError(f"{path}: {key} in the model's configuration must be an object, but is {found!r}")
    if isinstance(found.get("full_attention"), dict):
        local = found.get("sliding_attention")
        return _read(raw, path, key, found["full_attention"]), None if local is None else _read(raw, path, key, local)
    if raw.get("rope_local_base_freq") is None:
        return _read(raw, path, key, found), None
    local = {"rope_type": "default", "rope_theta": raw["rope_local_base_freq"]}
    return _read(raw, path, key, found), _read(raw, path, "rope_local_base_freq", local)


def _read(raw: dict[str, Any], path: str, key: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise LoadError(f"{path}: {key} in the model's configuration must hold objects, but holds {found!r}")
    rope = dict(found)
    kind = rope.pop("type", None)
    kind = rope.get("rope_type") or kind or "default"
    is_early_longrope = kind == "su" or (kind == "yarn" and "long_factor" in rope)  # in Phi-3's first files
    rope["rope_type"] = _LONGROPE if is_early_longrope else kind
    for name in ("rope_theta", "partial_rotary_factor", _ORIGINAL):
        if rope.get(name) is None and raw.get(name) is not None:
            rope[name] = raw[name]
    rope.setdefault("rope_theta", 10000.0)
    _check(path, key, rope)
    return rope


def _check(path: str, key: str, rope: dict[str, Any]) -> None:
    kind = rope["rope_type"]
    if not isinstance(kind, str):
        raise LoadError(f"{path}: {key} in the model's configuration must be an object whose rope_type is a string")
    names = {"rope_theta", *_NEEDED.get(kind, ())} | ({_ORIGINAL} if rope.get(_ORIGINAL) is not None else set())
    for name in sorted(names):
        value = rope.get(name)
        numbers = value if isinstance(value, list) and name.endswith(("_factor", "factors")) else [value]
        if not numbers or not all(is_positive(number) for number in numbers):
            raise LoadError(
                f"{path}: {name} of {key} ({kind}) must be a positive number"
                f"{' or a list of them' if isinstance(value, list) else ''}, but is {value!r}"
            )
