"""The rules for a ledger that keeps watermarks: what comes too late is left out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from ...stores.values import KeyLock, Watermark
from ..ledger import Effect, Latest
from ..once import Performed, prune
from .bench import (
    PATIENCE_SECONDS,
    Bench,
    MakeBench,
    Rule,
    WorkError,
    awaited,
    expect,
    expect_rows,
    perform,
    wait_a_little,
)


async def a_newer_event_is_done_and_an_older_one_is_not(make: MakeBench) -> None:
    """An event that comes after a newer one is not worked on, and that is recorded."""
    async with make(time.time) as bench:
        first, second, third = (_moment(bench, created_at) for created_at in (1, 2, 3))
        seen = [await one.perform() for one in (second, first, third, first, second)]
        now, before, stale = Performed
        expect(seen == [now, stale, now, before, before], f"events were {seen}")
        await expect_rows(bench, ["2", "3"])


async def a_newer_event_that_fails_holds_no_other_up(make: MakeBench) -> None:
    """The watermark goes back with what is rolled back."""
    async with make(time.time) as bench:
        older, newer = _moment(bench, 1), _moment(bench, 2)

        async def fail(transaction: Any) -> None:
            await awaited(bench.write(transaction, "never"))
            raise WorkError

        with suppress(WorkError):
            await newer.perform(fail)
        seen = [await older.perform(), await newer.perform()]
        expect(seen == [Performed.NOW, Performed.NOW], "a failure has advanced the watermark")
        await expect_rows(bench, ["1", "2"])


async def events_of_one_moment_are_dropped_where_that_is_asked_for(make: MakeBench) -> None:
    """They are worked on in any order else."""
    async with make(time.time) as bench:
        key_lock = _key_lock()
        ties = [_moment(bench, 1, key_lock) for _ in range(3)]
        seen = [await ties[1].perform(), await ties[0].perform()]
        expect(seen == [Performed.NOW, Performed.NOW], "a tie was dropped")
        dropped = await ties[2].perform(drop_ties=True)
        expect(dropped is Performed.STALE, "a tie was not dropped")
        later = await _moment(bench, 2, key_lock).perform(drop_ties=True)
        expect(later is Performed.NOW, "a newer event was dropped")


async def an_event_is_no_tie_of_itself(make: MakeBench) -> None:
    """Where its record was deleted, so that it is done again, its own watermark is no obstacle."""
    async with make(time.time) as bench:
        once = _moment(bench, 1)
        again = _Moment(bench, once.effect._replace(handler="again"), once.latest)
        seen = [await once.perform(drop_ties=True), await again.perform(drop_ties=True)]
        expect(seen == [Performed.NOW, Performed.NOW], "an event was dropped for itself")


async def events_of_one_resource_wait_for_each_other(make: MakeBench) -> None:
    """An older event that meets a newer one waits, and comes too late when that is committed."""
    await _meet(make, does_fail=False)


async def an_event_that_has_waited_for_one_that_fails_is_done(make: MakeBench) -> None:
    """An older event that meets a newer one waits, and is worked on when that has failed."""
    await _meet(make, does_fail=True)


async def _meet(make: MakeBench, *, does_fail: bool) -> None:
    async with make(time.time) as bench:
        is_working, has_ended = threading.Event(), threading.Event()
        older, newer = _moment(bench, 1), _moment(bench, 2)

        async def work(transaction: Any) -> None:
            await awaited(bench.write(transaction, "2"))
            is_working.set()
            await wait_a_little(bench)
            has_ended.set()
            if does_fail:
                raise WorkError

        async def work_after_it(transaction: Any) -> None:
            expect(has_ended.is_set(), "a run has worked beside another of its resource")
            await awaited(bench.write(transaction, "1"))

        meeting = asyncio.create_task(newer.perform(work))
        await asyncio.to_thread(is_working.wait, PATIENCE_SECONDS)
        performed = await asyncio.wait_for(older.perform(work_after_it), PATIENCE_SECONDS)
        with suppress(WorkError):
            await meeting
        expect(performed is (Performed.NOW if does_fail else Performed.STALE), str(performed))
        await expect_rows(bench, ["1"] if does_fail else ["2"])


async def runs_of_one_resource_at_the_same_time_end_with_the_newest(make: MakeBench) -> None:
    """However they meet, also at the resource's very first events, the newest is done at last."""
    async with make(time.time) as bench:
        key_lock, order = _key_lock(), [3, 1, 4, 2]
        moments = [_moment(bench, created_at, key_lock) for created_at in order]
        runs = [moment.perform() for moment in moments]
        seen = await asyncio.wait_for(asyncio.gather(*runs), PATIENCE_SECONDS)
        expect(seen[2] is Performed.NOW, "the newest event was not done")
        rows = await bench.read()
        done = [
            str(at) for at, performed in zip(order, seen, strict=True) if performed is Performed.NOW
        ]
        expect(sorted(rows) == sorted(done), f"committed are {rows}, and not {done}")


