"""Rules for the activity feed and for the reports of workers."""

from __future__ import annotations

from ..activity import MOST_LINES, MOST_REPORTS, ActivityStore
from ..protocols import WORKER_SECONDS
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


async def _reports(feed: ActivityStore, endpoint: str | None = "default") -> dict[str, bytes]:
    return {one.worker: one.report for one in await feed.workers(endpoint=endpoint)}


@with_activity
async def a_worker_replaces_its_report_until_it_removes_it(bench: Bench) -> None:
    feed = bench.activity
    await feed.report_worker("default", "host:1:a", b"starting")
    await feed.report_worker("default", "host:2:a", b"\x00\xff")
    await feed.report_worker("default", "host:1:a", b"busy")
    assert await _reports(feed) == {"host:1:a": b"busy", "host:2:a": b"\x00\xff"}
    await feed.report_worker("default", "host:1:a", None)
    await feed.report_worker("default", "host:3:a", None)
    assert await _reports(feed) == {"host:2:a": b"\x00\xff"}


@with_activity
async def a_worker_reports_at_each_endpoint(bench: Bench) -> None:
    feed = bench.activity
    assert await feed.workers() == []
    await feed.report_worker("here", "host:1:a", b"of here")
    await feed.report_worker("here.too", "host:1:a", b"of here too")
    assert await _reports(feed, "here") == {"host:1:a": b"of here"}
    assert await _reports(feed, "default") == {}
    found = {(one.endpoint, one.report) for one in await feed.workers()}
    assert found == {("here", b"of here"), ("here.too", b"of here too")}
    await feed.report_worker("here", "host:1:a", None)
    assert [one.endpoint for one in await feed.workers()] == ["here.too"]


@with_activity
async def a_report_has_an_age_and_is_forgotten_with_its_worker(bench: Bench) -> None:
    feed = bench.activity
    await feed.report_worker("default", "dead", b"killed after this")
    bench.clock.advance(WORKER_SECONDS / 2)
    await feed.report_worker("default", "alive", b"here")
    ages = {one.worker: one.age_seconds for one in await feed.workers()}
    assert ages == {"dead": WORKER_SECONDS / 2, "alive": 0}
    bench.clock.advance(WORKER_SECONDS / 2)
    assert await _reports(feed) == {"alive": b"here"}
    await feed.report_worker("default", "alive", b"still here")
    bench.clock.advance(WORKER_SECONDS)
    assert await _reports(feed) == {}


@with_activity
async def the_oldest_reports_are_forgotten_first(bench: Bench) -> None:
    feed = bench.activity
    for number in range(MOST_REPORTS + 3):
        await feed.report_worker("default", f"{number}", b"here")
        bench.clock.advance(WORKER_SECONDS / (2 * MOST_REPORTS))
    assert (await _reports(feed)).keys() == {f"{n}" for n in range(3, MOST_REPORTS + 3)}


@with_activity
async def every_store_on_the_data_sees_the_reports(bench: Bench) -> None:
    if not bench.shares_data:
        return
    other = bench.open()
    assert isinstance(other, ActivityStore)
    await bench.activity.report_worker("default", "host:1:a", b"here")
    assert await _reports(other) == {"host:1:a": b"here"}
