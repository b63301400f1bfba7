"""The rules for generations: a replay raises this number, so that an effect is done once more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from ..ledger import Effect
from ..once import Performed
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


async def a_later_generation_does_the_effect_once_more(bench: Bench[Any]) -> None:
    """The effect is done once for each generation; after that, lower generations count as done."""
    effect = new_effect()
    generations = (0, 1, 1, 0, 3, 2, 3, 0)
    seen = [await _perform(bench, effect, generation) for generation in generations]
    now, before = Performed.NOW, Performed.BEFORE
    expected = [now, now, before, before, now, before, before, before]
    expect(seen == expected, f"the generations {generations} ended as {seen}")
    await expect_rows(bench, ["0", "1", "3"])


async def a_generation_needs_no_earlier_one(bench: Bench[Any]) -> None:
    """A replay needs no earlier row: that row may be pruned, or was never inserted."""
    effect = new_effect()
    seen = [await _perform(bench, effect, generation) for generation in (2, 2, 1, 0)]
    now, before = Performed.NOW, Performed.BEFORE
    expect(seen == [now, before, before, before], f"without an earlier row they ended as {seen}")
    await expect_rows(bench, ["2"])


async def a_generation_that_fails_leaves_the_earlier_success(bench: Bench[Any]) -> None:
    """If a replay fails, the rollback also restores the row, and the next attempt works."""
    effect = new_effect()
    await _perform(bench, effect, 0)

    async def work(transaction: Any) -> None:
        await awaited(bench.write(transaction, "never"))
        raise WorkError

    with suppress(WorkError):
        await perform(bench, effect._replace(generation=1), work)
    seen = [await _perform(bench, effect, generation) for generation in (0, 1, 1)]
    now, before = Performed.NOW, Performed.BEFORE
    expect(seen == [before, now, before], f"after a failed generation, attempts ended as {seen}")
    await expect_rows(bench, ["0", "1"])


async def a_generation_at_the_same_time_works_once(bench: Bench[Any]) -> None:
    """Concurrent attempts of one generation wait for each other, with or without an earlier row."""
    for has_row in (True, False):
        effect = new_effect()
        if has_row:
            await _perform(bench, effect, 0)
        attempts = [_perform(bench, effect, 1, waits=True) for _ in range(3)]
        seen = await asyncio.wait_for(asyncio.gather(*attempts), PATIENCE_SECONDS)
        expect(seen.count(Performed.NOW) == 1, f"attempts at the same time ended as {seen}")
    await expect_rows(bench, ["0", "1", "1"])


async def generations_at_the_same_time_leave_the_highest(bench: Bench[Any]) -> None:
    """After waiting for another attempt, an attempt works only if its own generation is higher."""
    effect = new_effect()
    attempts = [_perform(bench, effect, generation, waits=True) for generation in (0, 2, 1)]
    seen = await asyncio.wait_for(asyncio.gather(*attempts), PATIENCE_SECONDS)
    expect(seen[1] is Performed.NOW, "the highest generation was not done")
    again = [await _perform(bench, effect, generation) for generation in (0, 1, 2)]
    expect(
        again == [Performed.BEFORE] * 3, f"attempts after the highest generation ended as {again}"
    )
    done = [
        str(number) for number, end in zip((0, 2, 1), seen, strict=True) if end is Performed.NOW
    ]
    await expect_rows(bench, done)


async def a_row_of_an_earlier_generation_is_not_held(bench: Bench[Any]) -> None:
    """``holds`` returns True only for a row whose generation this transaction has raised."""
    effect = new_effect()
    await _perform(bench, effect, 0)

    async def look(ledger: Any) -> None:
        async with ledger.transaction() as transaction:
            await expect_not_held(ledger, transaction, effect._replace(generation=1))

    await on_ledger(bench.ledger, look)
    seen = await _perform(bench, effect, 1)
    expect(seen is Performed.NOW, f"the look for a row has changed it: an attempt ended as {seen}")


async def a_generation_committed_before_its_end_is_no_success(bench: Bench[Any]) -> None:
    """If a commit raises a row's generation but leaves the row "begun", each later attempt fails.

    This holds for every generation: a part of the work may be missing.
    """
    effect = new_effect()
    await _perform(bench, effect, 0)

    async def commit(ledger: Any) -> None:
        async with ledger.transaction() as transaction:
            await ledger.insert(transaction, effect._replace(generation=1))

    await on_ledger(bench.ledger, commit)
    for generation in (0, 1, 2):
        performed = None
        with suppress(Exception):
            performed = await _perform(bench, effect, generation)
        expect(performed is None, f"an effect that had only begun has counted as {performed}")
    await expect_rows(bench, ["0"])


async def _perform(
    bench: Bench[Any], effect: Effect, generation: int, *, waits: bool = False
) -> Performed:
    """Perform an effect that inserts the number of its generation."""

    async def work(transaction: Any) -> None:
        await awaited(bench.write(transaction, str(generation)))
        if waits:
            await wait_a_little(bench)

    return await perform(bench, effect._replace(generation=generation), work)


GENERATION_RULES: tuple[Rule, ...] = (
    a_later_generation_does_the_effect_once_more,
    a_generation_needs_no_earlier_one,
    a_generation_that_fails_leaves_the_earlier_success,
    a_generation_at_the_same_time_works_once,
    generations_at_the_same_time_leave_the_highest,
    a_row_of_an_earlier_generation_is_not_held,
    a_generation_committed_before_its_end_is_no_success,
)
"""The rules for generations; ``RULES`` includes them."""
