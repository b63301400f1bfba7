"""What every ledger must keep to, as rules that anybody can run on one of their own.

Give each rule a bench: the ledger on an empty table, and a table of yours in the same database::

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
    def test_my_ledger(rule):
        asyncio.run(rule(my_bench))

A rule that is broken raises AssertionError.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, TypeAlias, TypeVar, cast
from uuid import uuid4

from ..verification.clock import Clock
from .ledger import AnyLedger, Effect, SyncLedger
from .once import InThread, Once, Performed, check, finish, is_async_ledger, prune

__all__ = ["RULES", "Bench", "MakeBench", "Rule"]

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
            if is_async_ledger(bench.ledger):
                await asyncio.sleep(0.05)
            else:
                time.sleep(0.05)  # noqa: ASYNC251 - in a thread of its own

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
"""Every rule."""


def _effect() -> Effect:
    return Effect("default", f"evt_{uuid4().hex}", "app.handlers.book")


async def _perform(
    bench: Bench[T], effect: Effect, work: Callable[[T], Awaitable[object] | None]
) -> Performed:
    async def worked(transaction: T) -> None:
        await _awaited(work(transaction))

    ledger = bench.ledger
    if is_async_ledger(ledger):
        return await Once(ledger).perform(effect, worked)
    once = Once(InThread(cast("SyncLedger[T]", ledger)))
    return await asyncio.to_thread(lambda: finish(once.perform(effect, worked)))


async def _awaited(result: object) -> None:
    if inspect.isawaitable(result):
        await result


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


async def _expect_rows(bench: Bench[Any], keys: list[str]) -> None:
    rows = sorted(await bench.read())
    _expect(rows == sorted(keys), f"committed are {rows}, and not {sorted(keys)}")
