"""A server that gives scripted answers, and records its requests byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

__all__ = ["BREAK", "HANG", "Asked", "Said", "ScriptedApi", "scripted_api"]


class Asked(NamedTuple):
    """A request, byte for byte."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: value for name, [value] in found.items()}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Said(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


BREAK = Said(0, {}, b"")
"""Close the connection instead of an answer."""

HANG = Said(-1, {}, b"")
"""Never answer."""


@dataclass
class ScriptedApi:
    """The requests, and the answers in order; the last answer is repeated.

    Attributes:
        respond: if given, a function that answers instead of the script.

    """

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: list[Said] = field(default_factory=list)
    respond: Callable[[Asked], Said] | None = None

    def say(
        self, status: int, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Give this answer next; convert a body that is not bytes to JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.append(Said(status, headers or {}, content))

    def refuse(self, status: int, code: str, kind: str, **headers: str) -> None:
        """Answer next with an error of the interface."""
        error = {"code": code, "kind": kind, "message": "It is refused."}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.say(status, {"error": error}, headers=named)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.rstrip("\r\n").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {n.lower(): v.strip() for n, _, v in (field.partition(":") for field in fields)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append(Asked(method, target, headers, body))
        if self.respond is not None:
            said = self.respond(self.asked[-1])
        else:
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if said is HANG:
            await asyncio.Event().wait()
        if said is BREAK:
            return False
        named = {"content-type": "application/json", **said.headers}
        lines = [f"HTTP/1.1 {said.status} -", *(f"{n}: {v}" for n, v in named.items())]
        lines.append(f"content-length: {len(said.body)}")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + said.body)
        await writer.drain()
        return True


@asynccontextmanager
async def scripted_api() -> AsyncIterator[ScriptedApi]:
    """Run a server on a free port of this machine until the block ends."""
    api = ScriptedApi()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await api.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
