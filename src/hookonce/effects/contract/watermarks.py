"""The rules for a ledger that keeps watermarks, in order to skip events that come too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from ...stores.values import KeyLock, Watermark
from ..ledger import Effect, Latest
from ..once import Performed, prune
from .bench import (
    PATIENCE_SECONDS,
    Bench,
    Rule,
    WorkError,
    awaited,
    expect,
    expect_rows,
    perform,
    wait_a_little,
)


class _Dated(NamedTuple):
    """An event about one resource, and the time at which the event was created."""

    bench: Bench[Any]
    effect: Effect
    latest: Latest

    def perform(
        self,
        work: Callable[[Any], object] | None = None,
        *,
        drop_ties: bool = False,
        late: bool = False,
    ) -> Coroutine[Any, Any, Performed]:
        """Do the work; by default, insert the creation time of the event."""
        created_at = str(self.latest.watermark.created_unix_us)
        latest = self.latest._replace(drop_ties=drop_ties, late=late)
        return perform(
            self.bench,
            self.effect,
            work or (lambda transaction: self.bench.write(transaction, created_at)),
            latest,
        )


def _dated(bench: Bench[Any], created_at: int, key_lock: KeyLock | None = None) -> _Dated:
    key_lock = key_lock or KeyLock("default", "app.handlers.book", "channel")
    effect = Effect(key_lock.endpoint, f"evt_{uuid4().hex}", key_lock.handler)
    return _Dated(bench, effect, Latest(key_lock, Watermark(created_at, effect.event_id)))


def _new_key_lock() -> KeyLock:
    return KeyLock("default", "app.handlers.book", f"channel_{uuid4().hex}")


async def a_newer_event_is_done_and_an_older_one_is_not(bench: Bench[Any]) -> None:
    """The ledger skips an event that comes after a newer event, and records it as done."""
    first, second, third = (_dated(bench, created_at) for created_at in (1, 2, 3))
    seen = [await event.perform() for event in (second, first, third, first, second)]
    now, before, stale = Performed
    expect(seen == [now, stale, now, before, before], f"events ended as {seen}")
    await expect_rows(bench, ["2", "3"])


async def a_newer_event_that_fails_stops_no_older_one(bench: Bench[Any]) -> None:
    """A rollback undoes the advance of the watermark."""
    older, newer = _dated(bench, 1), _dated(bench, 2)

    async def fail(transaction: Any) -> None:
        await awaited(bench.write(transaction, "never"))
        raise WorkError

    with suppress(WorkError):
        await newer.perform(fail)
    seen = [await older.perform(), await newer.perform()]
    expect(seen == [Performed.NOW, Performed.NOW], "a failure has advanced the watermark")
    await expect_rows(bench, ["1", "2"])


async def ties_are_dropped_only_if_asked(bench: Bench[Any]) -> None:
    """By default all events of the same time are handled; ``drop_ties`` skips all but the first."""
    key_lock = _new_key_lock()
    ties = [_dated(bench, 1, key_lock) for _ in range(3)]
    seen = [await ties[1].perform(), await ties[0].perform()]
    expect(seen == [Performed.NOW, Performed.NOW], "a tie was dropped")
    dropped = await ties[2].perform(drop_ties=True)
    expect(dropped is Performed.STALE, "a tie was not dropped")
    later = await _dated(bench, 2, key_lock).perform(drop_ties=True)
    expect(later is Performed.NOW, "a newer event was dropped")


async def a_late_event_is_done_if_asked_and_lowers_no_watermark(bench: Bench[Any]) -> None:
    """An operator's replay of an older event runs; later events are compared as before."""
    key_lock = _new_key_lock()
    events = [_dated(bench, created_at, key_lock) for created_at in (1, 2, 3, 4)]
    seen = [
        await events[2].perform(),
        await events[0].perform(late=True),
        await events[1].perform(),
        await events[0].perform(late=True),
        await events[3].perform(late=True),
        await _dated(bench, 3, key_lock).perform(),
    ]
    now, before, stale = Performed
    expect(seen == [now, now, stale, before, now, stale], f"events ended as {seen}")
    await expect_rows(bench, ["1", "3", "4"])


async def an_event_is_no_tie_of_itself(bench: Bench[Any]) -> None:
    """An event whose row was deleted is done again: its own watermark does not stop it."""
    once = _dated(bench, 1)
    again = once._replace(effect=once.effect._replace(handler="again"))
    seen = [await once.perform(drop_ties=True), await again.perform(drop_ties=True)]
    expect(seen == [Performed.NOW, Performed.NOW], "an event was dropped as a tie of itself")


async def an_older_event_waits_for_a_newer_one_that_succeeds(bench: Bench[Any]) -> None:
    """The older event waits; after the newer event succeeds, the ledger skips the older event."""
    await _meet(bench, newer_fails=False)


