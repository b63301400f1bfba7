"""Two versions of hookonce share a store, and an operator upgrades it.

The later version is played: it knows one format more, whose records are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import redis
from support.waiting import until

from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.stores import open_store
from hookonce.stores.formats import OLD_SECONDS, UpgradableStore, Upgrade
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore

from .bench import Bench, Figures, bench
from .fleet import Member
from .journal import now_ns

__all__ = ["versions"]

_OLD, _LATER = (1,), (1, 2)
_BACKOFF_SECONDS = 0.3


async def versions(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Deploy the later version and the old one in turn, and upgrade the store at the end.

    Up to the upgrade nothing runs twice. It is refused while an old process is seen. One old
    process goes on over it, as if it had been silent for a while: it may do nothing more.
    """
    with _knowing(_LATER):
        async with bench(
            figures,
            here,
            store,
            seed,
            webs=2,
            workers=2 if inbox else 0,
            inbox=inbox,
            formats=_OLD,
            lease_seconds=3.0,
            backoff_seconds=_BACKOFF_SECONDS,
        ) as on:
            on.statuses.add(0)  # of a web process that has closed its connections
            on.sender.roams = True
            async with on.load():
                for number in range(count):
                    member = on.fleet.members[number % len(on.fleet.members)]
                    await _deploy(on, member, is_later=member.settings.formats == _OLD)
                    await asyncio.sleep(on.chance.uniform(0.1, 0.5))
                *others, last = on.fleet.members
                for member in others:
                    await _deploy(on, member, is_later=True)
                await _deploy(on, last, is_later=False)
                await _upgrade_around(on, store, last)


async def _deploy(on: Bench, member: Member, *, is_later: bool) -> None:
    formats = _LATER if is_later else _OLD
    if member.settings.formats == formats:
        return
    member.settings = replace(member.settings, formats=formats)
    await on.fleet.replace(member)
    on.figures.faults += 1


async def _upgrade_around(on: Bench, url: str, old: Member) -> None:
    """Upgrade the store while an old process runs, and replace that process afterwards."""
    store = open_store(url, clock=system_clock)
    assert isinstance(store, UpgradableStore)
    pid, begun = old.pid, now_ns()
    async with aclosing(store):
        await until(lambda: _noted(on, pid, 0), what="the old process has handled an event")
        try:
            await store.upgrade()
        except StoreError as error:
            on.check("older version" in str(error), f"refused for another reason: {error}")
        else:
            on.check(False, "the store was upgraded while an old process was at work")
        done = await _upgraded(store, url)
    upgraded = now_ns()
    on.figures.faults += 1
    on.check(done == Upgrade(1, 2), f"the upgrade ended with {done}")
    await asyncio.sleep(1.0)
    on.check(not _noted(on, pid, upgraded), "an old process has settled an event after the upgrade")
    old.settings = replace(old.settings, formats=_LATER)
    await on.fleet.kill(old)
    await on.fleet.ready(old)
    # Its last events ran again, since it could not record them.
    on.fleet.stalls[pid].append((begun, now_ns()))


async def _upgraded(store: UpgradableStore, url: str) -> Upgrade:
    """Upgrade the store as soon as no old process has been noted since its note was changed."""
    while True:
        _forget_old_processes(url)
        try:
            return await store.upgrade()
        except StoreError:
            await asyncio.sleep(0)


def _forget_old_processes(url: str) -> None:
    """Change the notes of old processes, as if they had been silent for long enough."""
    if url.startswith("sqlite:"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
            connection.set_busy_timeout(10_000)
            connection.execute("UPDATE seen SET at = at - ? WHERE format = 1", (OLD_SECONDS,))
        return
    with redis.Redis.from_url(url) as client:
        for name in client.scan_iter("*:m"):
            client.hset(name, "seen:1", "0")


def _noted(on: Bench, pid: int, since: int) -> bool:
    return any(line.note == "done" for line in on.journal() if line.pid == pid and line.at > since)


@contextmanager
def _knowing(formats: tuple[int, ...]) -> Iterator[None]:
    """Let this process be of a version that knows these formats."""
    known = SQLiteStore.formats, RedisStore.formats
    SQLiteStore.formats = RedisStore.formats = formats
    try:
        yield
    finally:
        SQLiteStore.formats, RedisStore.formats = known
