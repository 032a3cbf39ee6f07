"""The environment of the interpreters that this one starts: they find the same `octavo`, and nothing else first."""

from __future__ import annotations

import os
from pathlib import Path

import octavo


def environment() -> dict[str, str]:
    """This process's variables. Modules are not looked for in the current directory, but where this package is, unless it is
    installed: then everybody finds it."""
    result = {**os.environ, "PYTHONSAFEPATH": "1"}
    home = Path(octavo.__file__).parents[1]
    if home.name not in ("site-packages", "dist-packages"):
        result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")]))
    return result
