"""The rules for every ledger: an effect is committed with its record, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

from ..ledger import Effect, SyncLedger
from ..once import InThread, Performed, check, finish, is_async_ledger, prune
from .bench import (
    PATIENCE_SECONDS,
    Bench,
    MakeBench,
    Rule,
    WorkError,
    awaited,
    expect,
    expect_rows,
    new_effect,
    perform,
    wait_a_little,
)

T = TypeVar("T")

_CONFLICTS = 2


class _ConflictError(Exception):
    """What a database says that has chosen this transaction to give way."""

    sqlstate = "40001"


async def it_passes_the_check_at_the_start(make: MakeBench) -> None:
    """A ledger whose table is there can record, and its check leaves nothing."""
    async with make(time.time) as bench:
        await check(bench.ledger)
        await check(bench.ledger)


async def an_effect_is_committed_with_its_record(make: MakeBench) -> None:
    """What was done is there, and is not done again."""
    async with make(time.time) as bench:
        effect = new_effect()
        first = await perform(bench, effect, lambda t: bench.write(t, "once"))
        second = await perform(bench, effect, lambda t: bench.write(t, "twice"))
        expect((first, second) == (Performed.NOW, Performed.BEFORE), "a second run was one")
        await expect_rows(bench, ["once"])


async def a_failure_leaves_neither_effect_nor_record(make: MakeBench) -> None:
    """A handler that raises is rolled back, and its next run is the first."""
    async with make(time.time) as bench:
        effect = new_effect()

        async def work(transaction: Any) -> None:
            await awaited(bench.write(transaction, "never"))
            raise WorkError

        with suppress(WorkError):
            await perform(bench, effect, work)
        await expect_rows(bench, [])
        await perform(bench, effect, lambda t: bench.write(t, "once"))
        await expect_rows(bench, ["once"])


async def a_cancellation_leaves_neither_effect_nor_record(make: MakeBench) -> None:
    """An async handler that is cancelled is rolled back, and its next run is the first."""
    async with make(time.time) as bench:
        if not is_async_ledger(bench.ledger):
            return
        effect, is_waiting = new_effect(), asyncio.Event()

        async def work(transaction: Any) -> None:
            await awaited(bench.write(transaction, "never"))
            is_waiting.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(perform(bench, effect, work))
        await asyncio.wait_for(is_waiting.wait(), PATIENCE_SECONDS)
        run.cancel()
        await asyncio.wait({run})
        expect(run.cancelled(), "a cancellation was swallowed")
        await expect_rows(bench, [])
        await perform(bench, effect, lambda t: bench.write(t, "once"))
        await expect_rows(bench, ["once"])


async def runs_at_the_same_time_work_once(make: MakeBench) -> None:
    """A run that meets another waits for it, and is told that it was done."""
    async with make(time.time) as bench:
        effect, worked = new_effect(), 0

        async def work(transaction: Any) -> None:
            nonlocal worked
            worked += 1
            await awaited(bench.write(transaction, "once"))
            await wait_a_little(bench)

        runs = [perform(bench, effect, work) for _ in range(3)]
        performed = await asyncio.wait_for(asyncio.gather(*runs), PATIENCE_SECONDS)
        expect(performed.count(Performed.NOW) == 1, "not exactly one of three runs was one")
        expect(worked == 1, "a run has worked beside another")
        await expect_rows(bench, ["once"])


async def a_swallowed_failure_is_not_taken_for_success(make: MakeBench) -> None:
    """A handler that goes on after a failed statement is done, or has failed; not half of each."""
    async with make(time.time) as bench:
        effect = new_effect()

        async def work(transaction: Any) -> None:
            await awaited(bench.write(transaction, "once"))
            with suppress(Exception):
                await awaited(bench.fail(transaction))

        try:
            await perform(bench, effect, work)
        except Exception:  # noqa: BLE001 - any way of saying so will do
            await expect_rows(bench, [])
            await perform(bench, effect, lambda t: bench.write(t, "once"))
        await expect_rows(bench, ["once"])


async def a_row_that_is_not_there_is_not_held(make: MakeBench) -> None:
    """Whatever the driver says of a transaction: without the effect's row there is no success.

    It is not there if a statement below the handler has rolled back and begun another transaction.
    """
    async with make(time.time) as bench:
        effect = new_effect()

        async def look(ledger: Any) -> None:
            async with ledger.transaction() as transaction:
                await _expect_not_held(ledger, transaction, effect)

        await _in_ledger(bench, look)
        await perform(bench, effect, lambda t: bench.write(t, "once"))
        await expect_rows(bench, ["once"])


async def a_row_of_an_earlier_transaction_is_not_held(make: MakeBench) -> None:
    """Only a row that this transaction has inserted goes with it.

    Else what was rolled back after a COMMIT within the handler would count as done.
    """
    async with make(time.time) as bench:
        effect, begun = new_effect(), new_effect()
        await perform(bench, effect, lambda t: bench.write(t, "once"))

        async def look(ledger: Any) -> None:
            async with ledger.transaction() as transaction:
                await ledger.insert(transaction, begun)
            for earlier in (effect, begun):
                async with ledger.transaction() as transaction:
                    await _expect_not_held(ledger, transaction, earlier)

        await _in_ledger(bench, look)


async def an_effect_committed_before_its_end_is_no_success(make: MakeBench) -> None:
    """A row that somebody has committed before ``holds`` is an error at each later attempt.

    The handler has committed, or its connection commits by itself: the rest may be missing.
    """
    async with make(time.time) as bench:
        effect = new_effect()

        async def commit(ledger: Any) -> None:
            async with ledger.transaction() as transaction:
                await ledger.insert(transaction, effect)

        await _in_ledger(bench, commit)
        for _ in range(2):
            performed = None
            with suppress(Exception):
                performed = await perform(bench, effect, lambda t: bench.write(t, "again"))
            expect(performed is None, f"an effect that was only begun has counted as {performed}")
        await expect_rows(bench, [])


async def a_conflict_is_tried_again_at_once(make: MakeBench) -> None:
    """A serialization failure is no failure of the handler."""
    async with make(time.time) as bench:
        runs = 0

        async def work(transaction: Any) -> None:
            nonlocal runs
            runs += 1
            await awaited(bench.write(transaction, f"run {runs}"))
            if runs <= _CONFLICTS:
                raise _ConflictError

        await perform(bench, new_effect(), work)
        await expect_rows(bench, [f"run {_CONFLICTS + 1}"])


async def effects_are_told_apart_by_every_character(make: MakeBench) -> None:
    """Endpoint, event id and handler count, each byte for byte and in its full length."""
    async with make(time.time) as bench:
        base = new_effect()
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
            performed = await perform(
                bench,
                effect,
                lambda t, key=key: bench.write(t, str(key)),  # type: ignore[misc]
            )
            expect(performed is Performed.NOW, f"effect {key} was taken for another")
        await expect_rows(bench, [str(key) for key in range(len(effects))])


async def rows_go_when_their_retention_is_over(make: MakeBench) -> None:
    """Pruning deletes what is older than the retention, and nothing else."""
    now = time.time()
    async with make(lambda: now) as bench:
        old, recent = new_effect(), new_effect()
        await perform(bench, old, lambda t: bench.write(t, "old"))
        now += bench.ledger.retention_seconds + 5
        await perform(bench, recent, lambda t: bench.write(t, "recent"))
        await prune(bench.ledger)
        again = await perform(bench, old, lambda t: bench.write(t, "again"))
        before = await perform(bench, recent, lambda t: bench.write(t, "again"))
        expect(again is Performed.NOW, "a row older than the retention is still there")
        expect(before is Performed.BEFORE, "a row was deleted before its retention was over")


async def pruning_goes_in_steps(make: MakeBench) -> None:
    """A step deletes no more rows than it is told, and says how many it has deleted."""
    now = time.time()
    async with make(lambda: now) as bench:
        for _ in range(3):
            await perform(bench, new_effect(), lambda t: bench.write(t, "old"))
        now += bench.ledger.retention_seconds + 5

        async def step(ledger: Any) -> list[int]:
            return [await _pruned(ledger) for _ in range(3)]

        pruned = await _in_ledger(bench, step)
        expect(pruned == [2, 1, 0], "a step has deleted another number of rows")


async def _pruned(ledger: Any) -> int:
    async with ledger.transaction() as transaction:
        pruned: int = await ledger.prune(transaction, 2)
        return pruned


async def _expect_not_held(ledger: Any, transaction: Any, effect: Effect) -> None:
    try:
        is_held = await ledger.holds(transaction, effect)
    except Exception:  # noqa: BLE001 - any way of saying so will do
        is_held = False
    expect(not is_held, "a row counts as held that this transaction has not inserted")


async def _in_ledger(bench: Bench[Any], step: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Do a step on the ledger of a bench, in a thread where it is one for threads."""
    ledger = bench.ledger
    if is_async_ledger(ledger):
        return await step(ledger)
    threaded = InThread(cast("SyncLedger[Any]", ledger))
    return await asyncio.to_thread(lambda: finish(step(threaded)))


RULES: tuple[Rule, ...] = (
    it_passes_the_check_at_the_start,
    an_effect_is_committed_with_its_record,
    a_failure_leaves_neither_effect_nor_record,
    a_cancellation_leaves_neither_effect_nor_record,
    runs_at_the_same_time_work_once,
    a_swallowed_failure_is_not_taken_for_success,
    a_row_that_is_not_there_is_not_held,
    a_row_of_an_earlier_transaction_is_not_held,
    an_effect_committed_before_its_end_is_no_success,
    a_conflict_is_tried_again_at_once,
    effects_are_told_apart_by_every_character,
    rows_go_when_their_retention_is_over,
    pruning_goes_in_steps,
)
"""Every rule for every ledger."""
