"""Rules for batches of replays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ..handled import HandledStore, Keeping
from ..replays import ReplayBatch, ReplayPlan
from .bench import HOUR, START, Bench, about, claim, delivery, key_of, only, with_handled

_PLAN = ReplayPlan(event_type="comment.received")
_OTHER = ReplayPlan(late=True)
_YEAR = 365 * 24 * HOUR


async def _begin(
    bench: Bench, generation: int = 1, plan: ReplayPlan = _PLAN, handler: str = "shop.book"
) -> ReplayBatch:
    return await bench.handled.begin_replay_batch("default", handler, generation, plan)


@with_handled
async def a_batch_begins_now_and_is_open(bench: Bench) -> None:
    assert await bench.handled.replay_batches("default") == []
    bench.clock.advance(5)
    batch = await _begin(bench)
    assert batch == ReplayBatch("default", "shop.book", 1, _PLAN, about(START + 5))
    assert only(await bench.handled.replay_batches("default")) == batch


@with_handled
async def a_batch_selects_only_what_was_handled_before_its_start(bench: Bench) -> None:
    """Events that are handled later stay out of the batch, even if the clock is set back."""

    async def handle(number: int) -> None:
        one = delivery(f"evt_{number}")
        owned = await claim(bench.store, one.key)
        await bench.handled.complete_and_keep(owned, one, frozenset(), Keeping(HOUR))

    async def selected(batch: ReplayBatch) -> list[str]:
        found = await bench.handled.handled_events(before_unix=batch.started_unix)
        return [event.delivery.event_id for event in found]

    await handle(1)
    bench.clock.advance(100)
    batch = await _begin(bench)
    bench.clock.advance(-50)
    await handle(2)
    bench.clock.advance(50)
    await handle(3)
    assert await selected(batch) == ["evt_1"]
    await bench.handled.end_replay_batch(batch)
    bench.clock.advance(-50)
    await handle(4)
    kept = await bench.handled.handled_event(key_of("evt_4"))
    assert kept is not None
    assert kept.handled_unix == about(START + 50)


@with_handled
async def the_first_caller_begins_a_generation_and_all_get_its_batch(bench: Bench) -> None:
    first, *others = await asyncio.gather(*(_begin(bench, 1, plan) for plan in (_PLAN, _OTHER)))
    assert others == [first]
    bench.clock.advance(5)
    assert await _begin(bench, 1, _OTHER) == first


@with_handled
async def a_later_generation_replaces_a_batch_and_an_earlier_one_does_not(bench: Bench) -> None:
    await _begin(bench)
    bench.clock.advance(5)
    later = await _begin(bench, 3, _OTHER)
    assert later == ReplayBatch("default", "shop.book", 3, _OTHER, about(START + 5))
    assert await _begin(bench, 2) == later
    assert only(await bench.handled.replay_batches("default")) == later


@with_handled
async def a_batch_that_has_ended_stays_the_last_one(bench: Bench) -> None:
    batch = await _begin(bench)
    bench.clock.advance(7)
    await bench.handled.end_replay_batch(batch)
    ended = replace(batch, finished_unix=about(START + 7))
    bench.clock.advance(7)
    await bench.handled.end_replay_batch(batch)
    assert only(await bench.handled.replay_batches("default")) == ended
    assert await _begin(bench) == ended


@with_handled
async def a_later_batch_is_open_although_an_earlier_one_has_ended(bench: Bench) -> None:
    first = await _begin(bench)
    await bench.handled.end_replay_batch(first)
    second = await _begin(bench, 2)
    assert second.finished_unix is None
    await bench.handled.end_replay_batch(first)
    assert only(await bench.handled.replay_batches("default")) == second


@with_handled
async def a_batch_that_was_never_begun_cannot_end(bench: Bench) -> None:
    await bench.handled.end_replay_batch(ReplayBatch("default", "shop.book", 1, _PLAN, START))
    assert await bench.handled.replay_batches("default") == []


@with_handled
async def each_handler_of_each_endpoint_has_its_own_batch(bench: Bench) -> None:
    handled = bench.handled
    batches = [
        await _begin(bench),
        await _begin(bench, 4, handler="mail"),
        await handled.begin_replay_batch("other", "mail", 2, _OTHER),
    ]
    await handled.end_replay_batch(batches[1])
    by_name = {batch.handler: batch for batch in await handled.replay_batches("default")}
    assert by_name.keys() == {"shop.book", "mail"}
    assert by_name["shop.book"] == batches[0]
    assert by_name["mail"].finished_unix is not None
    assert await handled.replay_batches("other") == [batches[2]]


@with_handled.each(
    plan=[
        ReplayPlan(),
        ReplayPlan(since_unix=START + 0.123456, late=True),
        ReplayPlan(since_seconds=90.5, new_key=True),
        ReplayPlan(where=("data.x=\N{SNOWMAN} '\"\\\n", "a=b"), event_type="odd\0type"),
        ReplayPlan(event_ids=("evt_1", "evt_2")),
    ]
)
async def a_batch_keeps_its_whole_plan(bench: Bench, plan: ReplayPlan) -> None:
    assert (await _begin(bench, plan=plan)).plan == plan
    assert only(await bench.handled.replay_batches("default")).plan == plan


@with_handled
async def a_plan_may_name_thousands_of_events(bench: Bench) -> None:
    plan = ReplayPlan(event_ids=tuple(f"evt_{number}" for number in range(5000)))
    assert (await _begin(bench, plan=plan)).plan == plan


@with_handled.each(handler=["with space", "\N{SNOWMAN}", "nul \0", "lone \ud800", "quote \"'\\ \n"])
async def a_handler_may_have_any_name(bench: Bench, handler: str) -> None:
    batch = await _begin(bench, handler=handler)
    assert batch.handler == handler
    await bench.handled.end_replay_batch(batch)
    assert only(await bench.handled.replay_batches("default")).handler == handler


@with_handled
async def a_generation_is_never_forgotten(bench: Bench) -> None:
    batch = await _begin(bench, 5)
    await bench.handled.end_replay_batch(batch)
    bench.clock.advance(_YEAR)
    await bench.store.prune()
    assert only(await bench.handled.replay_batches("default")).generation == 5
    assert (await _begin(bench, 5)).generation == 5


@with_handled
async def another_process_sees_a_batch(bench: Bench) -> None:
    if not bench.shares_data:
        return
    batch = await _begin(bench)
    other = bench.open()
    assert isinstance(other, HandledStore)
    assert await other.replay_batches("default") == [batch]
    assert await other.begin_replay_batch("default", "shop.book", 1, _OTHER) == batch
    await other.end_replay_batch(batch)
    assert only(await bench.handled.replay_batches("default")).finished_unix is not None
