"""What every ledger must keep to, as rules that anybody can run on one of their own.

Give each rule a bench: the ledger on an empty table, and a table of yours in the same database::

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
    def test_my_ledger(rule):
        asyncio.run(rule(my_bench))

A rule that is broken raises AssertionError. ``MARK_RULES`` are for ledgers that keep marks, which
handlers with ``latest_by`` need.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from uuid import uuid4

from ..stores.values import Gate, Mark
from ..verification.clock import Clock
from .ledger import AnyLedger, Effect, Latest, SyncLedger
from .once import InThread, Once, Performed, check, finish, is_async_ledger, prune

__all__ = ["MARK_RULES", "RULES", "Bench", "MakeBench", "Rule"]

T = TypeVar("T")

_PATIENCE_SECONDS = 10.0
_CONFLICTS = 2


class Bench(Protocol[T]):
    """A ledger under test, and a table of one column, ``key``, in the same database."""

    @property
    def ledger(self) -> AnyLedger[T]:
        """The ledger."""
        ...

    def write(self, transaction: T, key: str) -> Awaitable[object] | None:
        """Insert a row into the table; async where the ledger is."""
        ...

    def fail(self, transaction: T) -> Awaitable[object] | None:
        """Run a statement that fails, and raise what the database says."""
        ...

    async def read(self) -> list[str]:
        """Return the keys that are committed, in any order, as another connection sees them."""
        ...


MakeBench: TypeAlias = Callable[[Clock], AbstractAsyncContextManager[Bench[Any]]]
"""Makes a bench whose ledger takes the time from a clock, with both tables empty."""

Rule: TypeAlias = Callable[[MakeBench], Coroutine[Any, Any, None]]
"""Checks one thing that every ledger keeps to; AssertionError where this one does not."""


class _ConflictError(Exception):
    """What a database says that has chosen this transaction to give way."""

    sqlstate = "40001"


class _WorkError(Exception):
    """What a handler raises."""


async def it_passes_the_check_at_the_start(make: MakeBench) -> None:
    """A ledger whose table is there can record, and its check leaves nothing."""
    async with make(time.time) as bench:
        await check(bench.ledger)
        await check(bench.ledger)


async def an_effect_is_committed_with_its_record(make: MakeBench) -> None:
    """What was done is there, and is not done again."""
    async with make(time.time) as bench:
        effect = _effect()
        first = await _perform(bench, effect, lambda t: bench.write(t, "once"))
        second = await _perform(bench, effect, lambda t: bench.write(t, "twice"))
        _expect((first, second) == (Performed.NOW, Performed.BEFORE), "a second run was one")
        await _expect_rows(bench, ["once"])


async def a_failure_leaves_neither_effect_nor_record(make: MakeBench) -> None:
    """A handler that raises is rolled back, and its next run is the first."""
    async with make(time.time) as bench:
        effect = _effect()

        async def work(transaction: Any) -> None:
            await _awaited(bench.write(transaction, "never"))
            raise _WorkError

        with suppress(_WorkError):
            await _perform(bench, effect, work)
        await _expect_rows(bench, [])
        await _perform(bench, effect, lambda t: bench.write(t, "once"))
        await _expect_rows(bench, ["once"])


async def a_cancellation_leaves_neither_effect_nor_record(make: MakeBench) -> None:
    """An async handler that is cancelled is rolled back, and its next run is the first."""
    async with make(time.time) as bench:
        if not is_async_ledger(bench.ledger):
            return
        effect, is_waiting = _effect(), asyncio.Event()

        async def work(transaction: Any) -> None:
            await _awaited(bench.write(transaction, "never"))
            is_waiting.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(_perform(bench, effect, work))
        await asyncio.wait_for(is_waiting.wait(), _PATIENCE_SECONDS)
        run.cancel()
        await asyncio.wait({run})
        _expect(run.cancelled(), "a cancellation was swallowed")
        await _expect_rows(bench, [])
        await _perform(bench, effect, lambda t: bench.write(t, "once"))
        await _expect_rows(bench, ["once"])


async def runs_at_the_same_time_work_once(make: MakeBench) -> None:
    """A run that meets another waits for it, and is told that it was done."""
    async with make(time.time) as bench:
        effect, worked = _effect(), 0

        async def work(transaction: Any) -> None:
            nonlocal worked
            worked += 1
            await _awaited(bench.write(transaction, "once"))
            await _wait_a_little(bench)

        runs = [_perform(bench, effect, work) for _ in range(3)]
        performed = await asyncio.wait_for(asyncio.gather(*runs), _PATIENCE_SECONDS)
        _expect(performed.count(Performed.NOW) == 1, "not exactly one of three runs was one")
        _expect(worked == 1, "a run has worked beside another")
        await _expect_rows(bench, ["once"])


async def a_swallowed_failure_is_not_taken_for_success(make: MakeBench) -> None:
    """A handler that goes on after a failed statement is done, or has failed; not half of each."""
    async with make(time.time) as bench:
        effect = _effect()

        async def work(transaction: Any) -> None:
            await _awaited(bench.write(transaction, "once"))
            with suppress(Exception):
                await _awaited(bench.fail(transaction))

        try:
            await _perform(bench, effect, work)
        except Exception:  # noqa: BLE001 - any way of saying so will do
            await _expect_rows(bench, [])
            await _perform(bench, effect, lambda t: bench.write(t, "once"))
        await _expect_rows(bench, ["once"])


async def a_conflict_is_tried_again_at_once(make: MakeBench) -> None:
    """A serialization failure is no failure of the handler."""
    async with make(time.time) as bench:
        runs = 0

        async def work(transaction: Any) -> None:
            nonlocal runs
            runs += 1
            await _awaited(bench.write(transaction, f"run {runs}"))
            if runs <= _CONFLICTS:
                raise _ConflictError

        await _perform(bench, _effect(), work)
        await _expect_rows(bench, [f"run {_CONFLICTS + 1}"])


async def effects_are_told_apart_by_every_character(make: MakeBench) -> None:
    """Endpoint, event id and handler count, each byte for byte and in its full length."""
    async with make(time.time) as bench:
        base = _effect()
        longest = Effect("e" * 64, "\N{LATIN SMALL LETTER SHARP S}" * 512, "\N{SNOWMAN}" * 200)
        effects = [
            base,
            base._replace(endpoint="other"),
            base._replace(handler="other"),
            base._replace(event_id=base.event_id.upper()),
            base._replace(event_id=base.event_id + "e"),
            base._replace(event_id=base.event_id + "\N{LATIN SMALL LETTER E WITH ACUTE}"),
            longest,
            longest._replace(handler=longest.handler[:-1] + "x"),
            longest._replace(event_id=longest.event_id[:-1] + "x"),
        ]
        for key, effect in enumerate(effects):
            performed = await _perform(
                bench,
                effect,
                lambda t, key=key: bench.write(t, str(key)),  # type: ignore[misc]
            )
            _expect(performed is Performed.NOW, f"effect {key} was taken for another")
        await _expect_rows(bench, [str(key) for key in range(len(effects))])


async def rows_go_when_their_retention_is_over(make: MakeBench) -> None:
    """Pruning deletes what is older than the retention, and nothing else."""
    now = time.time()
    async with make(lambda: now) as bench:
        old, recent = _effect(), _effect()
        await _perform(bench, old, lambda t: bench.write(t, "old"))
        now += bench.ledger.retention_seconds + 5
        await _perform(bench, recent, lambda t: bench.write(t, "recent"))
        await prune(bench.ledger)
        again = await _perform(bench, old, lambda t: bench.write(t, "again"))
        before = await _perform(bench, recent, lambda t: bench.write(t, "again"))
        _expect(again is Performed.NOW, "a row older than the retention is still there")
        _expect(before is Performed.BEFORE, "a row was deleted before its retention was over")


async def pruning_goes_in_steps(make: MakeBench) -> None:
    """A step deletes no more rows than it is told, and says how many it has deleted."""
    now = time.time()
    async with make(lambda: now) as bench:
        for _ in range(3):
            await _perform(bench, _effect(), lambda t: bench.write(t, "old"))
        now += bench.ledger.retention_seconds + 5

        async def step() -> list[int]:
            ledger = bench.ledger
            if is_async_ledger(ledger):
                return [await _pruned(ledger) for _ in range(3)]
            threaded = InThread(cast("SyncLedger[Any]", ledger))
            return await asyncio.to_thread(lambda: [finish(_pruned(threaded)) for _ in range(3)])

        _expect(await step() == [2, 1, 0], "a step has deleted another number of rows")


async def _pruned(ledger: Any) -> int:
    async with ledger.transaction() as transaction:
        pruned: int = await ledger.prune(transaction, 2)
        return pruned


RULES: tuple[Rule, ...] = (
    it_passes_the_check_at_the_start,
    an_effect_is_committed_with_its_record,
    a_failure_leaves_neither_effect_nor_record,
    a_cancellation_leaves_neither_effect_nor_record,
    runs_at_the_same_time_work_once,
    a_swallowed_failure_is_not_taken_for_success,
    a_conflict_is_tried_again_at_once,
    effects_are_told_apart_by_every_character,
    rows_go_when_their_retention_is_over,
    pruning_goes_in_steps,
)
"""Every rule for every ledger."""


async def a_newer_event_is_done_and_an_older_one_is_not(make: MakeBench) -> None:
    """An event that comes after a newer one is not worked on, and that is recorded."""
    async with make(time.time) as bench:
        first, second, third = (_moment(bench, created_at) for created_at in (1, 2, 3))
        seen = [await one.perform() for one in (second, first, third, first, second)]
        now, before, stale = Performed
        _expect(seen == [now, stale, now, before, before], f"events were {seen}")
        await _expect_rows(bench, ["2", "3"])


async def a_newer_event_that_fails_holds_no_other_up(make: MakeBench) -> None:
    """The mark goes back with what is rolled back."""
    async with make(time.time) as bench:
        older, newer = _moment(bench, 1), _moment(bench, 2)

        async def fail(transaction: Any) -> None:
            await _awaited(bench.write(transaction, "never"))
            raise _WorkError

        with suppress(_WorkError):
            await newer.perform(fail)
        seen = [await older.perform(), await newer.perform()]
        _expect(seen == [Performed.NOW, Performed.NOW], "a failure has advanced the mark")
        await _expect_rows(bench, ["1", "2"])


async def events_of_one_moment_are_dropped_where_that_is_asked_for(make: MakeBench) -> None:
    """They are worked on in any order else."""
    async with make(time.time) as bench:
        gate = _gate()
        ties = [_moment(bench, 1, gate) for _ in range(3)]
        seen = [await ties[1].perform(), await ties[0].perform()]
        _expect(seen == [Performed.NOW, Performed.NOW], "a tie was dropped")
        dropped = await ties[2].perform(drop_ties=True)
        _expect(dropped is Performed.STALE, "a tie was not dropped")
        later = await _moment(bench, 2, gate).perform(drop_ties=True)
        _expect(later is Performed.NOW, "a newer event was dropped")


async def an_event_is_no_tie_of_itself(make: MakeBench) -> None:
    """Where its record was deleted, so that it is done again, its own mark is no obstacle."""
    async with make(time.time) as bench:
        once = _moment(bench, 1)
        again = _Moment(bench, once.effect._replace(handler="again"), once.latest)
        seen = [await once.perform(drop_ties=True), await again.perform(drop_ties=True)]
        _expect(seen == [Performed.NOW, Performed.NOW], "an event was dropped for itself")


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
            await _awaited(bench.write(transaction, "2"))
            is_working.set()
            await _wait_a_little(bench)
            has_ended.set()
            if does_fail:
                raise _WorkError

        async def work_after_it(transaction: Any) -> None:
            _expect(has_ended.is_set(), "a run has worked beside another of its resource")
            await _awaited(bench.write(transaction, "1"))

        meeting = asyncio.create_task(newer.perform(work))
        await asyncio.to_thread(is_working.wait, _PATIENCE_SECONDS)
        performed = await asyncio.wait_for(older.perform(work_after_it), _PATIENCE_SECONDS)
        with suppress(_WorkError):
            await meeting
        _expect(performed is (Performed.NOW if does_fail else Performed.STALE), str(performed))
        await _expect_rows(bench, ["1"] if does_fail else ["2"])


async def runs_of_one_resource_at_the_same_time_end_with_the_newest(make: MakeBench) -> None:
    """However they meet, also at the resource's very first events, the newest is done at last."""
    async with make(time.time) as bench:
        gate, order = _gate(), [3, 1, 4, 2]
        moments = [_moment(bench, created_at, gate) for created_at in order]
        runs = [moment.perform() for moment in moments]
        seen = await asyncio.wait_for(asyncio.gather(*runs), _PATIENCE_SECONDS)
        _expect(seen[2] is Performed.NOW, "the newest event was not done")
        rows = await bench.read()
        done = [
            str(at) for at, performed in zip(order, seen, strict=True) if performed is Performed.NOW
        ]
        _expect(sorted(rows) == sorted(done), f"committed are {rows}, and not {done}")


