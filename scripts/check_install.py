"""What `pip install .` alone gives, in a fresh environment: its size, what it imports, and whether it answers.

    python scripts/check_install.py [--no-compiler] [--model FILE.gguf]

With --no-compiler the installation runs without any C or C++ compiler on the path, and has to succeed all the same and say
so. Exits with 1 and one line for the first thing that does not hold.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_MEGABYTES = 250
ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "c89", "c99", "icx", "icpx")
IMPORTS = """
import sys, octavo
assert octavo.__version__, "no version"
octavo.LLM, octavo.SamplingParams
import octavo.server.app
heavy = {"torch", "transformers"} & set(sys.modules)
assert not heavy, f"imported {heavy}"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compiler", action="store_true")
    parser.add_argument("--model", type=Path, help="ask this model for the capital of France")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        run([sys.executable, "-m", "venv", str(environment)])
        python = str(environment / "bin" / "python")
        variables = without_compilers(Path(folder)) if options.no_compiler else dict(os.environ)
        run([python, "-m", "pip", "install", "--quiet", str(ROOT)], env=variables)
        megabytes = size(environment) / 1e6
        print(f"Python {sys.version.split()[0]}: {megabytes:.0f} MB installed", flush=True)
        require(megabytes < LIMIT_MEGABYTES, f"{megabytes:.0f} MB are more than {LIMIT_MEGABYTES}")
        run([python, "-c", IMPORTS], cwd=folder)
        native = next(environment.rglob("octavo/kernels/cpu/*.so"), None)
        require((native is None) == options.no_compiler, f"the native library is {native}")
        if options.model:
            check_answer(environment / "bin" / "octavo", options.model.resolve(), options.no_compiler)
    return 0


def check_answer(octavo: Path, model: Path, slow: bool) -> None:
    """The installed program answers, and says when it does so with the slow kernels."""
    command = [str(octavo), "chat", str(model), "--temperature", "0", "--max-tokens", "16"]
    asked = subprocess.run(
        [*command, "--prompt", "What is the capital of France?"], capture_output=True, text=True, cwd="/", timeout=300
    )
    print(asked.stdout.strip(), asked.stderr.strip(), sep="\n", flush=True)
    require(asked.returncode == 0 and "Paris" in asked.stdout, "the model did not answer")
    require(("numpy" in asked.stderr) == slow, "the slow backend must be named on standard error, and only where it runs")


def without_compilers(folder: Path) -> dict[str, str]:
    """The environment's variables with a PATH on which every program is found but the compilers."""
    programs = folder / "programs"
    programs.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(directory).glob("*")):
            link = programs / program.name
            if not is_compiler(program.name) and not link.exists():
                link.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    return {**kept, "PATH": str(programs)}


def is_compiler(name: str) -> bool:
    """Whether a program's name is that of a compiler, as in g++-12 or x86_64-linux-gnu-gcc."""
    return any(part.rstrip("0123456789.") in COMPILERS for part in name.split("-"))


def size(folder: Path) -> int:
    """Bytes of all files, as `du` counts them in a fresh environment."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def run(command: list[str], **keywords: object) -> None:
    """Run a command; a failure ends the check."""
    require(subprocess.run(command, **keywords).returncode == 0, f"failed: {' '.join(command)[:120]}")  # type: ignore[call-overload]


def require(holds: bool, message: str) -> None:
    """End with one line unless it holds."""
    if not holds:
        print("check_install:", message, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
