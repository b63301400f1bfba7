"""`Receiver.try_out` runs a handler on real events, and changes nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, sqlite_url

from hookonce import Context, Limits, Receiver, Reject
from hookonce.clock import system_clock
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.errors import AlreadyDone, LedgerError, PayloadError
from hookonce.events import CommentReceived, Event
from hookonce.receiver import Kept, Trial
from hookonce.routing.table import HandlerTable
from hookonce.stores import open_store
from hookonce.stores.handled import Keeping
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Acquired,
    Busy,
    Claimed,
    DeadReason,
    Delivery,
    KeyLock,
    Watermark,
    new_token,
)

pytestmark = pytest.mark.anyio

DAYS = timedelta(days=3)
BOOK = "book"


class Shop:
    """A receiver with a handler that books events in a database, within a ledger."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.file = folder / "shop.db"
        self.ledger = SQLiteLedger(self.file)
        self.ledger.create_table()
        with self.ledger.transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (event_id text)")
        self.url = sqlite_url(folder)
        self.settings = settings

    def version(self, work: Any = None, **options: Any) -> Receiver:
        """Return a receiver whose handler first calls `work`, and then books the event."""
        receiver = Receiver(secrets=SECRET, store=self.url, keep_handled=DAYS, **self.settings)

        def book(event: CommentReceived, connection: sqlite3.Connection, context: Context) -> None:
            if work is not None:
                work(event, connection, context)
            connection.execute("INSERT INTO orders VALUES (?)", (event.id,))

        receiver.on(CommentReceived, name=BOOK, within=self.ledger, **options)(book)
        return receiver

    def rows(self, table: str) -> list[Any]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()

    def state(self) -> list[Any]:
        """Return the rows of the handler's table and of the ledger's tables."""
        names = ("orders", "hookonce_effects", "hookonce_watermarks")
        with closing(sqlite3.connect(self.file)) as connection:
            found = [connection.execute(f"SELECT * FROM {name}").fetchall() for name in names]
        return [sorted(rows) for rows in found]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.ledger.close()


async def tried(receiver: Receiver, name: str = BOOK, **filters: Any) -> list[Trial]:
    async with receiver.opened():
        return [trial async for trial in receiver.try_out(name, **filters)]


async def in_store(receiver: Receiver) -> list[Any]:
    """Return everything that the store shows about its events."""
    async with receiver.opened():
        dead, handled = await receiver.dead.list(), await receiver.handled.list()
        deliveries = [*(one.delivery for one in dead), *(one.delivery for one in handled)]
        ids = [one.event_id for one in deliveries]
        letters = [await receiver.dead.show(event_id) for event_id in ids]
        known = await receiver.store.known(receiver.endpoint, ids)
        return [dead, letters, handled, known, await receiver.store.stats()]


def rejecting(event: CommentReceived, *_: object) -> None:
    if event.id == "evt_2":
        raise Reject("closed")


async def handled_and_dead(shop: Shop, **options: Any) -> None:
    """Let the deployed version handle evt_1, and reject evt_2."""
    async with (deployed := shop.version(rejecting, **options)):
        for event_id, answer in (("evt_1", (200, "handled")), ("evt_2", (202, "rejected"))):
            assert answer_of(await deliver(deployed, comment(event_id))) == answer


async def test_a_changed_handler_runs_on_handled_events_and_dead_letters_and_changes_nothing(
    shop: Shop,
) -> None:
    await handled_and_dead(shop, latest_by=lambda _: "all")
    seen: list[Context] = []
    changed = shop.version(lambda _, __, context: seen.append(context), latest_by=lambda _: "all")
    before = shop.state(), await in_store(changed)
    trials = await tried(changed)
    assert [(one.event_id, one.kept, one.error) for one in trials] == [
        ("evt_2", Kept.DEAD, None),
        ("evt_1", Kept.HANDLED, None),
    ]
    assert [one.rows for one in trials] == [{"all tables": 1}] * 2
    assert all(one.seconds > 0 for one in trials)
    assert not any(one.has_committed for one in trials)
    assert [(one.event_id, one.is_replay, one.last_chance) for one in seen] == [
        ("evt_2", True, False),
        ("evt_1", True, False),
    ]
    assert (shop.state(), await in_store(changed)) == before


