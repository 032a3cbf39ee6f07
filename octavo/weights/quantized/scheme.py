"""Which quantization method a model directory was written with, and who reads it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from octavo.errors import LoadError
from octavo.weights.json_file import read_json
from octavo.weights.quantized.source import Scheme, Settings, StoredTensors

# quant_method -> module and class; imported when a checkpoint asks for it
_SCHEMES = {
    "awq": ("awq", "AWQ"),
    "compressed-tensors": ("compressed_tensors", "CompressedTensors"),
    "fbgemm_fp8": ("fp8", "FP8"),
    "fp8": ("fp8", "FP8"),
    "gptq": ("gptq", "GPTQ"),
    "mxfp4": ("mxfp4", "MXFP4"),
}
METHODS = tuple(_SCHEMES)
# Beside config.json, from before it said what was done: file -> the method where it names none itself
_OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_OTHER_FILES = {"hf_quant_config.json": "modelopt"}
_PACKED_ENDINGS = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")


def open_scheme(source: StoredTensors, hf_config: dict[str, Any]) -> Scheme | None:
    """None for a checkpoint that is not quantized. LoadError names a method that is not supported, and quantized tensors of
    which nothing says how they were made."""
    packed = next((name for name in source.shapes() if name.endswith(_PACKED_ENDINGS)), None)
    values = _configuration(source, hf_config, packed is not None)
    if values is None:
        if packed is None:
            return None
        raise LoadError(f"{source.path} holds {packed}, but no quantization_config in config.json says how to read it")
    method = values.get("quant_method")
    if not isinstance(method, str) or method not in _SCHEMES:
        raise LoadError(
            f"{source.path} is quantized with {method!r}, which is not supported; supported: {', '.join(METHODS)}; or take "
            "its bfloat16 or float16 original, or a GGUF file"
        )
    module, name = _SCHEMES[method]
    scheme: Scheme = getattr(import_module(f"octavo.weights.quantized.{module}"), name)(
        source, Settings(source.path, method, values)
    )
    return scheme


def _configuration(source: StoredTensors, hf_config: dict[str, Any], is_packed: bool) -> dict[str, Any] | None:
    """`quantization_config` (older: `compression_config`), at the top or in the part that describes the text model; for
    packed tensors from a file of its own where an older tool wrote one."""
    text = hf_config.get("text_config")
    for holder in (hf_config, text if isinstance(text, dict) else {}):
        for key, method in (("quantization_config", None), ("compression_config", "compressed-tensors")):
            found = holder.get(key)
            if not found:
                continue
            if not isinstance(found, dict):
                raise LoadError(f"{source.path}: {key} in config.json must be an object, but is {found!r}")
            return {"quant_method": method} | found if method else found
    for file, method in () if not is_packed else (_OLD_FILES | _OTHER_FILES).items():
        found = read_json(source.path / file, optional=True)
        if found:
            return {"quant_method": method} | found
    return None
