"""Replays of handled events: one handler runs again, once for each generation.

A generation is the number of a replay. The first handling of an event has the number 0.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.deliveries import SECRET, answer_of, comment, deliver, sqlite_url
from support.waiting import PATIENCE_SECONDS, until

from hookonce import Context, Receiver, Reject
from hookonce.clock import ManualClock
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived
from hookonce.inbox.replay_id import ReplayId
from hookonce.stores.replays import ReplayBatch
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, ClaimResult, DeadReason
from hookonce.verification.headers import is_message_id

pytestmark = pytest.mark.anyio

DAYS = timedelta(days=3)
HANDLED, DUPLICATE = (200, "handled"), (200, "duplicate")


class Shop:
    """A receiver with two handlers; records the context of each call."""

    def __init__(self, url: str) -> None:
        self.receiver = Receiver(secrets=SECRET, store=url, keep_handled=DAYS)
        self.seen: list[Context] = []
        self.mails = 0
        self.error: Exception | None = None

        @self.receiver.on(CommentReceived, name="shop.book")
        async def book(_: CommentReceived, context: Context) -> None:
            self.seen.append(context)
            if self.error is not None:
                raise self.error

        @self.receiver.on(CommentReceived, name="mail")
        async def mail(_: CommentReceived) -> None:
            self.mails += 1

    async def open(self, **plan: Any) -> ReplayBatch:
        return await self.receiver.handled.open_batch(handler="shop.book", **plan)

    async def replay(self, batch: ReplayBatch, event_id: str = "evt_1") -> tuple[int, str]:
        return answer_of(await self.receiver.handled.replay(event_id, batch))

    async def replay_all(self, batch: ReplayBatch) -> list[tuple[str, str]]:
        replays = self.receiver.handled.replay_all(batch)
        return [(one.event_id, one.reason) async for one in replays]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(sqlite_url(tmp_path))


@pytest.mark.parametrize("url", ["sqlite", "memory"])
async def test_one_handler_runs_again_once_for_each_generation(url: str, tmp_path: Path) -> None:
    shop = Shop(sqlite_url(tmp_path) if url == "sqlite" else "memory://")
    async with shop.receiver:
        assert answer_of(await deliver(shop.receiver, comment("evt_1"))) == HANDLED
        first = await shop.open()
        assert [await shop.replay(first) for _ in range(2)] == [HANDLED, DUPLICATE]
        assert await shop.replay_all(first) == []
        second = await shop.open(new=True)
        answers = [await shop.replay(batch) for batch in (second, first, second)]
        assert answers == [HANDLED, DUPLICATE, DUPLICATE]
        assert [context.generation for context in shop.seen] == [0, 1, 2]
        assert shop.mails == 1
        assert answer_of(await deliver(shop.receiver, comment("evt_1"))) == DUPLICATE
        [kept] = await shop.receiver.handled.list()
        assert kept.delivery.event_id == "evt_1"
        assert kept.finished == {"shop.book", "mail"}


async def test_a_handler_sees_that_its_event_is_replayed(shop: Shop) -> None:
    async with shop.receiver:
        await deliver(shop.receiver, comment("evt_1"))
        await shop.replay(await shop.open())
    first, again = shop.seen
    assert (first.is_replay, first.generation, again.is_replay, again.generation) == (
        False,
        0,
        True,
        1,
    )
    assert (again.event_id, again.key, again.body) == (first.event_id, first.key, first.body)
    assert again.idempotency_key == first.idempotency_key
    assert again.effect == first.effect._replace(generation=1)


async def test_a_replay_that_fails_is_a_dead_letter_with_one_handler(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop.receiver:
        await deliver(shop.receiver, comment("evt_1"))
        shop.error = RuntimeError("the shop is closed")
        batch = await shop.open()
        assert await shop.replay(batch) == (202, "exhausted")
        assert [context.attempt for context in shop.seen] == [1, 1, 2, 3]
        assert [context.last_chance for context in shop.seen] == [False, False, False, True]
        assert await shop.replay(batch) == (202, "already_dead")
        [dead] = await shop.receiver.dead.list()
        assert dead.delivery.event_id == "evt_1.1.shop.book"
        assert dead.attempts == 3
        assert dead.reason is DeadReason.EXHAUSTED
        assert dead.outstanding == {"shop.book"}
        assert [line.rpartition("; ")[2] for line in caplog.messages] == [
            "the replay is tried again",
            "the replay is tried again",
            "it is a dead letter now, as exhausted",
        ]
        assert answer_of(await deliver(shop.receiver, comment("evt_1"))) == DUPLICATE
        shop.error = None
        assert answer_of(await shop.receiver.dead.replay("evt_1.1.shop.book")) == HANDLED
        assert [context.generation for context in shop.seen] == [0, 1, 1, 1, 1]
        assert all(context.event_id == "evt_1" for context in shop.seen)
        assert shop.mails == 1
        assert await shop.receiver.dead.list() == []
        assert await shop.replay(batch) == DUPLICATE
        assert len(await shop.receiver.handled.list()) == 1


async def test_a_rejected_replay_may_be_discarded(shop: Shop) -> None:
    async with shop.receiver:
        await deliver(shop.receiver, comment("evt_1"))
        shop.error = Reject("it was right the first time")
        batch = await shop.open()
        assert await shop.replay(batch) == (202, "rejected")
        assert await shop.receiver.dead.discard("evt_1.1.shop.book")
        assert await shop.replay(batch) == DUPLICATE
        assert len(shop.seen) == 2


async def test_calls_at_the_same_time_cause_one_replay(shop: Shop, tmp_path: Path) -> None:
    other = Shop(sqlite_url(tmp_path))
    async with shop.receiver, other.receiver:
        await deliver(shop.receiver, comment("evt_1"))
        batch = await shop.open()
        assert await other.open() == batch
        answers = await asyncio.gather(*(one.replay(batch) for one in (shop, other, shop, other)))
        assert sorted(answers) == [DUPLICATE, DUPLICATE, DUPLICATE, HANDLED]
        assert len(shop.seen) + len(other.seen) == 2


async def test_a_replay_whose_lease_was_lost_goes_on_and_no_second_one_begins(
    tmp_path: Path,
) -> None:
    """The process was stalled: the store grants its own next claim to the attempt that runs."""
    clock, granted, runs, gate = ManualClock(), list[int](), list[int](), asyncio.Event()

    class Watched(SQLiteStore):
        async def claim(self, *of: Any) -> ClaimResult:
            result = await super().claim(*of)
            if isinstance(result, Claimed):
                granted.append(result.attempt)
            return result

    store = Watched(tmp_path / "hooks.db", clock=clock)
    receiver = Receiver(secrets=SECRET, store=store, keep_handled=DAYS, clock=clock)

    @receiver.on(CommentReceived, name="book")
    async def book(_: CommentReceived, context: Context) -> None:
        runs.append(context.generation)
        if context.generation:
            await gate.wait()

    async with receiver:
        assert answer_of(await deliver(receiver, comment("evt_1"))) == HANDLED
        clock.advance(1)
        batch = await receiver.handled.open_batch(handler="book")
        first = asyncio.create_task(receiver.handled.replay("evt_1", batch))
        await until(lambda: runs == [0, 1])
        clock.advance(60)
        second = asyncio.create_task(receiver.handled.replay("evt_1", batch))
        await until(lambda: granted == [1, 1, 2])
        gate.set()
        assert [answer_of(await one) for one in (first, second)] == [HANDLED, DUPLICATE]
    assert runs == [0, 1]


async def test_what_cannot_be_replayed_is_refused(shop: Shop, tmp_path: Path) -> None:
    async with shop.receiver:
        await deliver(shop.receiver, comment("evt_1"))
        handled, batch = shop.receiver.handled, await shop.open()
        with pytest.raises(LookupError, match="no delivery of 'evt_2' at 'default' is kept"):
            await shop.replay(batch, "evt_2")
        with pytest.raises(LookupError, match=r"post has not finished 'evt_1'; mail, shop\.book"):
            await handled.replay("evt_1", replace(batch, handler="post"))
    without = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), keep_handled=DAYS)
    async with without:
        with pytest.raises(LookupError, match=r"no handler shop\.book for comment\.received"):
            await without.handled.replay("evt_1", batch)


async def test_the_newest_event_of_a_key_is_replayed_and_older_ones_come_too_late(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), keep_handled=DAYS)
    runs: list[tuple[str, int]] = []

    @receiver.on(CommentReceived, name="sync", latest_by=lambda _: "one key")
    async def sync(event: CommentReceived, context: Context) -> None:
        runs.append((event.id, context.generation))

    now = datetime.now(UTC)
    async with receiver:
        for number, event_id in enumerate(("evt_1", "evt_2")):
            event = comment(event_id, created_at=now + timedelta(seconds=number))
            assert answer_of(await deliver(receiver, event)) == HANDLED
        batch = await receiver.handled.open_batch(handler="sync")
        for event_id, expected in (
            ("evt_1", (200, "stale")),
            ("evt_2", HANDLED),
            ("evt_2", DUPLICATE),
        ):
            outcome = await receiver.handled.replay(event_id, batch)
            assert answer_of(outcome) == expected
    assert runs == [("evt_1", 0), ("evt_2", 0), ("evt_2", 1)]


async def test_a_replay_holds_its_key_lock(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), keep_handled=DAYS)
    inside, most = 0, 0

    @receiver.on(CommentReceived, name="sync", serial_by=lambda _: "one key")
    async def sync(_: CommentReceived) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    async with receiver:
        for number in range(3):
            await deliver(receiver, comment(f"evt_{number}"))
        batch = await receiver.handled.open_batch(handler="sync")
        outcomes = [one.reason async for one in receiver.handled.replay_all(batch)]
    assert outcomes == ["handled"] * 3
    assert most == 1


# A program that handles and keeps events, then replays them until each is done. The argument `kill`
# names the moment at which the program kills itself with SIGKILL: at the third event, before or
# after a commit.
VICTIM = """
import asyncio, os, signal, sys
from datetime import timedelta
sys.path[:0] = [{tests!r}]
from support.deliveries import SECRET, comment, deliver
from hookonce import Limits, Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived
from hookonce.outcome import Reason
from hookonce.stores.sqlite import SQLiteStore

