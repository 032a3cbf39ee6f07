"""`python -m octavo.entrypoints.api_server --model MODEL`: the same server as `octavo.entrypoints.openai.api_server`."""

from __future__ import annotations

import sys

from octavo.entrypoints.openai.api_server import main

if __name__ == "__main__":
    sys.exit(main())
