"""Rules for accepted gaps, and for the spans of time in which event types were ignored."""

from __future__ import annotations

from ..reconciling import JOIN_SECONDS, MOST_SPANS, ReconcilingStore, Span
from .bench import (
    NONE,
    RETENTION,
    START,
    Bench,
    claim,
    key_of,
    with_reconciling,
)

NOW = int(START)


TYPE = "comment.received"
LATER = NOW + int(RETENTION)


async def spans(store: ReconcilingStore, event_type: str = TYPE) -> tuple[Span, ...]:
    return (await store.ignored("default", [event_type])).get(event_type, ())


@with_reconciling
async def an_empty_store_has_no_ignored_types(bench: Bench) -> None:
    reconciling = bench.reconciling
    assert await reconciling.ignored("default", [TYPE, "other"]) == {}
    assert await reconciling.ignored("default", []) == {}


@with_reconciling
async def ignored_spans_are_kept_by_endpoint_and_type(bench: Bench) -> None:
    reconciling = bench.reconciling
    noted = {TYPE: [Span(NOW, NOW + 5)], "a:b 12": [Span(NOW - 7, NOW)]}
    await reconciling.note_ignored("default", noted)
    await reconciling.note_ignored("other", {TYPE: [Span(NOW + 1, NOW + 1)]})
    found = await reconciling.ignored("default", [TYPE, "a:b 12", "a"])
    assert found == {event_type: tuple(some) for event_type, some in noted.items()}
    assert await reconciling.ignored("other", [TYPE, "a:b 12"]) == {TYPE: (Span(NOW + 1, NOW + 1),)}


@with_reconciling
async def spans_that_are_near_join(bench: Bench) -> None:
    reconciling = bench.reconciling
    await reconciling.note_ignored("default", {TYPE: [Span(NOW, NOW + 10)]})
    for first, last in (
        (NOW + 2, NOW + 3),  # within the first span
        (NOW + 10 + JOIN_SECONDS, NOW + 20 + JOIN_SECONDS),
        (NOW - JOIN_SECONDS - 5, NOW - JOIN_SECONDS),
    ):
        await reconciling.note_ignored("default", {TYPE: [Span(first, last)]})
    whole = Span(NOW - JOIN_SECONDS - 5, NOW + 20 + JOIN_SECONDS)
    assert await spans(reconciling) == (whole,)
    await reconciling.note_ignored("default", {TYPE: [whole]})  # record the same span again
    assert await spans(reconciling) == (whole,)


@with_reconciling
async def spans_that_are_apart_stay_apart_until_a_span_joins_them(bench: Bench) -> None:
    """A handler may have been registered between two spans: events missed in that time are gaps."""
    reconciling = bench.reconciling
    early, late = Span(NOW, NOW + 9), Span(NOW + 10 + JOIN_SECONDS, NOW + 12 + JOIN_SECONDS)
    await reconciling.note_ignored("default", {TYPE: [late]})
    await reconciling.note_ignored("default", {TYPE: [early], "other": [Span(NOW, NOW + 99)]})
    assert await spans(reconciling) == (early, late)
    await reconciling.note_ignored("default", {TYPE: [Span(NOW + 10, NOW + 10)]})
    assert await spans(reconciling) == (Span(early.first_unix, late.last_unix),)
    assert await spans(reconciling, "other") == (Span(NOW, NOW + 99),)


@with_reconciling
async def a_span_is_forgotten_when_the_retention_has_passed_since_its_end(bench: Bench) -> None:
    reconciling = bench.reconciling
    await reconciling.note_ignored("default", {TYPE: [Span(NOW - 50, NOW)]})
    bench.clock.advance(RETENTION - 1)
    assert await spans(reconciling) == (Span(NOW - 50, NOW),)
    await reconciling.note_ignored("default", {TYPE: [Span(LATER, LATER)]})
    bench.clock.advance(1)
    assert await spans(reconciling) == (Span(LATER, LATER),)


@with_reconciling
async def the_spans_that_ended_last_are_kept(bench: Bench) -> None:
    """The number of spans is limited, because the sender chooses the event types."""
    reconciling = bench.reconciling
    kinds = [f"type.{number}" for number in range(MOST_SPANS + 7)]
    noted = {kind: [Span(NOW + number, NOW + number)] for number, kind in enumerate(kinds)}
    await reconciling.note_ignored("default", noted)
    assert set(await reconciling.ignored("default", kinds)) == set(kinds[7:])


@with_reconciling
async def an_accepted_gap_is_kept_until_its_retention_is_over(bench: Bench) -> None:
    store, reconciling = bench.store, bench.reconciling
    ids = [f"evt_{number}" for number in range(1200)]
    await reconciling.accept("default", ids)
    await reconciling.accept("default", [])
    assert await reconciling.accepted("default", [*ids, "evt_none"]) == frozenset(ids)
    assert await reconciling.accepted("other", ids) == NONE
    bench.clock.advance(RETENTION - 1)
    await reconciling.accept("default", ["evt_7"])
    assert await reconciling.accepted("default", ids) == frozenset(ids)
    bench.clock.advance(2)
    assert await reconciling.accepted("default", ids) == {"evt_7"}
    await store.prune()
    assert await reconciling.accepted("default", ids) == {"evt_7"}


@with_reconciling
async def pruning_removes_accepted_gaps_whose_retention_is_over(bench: Bench) -> None:
    store, reconciling = bench.store, bench.reconciling
    await reconciling.accept("default", ["evt_1", "evt_2"])
    assert await store.prune() == 0
    bench.clock.advance(RETENTION + 1)
    assert await store.prune() == 2


@with_reconciling
async def an_accepted_gap_is_claimed_and_completed_like_any_event(bench: Bench) -> None:
    store, reconciling = bench.store, bench.reconciling
    await reconciling.accept("default", ["evt_1"])
    assert await store.known("default", ["evt_1"]) == {}
    owned = await claim(store, key_of("evt_1"))
    assert owned.attempt == 1
    await store.complete(owned)
    assert await store.known("default", ["evt_1"]) == {"evt_1": "done"}