folder, kill = sys.argv[1:]
begun = 0

def die(moment):
    if kill == moment and begun == 3:
        os.kill(os.getpid(), signal.SIGKILL)

class Store(SQLiteStore):
    async def complete(self, claim):
        die("before the completion")
        await super().complete(claim)
        die("after the completion")

ledger = SQLiteLedger(folder + "/shop.db")
store = Store(folder + "/hooks.db")
receiver = Receiver(
    secrets=SECRET, store=store, keep_handled=timedelta(days=3), limits=Limits(lease_seconds=1)
)

@receiver.on(CommentReceived, name="book", within=ledger)
def book(event, connection, context):
    global begun
    if context.generation:
        begun += 1
    die("before the work")
    connection.execute("INSERT INTO orders VALUES (?, ?)", (event.id, context.generation))
    die("before the commit")

async def main():
    async with receiver:
        for number in range(5):
            await deliver(receiver, comment(f"evt_{{number}}"))
        batch = await receiver.handled.open_batch(handler="book")
        for number in range(5):
            outcome = await receiver.handled.replay(f"evt_{{number}}", batch)
            assert outcome.reason in (Reason.HANDLED, Reason.DUPLICATE), outcome

asyncio.run(main())
"""


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(
    "moment",
    [
        "before the work",
        "before the commit",
        "before the completion",
        "after the completion",
    ],
)
def test_a_killed_replay_is_continued_and_has_each_effect_once(moment: str, tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "shop.db")
    ledger.create_table()
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (event_id text, generation integer)")
    script = VICTIM.format(tests=str(Path(__file__).parents[1]))
    run: Callable[[str], Any] = lambda kill: subprocess.run(  # noqa: E731 - the test calls it twice
        [sys.executable, "-c", script, str(tmp_path), kill],
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run(moment).returncode == -signal.SIGKILL
    second = run("never")
    assert second.returncode == 0, second.stderr
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        orders = connection.execute("SELECT event_id, generation FROM orders ORDER BY 1, 2")
        assert orders.fetchall() == [(f"evt_{n}", g) for n in range(5) for g in (0, 1)]
        rows = connection.execute("SELECT DISTINCT generation FROM hookonce_effects").fetchall()
        assert rows == [(1,)]


@given(
    st.text(st.characters(exclude_characters=".")).filter(is_message_id),
    st.integers(1, 10**20),
    st.text(min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_the_id_of_a_replay_is_read_back_and_is_no_webhook_id(
    event_id: str,
    generation: int,
    handler: str,
    late: bool,
    new_key: bool,
) -> None:
    again = ReplayId(event_id, generation, handler, late, new_key)
    assert ReplayId.parse(str(again)) == again
    assert not is_message_id(str(again))


@given(st.text())
def test_no_webhook_id_is_taken_for_a_replay(text: str) -> None:
    if is_message_id(text):
        assert ReplayId.parse(text) is None


@pytest.mark.parametrize(
    "text", ["evt_1", "evt.x.book", "evt.1.", "evt.1", ".1.book", "evt.².book", "evt.1kl.book"]
)
def test_other_ids_are_no_replays(text: str) -> None:
    assert ReplayId.parse(text) is None
