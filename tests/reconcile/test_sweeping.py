"""The backfill of the example, in processes that share only files.

The first process receives, and ends. Later processes run ``hookonce reconcile``: they backfill
exactly the events that were missed since then, each event once.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.running import SECRET, Process, run, running
from support.servers import serving

from hookonce.client import Client
from hookonce.emulator import EmulatedService
from hookonce.emulator.moments import moment
from hookonce.events import CommentReceived, Event
from hookonce.resources import PostInput, PostTargetInput

pytestmark = [pytest.mark.anyio, pytest.mark.full]

ROOT = Path(__file__).parents[2]
APP = f"from examples.publishing import receiver_with\n\nreceiver = receiver_with({SECRET!r})\n"
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Bakery:
    """The service; its endpoint is a process with the example's receiver."""

    folder: Path
    service: EmulatedService
    client: Client
    api_url: str
    process: Process

    async def publish(self) -> set[str]:
        """Publish to two channels; return the ids of the targets."""
        channels = [channel.id async for channel in self.client.channels.list()][:2]
        targets = [PostTargetInput(channel_id=channel) for channel in channels]
        saved = await self.client.posts.create(
            PostInput(caption="Rye.", targets=targets, mode="now")
        )
        await self.service.advance(minutes=10)
        return {target.id for target in (await self.client.posts.get(saved.id)).targets}

    async def comment(self, comment_id: str) -> Event[Any]:
        """Write a comment whose event the service sends ten minutes later."""
        written = moment(self.service.now.timestamp()).isoformat()
        await self.service.advance(minutes=10)
        data = {"id": comment_id, "createdAt": written}
        return await self.service.emit(CommentReceived, data=data)

    def remove(self, comment_id: str) -> None:
        """Remove a comment."""
        del self.service.workspace.comments[comment_id]

    def stop(self) -> None:
        """Kill the process that receives deliveries."""
        self.process.process.kill()
        self.process.process.wait()

    def lose_the_store(self) -> None:
        """Replace the store by an empty store; the handlers' notes remain, in another file."""
        for file in self.folder.glob("hookonce.db*"):
            file.unlink()
        with closing(sqlite3.connect(self.folder / "hookonce.db")) as connection:
            connection.execute("VACUUM")

    async def reconcile(self) -> tuple[int, list[str], dict[str, Any]]:
        """Run the command; return its status, the ids of the gaps, and the summary."""
        key = self.service.new_key()
        arguments = ("reconcile", "app:receiver", "--webhook", self.service.endpoint().id, "--json")
        environment = {**ENVIRONMENT, "HOOKONCE_API_URL": self.api_url, "HOOKONCE_API_KEY": key}
        done = await asyncio.to_thread(run, *arguments, here=self.folder, environment=environment)
        self.service.revoke_key(key)
        lines = [line for line in done.output.splitlines() if line.startswith("{")]
        assert lines, done
        *gaps, summary = map(json.loads, lines)
        return done.status, [gap["id"] for gap in gaps], summary

    @property
    def noted(self) -> list[str]:
        """Return the handler's notes, in order."""
        with closing(sqlite3.connect(self.folder / "noted.db")) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM noted ORDER BY rowid")]


@asynccontextmanager
async def bakery(folder: Path) -> AsyncIterator[Bakery]:
    (folder / "app.py").write_text(APP)
    serve = ("serve", "app:receiver", "--port", "0")
    with running(*serve, here=folder, environment=ENVIRONMENT) as process:
        url = process.printed(r"(?i)running on (http://127\.0\.0\.1:\d+)")[1]
        async with (
            EmulatedService(f"{url}/webhooks", secret=SECRET, seed=1) as service,
            serving(service.api) as site,
            Client(
                "https://service.test",
                service.new_key(),
                transport=httpx2.ASGITransport(service.api),
            ) as client,
        ):
            yield Bakery(folder, service, client, site.url, process)


def ids(events: Sequence[Event[Any]]) -> list[str]:
    return [event.id for event in events]


async def test_a_later_process_backfills_only_missed_events(
    tmp_path: Path,
) -> None:
    async with bakery(tmp_path) as it:
        before = await it.publish() | {"cmt_before"}
        await it.comment("cmt_before")
        assert set(it.noted) == before
        it.stop()
        await it.service.advance(hours=2)
        missed = await it.publish() | {"cmt_alone"}
        await it.comment("cmt_alone")
        await it.service.advance(hours=3)
        # One of two comments within the hour was removed; nothing shows which event belongs to it.
        either = [await it.comment("cmt_removed"), await it.comment("cmt_left")]
        it.remove("cmt_removed")
        await it.service.advance(hours=26)  # the sender has given up all of these deliveries
        await it.comment("cmt_retried")  # the sender still tries this delivery
        status, gaps, summary = await it.reconcile()
        assert set(it.noted) == before | missed
        assert (status, gaps) == (1, ids(either))
        assert (summary["backfilled"], summary["gap"], summary["retrying"]) == (3, 2, 1)
        assert (await it.reconcile())[:2] == (1, ids(either))
        assert len(it.noted) == len(before | missed)


async def test_a_failed_target_is_backfilled_if_it_is_the_only_missing_one(
    tmp_path: Path,
) -> None:
    async with bakery(tmp_path) as it:
        it.service.faults.platform_fails(code="media.rejected")
        before = await it.publish()
        assert set(it.noted) == before
        it.stop()
        missed = await it.publish()
        await it.service.advance(hours=26)
        status, gaps, _ = await it.reconcile()
        assert (status, gaps) == (0, [])
        assert set(it.noted) == before | missed
        assert len(it.noted) == len(before | missed)


async def test_after_a_restore_noted_events_are_recorded_and_no_handler_runs_twice(
    tmp_path: Path,
) -> None:
    async with bakery(tmp_path) as it:
        await it.publish()
        it.stop()
        it.lose_the_store()
        noted = it.noted
        assert len(noted) == 2
        status, gaps, summary = await it.reconcile()
        assert (status, gaps, summary["backfilled"]) == (0, [], 2)
        assert it.noted == noted
