"""Rules for the activity feed."""

from __future__ import annotations

from ..activity import MOST_LINES
from .bench import (
    Bench,
    with_activity,
)


@with_activity
async def lines_are_dropped_while_no_operator_watches(bench: Bench) -> None:
    feed = bench.activity
    assert not await feed.publish("default", [b"lost"])
    assert not await feed.publish("default", [])
    place, lines = await feed.follow("default", None)
    assert lines == ()
    assert (await feed.follow("default", place)).lines == ()


@with_activity
async def each_operator_gets_every_line_in_order(bench: Bench) -> None:
    feed = bench.activity
    first = await feed.follow("default", None)
    assert await feed.publish("default", [b"one", b"two"])
    second = await feed.follow("default", first.place)
    assert second.lines == (b"one", b"two")
    assert await feed.publish("default", [b"three"])
    assert (await feed.follow("default", first.place)).lines == (b"one", b"two", b"three")
    assert (await feed.follow("default", second.place)).lines == (b"three",)


@with_activity
async def endpoints_have_separate_feeds(bench: Bench) -> None:
    feed = bench.activity
    here, there = await feed.follow("here", None), await feed.follow("there", None)
    await feed.publish("there", [b"of there"])
    await feed.publish("here", [b"of here"])
    assert (await feed.follow("here", here.place)).lines == (b"of here",)
    assert (await feed.follow("there", there.place)).lines == (b"of there",)
    assert not await feed.publish("elsewhere", [b"nobody looks"])


@with_activity
async def the_oldest_lines_are_forgotten_first(bench: Bench) -> None:
    feed = bench.activity
    place, _ = await feed.follow("default", None)
    for number in range(0, MOST_LINES + 500, 250):
        await feed.publish("default", [b"%d" % line for line in range(number, number + 250)])
    _, lines = await feed.follow("default", place)
    assert lines == tuple(b"%d" % line for line in range(500, MOST_LINES + 500))


@with_activity
async def a_place_beyond_the_last_line_starts_again(bench: Bench) -> None:
    feed = bench.activity
    await feed.follow("default", None)
    await feed.publish("default", [b"new"])
    assert (await feed.follow("default", 1_000_000)).lines == (b"new",)
