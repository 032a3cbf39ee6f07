"""The documents agree with the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_options_table_is_the_generated_one() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "options_table.py"))
    assert (ROOT / "docs" / "options.md").read_text() == script["document"](), "run: python scripts/options_table.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_and_modules_that_are_named_exist(document: Path) -> None:
    named = re.findall(r"`((?:octavo|tests|scripts|docs|native|\.ci)/[\w/.*-]*)`", document.read_text())
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [path.name for path in (ROOT / "octavo").iterdir() if not path.name.startswith("_")]
    assert [room for room in rooms if f"`octavo/{room}" not in text] == []