async def an_older_event_waits_for_a_newer_one_that_fails(bench: Bench[Any]) -> None:
    """The older event waits; after the newer event fails, the older event is handled."""
    await _meet(bench, newer_fails=True)


async def _meet(bench: Bench[Any], *, newer_fails: bool) -> None:
    is_working, has_ended = threading.Event(), threading.Event()
    older, newer = _dated(bench, 1), _dated(bench, 2)

    async def work(transaction: Any) -> None:
        await awaited(bench.write(transaction, "2"))
        is_working.set()
        await wait_a_little(bench)
        has_ended.set()
        if newer_fails:
            raise WorkError

    async def work_after_it(transaction: Any) -> None:
        expect(has_ended.is_set(), "an attempt worked beside another of its resource")
        await awaited(bench.write(transaction, "1"))

    meeting = asyncio.create_task(newer.perform(work))
    await asyncio.to_thread(is_working.wait, PATIENCE_SECONDS)
    performed = await asyncio.wait_for(older.perform(work_after_it), PATIENCE_SECONDS)
    with suppress(WorkError):
        await meeting
    expected = Performed.NOW if newer_fails else Performed.STALE
    expect(performed is expected, f"the older event ended as {performed.name}")
    await expect_rows(bench, ["1"] if newer_fails else ["2"])


async def attempts_at_the_same_time_end_with_the_newest_event(bench: Bench[Any]) -> None:
    """After concurrent attempts at a resource's events, in any order, the newest event is done."""
    key_lock, order = _new_key_lock(), [3, 1, 4, 2]
    attempts = [_dated(bench, created_at, key_lock).perform() for created_at in order]
    seen = await asyncio.wait_for(asyncio.gather(*attempts), PATIENCE_SECONDS)
    expect(seen[2] is Performed.NOW, "the newest event was not done")
    done = [
        str(at) for at, performed in zip(order, seen, strict=True) if performed is Performed.NOW
    ]
    await expect_rows(bench, done)


async def resources_are_told_apart_by_every_character(bench: Bench[Any]) -> None:
    """The ledger compares endpoint, handler and key byte for byte and in full length."""
    base = _new_key_lock()
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
        performed = await _dated(bench, created_at, key_lock).perform()
        expect(performed is Performed.NOW, f"{key_lock} was taken for another")


async def watermarks_go_after_their_retention(bench: Bench[Any]) -> None:
    """Pruning deletes and counts watermarks that did not advance during the retention."""
    old, kept = _new_key_lock(), _new_key_lock()
    for key_lock in (old, kept):
        await _dated(bench, 2, key_lock).perform()
    bench.clock.advance(bench.ledger.retention_seconds - 5)
    await _dated(bench, 3, kept).perform()
    bench.clock.advance(10)
    pruned = await prune(bench.ledger)
    expect(pruned == 3, f"pruning deleted {pruned} rows, not two of effects and one watermark")
    late = [await _dated(bench, 1, key_lock).perform() for key_lock in (old, kept)]
    expect(late[0] is Performed.NOW, "a watermark older than the retention is still there")
    expect(late[1] is Performed.STALE, "a watermark was deleted before the end of its retention")


async def pruning_leaves_a_watermark_that_is_being_advanced(bench: Bench[Any]) -> None:
    """Pruning during an attempt keeps the watermark that the attempt commits."""
    key_lock, is_working = _new_key_lock(), threading.Event()

    async def work(_: Any) -> None:
        is_working.set()
        await wait_a_little(bench)

    await _dated(bench, 2, key_lock).perform()
    bench.clock.advance(bench.ledger.retention_seconds + 5)
    attempt = asyncio.create_task(_dated(bench, 3, key_lock).perform(work))
    await asyncio.to_thread(is_working.wait, PATIENCE_SECONDS)
    await asyncio.wait_for(prune(bench.ledger), PATIENCE_SECONDS)
    await attempt
    late = await _dated(bench, 1, key_lock).perform()
    expect(late is Performed.STALE, "a watermark that had just been advanced was deleted")


WATERMARK_RULES: tuple[Rule, ...] = (
    a_newer_event_is_done_and_an_older_one_is_not,
    a_newer_event_that_fails_stops_no_older_one,
    ties_are_dropped_only_if_asked,
    a_late_event_is_done_if_asked_and_lowers_no_watermark,
    an_event_is_no_tie_of_itself,
    an_older_event_waits_for_a_newer_one_that_succeeds,
    an_older_event_waits_for_a_newer_one_that_fails,
    attempts_at_the_same_time_end_with_the_newest_event,
    resources_are_told_apart_by_every_character,
    watermarks_go_after_their_retention,
    pruning_leaves_a_watermark_that_is_being_advanced,
)
"""The rules for a ledger that keeps watermarks."""
