"""GPTQ (Frantar et al., 2022) as auto-gptq and gptqmodel store it: w = (q - zero) * scale, 4 or 8 bits.

qweight I32 [in * bits / 32, out], qzeros I32 [groups, out * bits / 32], scales [groups, out], g_idx I32 [in] (the group of
each input, which with desc_act is not monotone). In the format "gptq" the stored zeros are less by 1, in "gptq_v2" they
are not. gptqmodel's `dynamic` has rules for single modules; one that was left out has an ordinary weight.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from octavo.errors import LoadError
from octavo.kernels.packed import PackedTensor, Packing
from octavo.weights.checkpoint import PLAIN_TYPES, StoredProjection
from octavo.weights.quantized.source import (
    Settings,
    StoredTensors,
    expect_shape,
    group_of,
    matrix_shape,
    order_of,
    scale_dtype,
    stored_projection,
    stored_scales,
)
from octavo.weights.quantized.unpack import add_to_codes, unpack_columns, unpack_rows

_FORMATS = {"gptq": True, "gptq_v2": False}  # whether stored zeros are less by 1
_FORMAT_KEYS = ("checkpoint_format", "format")
_RULE_KEYS = {"bits", "group_size", "desc_act", "sym", "mse", "pack_dtype", "method", "format"}


class GPTQ:
    """See `Scheme`."""

    method = "gptq"

    def __init__(self, source: StoredTensors, settings: Settings) -> None:
        """LoadError for a format, a number of bits or a rule that is not supported."""
        self._source = source
        self._settings = settings
        form, other = (settings.text(*keys, default="gptq") for keys in (_FORMAT_KEYS, _FORMAT_KEYS[::-1]))
        if form not in _FORMATS:
            raise settings.refuse(f"checkpoint_format {form!r}", " and ".join(_FORMATS))
        if form != other:
            raise settings.refuse(f"checkpoint_format {form!r} beside format {other!r}", "the same in both")
        self._is_first_version = _FORMATS[form]
        self._bits = self._check_bits(settings.integer("bits", "w_bit", default=4))
        self._group_size = settings.get("group_size", "q_group_size")
        pack = settings.text("pack_dtype", default="int32")
        if pack != "int32":
            raise settings.refuse(f"pack_dtype {pack!r}", "int32")
        self._rules = self._read_rules(settings.get("dynamic", default={}))

    def projection(self, name: str) -> StoredProjection | None:
        """See `Checkpoint.projection`."""
        source, qweight, qzeros, scales = self._source, f"{name}.qweight", f"{name}.qzeros", f"{name}.scales"
        if source.type_name(qweight) is None:
            return None
        rule = self._rule_of(name)
        bits = self._check_bits(rule.get("bits", self._bits))
        codes_per_word = 32 // bits
        words, outputs = matrix_shape(source, qweight, "I32")
        inputs = words * codes_per_word
        dtype = scale_dtype(source, scales)
        groups, _ = matrix_shape(source, scales, *PLAIN_TYPES)
        expect_shape(source, scales, (groups, outputs))
        expect_shape(source, qzeros, (groups, -(-outputs // codes_per_word)), "I32")
        packing = Packing("int4" if bits == 4 else "int8", group_of(source, name, inputs, groups), dtype, "zero")
        self._check_group_size(scales, rule.get("group_size", self._group_size), inputs, groups)
        has_index = source.type_name(f"{name}.g_idx") is not None
        if has_index:
            expect_shape(source, f"{name}.g_idx", (inputs,), "I32", "I64")

        def load() -> PackedTensor:
            order = order_of(source, f"{name}.g_idx", packing.group) if has_index else None
            codes = unpack_columns(source.stored(qweight), bits, inputs)
            if order is not None:
                codes = np.take(codes, order, axis=1)
            stored = source.stored(qzeros)
            zeros = unpack_rows(add_to_codes(stored, bits) if self._is_first_version else stored, bits, outputs)
            return PackedTensor(
                packing, codes, np.ascontiguousarray(stored_scales(source, scales).T), np.ascontiguousarray(zeros.T), order
            )

        names = (qweight, qzeros, scales, *((f"{name}.g_idx",) if has_index else ()))
        return stored_projection(source, (outputs, inputs), packing, names, load)

    def _rule_of(self, name: str) -> dict[str, Any]:
        """Of a module, the first that matches its name."""
        for pattern, rule in self._rules:
            if pattern.match(name):
                if rule is None:
                    raise LoadError(f"{self._source.path}: a dynamic rule leaves {name} out, but it is stored quantized")
                return rule
        return {}

    def _check_group_size(self, scales: str, said: Any, inputs: int, groups: int) -> None:
        """LoadError where so many groups are not of the size that the configuration says (-1: all inputs)."""
        if type(said) is not int or said < -1 or said == 0:
            return
        if groups != (1 if said == -1 else -(-inputs // said)):
            raise LoadError(
                f"{self._source.path}: tensor {scales} has a scale for each {inputs // groups} inputs, but the "
                f"quantization_config says group_size {said}; correct that if it is the tensors that are right"
            )

    def _read_rules(self, dynamic: Any) -> list[tuple[re.Pattern[str], dict[str, Any] | None]]:
        """Pattern -> settings, None for modules that are left out ("-:")."""
        if not isinstance(dynamic, dict):
            raise LoadError(f"{self._source.path}: dynamic of the quantization_config must be an object")
        rules = []
        for text, rule in dynamic.items():
            unknown = sorted(rule.keys() - _RULE_KEYS) if isinstance(rule, dict) else ["no object"]
            if unknown and not text.startswith("-:"):
                raise self._settings.refuse(f"{unknown[0]!r} in the dynamic rule {text!r}", ", ".join(sorted(_RULE_KEYS)))
            try:
                pattern = re.compile(text[2:] if text.startswith(("-:", "+:")) else text)
            except re.error as error:
                raise LoadError(f"{self._source.path}: the dynamic rule {text!r} is no expression ({error})") from None
            rules.append((pattern, None if text.startswith("-:") else rule))
        return rules

    def _check_bits(self, bits: Any) -> int:
        if bits not in (4, 8):
            raise self._settings.refuse(f"{bits} bits", "4 and 8 bits")
        return int(bits)
