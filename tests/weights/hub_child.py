"""Resolves one model in a process of its own, because the hub libraries read the environment when they are imported.

python -m tests.weights.hub_child '{"model": ..., "download_dir": ...}'    prints a JSON object
"""

from __future__ import annotations

import json
import sys

from octavo.config import EngineConfig
from octavo.errors import LoadError
from octavo.weights.hub import resolve_model

percents: list[float] = []
try:
    path = resolve_model(EngineConfig(**json.loads(sys.argv[1])), percents.append)
    result = {"path": str(path), "error": None}
except LoadError as error:
    result = {"path": None, "error": str(error)}
print(json.dumps(result | {"percents": percents, "modules": sorted(sys.modules)}))
