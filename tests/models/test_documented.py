"""docs/models.md lists what is registered, and every family has a small model among the tests."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.layers.rotary import ROPE_TYPES
from octavo.models.registry import FAMILIES as SUPPORTED
from octavo.weights.gguf_names import FAMILIES as GGUF
from tests.models.families import FAMILIES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()


def test_every_registered_architecture_is_in_the_table() -> None:
    listed = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)))
    assert sorted(listed) == sorted(SUPPORTED)


def test_every_gguf_architecture_is_listed() -> None:
    (line,) = re.findall(r"^GGUF: (.*)\.$", TEXT, re.MULTILINE)
    assert re.findall(r"`(\w+)`", line) == list(GGUF)


def test_every_rope_type_is_listed() -> None:
    (line,) = re.findall(r"^`rope_type` may be (.*?)\(", TEXT, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", line)) == sorted(set(ROPE_TYPES) - {"factors"})


def test_every_architecture_is_tested_but_those_that_are_another_by_name() -> None:
    tested = {family.config["architectures"][0] for family in FAMILIES.values()}
    assert set(SUPPORTED) - tested == {"ChatGLMForConditionalGeneration"}
