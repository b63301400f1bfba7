"""Answers while the store is down, slow or broken."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, comment, is_done, sqlite_url
from support.handlers import Handler
from support.servers import delivering, retry_after
from support.sqlite_files import sqlite_connection
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Limits, Receiver, Reject
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import signed_request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


# The store cannot be reached: answer 503 within about 3 s


async def test_a_locked_store_is_answered_503_within_three_seconds_and_the_retry_is_handled(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        blocker = sqlite_connection(tmp_path / "hooks.db")
        blocker.execute("BEGIN IMMEDIATE")
        try:
            began = time.monotonic()
            answer = (await sender.send(event)).expect(503, "store_unavailable")
            assert time.monotonic() - began < 3.5
            assert retry_after(answer) >= 1
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        assert handler.runs == 0
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handler.runs == 1


async def test_a_store_that_hangs_is_answered_503_and_the_retry_is_handled(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(store_seconds=0.2))
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        gate = store.hang("claim")
        began = time.monotonic()
        answer = (await sender.send(event)).expect(503, "store_unavailable")
        assert 0.2 <= time.monotonic() - began < 2
        assert retry_after(answer) >= 1
        assert handler.runs == 0
        gate.set()
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handler.runs == 1


async def test_a_store_that_cannot_be_opened_is_answered_503(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'missing' / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url)
    handler = Handler(receiver)
    async with delivering(receiver, SECRET, lifespan="off") as sender:
        event = comment()
        (await sender.send(event)).expect(503, "store_unavailable")
        (tmp_path / "missing").mkdir()
        (await sender.send(event, attempt=2)).expect(200, "handled")
        await receiver.store.aclose()
    assert handler.runs == 1


@pytest.mark.parametrize(("call", "error"), [("release", ValueError("x")), ("bury", Reject("x"))])
async def test_a_failure_that_cannot_be_settled_is_answered_503_and_runs_again_after_the_lease(
    tmp_path: Path, call: str, error: Exception
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.3))
    handler = Handler(receiver)
    handler.raises(error)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures[call] = -1
        (await sender.send(event)).expect(503, "store_unavailable")
        handler.succeeds()
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handler.runs == 2


async def test_an_unreadable_delivery_is_answered_503_while_it_cannot_be_buried(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.3))
    async with delivering(receiver, SECRET) as sender:
        request = signed_request(b"not JSON", SECRET)
        store.failures["bury"] = 1
        (await sender.post(request)).expect(503, "store_unavailable")
        (await sender.post(request)).expect(202, "quarantined")


async def test_an_unreadable_delivery_that_another_process_has_buried_is_not_answered_202(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.2))
    other = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    gate = store.hang("bury")
    async with delivering(receiver, SECRET) as sender, delivering(other, SECRET) as other_sender:
        request = signed_request(b"not JSON", SECRET)
        first = asyncio.create_task(sender.post(request))
        await until(lambda: store.calls["bury"])
        (await other_sender.post(request)).expect(202, "quarantined")
        gate.set()
        (await first).expect(503, "in_flight")
        assert len(await other.dead.list()) == 1


# The store cannot record a completion: answer 200, record the completion later

UNRECORDED = "its lease ended before the store recorded it"


async def test_a_success_that_cannot_be_recorded_is_answered_200_and_recorded_later(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store)
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures["complete"] = 2
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert store.calls["complete"] == 3
    assert handler.runs == 1


async def test_a_success_whose_recording_hangs_is_answered_200_within_the_budget(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(answer_seconds=0.4, store_seconds=5)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        gate = store.hang("complete")
        began = time.monotonic()
        (await sender.send(event)).expect(200, "handled")
        assert time.monotonic() - began < 2
        gate.set()
        await until_async(lambda: is_done(sender, event))
    assert handler.runs == 1


async def test_a_success_that_is_never_recorded_is_logged_as_an_error_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.5))
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures = {"complete": -1, "extend": -1}
        (await sender.send(event)).expect(200, "handled")
        await until(
            lambda: [
                record
                for record in caplog.records
                if record.levelno == logging.ERROR
                and UNRECORDED in record.getMessage()
                and event.id in record.getMessage()
            ]
        )
        assert store.calls["complete"] >= 2
        (await sender.send(event, attempt=2)).expect(200, "handled")  # the store is still down
        store.failures.clear()
        await until_async(lambda: is_done(sender, event))
    assert handler.runs == 1, "what has succeeded is never forgotten"


async def test_recording_is_retried_beyond_the_first_lease_while_heartbeats_keep_it_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.8))
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures["complete"] = 4  # pauses of 0.1 + 0.2 + 0.4 + 0.8 s last two leases
        (await sender.send(event)).expect(200, "handled")
        await until_async(lambda: is_done(sender, event))
    assert store.calls["complete"] == 5
    assert handler.runs == 1
    assert UNRECORDED not in caplog.text


async def test_a_fault_of_a_store_that_breaks_its_contract_is_answered_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(MemoryStore):
        async def claim(self, *_: object) -> Any:
            raise RuntimeError("a bug in somebody's own store")

    receiver = Receiver(secrets=SECRET, store=Broken())
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        (await sender.send(comment())).expect(500, "internal_error")
    assert handler.runs == 0
    assert "a bug in somebody's own store" in caplog.text
