"""Inputs that made other servers go wrong have numbers, and each number is a test's name: test_c01_..., or test_c43_c145_...
where one test shows several. `python -m tests.test_case_numbers` prints which shows what."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

NUMBERS = (
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38),  # tool calls
    *(40, 41, 43, 44, 46, 47, 49, 50),  # their envelope, and reasoning
    *(52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67),  # schemas
    *(68, 70, 71, 73, 74, 76, 77, 79),  # stop strings and detokenizing
    *(80, 82, 83, 85, 86, 88, 89, 91, 92, 94, 95, 97, 98),  # logprobs and sampling
    *(100, 101, 103, 104, 106),  # the context's length
    *(124, 125, 127, 128, 130, 131, 133, 134),  # validation
    *(136, 137, 139, 140),  # embeddings
    *(142, 143, 145, 146),  # templates
    *(148, 149, 151, 152, 154),  # loading
    *(155, 157, 158, 160, 161),  # quantized checkpoints and GGUF
    *(164, 166, 167),  # operation
)
_TEST = re.compile(r"^ *def test_((?:c\d{2,3}_)+)\w+\(", re.MULTILINE)


def names_by_number() -> dict[int, list[str]]:
    """The tests that show each case, as pytest names them."""
    root = Path(__file__).parent
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("test_*.py")):
        for match in _TEST.finditer(path.read_text(encoding="utf-8")):
            name = match[0].strip().removeprefix("def ").removesuffix("(")
            for number in re.findall(r"\d+", match[1]):
                found[int(number)].append(f"{path.relative_to(root.parent)}::{name}")
    return found


def test_every_case_is_a_test() -> None:
    found = names_by_number()
    assert [number for number in NUMBERS if number not in found] == []


if __name__ == "__main__":
    for number, names in sorted(names_by_number().items()):
        print(f"C{number:02}", *names, sep="\n    ")