async def test_after_a_trial_the_handler_still_runs_for_a_dead_letter(shop: Shop) -> None:
    await handled_and_dead(shop)
    changed = shop.version()
    await tried(changed)
    async with changed.opened():
        assert (await changed.dead.replay("evt_2")).reason == "handled"
    assert shop.state()[0] == [("evt_1",), ("evt_2",)]


async def test_an_async_handler_is_tried(shop: Shop) -> None:
    await handled_and_dead(shop)
    receiver = Receiver(secrets=SECRET, store=shop.url)

    @receiver.on(CommentReceived, name="later", within=AioSQLiteLedger(shop.file))
    async def later(event: CommentReceived, connection: Any) -> None:
        await connection.execute("INSERT INTO orders VALUES (?)", (event.id,))
        await connection.execute("UPDATE orders SET event_id = event_id")
        if event.id == "evt_2":
            raise KeyError("shop")

    before = shop.state()
    dead, handled = await tried(receiver, "later")
    assert isinstance(dead.error, KeyError)
    assert (dead.rows, dead.has_committed) == (None, False)
    assert (handled.error, handled.rows) == (None, {"all tables": 3})
    assert shop.state() == before


async def test_an_error_of_the_handler_or_of_its_key_is_the_result(shop: Shop) -> None:
    await handled_and_dead(shop)
    errors = [one.error for one in await tried(shop.version(rejecting))]
    assert [type(error) for error in errors] == [Reject, type(None)]

    def no_key(_: CommentReceived) -> str:
        raise KeyError("key")

    for option in ("latest_by", "serial_by"):
        wrong = shop.version(**{option: no_key})
        assert [type(one.error) for one in await tried(wrong)] == [KeyError, KeyError]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["evt_2", "evt_1"]),
        ({"kept": Kept.HANDLED}, ["evt_1"]),
        ({"kept": Kept.DEAD}, ["evt_2"]),
        ({"event_type": "message.received"}, []),
        ({"where": "id=evt_1"}, ["evt_1"]),
        ({"since": 4e9}, []),
    ],
)
async def test_the_filters_are_those_of_the_lists(
    filters: dict[str, Any], found: list[str], shop: Shop
) -> None:
    await handled_and_dead(shop)
    assert [one.event_id for one in await tried(shop.version(), **filters)] == found


async def test_events_of_other_types_are_left_out(shop: Shop) -> None:
    await handled_and_dead(shop)
    receiver = shop.version()

    @receiver.on("channel.*", name="watch", within=shop.ledger)
    def watch(_: Event[Any], __: sqlite3.Connection) -> None: ...

    assert await tried(receiver, "watch") == []


async def test_a_replay_that_failed_is_not_tried_twice(shop: Shop) -> None:
    await handled_and_dead(shop)
    async with (receiver := shop.version()).opened():
        kept = await receiver.handled.show("evt_1")
    assert kept is not None
    replayed = kept.delivery._replace(event_id="evt_1.1.book")
    await put(shop.url, replayed, reason=DeadReason.EXHAUSTED)
    seen: list[Context] = []
    trials = await tried(shop.version(lambda _, __, context: seen.append(context)))
    assert [one.event_id for one in trials] == ["evt_2", "evt_1"]
    assert {one.key for one in seen} == {"default:evt_1", "default:evt_2"}


async def put(url: str, delivery: Delivery, *, reason: DeadReason | None = None) -> None:
    """Put a handled event into a store; if a reason is given, put a dead letter instead."""
    store = open_store(url, clock=system_clock)
    assert isinstance(store, SQLiteStore)
    claim = await store.claim(delivery.key, new_token(), 30.0)
    assert isinstance(claim, Claimed)
    if reason is None:
        await store.complete_and_keep(claim, delivery, {BOOK}, Keeping(1000.0))
    else:
        await store.bury(claim, reason, delivery=delivery)
    await store.aclose()


