"""The rules for every ledger: an effect and its row are committed together, once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from ..ledger import Effect, is_async_ledger
from ..once import Performed, prune
from ..probe import check
from ..threads import on_ledger
from .bench import (
    PATIENCE_SECONDS,
    Bench,
    Rule,
    WorkError,
    awaited,
    expect,
    expect_not_held,
    expect_rows,
    new_effect,
    perform,
    wait_a_little,
)
from .generations import GENERATION_RULES

_CONFLICTS = 2


class _ConflictError(Exception):
    """An error with the SQLSTATE of a conflict between two transactions."""

    sqlstate = "40001"


async def it_passes_the_check_at_the_start(bench: Bench[Any]) -> None:
    """The check at the start accepts a ledger whose tables exist, and leaves no rows."""
    await check(bench.ledger)
    await check(bench.ledger)


async def an_effect_is_committed_with_its_row(bench: Bench[Any]) -> None:
    """The work and its row are committed, and a second attempt does not repeat the work."""
    effect = new_effect()
    first = await perform(bench, effect, lambda t: bench.write(t, "once"))
    second = await perform(bench, effect, lambda t: bench.write(t, "twice"))
    expect(
        (first, second) == (Performed.NOW, Performed.BEFORE),
        f"the first attempt ended as {first.name}, the second as {second.name}",
    )
    await expect_rows(bench, ["once"])


async def a_failure_leaves_neither_effect_nor_row(bench: Bench[Any]) -> None:
    """If a handler raises, the ledger rolls back, and the next attempt does the work."""
    effect = new_effect()

    async def work(transaction: Any) -> None:
        await awaited(bench.write(transaction, "never"))
        raise WorkError

    with suppress(WorkError):
        await perform(bench, effect, work)
    await expect_rows(bench, [])
    await perform(bench, effect, lambda t: bench.write(t, "once"))
    await expect_rows(bench, ["once"])


async def a_cancellation_leaves_neither_effect_nor_row(bench: Bench[Any]) -> None:
    """If an async handler is cancelled, the ledger rolls back, and the next attempt works."""
    if not is_async_ledger(bench.ledger):
        return  # a thread cannot be cancelled
    effect, is_waiting = new_effect(), asyncio.Event()

    async def work(transaction: Any) -> None:
        await awaited(bench.write(transaction, "never"))
        is_waiting.set()
        await asyncio.Event().wait()

    attempt = asyncio.create_task(perform(bench, effect, work))
    await asyncio.wait_for(is_waiting.wait(), PATIENCE_SECONDS)
    attempt.cancel()
    await asyncio.wait({attempt})
    expect(attempt.cancelled(), "the ledger swallowed a cancellation")
    await expect_rows(bench, [])
    await perform(bench, effect, lambda t: bench.write(t, "once"))
    await expect_rows(bench, ["once"])


async def attempts_at_the_same_time_work_once(bench: Bench[Any]) -> None:
    """A second attempt waits for the end of a running attempt, and then finds the effect done."""
    effect, worked = new_effect(), 0

    async def work(transaction: Any) -> None:
        nonlocal worked
        worked += 1
        await awaited(bench.write(transaction, "once"))
        await wait_a_little(bench)

    attempts = [perform(bench, effect, work) for _ in range(3)]
    performed = await asyncio.wait_for(asyncio.gather(*attempts), PATIENCE_SECONDS)
    expect(performed.count(Performed.NOW) == 1, "not exactly one of three attempts did the work")
    expect(worked == 1, "an attempt worked beside another")
    await expect_rows(bench, ["once"])


async def a_swallowed_failure_does_not_count_as_success(bench: Bench[Any]) -> None:
    """If a handler ignores a failed statement, either all its work is committed or none."""
    effect = new_effect()

    async def work(transaction: Any) -> None:
        await awaited(bench.write(transaction, "once"))
        with suppress(Exception):
            await awaited(bench.fail(transaction))

    try:
        await perform(bench, effect, work)
    except Exception:  # noqa: BLE001 - the rule accepts any error
        await expect_rows(bench, [])
        await perform(bench, effect, lambda t: bench.write(t, "once"))
    await expect_rows(bench, ["once"])


async def a_row_that_is_not_there_is_not_held(bench: Bench[Any]) -> None:
    """``holds`` returns False if the effect's row is missing, whatever state the driver reports.

    The row is gone if a statement below the handler rolled back and began another transaction.
    """
    effect = new_effect()

    async def look(ledger: Any) -> None:
        async with ledger.transaction() as transaction:
            await expect_not_held(ledger, transaction, effect)

    await on_ledger(bench.ledger, look)
    await perform(bench, effect, lambda t: bench.write(t, "once"))
    await expect_rows(bench, ["once"])


async def a_row_of_an_earlier_transaction_is_not_held(bench: Bench[Any]) -> None:
    """``holds`` returns True only for a row that this transaction has inserted.

    Otherwise work that was rolled back after a COMMIT within the handler would count as done.
    """
    effect, begun = new_effect(), new_effect()
    await perform(bench, effect, lambda t: bench.write(t, "once"))

    async def look(ledger: Any) -> None:
        async with ledger.transaction() as transaction:
            await ledger.insert(transaction, begun)
        for earlier in (effect, begun):
            async with ledger.transaction() as transaction:
                await expect_not_held(ledger, transaction, earlier)

    await on_ledger(bench.ledger, look)


async def an_effect_committed_before_its_end_is_no_success(bench: Bench[Any]) -> None:
    """If a commit leaves a row that says "begun", each later attempt fails.

    The handler has committed too early, or its connection commits by itself: a part of the work may
    be missing.
    """
    effect = new_effect()

    async def commit(ledger: Any) -> None:
        async with ledger.transaction() as transaction:
            await ledger.insert(transaction, effect)

    await on_ledger(bench.ledger, commit)
    for _ in range(2):
        performed = None
        with suppress(Exception):
            performed = await perform(bench, effect, lambda t: bench.write(t, "again"))
        expect(performed is None, f"an effect that had only begun has counted as {performed}")
    await expect_rows(bench, [])


async def a_conflict_is_tried_again_at_once(bench: Bench[Any]) -> None:
    """After a serialization failure, hookonce repeats the transaction: no handler fails."""
    tries = 0

    async def work(transaction: Any) -> None:
        nonlocal tries
        tries += 1
        await awaited(bench.write(transaction, f"try {tries}"))
        if tries <= _CONFLICTS:
            raise _ConflictError

    await perform(bench, new_effect(), work)
    await expect_rows(bench, [f"try {_CONFLICTS + 1}"])


async def effects_are_told_apart_by_every_character(bench: Bench[Any]) -> None:
    """The ledger compares endpoint, event id and handler byte for byte and in full length."""
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


async def rows_go_after_their_retention(bench: Bench[Any]) -> None:
    """Pruning deletes the rows that are older than the retention, and no other rows."""
    old, recent = new_effect(), new_effect()
    await perform(bench, old, lambda t: bench.write(t, "old"))
    bench.clock.advance(bench.ledger.retention_seconds + 5)
    await perform(bench, recent, lambda t: bench.write(t, "recent"))
    await prune(bench.ledger)
    again = await perform(bench, old, lambda t: bench.write(t, "again"))
    before = await perform(bench, recent, lambda t: bench.write(t, "again"))
    expect(again is Performed.NOW, "a row older than the retention is still there")
    expect(before is Performed.BEFORE, "a row was deleted before the end of its retention")


async def pruning_goes_in_steps(bench: Bench[Any]) -> None:
    """One step deletes at most ``limit`` rows, and returns how many it has deleted."""
    for _ in range(3):
        await perform(bench, new_effect(), lambda t: bench.write(t, "old"))
    bench.clock.advance(bench.ledger.retention_seconds + 5)

    async def step(ledger: Any) -> int:
        async with ledger.transaction() as transaction:
            pruned: int = await ledger.prune(transaction, 2)
            return pruned

    pruned = [await on_ledger(bench.ledger, step) for _ in range(3)]
    expect(pruned == [2, 1, 0], f"three steps of at most two rows deleted {pruned} of three")


RULES: tuple[Rule, ...] = (
    it_passes_the_check_at_the_start,
    an_effect_is_committed_with_its_row,
    a_failure_leaves_neither_effect_nor_row,
    a_cancellation_leaves_neither_effect_nor_row,
    attempts_at_the_same_time_work_once,
    a_swallowed_failure_does_not_count_as_success,
    a_row_that_is_not_there_is_not_held,
    a_row_of_an_earlier_transaction_is_not_held,
    an_effect_committed_before_its_end_is_no_success,
    a_conflict_is_tried_again_at_once,
    effects_are_told_apart_by_every_character,
    rows_go_after_their_retention,
    pruning_goes_in_steps,
    *GENERATION_RULES,
)
"""The rules for every ledger."""
