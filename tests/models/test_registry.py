"""Architectures are found by name, and their modules loaded only then."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from octavo.models.registry import FAMILIES


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_entry_leads_to_a_class_of_its_name(architecture: str) -> None:
    assert isinstance(getattr(import_module(FAMILIES[architecture]), architecture), type)


def test_no_family_is_loaded_before_it_is_needed() -> None:
    code = "import sys, octavo.models.registry as r; sys.exit(any(module in sys.modules for module in r.FAMILIES.values()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