async def test_a_body_that_this_version_cannot_read_is_a_failure_if_it_was_handled(
    shop: Shop,
) -> None:
    unreadable = Delivery("default", "evt_3", "comment.received", time.time(), b"{}")
    await put(shop.url, unreadable)
    await put(shop.url, unreadable._replace(event_id="evt_4"), reason=DeadReason.UNREADABLE)
    no_type = unreadable._replace(event_id="evt_5", event_type=None)
    await put(shop.url, no_type, reason=DeadReason.UNREADABLE)
    [trial] = await tried(shop.version())
    assert (trial.event_id, type(trial.error)) == ("evt_3", PayloadError)


async def test_a_commit_by_the_handler_is_reported(shop: Shop) -> None:
    await handled_and_dead(shop)

    def commit(_: CommentReceived, connection: sqlite3.Connection, __: Context) -> None:
        connection.execute("INSERT INTO orders VALUES ('half')")
        connection.execute("COMMIT")

    before = shop.state()
    trials = await tried(shop.version(commit))
    assert [one.has_committed for one in trials] == [True]  # the commit ended the trials
    assert all(one.error is not None for one in trials)
    orders, effects, watermarks = shop.state()
    assert ("half",) in orders
    assert (effects, watermarks) == (before[1], before[2])


async def test_a_handler_without_a_ledger_runs_only_for_real(shop: Shop) -> None:
    await handled_and_dead(shop)
    receiver, seen = Receiver(secrets=SECRET, store=shop.url), list[str]()

    @receiver.on(CommentReceived, name="mail")
    async def mail(event: CommentReceived, context: Context) -> None:
        seen.append(event.id)
        assert context.is_replay
        if event.id == "evt_2":
            raise AlreadyDone("mailed before")

    with pytest.raises(ValueError, match="mail runs without a ledger, so nothing can roll"):
        await tried(receiver, "mail")
    assert seen == []
    before = await in_store(shop.version())
    trials = await tried(receiver, "mail", for_real=True)
    assert seen == ["evt_2", "evt_1"]
    assert [(one.error, one.rows, one.has_committed) for one in trials] == [(None, None, False)] * 2
    assert all(one.seconds > 0 for one in trials)
    assert await in_store(shop.version()) == before


async def test_what_cannot_be_tried_is_refused(shop: Shop) -> None:
    with pytest.raises(LookupError, match="there is no handler 'look'; there is book"):
        await tried(shop.version(), "look")
    with pytest.raises(ValueError, match="book runs within a ledger"):
        await tried(shop.version(), for_real=True)
    with closing(sqlite3.connect(shop.file)) as connection:
        connection.execute("DROP TABLE hookonce_effects")
    with pytest.raises(LedgerError, match="no such table: hookonce_effects"):
        await tried(shop.version())


async def test_a_ledger_that_does_not_roll_back_is_refused_before_the_first_event(
    shop: Shop,
) -> None:
    await handled_and_dead(shop)
    seen: list[str] = []

    class Careless(SQLiteLedger):
        def transaction(self) -> Any:
            connection = sqlite3.connect(shop.file, isolation_level=None)
            return closing(connection)

    receiver = Receiver(secrets=SECRET, store=shop.url)
    receiver.on(CommentReceived, name="book", within=Careless(shop.file))(
        lambda event, _: seen.append(event.id)
    )
    with pytest.raises(LedgerError, match="Careless commits by itself"):
        await tried(receiver)
    assert seen == []


async def test_the_key_lock_of_serial_by_is_held(shop: Shop) -> None:
    """The trial waits for the key of a live attempt, and frees the key afterwards."""
    await handled_and_dead(shop)
    key_lock, held = KeyLock("default", BOOK, "all"), list[object]()
    loop = asyncio.get_running_loop()

    def ask(*_: object) -> None:
        asked = receiver.store.acquire_key_lock(key_lock, new_token(), 30.0)
        held.append(asyncio.run_coroutine_threadsafe(_awaited(asked), loop).result())

    receiver: Receiver = shop.version(ask, serial_by=lambda _: "all")
    async with receiver.opened():
        token = new_token()
        assert isinstance(await receiver.store.acquire_key_lock(key_lock, token, 30.0), Acquired)
        trials = receiver.try_out(BOOK, kept=Kept.HANDLED)
        first = asyncio.ensure_future(anext(trials))
        await asyncio.wait({first}, timeout=0.2)
        assert held == []
        await receiver.store.release_key_lock(key_lock, token)
        assert (await first).error is None
        assert [type(one) for one in held] == [Busy]
        await trials.aclose()
        free = await receiver.store.acquire_key_lock(key_lock, new_token(), 30.0)
        assert isinstance(free, Acquired)


