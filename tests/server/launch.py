"""The real server with a scripted engine process:
`python -m tests.server.launch SCRIPT MODEL SHUTDOWN_SECONDS [STALL_SECONDS]`."""

from __future__ import annotations

import sys
from dataclasses import replace

from octavo.config import EngineConfig
from octavo.engine.process import ProcessClient
from octavo.server.app import serve
from tests.scripted import FACTORY


def main(script: str, model: str, shutdown_timeout: str, stall_timeout: str = "300") -> int:
    config = EngineConfig(
        model=model,
        port=0,
        max_model_len=512,
        served_model_name=("m",),
        shutdown_timeout=float(shutdown_timeout),
        engine_stall_timeout=float(stall_timeout),
    )
    return serve(config, lambda config: ProcessClient(replace(config, model=script), factory=FACTORY))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
