"""Two installed versions of hookonce share a store during a rolling deployment and an upgrade."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import redis
from support.sqlite_files import sqlite_connection
from support.waiting import until

from hookonce.stores.formats import OLD_SECONDS
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore

from .bench import Bench, Figures, bench_of_pairs
from .fleet import Member
from .journal import now_ns
from .releases import Release, two_releases

__all__ = ["versions"]

_BACKOFF_SECONDS = 0.3


async def versions(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Deploy the later version and the old one in turn, kill processes, and upgrade at the end.

    Before the upgrade, only a kill may let an event run twice. The store refuses the upgrade while
    an old process runs. Then the old process is stopped, and goes on after the upgrade: from then
    on its calls must change nothing.
    """
    old, later = await asyncio.to_thread(two_releases)
    with _knowing(later.formats):
        async with bench_of_pairs(
            figures,
            here,
            store,
            seed,
            inbox=inbox,
            python=old.python,
            lease_seconds=3.0,
            backoff_seconds=_BACKOFF_SECONDS,
        ) as on:
            on.statuses.add(0)  # 0: no answer from a process that was killed or has shut down
            on.sender.roams = True
            members = on.fleet.members
            async with on.load():
                for number in range(count):
                    member = members[number % len(members)]
                    is_old = member.settings.python == old.python
                    await on.deploy(member, python=(later if is_old else old).python)
                    await on.fleet.kill_at_random(1, on.chance)
                *others, last = members
                for member in others:
                    await on.deploy(member, python=later.python)
                await on.deploy(last, python=old.python)
                await _upgrade_around(on, later, last)


async def _upgrade_around(on: Bench, later: Release, old: Member) -> None:
    """Check that an upgrade fails while an old process runs, and succeeds while it is stopped."""
    pid = old.pid
    await until(lambda: _done_by(on, pid), what="the old process has handled an event")
    status, said = await _upgrade(on, later)
    on.check(
        status != 0 and b"older version" in said,
        f"the upgrade beside an old process: status {status}, {said!r}",
    )
    await on.stop(old)
    stopped = now_ns()
    _forget_old_processes(on.settings.store, later)
    status, said = await _upgrade(on, later)
    on.figures.faults += 1
    raised = {"before": later.formats[-2], "after": later.formats[-1]}
    on.check(status == 0 and json.loads(said) == raised, f"the upgrade: status {status}, {said!r}")
    # The old process may have recorded an event before the upgrade, but not noted it in its journal
    # yet. So ignore the events whose handlers had ended.
    ended = {line.event_id for line in on.journal() if line.pid == pid and line.note == "end"}
    on.fleet.go_on(old)
    await asyncio.sleep(1.0)
    settled = _done_by(on, pid, stopped) - ended
    on.check(not settled, f"an old process has settled after the upgrade: {settled}")
    # Kill the old process: it cannot record its last events any more, so it would not shut down in
    # time. Those events run again.
    old.settings = replace(old.settings, python=later.python)
    await on.fleet.kill(old)
    lines = on.journal()
    ended = {line.event_id for line in lines if line.note == "end" and line.pid == pid}
    on.unrecorded |= ended - {line.event_id for line in lines if line.note == "done"}
    await on.fleet.ready(old)
    on.fleet.stalls[pid].append((stopped, now_ns()))


async def _upgrade(on: Bench, release: Release) -> tuple[int | None, bytes]:
    """Upgrade the store with the command of a version; return its status and its output."""
    command = (release.python, "-m", "hookonce", "store", "upgrade", on.settings.store, "--json")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, cwd=on.here)
    printed, errors = await process.communicate()
    return process.returncode, printed or errors


def _forget_old_processes(url: str, later: Release) -> None:
    """Make the recorded times of old processes so old that the store counts them as ended."""
    if url.startswith("sqlite:"):
        with closing(sqlite_connection(url.removeprefix("sqlite:///"))) as connection:
            statement = "UPDATE seen SET at = at - ? WHERE format < ?"
            connection.execute(statement, (OLD_SECONDS, later.formats[-1]))
        return
    if url.startswith("postgresql:"):
        with psycopg.connect(url, autocommit=True) as database:
            aged = "UPDATE hookonce.seen SET at = at - %s WHERE format < %s"
            database.execute(aged, (OLD_SECONDS, later.formats[-1]))
        return
    with redis.Redis.from_url(url) as client:
        for name in client.scan_iter("*:m"):
            for number in later.formats[:-1]:
                client.hset(name, f"seen:{number}", "0")


def _done_by(on: Bench, pid: int, since: int = 0) -> set[str]:
    return {
        line.event_id
        for line in on.journal()
        if line.note == "done" and line.pid == pid and line.at > since
    }


@contextmanager
def _knowing(formats: tuple[int, ...]) -> Iterator[None]:
    """Let this process accept these store formats, because it reads the store at the end."""
    known = SQLiteStore.formats, PostgresStore.formats, RedisStore.formats
    SQLiteStore.formats = PostgresStore.formats = RedisStore.formats = formats
    try:
        yield
    finally:
        SQLiteStore.formats, PostgresStore.formats, RedisStore.formats = known
