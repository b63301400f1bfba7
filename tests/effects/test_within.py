"""Handlers within a ledger: registration, calls, commits and rollbacks."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from support.deliveries import answer_of, comment, deliver, receiver_on, sqlite_url

from hookonce import Context, Limits, Receiver, Reject, Retry
from hookonce.effects import once
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived
from hookonce.routing.router import Router
from hookonce.simulation import simulate

from .shops import Shop

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.ledger.close()


@pytest.fixture
def later(shop: Shop) -> AioSQLiteLedger:
    """Return a ledger for async handlers on the shop's file."""
    return AioSQLiteLedger(shop.file)


async def test_an_effect_exists_once_even_if_the_store_has_forgotten_the_event(
    shop: Shop,
) -> None:
    event = comment()
    for _ in range(2):  # each round has a new store, which does not know the event
        receiver = receiver_on("memory://")

        @receiver.on(CommentReceived, name="book", within=shop.ledger)
        def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
            shop.book(connection, event.id)

        assert answer_of(await deliver(receiver, event)) == (200, "handled")
    assert shop.orders() == [(event.id, "book")]
    assert shop.recorded() == ["book"]


async def test_the_context_is_the_third_argument_of_a_handler_within_a_ledger(
    shop: Shop, later: AioSQLiteLedger
) -> None:
    receiver, seen = receiver_on(), []

    @receiver.on(CommentReceived, name="plain", within=shop.ledger)
    def plain(_: CommentReceived, connection: sqlite3.Connection, context: Context) -> None:
        seen.append((type(connection).__mro__[1], context.handler, context.attempt))

    @receiver.on(CommentReceived, name="async", within=later)
    async def not_plain(_: CommentReceived, own: aiosqlite.Connection, context: Context) -> None:
        seen.append((type(own), context.handler, context.attempt))

    await deliver(receiver, comment())
    assert sorted(seen, key=lambda one: one[1]) == [
        (aiosqlite.Connection, "async", 1),
        (sqlite3.Connection, "plain", 1),
    ]


@pytest.mark.parametrize(
    ("raised", "status"), [(ValueError("no"), 500), (Retry(5), 503), (SystemExit(1), 500)]
)
async def test_any_exception_rolls_back_and_the_next_attempt_works(
    shop: Shop, raised: BaseException, status: int
) -> None:
    receiver, failures = receiver_on(), [raised]

    @receiver.on(CommentReceived, name="book", within=shop.ledger)
    def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)
        if failures:
            raise failures.pop()

    event = comment()
    assert (await deliver(receiver, event)).status == status
    assert (shop.orders(), shop.recorded()) == ([], [])
    assert (await deliver(receiver, event)).status == 200
    assert shop.orders() == [(event.id, "book")]


async def test_a_rejected_event_has_no_effect_and_no_record(shop: Shop, tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))

    @receiver.on(CommentReceived, within=shop.ledger)
    def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)
        raise Reject

    async with receiver:
        assert answer_of(await deliver(receiver, comment())) == (202, "rejected")
    assert (shop.orders(), shop.recorded()) == ([], [])


async def test_a_handler_that_takes_too_long_is_rolled_back(
    shop: Shop, later: AioSQLiteLedger
) -> None:
    receiver, is_slow = receiver_on(handler_timeout_seconds=0.05), [True]

    @receiver.on(CommentReceived, name="book", within=later)
    async def book(event: CommentReceived, connection: aiosqlite.Connection) -> None:
        await connection.execute("INSERT INTO orders VALUES (?, 'book')", (event.id,))
        if is_slow.pop():
            await asyncio.Event().wait()

    event = comment()
    assert (await deliver(receiver, event)).status == 500
    assert (shop.orders(), shop.recorded()) == ([], [])
    is_slow.append(False)
    receiver = receiver.copy(limits=Limits())
    assert (await deliver(receiver, event)).status == 200
    assert shop.orders() == [(event.id, "book")]


async def test_each_handler_has_a_record_of_its_own(shop: Shop) -> None:
    receiver, fails = receiver_on(), [True]

    @receiver.on(CommentReceived, name="first", within=shop.ledger)
    def first(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id, "first")

    @receiver.on(CommentReceived, name="second", within=shop.ledger)
    def second(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id, "second")
        if fails:
            raise ValueError(fails.pop())

    event = comment()
    assert (await deliver(receiver, event)).status == 500
    assert shop.orders() == [(event.id, "first")]
    assert (await deliver(receiver, event)).status == 200
    assert shop.orders() == [(event.id, "first"), (event.id, "second")]


def end_by_method(connection: sqlite3.Connection) -> None:
    connection.commit()


def end_by_script(connection: sqlite3.Connection) -> None:
    connection.executescript("SELECT 1")


def end_by_rollback(connection: sqlite3.Connection) -> None:
    connection.rollback()


@pytest.mark.parametrize("end", [end_by_method, end_by_script, end_by_rollback])
async def test_a_handler_cannot_end_its_transaction(
    shop: Shop, end: Callable[[sqlite3.Connection], None], caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on()

    @receiver.on(CommentReceived, within=shop.ledger)
    def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)
        end(connection)

    assert (await deliver(receiver, comment())).status == 500
    assert (shop.orders(), shop.recorded()) == ([], [])
    assert "LedgerError" in caplog.text


