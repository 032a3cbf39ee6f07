"""Writes docs/options.md from the description of the options: `python scripts/options_table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from octavo.cli.arguments import GROUPS  # noqa: E402
from octavo.config import OPTIONS  # noqa: E402
from octavo.options import vllm  # noqa: E402
from octavo.options.description import Option, flag_of  # noqa: E402
from octavo.options.yaml_file import SECTIONS  # noqa: E402

FILE = ROOT / "docs" / "options.md"

INTRODUCTION = f"""# Options

Written by `python scripts/options_table.py`; do not edit.

Each option is a flag of `octavo serve` (those of the first two groups also of `octavo chat` and `octavo complete`), a key
of a YAML file given as `--config FILE.yaml`, and, unless it is the HTTP server's, a keyword of `LLM(...)`: `--max-model-len`
is `max_model_len` there. Flags go before the file, the file before the defaults.

- Dashes and underscores are the same, and so are `--flag value` and `--flag=value`. Switches have a `--no-` form.
- Whole numbers may end in k, m, g, t (thousands: `25.6k` is 25600) or K, M, G, T (powers of 1024: `4K` is 4096).
- In YAML, options may stand in sections, each of which holds any option: {", ".join(f"`{name}`" for name in SECTIONS[:4])},
  {", ".join(f"`{name}`" for name in SECTIONS[4:])}. `policy` in one is `scheduling_policy`.
- An unknown name is refused with the nearest known one.
"""

VLLM = """## Options of vLLM

Octavo takes vLLM's other options where they ask for what it does anyway, with the values below or as `None`, and refuses any
other value by name.

| option | accepted values |
|---|---|
"""

RETIRED = """
These have no meaning here. They are accepted, and named in one warning:
"""


def document() -> str:
    """The whole file."""
    parts = [INTRODUCTION]
    for group, title in GROUPS.items():
        parts += [f"\n## {title[0].upper()}{title[1:]}\n\n| flag | default | allowed | |\n|---|---|---|---|\n"]
        parts += [row(option) for option in OPTIONS.values() if option.metadata["group"] == group]
    parts += ["\n", VLLM]
    parts += [f"| `{flag_of(name)}` | {accepted(values)} |\n" for name, values in sorted(vllm.NEUTRAL_VALUES.items())]
    parts += [RETIRED, ", ".join(f"`{flag_of(name)}`" for name in sorted(vllm.RETIRED)), ".\n"]
    return "".join(parts)


def row(option: Option) -> str:
    """One line of a table."""
    flags = ", ".join(f"`{flag}`" for flag in option.spellings)
    default = f"`{option.default_text}`" if option.default_text else ""
    allowed = ", ".join(f"`{choice}`" for choice in option.choices) or option.range_text
    return f"| {flags} | {default} | {allowed} | {option.help} |\n"


def accepted(values: tuple[str, ...]) -> str:
    """The values as code; an empty text and none at all are both "not given"."""
    return ", ".join(f"`{value}`" for value in values if value) or "none"


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
