"""What is promised to whoever installs: names, versions, files."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

import octavo

ROOT = Path(__file__).resolve().parent.parent

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along there
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_public_names() -> None:
    assert octavo.__all__ == ["LLM", "PoolingParams", "SamplingParams", "StructuredOutputsParams", "__version__"]
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    with pytest.raises(AttributeError, match="module 'octavo' has no attribute 'AsyncLLM'"):
        octavo.AsyncLLM  # noqa: B018


def test_version_is_one_and_the_changelog_has_it() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", octavo.__version__)
    assert f"## {octavo.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_this_python_is_a_declared_one() -> None:
    assert (3, 10) <= sys.version_info[:2] <= (3, 13)


def test_declared_pythons_and_extras() -> None:
    assert PROJECT["requires-python"] == ">=3.10,<3.14"
    versions = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]
    assert PROJECT["optional-dependencies"]["cpu"] == []
    runtime = " ".join(PROJECT["dependencies"])
    assert not re.search(r"torch|transformers|fastapi|pandas|scipy", runtime)
    assert len(PROJECT["dependencies"]) <= 18


def test_what_is_declared_is_what_is_imported() -> None:
    """httptools is the one that only another library imports: uvicorn's protocol of that name."""
    imported = set()
    for file in (ROOT / "octavo").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    owners = {file.parts[0]: one.metadata["Name"] for one in distributions() for file in one.files or ()}
    foreign = imported - set(sys.stdlib_module_names) - {"octavo"}
    expected = {owners[name].lower().replace("_", "-") for name in foreign} | {"httptools"}
    assert {re.split("[<>=]", line)[0].lower().replace("_", "-") for line in PROJECT["dependencies"]} == expected


def test_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