async def test_an_awaitable_that_a_handler_returns_is_awaited_before_the_commit(
    shop: Shop, later: AioSQLiteLedger
) -> None:
    receiver = receiver_on()

    async def booked(event: CommentReceived, connection: aiosqlite.Connection) -> None:
        await connection.execute("INSERT INTO orders VALUES (?, 'book')", (event.id,))

    @receiver.on(CommentReceived, within=later)
    async def book(
        event: CommentReceived, connection: aiosqlite.Connection
    ) -> Awaitable[None]:  # the handler returns this call without awaiting it
        return booked(event, connection)

    event = comment()
    assert (await deliver(receiver, event)).status == 200
    assert shop.orders() == [(event.id, "book")]


async def test_a_plain_handler_that_returns_a_coroutine_fails(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on()

    async def never(_: CommentReceived) -> None: ...

    @receiver.on(CommentReceived, within=shop.ledger)
    def book(event: CommentReceived, _: sqlite3.Connection) -> Awaitable[None]:
        return never(event)

    assert (await deliver(receiver, comment())).status == 500
    assert shop.recorded() == []
    assert "its work has not been done" in caplog.text


async def test_a_long_transaction_is_logged_with_the_name_of_its_handler(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "_LONG_SECONDS", 0.4)
    receiver = receiver_on()

    @receiver.on(CommentReceived, name="slow-one", within=shop.ledger)
    def book(_: CommentReceived, __: sqlite3.Connection) -> None:
        time.sleep(0.4)

    @receiver.on(CommentReceived, name="quick-one", within=shop.ledger)
    def book_quickly(_: CommentReceived, __: sqlite3.Connection) -> None: ...

    await deliver(receiver, comment())
    [warning] = [r.getMessage() for r in caplog.records if "held its transaction" in r.getMessage()]
    assert warning.startswith("slow-one held")


async def test_plain_handlers_within_a_ledger_run_in_threads(shop: Shop) -> None:
    receiver, threads = receiver_on(), []

    @receiver.on(CommentReceived, within=shop.ledger)
    def book(_: CommentReceived, __: sqlite3.Connection) -> None:
        threads.append(threading.current_thread())

    await deliver(receiver, comment())
    assert threads != [threading.main_thread()]


def takes_event_alone(event: CommentReceived) -> None: ...
def takes_four(a: object, b: object, c: object, d: object) -> None: ...
def takes_context_second(event: CommentReceived, context: Context, connection: object) -> None: ...
async def is_coroutine(event: CommentReceived, connection: object) -> None: ...
def generates(*_: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (takes_event_alone, r"\(event, transaction\) or \(event, transaction, context\)"),
        (takes_four, r"\(event, transaction\) or \(event, transaction, context\)"),
        (takes_context_second, "takes a context as its second argument"),
        (is_coroutine, "is async, but SQLiteLedger is for handlers that run in threads"),
        (generates, "is a generator"),
    ],
)
def test_a_function_that_does_not_suit_its_ledger_is_refused(
    function: Callable[..., Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=says):
        Router().on(CommentReceived, within=SQLiteLedger(tmp_path / "app.db"))(function)


def test_a_plain_function_is_refused_by_an_async_ledger(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="runs in a thread, but AioSQLiteLedger is for async"):
        Router().on("*", within=AioSQLiteLedger(tmp_path / "app.db"))(takes_four_but_two)


def takes_four_but_two(event: object, connection: object) -> None: ...


def test_an_object_that_is_no_ledger_is_refused() -> None:
    with pytest.raises(TypeError, match="within= takes a ledger"):
        Router().on(CommentReceived, within=object())(takes_event_alone)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="within= takes a ledger"):
        Router().on(CommentReceived, within=SQLiteLedger)(takes_event_alone)  # type: ignore[call-overload]


def test_a_name_that_the_table_cannot_hold_is_refused(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "app.db")
    with pytest.raises(ValueError, match="longer than the 200 characters"):
        Router().on("*", name="n" * 201, within=ledger)(takes_four_but_two)


@pytest.mark.parametrize("table", ["", "no spaces", 'x"; DROP TABLE users; --', "a.b.c"])
def test_a_table_name_that_needs_quoting_is_refused(table: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a table's name is letters"):
        SQLiteLedger(tmp_path / "app.db", table=table)


async def test_a_handler_of_an_included_router_keeps_its_ledger(shop: Shop) -> None:
    router, receiver = Router(), receiver_on()

    @router.on("comment.received", name="book", within=shop.ledger)
    def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)

    receiver.include(router)
    copied: Receiver = receiver.copy()
    assert [handler.ledger for handler in copied.handlers] == [shop.ledger]
    await deliver(copied, comment())
    assert shop.recorded() == ["book"]


def test_a_simulation_finds_each_effect_once_even_if_handlers_fail_after_it(shop: Shop) -> None:
    receiver = receiver_on()

    @receiver.on(CommentReceived, name="book", within=shop.ledger)
    def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)

    report = simulate(receiver, events=60, seed=4)
    assert report.passed
    booked = [event_id for event_id, _ in shop.orders()]
    assert len(booked) == len(set(booked)) == report.handled
    assert report.calls > len(booked)
