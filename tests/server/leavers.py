"""Many clients that leave at random times, and a few that stay."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
AT_ONCE = 48
GOLDEN = {"prompt": "The golden request", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def random_body(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """Path and body of a request that takes a while: of any kind."""
    words = " ".join(dice.choices(["harbour", "stone", "river", "twelve", "and", "blue"], k=dice.randint(1, 150)))
    body: dict[str, Any] = {"max_tokens": dice.randint(50, 300), "ignore_eos": True, "stream": dice.random() < 0.6}
    body["n"] = dice.choice([1, 1, 2, 3])
    if dice.random() < 0.3:
        body["stop"] = dice.choice([["zebra crossing", "Zebra"], ["\n\n\n\n"], "e e e e"])
    if dice.random() < 0.2:
        body["timeout"] = dice.uniform(0.01, 1.0)
    if dice.random() < 0.5:
        return CHAT, {**body, "messages": [{"role": "user", "content": words}]}
    return TEXT, {**body, "prompt": dice.choice([words, [words, words[: len(words) // 2 + 1]]])}


def encode(path: str, body: dict[str, Any], key: str) -> bytes:
    """An HTTP request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
    return f"{head}authorization: Bearer {key}\r\n\r\n".encode() + data


class Leavers:
    """`count` clients of the server at `address` (host and port), one in ten of which stays: `stayed` are the ids that
    those got. The others close their connection within `longest` seconds, in one of two ways, some in the middle of their
    request, some after they have read a part of the answer."""

    def __init__(self, address: tuple[str, int], count: int, longest: float, key: str = "") -> None:
        self.stayed: list[list[int]] = []
        self._address = address
        self._count = count
        self._longest = longest
        self._key = key

    def run(self) -> None:
        """Until all have left."""
        asyncio.run(self._all())

    async def _all(self) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with at_once:
                await (self._stay() if number % 10 == 0 else self._leave(random.Random(number)))

        await asyncio.gather(*(one(number) for number in range(self._count)))

    async def _leave(self, dice: random.Random) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        data = encode(*random_body(dice), self._key)
        writer.write(data if dice.random() < 0.9 else data[: dice.randrange(len(data))])
        await writer.drain()
        reading = asyncio.ensure_future(reader.read(1 << 20 if dice.random() < 0.5 else 1))
        await asyncio.wait([reading], timeout=dice.uniform(0, self._longest))
        reading.cancel()
        if dice.random() < 0.5:  # a reset in place of an orderly end
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async def _stay(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(encode(TEXT, GOLDEN, self._key))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        answer = json.loads(await reader.readexactly(length))
        self.stayed.append(answer["choices"][0]["token_ids"])
        writer.close()