async def resources_are_told_apart_by_every_character(make: MakeBench) -> None:
    """Endpoint, handler and key count, each byte for byte and in its full length."""
    async with make(time.time) as bench:
        base = _gate()
        longest = Gate("e" * 64, "\N{SNOWMAN}" * 200, "\N{LATIN SMALL LETTER SHARP S}" * 200)
        gates = [
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
        for created_at, gate in zip(range(len(gates), 0, -1), gates, strict=True):
            performed = await _moment(bench, created_at, gate).perform()
            _expect(performed is Performed.NOW, f"{gate} was taken for another")


async def marks_go_when_they_have_not_advanced_for_the_retention(make: MakeBench) -> None:
    """Pruning deletes a mark so long after its last advance, and counts it as a row."""
    now = time.time()
    async with make(lambda: now) as bench:
        old, kept = _gate(), _gate()
        for gate in (old, kept):
            await _moment(bench, 2, gate).perform()
        now += bench.ledger.retention_seconds - 5
        await _moment(bench, 3, kept).perform()
        now += 10
        _expect(await prune(bench.ledger) == 3, "pruning has deleted another number of rows")
        late = [await _moment(bench, 1, gate).perform() for gate in (old, kept)]
        _expect(late[0] is Performed.NOW, "a mark older than the retention is still there")
        _expect(late[1] is Performed.STALE, "a mark was deleted before its retention was over")


async def a_mark_that_is_being_advanced_is_not_pruned(make: MakeBench) -> None:
    """Pruning that meets a run leaves the mark that the run commits."""
    now = time.time()
    async with make(lambda: now) as bench:
        gate, is_working = _gate(), threading.Event()

        async def work(_: Any) -> None:
            is_working.set()
            await _wait_a_little(bench)

        await _moment(bench, 2, gate).perform()
        now += bench.ledger.retention_seconds + 5
        run = asyncio.create_task(_moment(bench, 3, gate).perform(work))
        await asyncio.to_thread(is_working.wait, _PATIENCE_SECONDS)
        await asyncio.wait_for(prune(bench.ledger), _PATIENCE_SECONDS)
        await run
        late = await _moment(bench, 1, gate).perform()
        _expect(late is Performed.STALE, "a mark was deleted that had just been advanced")


MARK_RULES: tuple[Rule, ...] = (
    a_newer_event_is_done_and_an_older_one_is_not,
    a_newer_event_that_fails_holds_no_other_up,
    events_of_one_moment_are_dropped_where_that_is_asked_for,
    an_event_is_no_tie_of_itself,
    events_of_one_resource_wait_for_each_other,
    an_event_that_has_waited_for_one_that_fails_is_done,
    runs_of_one_resource_at_the_same_time_end_with_the_newest,
    resources_are_told_apart_by_every_character,
    marks_go_when_they_have_not_advanced_for_the_retention,
    a_mark_that_is_being_advanced_is_not_pruned,
)
"""Every rule for a ledger that keeps marks."""


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
        created_at = str(self.latest.mark.created_at)
        latest = self.latest._replace(drop_ties=drop_ties)

        def write(transaction: Any) -> Awaitable[object] | None:
            return self.bench.write(transaction, created_at)

        return _perform(self.bench, self.effect, work or write, latest)


def _moment(bench: Bench[Any], created_at: int, gate: Gate | None = None) -> _Moment:
    gate = gate or Gate("default", "app.handlers.book", "channel")
    effect = Effect(gate.endpoint, f"evt_{uuid4().hex}", gate.handler)
    return _Moment(bench, effect, Latest(gate, Mark(created_at, effect.event_id)))


def _gate() -> Gate:
    return Gate("default", "app.handlers.book", f"channel_{uuid4().hex}")


def _effect() -> Effect:
    return Effect("default", f"evt_{uuid4().hex}", "app.handlers.book")


async def _perform(
    bench: Bench[T],
    effect: Effect,
    work: Callable[[T], Awaitable[object] | None],
    latest: Latest | None = None,
) -> Performed:
    async def worked(transaction: T) -> None:
        await _awaited(work(transaction))

    ledger = bench.ledger
    if is_async_ledger(ledger):
        return await Once(ledger).perform(effect, worked, latest)
    once = Once(InThread(cast("SyncLedger[T]", ledger)))
    return await asyncio.to_thread(lambda: finish(once.perform(effect, worked, latest)))


async def _wait_a_little(bench: Bench[Any]) -> None:
    if is_async_ledger(bench.ledger):
        await asyncio.sleep(0.05)
    else:
        time.sleep(0.05)  # noqa: ASYNC251 - in a thread of its own


async def _awaited(result: object) -> None:
    if inspect.isawaitable(result):
        await result


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


async def _expect_rows(bench: Bench[Any], keys: list[str]) -> None:
    rows = sorted(await bench.read())
    _expect(rows == sorted(keys), f"committed are {rows}, and not {sorted(keys)}")
