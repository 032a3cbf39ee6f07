"""Servers with the OpenAI API side by side, in turns: requests/s, tokens/s and delays of a closed loop of streams.

    python -m benchmarks.peers --points 1:4,8:16,32:64 octavo=http://127.0.0.1:8000 vllm=http://127.0.0.1:8001
    python -m benchmarks.peers --points 8:32 --prefix 1000 --input 50 --output 32 octavo=... vllm=...
    python -m benchmarks.peers --memory octavo=PID vllm=PID

A point C:N sends N requests, C at a time, to /v1/completions: greedy, ignore_eos, `--prefix` token ids that all share and
`--input` of their own, other ones in each round and for each server alike. Prints each run and the medians; with
`--memory` the processes (with those that they started) and their memory instead: resident pages, shared ones in equal parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.parse
from dataclasses import dataclass, field

import psutil


@dataclass
class Run:
    """What one point on one server gave."""

    num_requests: int
    seconds: float = 0.0
    output_tokens: int = 0
    first: list[float] = field(default_factory=list)  # seconds to the first token of each request
    between: list[float] = field(default_factory=list)  # mean seconds from token to token of each request

    @property
    def requests_per_second(self) -> float:
        """Of the whole run."""
        return self.num_requests / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Output tokens, of the whole run."""
        return self.output_tokens / self.seconds


class Server:
    """One server's completions."""

    def __init__(self, name: str, url: str, model: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.name = name
        self.model = model
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    async def stream(self, prompt: list[int], max_tokens: int, run: Run) -> None:
        """One request, from its connection to the end of its stream."""
        start = time.perf_counter()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        writer.write(self._request(prompt, max_tokens))
        status = await reader.readline()
        times: list[float] = []
        tokens = 0
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if event.get("choices") and event["choices"][0].get("finish_reason") in (None, "length"):
                times.append(time.perf_counter())
        writer.close()
        if b" 200 " not in status or tokens != max_tokens:
            raise SystemExit(f"{self.name}: {status!r}, {tokens} tokens in place of {max_tokens}")
        run.output_tokens += tokens
        run.first.append(times[0] - start)
        run.between.append((times[-1] - times[0]) / max(1, tokens - 1))

    def _request(self, prompt: list[int], max_tokens: int) -> bytes:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def measure(server: Server, at_once: int, count: int, seed: int, options: argparse.Namespace) -> Run:
    """All requests of a point, after one of other tokens that is not counted."""
    generator = random.Random(seed)

    def tokens(length: int) -> list[int]:
        return [generator.randrange(1000, options.vocabulary) for _ in range(length)]

    await server.stream(tokens(options.prefix + options.input), options.output, Run(1))
    prefix = tokens(options.prefix)
    waiting = [prefix + tokens(options.input) for _ in range(count)]
    run = Run(count)

    async def one_after_the_other() -> None:
        while waiting:
            await server.stream(waiting.pop(), options.output, run)

    start = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    run.seconds = time.perf_counter() - start
    return run


def compare(servers: list[Server], options: argparse.Namespace) -> None:
    """Every point on every server in turn, `--rounds` times; then the medians."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for round_number in range(options.rounds):
        for point in options.points.split(","):
            at_once, count = map(int, point.split(":"))
            seed = options.seed + round_number
            for server in servers:
                run = asyncio.run(measure(server, at_once, count, seed, options))
                runs.setdefault((point, server.name), []).append(run)
                print(_line(point, server.name, [run]), flush=True)
    print("medians")
    for (point, name), all_runs in runs.items():
        print(_line(point, name, all_runs))


def _line(point: str, name: str, runs: list[Run]) -> str:
    speeds = sorted(run.tokens_per_second for run in runs)
    spread = f" [{speeds[0]:.0f}-{speeds[-1]:.0f}]" if len(runs) > 1 else ""
    return (
        f"{point:>7} {name:<10} {statistics.median(run.requests_per_second for run in runs):7.2f} requests/s "
        f"{statistics.median(speeds):7.1f} tokens/s{spread}, first token "
        f"{1000 * statistics.median(statistics.median(run.first) for run in runs):7.0f} ms, then "
        f"{1000 * statistics.median(statistics.median(run.between) for run in runs):6.1f} ms a token"
    )


def show_memory(name: str, pid: int) -> None:
    """Of a process and all below it."""
    top = psutil.Process(pid)
    family = [top, *top.children(recursive=True)]
    sizes = [process.memory_full_info() for process in family]
    shared = sum(size.pss for size in sizes) / 2**20
    print(
        f"{name:<10} {len(family)} processes, {shared:,.0f} MiB (sum of resident: {sum(s.rss for s in sizes) / 2**20:,.0f})"
    )


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--memory", action="store_true", help="NAME=PID: print memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", default="1:4,8:16,32:64")
    parser.add_argument("--prefix", type=int, default=0)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=49_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="m", help="the name under which all of them serve it")
    options = parser.parse_args()
    named = [server.split("=", 1) for server in options.servers]
    if options.memory:
        for name, pid in named:
            show_memory(name, int(pid))
    else:
        compare([Server(name, url, options.model) for name, url in named], options)


if __name__ == "__main__":
    main()