async def _awaited(result: Awaitable[object]) -> object:
    return await result


async def test_a_run_for_real_raises_no_watermark(shop: Shop) -> None:
    await handled_and_dead(shop)
    receiver, seen = Receiver(secrets=SECRET, store=shop.url), list[str]()

    @receiver.on(CommentReceived, name="mail", latest_by=lambda _: "all")
    async def mail(event: CommentReceived) -> None:
        seen.append(event.id)

    assert [one.error for one in await tried(receiver, "mail", for_real=True)] == [None, None]
    assert seen == ["evt_2", "evt_1"]
    async with receiver.opened():
        oldest = await receiver.store.acquire_key_lock(
            KeyLock("default", "mail", "all"), new_token(), 30.0, watermark=Watermark(1, "evt_0")
        )
    assert isinstance(oldest, Acquired)


async def test_a_handler_that_takes_too_long_is_cancelled_and_rolled_back(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await handled_and_dead(shop)
    limits = Limits(handler_timeout_seconds=0.2)
    receiver = Receiver(secrets=SECRET, store=shop.url, limits=limits)

    @receiver.on(CommentReceived, name="slow", within=AioSQLiteLedger(shop.file))
    async def slow(event: CommentReceived, connection: Any) -> None:
        await connection.execute("INSERT INTO orders VALUES (?)", (event.id,))
        await asyncio.Event().wait()

    before = shop.state()
    trials = await tried(receiver, "slow")
    assert [str(one.error) for one in trials] == ["not finished within 0.2 s"] * 2
    assert shop.state() == before
    shop.ledger.close()


async def test_an_interrupted_trial_is_rolled_back_and_frees_its_key(shop: Shop) -> None:
    await handled_and_dead(shop)
    receiver, started = Receiver(secrets=SECRET, store=shop.url), asyncio.Event()

    @receiver.on(
        CommentReceived, name="slow", within=AioSQLiteLedger(shop.file), serial_by=lambda _: "all"
    )
    async def slow(event: CommentReceived, connection: Any) -> None:
        await connection.execute("INSERT INTO orders VALUES (?)", (event.id,))
        started.set()
        await asyncio.Event().wait()

    before = shop.state()
    async with receiver.opened():
        trial = asyncio.ensure_future(anext(receiver.try_out("slow")))
        await started.wait()
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
        key_lock = KeyLock("default", "slow", "all")
        free = await receiver.store.acquire_key_lock(key_lock, new_token(), 30.0)
        assert isinstance(free, Acquired)
    assert shop.state() == before


async def test_live_deliveries_are_handled_while_a_handler_is_tried(shop: Shop) -> None:
    await handled_and_dead(shop)
    goes_on, is_trying = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        is_trying.set()
        assert goes_on.wait(60)

    changed, live = (
        shop.version(wait, latest_by=lambda _: "all"),
        shop.version(latest_by=lambda _: "all"),
    )
    async with live:
        trying = asyncio.create_task(tried(changed, kept=Kept.HANDLED))
        assert await asyncio.to_thread(is_trying.wait, 60)
        delivery = asyncio.create_task(deliver(live, comment("evt_7")))
        await asyncio.wait({delivery}, timeout=0.2)  # the trial is SQLite's only writer now
        goes_on.set()
        assert answer_of(await delivery) == (200, "handled")
        [trial] = await trying
    assert (trial.error, trial.rows) == (None, {"all tables": 1})
    assert ("evt_7",) in shop.state()[0]


def test_the_handlers_of_a_type_are_those_that_its_events_have(shop: Shop) -> None:
    receiver = shop.version()
    table = HandlerTable(receiver.handlers, sender=receiver.sender)
    assert table.of_type("comment.received") == table.find(comment("evt_1")) != ()
    assert table.of_type("message.received") == table.of_type("new.type") == ()
