"""Who may import whom, and what must never be loaded."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "octavo"

# Data and protocols that rooms meet at. Every room may import them; they import nothing but each other.
SHARED = {
    "octavo",
    "octavo.child_process",
    "octavo.config",
    "octavo.engine.client",
    "octavo.engine.plan",
    "octavo.engine.request",
    "octavo.errors",
    "octavo.kernels.ops",
    "octavo.kernels.packed",
    "octavo.models.config",
    "octavo.options.description",
    "octavo.options.parsers",
    "octavo.options.pooler",
    "octavo.outputs",
    "octavo.pooling.params",
    "octavo.pooling.settings",
    "octavo.runner.batch",
    "octavo.sampling.keywords",
    "octavo.sampling.params",
    "octavo.sampling.structured",
    "octavo.sampling.validation",
    "octavo.weights.checkpoint",
}

# Room -> rooms of which it may import all. Down only: nothing here leads back up.
MAY_IMPORT = {
    "options": set(),
    "cgroups": set(),
    "kernels": {"cgroups", "sampling"},
    "layers": set(),
    "weights": set(),
    "cache": {"cgroups"},
    "sampling": set(),
    "text": {"weights"},
    "models": {"layers", "weights"},
    "pooling": {"cache", "models", "weights"},
    "parsing": {"text"},
    "grammar": {"text"},
    "runner": {"grammar", "models", "sampling"},
    "engine": {"cache", "grammar", "kernels", "models", "parsing", "pooling", "runner", "sampling", "text", "weights"},
    "offline": {"engine", "parsing", "text"},
    "llm": {"engine", "offline", "options", "text", "weights"},
    "server": {"engine", "grammar", "parsing", "text", "weights"},
    "bench": {"llm", "offline", "options", "text", "weights"},
    "cli": {"bench", "engine", "llm", "options", "server", "weights"},
    "entrypoints": {"cli"},
    "__main__": {"cli"},
}

# These decide about blocks and texts, and know no arrays.
WITHOUT_ARRAYS = (
    "cache",
    "grammar",
    "parsing",
    "text",
    "engine/scheduler.py",
    "engine/sequence.py",
    "engine/sequence_queue.py",
)


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(file: Path) -> Iterator[str]:
    """The modules that a file imports anywhere in it, the lazy ones included, those only for type checkers not."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            submodules = [name for name in inner if (ROOT / Path(*name.split("."))).with_suffix(".py").exists()]
            yield from submodules or [module]


FILES = sorted(PACKAGE.rglob("*.py"))


def test_imports_go_down_only() -> None:
    wrong = []
    for file in FILES:
        module = module_name(file)
        room = room_of(module)
        for imported in imports_of(file):
            if not imported.startswith("octavo") or imported in SHARED or room_of(imported) == room or module == "octavo":
                continue
            if module in SHARED or room_of(imported) not in MAY_IMPORT[room]:
                wrong.append(f"{module} imports {imported}")
    assert wrong == []


def test_the_rule_has_no_way_back_up() -> None:
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [room for room, below in MAY_IMPORT.items() if room not in order and below <= set(order)]
        assert ready, f"a circle among {set(MAY_IMPORT) - set(order)}"
        order += ready


def test_shared_modules_exist() -> None:
    assert {module_name(file) for file in FILES} >= SHARED


def test_schedulers_and_texts_know_no_arrays() -> None:
    paths = [PACKAGE / path for path in WITHOUT_ARRAYS]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    assert [f"{file.name}: {name}" for file in files for name in imports_of(file) if is_of(name, "numpy", "ml_dtypes")] == []


def test_nothing_imports_torch_or_transformers() -> None:
    assert [f"{file}: {name}" for file in FILES for name in imports_of(file) if is_of(name, "torch", "transformers")] == []


def is_of(module: str, *packages: str) -> bool:
    return module.split(".")[0] in packages


def loaded_by(code: str) -> set[str]:
    """The modules that a Python process has at the end of the code, beside those that it has at once."""
    process = subprocess.run(
        [sys.executable, "-c", f"{AT_EXIT}\n{code}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    return set(json.loads(process.stdout.splitlines()[-1]))


def program(*arguments: str) -> str:
    return f"import runpy; sys.argv = {['octavo', *arguments]!r}; runpy.run_module('octavo', run_name='__main__')"


AT_EXIT = """
import sys
before = set(sys.modules)
import atexit, json
atexit.register(lambda: print(chr(10) + json.dumps(sorted(set(sys.modules) - before))))
"""


@pytest.mark.parametrize("code", ["import octavo; octavo.__version__", program("--help"), program("--version")])
def test_looking_loads_the_standard_library_alone(code: str) -> None:
    loaded = loaded_by(code)
    assert {name for name in loaded if not is_of(name, "octavo", *sys.stdlib_module_names)} == set()
    assert len([name for name in loaded if is_of(name, "octavo")]) <= 6


@pytest.mark.parametrize("command", ["serve", "chat", "complete"])
def test_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    loaded = loaded_by(program(command, "--help"))
    assert "octavo.options.configure" in loaded
    assert loaded & {"numpy", "msgspec", "zmq", "tokenizers", "jinja2", "starlette", "yaml", "asyncio", "rich"} == set()


def test_a_client_loads_nothing_heavy() -> None:
    loaded = loaded_by("import octavo.cli.chat, octavo.cli.complete, octavo.cli.remote")
    assert loaded & {"numpy", "msgspec", "zmq", "tokenizers", "octavo.llm"} == set()


def test_the_trap_works(traps: dict[str, str]) -> None:
    process = subprocess.run([sys.executable, "-c", "import torch"], env=traps, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (42, "loaded torch\n")


def test_no_module_of_ours_loads_torch_or_transformers(traps: dict[str, str], smollm2: Path) -> None:
    """Every module is imported, and a model answers. (The server of test_readme.py has the trap too.)"""
    modules = [module_name(file) for file in FILES if file.name != "__main__.py"]
    code = (
        f"import importlib; [importlib.import_module(name) for name in {modules!r}]\n"
        "from octavo import LLM, SamplingParams\n"
        f"with LLM({str(smollm2)!r}) as llm: print(llm.generate('Hi', SamplingParams(max_tokens=2), use_tqdm=False))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], env=traps, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