async def resources_are_told_apart_by_every_character(make: MakeBench) -> None:
    """Endpoint, handler and key count, each byte for byte and in its full length."""
    async with make(time.time) as bench:
        base = _key_lock()
        longest = KeyLock("e" * 64, "\N{SNOWMAN}" * 200, "\N{LATIN SMALL LETTER SHARP S}" * 200)
        key_locks = [
            base,
            base._replace(endpoint="other"),
            base._replace(handler="other"),
            base._replace(key=base.key.upper()),
            base._replace(key=base.key + "e"),
            base._replace(key=base.key + "\N{LATIN SMALL LETTER E WITH ACUTE}"),
            longest,
            longest._replace(handler=longest.handler[:-1] + "x"),
            longest._replace(key=longest.key[:-1] + "x"),
        ]
        for created_at, key_lock in zip(range(len(key_locks), 0, -1), key_locks, strict=True):
            performed = await _moment(bench, created_at, key_lock).perform()
            expect(performed is Performed.NOW, f"{key_lock} was taken for another")


async def watermarks_go_when_they_have_not_advanced_for_the_retention(make: MakeBench) -> None:
    """Pruning deletes a watermark so long after its last advance, and counts it as a row."""
    now = time.time()
    async with make(lambda: now) as bench:
        old, kept = _key_lock(), _key_lock()
        for key_lock in (old, kept):
            await _moment(bench, 2, key_lock).perform()
        now += bench.ledger.retention_seconds - 5
        await _moment(bench, 3, kept).perform()
        now += 10
        expect(await prune(bench.ledger) == 3, "pruning has deleted another number of rows")
        late = [await _moment(bench, 1, key_lock).perform() for key_lock in (old, kept)]
        expect(late[0] is Performed.NOW, "a watermark older than the retention is still there")
        expect(late[1] is Performed.STALE, "a watermark was deleted before its retention was over")


async def a_watermark_that_is_being_advanced_is_not_pruned(make: MakeBench) -> None:
    """Pruning that meets a run leaves the watermark that the run commits."""
    now = time.time()
    async with make(lambda: now) as bench:
        key_lock, is_working = _key_lock(), threading.Event()

        async def work(_: Any) -> None:
            is_working.set()
            await wait_a_little(bench)

        await _moment(bench, 2, key_lock).perform()
        now += bench.ledger.retention_seconds + 5
        run = asyncio.create_task(_moment(bench, 3, key_lock).perform(work))
        await asyncio.to_thread(is_working.wait, PATIENCE_SECONDS)
        await asyncio.wait_for(prune(bench.ledger), PATIENCE_SECONDS)
        await run
        late = await _moment(bench, 1, key_lock).perform()
        expect(late is Performed.STALE, "a watermark was deleted that had just been advanced")


WATERMARK_RULES: tuple[Rule, ...] = (
    a_newer_event_is_done_and_an_older_one_is_not,
    a_newer_event_that_fails_holds_no_other_up,
    events_of_one_moment_are_dropped_where_that_is_asked_for,
    an_event_is_no_tie_of_itself,
    events_of_one_resource_wait_for_each_other,
    an_event_that_has_waited_for_one_that_fails_is_done,
    runs_of_one_resource_at_the_same_time_end_with_the_newest,
    resources_are_told_apart_by_every_character,
    watermarks_go_when_they_have_not_advanced_for_the_retention,
    a_watermark_that_is_being_advanced_is_not_pruned,
)
"""Every rule for a ledger that keeps watermarks."""


class _Moment(NamedTuple):
    """An event of a resource."""

    bench: Bench[Any]
    effect: Effect
    latest: Latest

    def perform(
        self,
        work: Callable[[Any], Awaitable[object] | None] | None = None,
        *,
        drop_ties: bool = False,
    ) -> Coroutine[Any, Any, Performed]:
        """Do the work, or else write a row of when the event was created."""
        created_at = str(self.latest.watermark.created_at)
        latest = self.latest._replace(drop_ties=drop_ties)

        def write(transaction: Any) -> Awaitable[object] | None:
            return self.bench.write(transaction, created_at)

        return perform(self.bench, self.effect, work or write, latest)


def _moment(bench: Bench[Any], created_at: int, key_lock: KeyLock | None = None) -> _Moment:
    key_lock = key_lock or KeyLock("default", "app.handlers.book", "channel")
    effect = Effect(key_lock.endpoint, f"evt_{uuid4().hex}", key_lock.handler)
    return _Moment(bench, effect, Latest(key_lock, Watermark(created_at, effect.event_id)))


def _key_lock() -> KeyLock:
    return KeyLock("default", "app.handlers.book", f"channel_{uuid4().hex}")
