"""Each fault is a log line in fixed words, with the event and the store's error.

An operator finds such a line in the guide (troubleshooting), and filters log records by its fields.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, receiver_on, sqlite_url
from support.handlers import Handlers, Waiting, counting, on
from support.stores import FaultyInboxStore, FaultyStore
from support.waiting import until

from hookonce import Inbox, Receiver, Reject, SecretError
from hookonce.events import ChannelUnhealthy, CommentReceived
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import KeyLock, new_token
from hookonce.testing import event_body, make_event, signed_request

pytestmark = pytest.mark.anyio

LEASE = 0.15
NO_WORKER = Inbox(embedded=False, max_depth=1)


# Beginnings of lines about the store, the secrets, the inbox or a registration.
ABOUT_NO_EVENT = (
    "the store raised an error",
    "no delivery can be verified",
    "the inbox of",
    "handlers still running",
    "'",
)

HANDLER_OF = re.compile(
    "^(\\w+) has (?:been running|succeeded)|key lock of (\\w+)|waiting for (\\w+),"
    "|attempt \\d failed: (\\w+): [^;]+; [^;:]+$"
)
"""Finds the handler that a line is about, if it is about one handler."""


class Lines(logging.Handler):
    """Collects log lines of level WARNING and above, and each line's fields about an event."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def all(self) -> list[str]:
        return [f"{one.levelname} {one.getMessage()}" for one in self.records]

    async def has(self, *lines: str) -> None:
        """Return once the log contains all of these lines, word for word."""
        try:
            await until(lambda: set(lines) <= set(self.all), seconds=5)
        except AssertionError:
            assert self.all == list(lines)


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Return the lines of the log; the test fails if a line about an event lacks a field."""
    handler = Lines()
    logging.getLogger("hookonce").addHandler(handler)
    yield handler
    logging.getLogger("hookonce").removeHandler(handler)
    for record in handler.records:
        message, fields = record.getMessage(), vars(record)
        if not message.startswith(ABOUT_NO_EVENT):
            assert {"endpoint", "event_id", "type", "attempt"} <= fields.keys(), message
            assert (fields["event_id"] or "") in message or "handler" in fields, message
        if (about := HANDLER_OF.search(message)) is not None:
            assert fields["handler"] in about.groups(), message


@pytest.fixture
def file(tmp_path: Path) -> FaultyStore:
    """Return a store in a file, which keeps bodies."""
    return FaultyStore(SQLiteStore(tmp_path / "hooks.db"))


class TestTheStoreFails:
    async def test_a_store_that_fails_to_claim_is_logged(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store), comment()
        ran = counting(receiver)
        store.failures["claim"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
            assert await receiver.idle(5)
            assert answer_of(await deliver(receiver, event, 2)) == (200, "handled")
        assert lines.all == [f"ERROR cannot claim default:{event.id}: claim was told to fail"]
        assert ran == [event.id]

    @pytest.mark.parametrize("error", [KeyError("k"), asyncio.CancelledError()])
    async def test_a_store_that_breaks_its_contract_is_logged(
        self, lines: Lines, error: BaseException
    ) -> None:
        class Broken(FaultyStore):
            async def claim(self, *_: object) -> NoReturn:
                raise error

        receiver, event = receiver_on(Broken(MemoryStore())), comment()
        counting(receiver)
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (500, "internal_error")
            assert await receiver.idle(5)
        assert lines.all == [
            "ERROR the store raised an error that is no StoreError",
            f"ERROR cannot claim default:{event.id}: the store raised {type(error).__name__}",
        ]
        assert lines.records[0].exc_info
        assert lines.records[0].exc_info[1] is error

    async def test_a_claim_that_cannot_be_released(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()
        counting(receiver)
        store.failures |= {"claim": 1, "release": -1}
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
            await lines.has(
                f"ERROR cannot claim default:{event.id}: claim was told to fail",
                f"ERROR could not release default:{event.id}; its lease will run out:"
                " release was told to fail",
            )
            assert await receiver.idle(5)

    async def test_a_body_that_cannot_be_kept_for_the_last_attempt_is_logged(
        self, lines: Lines, file: FaultyStore
    ) -> None:
        receiver, event = receiver_on(file), comment()
        counting(receiver)
        file.failures["keep"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event, 9)) == (200, "handled")
        assert lines.all == [
            f"ERROR could not keep default:{event.id} for its last attempt: keep was told to fail"
        ]

    async def test_a_last_delivery_in_flight_that_cannot_be_kept_is_logged(
        self, lines: Lines, file: FaultyStore
    ) -> None:
        receiver, event = receiver_on(file, answer_seconds=0.05), comment()
        waiting = Waiting(receiver)
        file.failures["keep_in_flight"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "still_running")
            assert answer_of(await deliver(receiver, event, 8)) == (503, "in_flight")
            assert file.calls["keep_in_flight"] == 0
            assert answer_of(await deliver(receiver, event, 9)) == (503, "in_flight")
            assert file.calls["keep_in_flight"] == 1
            waiting.gate.set()
        line = f"ERROR could not keep the last delivery of default:{event.id}"
        assert lines.all == [f"{line}: keep_in_flight was told to fail"]

    async def test_an_unreadable_delivery_that_cannot_be_buried_is_logged(
        self, lines: Lines, file: FaultyStore
    ) -> None:
        receiver = receiver_on(file)
        request = signed_request(b"no event", SECRET, message_id="evt_1")
        file.failures["bury"] = 1
        async with receiver:
            first = await receiver.handle(request.body, request.headers)
            assert answer_of(first) == (503, "store_unavailable")
            assert await receiver.idle(5)
            second = await receiver.handle(request.body, request.headers)
            assert answer_of(second) == (202, "quarantined")
            letter = await receiver.dead.show("evt_1")
            assert letter is not None
            assert letter.attempts == 1
        assert lines.all == [
            "ERROR cannot bury default:evt_1: bury was told to fail",
            f"ERROR default:evt_1 cannot be read, and is a dead letter now: {letter.error}",
        ]

    async def test_a_lease_that_cannot_be_extended_is_logged(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()
        waiting = Waiting(receiver)
        store.failures["extend"] = 1
        async with receiver:
            running = asyncio.create_task(deliver(receiver, event))
            await until(lambda: store.calls["extend"] >= 2)
            waiting.gate.set()
            assert answer_of(await running) == (200, "handled")
        assert lines.all == [
            f"WARNING could not extend the lease of default:{event.id}: extend was told to fail"
        ]

    async def test_a_failure_that_cannot_be_settled_before_the_lease_ends_is_logged_once(
        self, lines: Lines
    ) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()
        handlers = Handlers(receiver, "a")
        handlers.raises["a"] = ValueError("x")
        store.failures["release"] = -1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
            line = f"default:{event.id}; its lease runs out: release was told to fail"
            await lines.has(f"ERROR could not settle {line}")
            handlers.raises.clear()
            assert answer_of(await deliver(receiver, comment())) == (200, "handled")
            store.failures.clear()
        assert lines.all.count(f"ERROR could not settle {line}") == 1

    async def test_a_success_that_cannot_be_recorded_before_the_lease_ends_is_logged_once(
        self, lines: Lines
    ) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()
        ran = counting(receiver)
        store.failures |= {"complete": -1, "extend": -1}
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (200, "handled")
            line = (
                f"ERROR handled default:{event.id}, but its lease ended before the store recorded"
                " it; until it is recorded, another process may handle the event again: complete"
                " was told to fail"
            )
            await lines.has(line)
            store.failures.clear()
        assert lines.all.count(line) == 1
        assert ran == [event.id]

    async def test_a_delivery_that_cannot_be_stored_is_logged(
        self, lines: Lines, tmp_path: Path
    ) -> None:
        store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
        receiver, event = receiver_on(store, inbox=NO_WORKER), comment()
        counting(receiver)
        store.failures["enqueue"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        assert f"ERROR cannot store default:{event.id}: enqueue was told to fail" in lines.all

    async def test_a_key_lock_that_cannot_be_acquired_is_logged(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store), comment()
        receiver.on(CommentReceived, name="serial", serial_by=_one_key)(lambda _: None)
        store.failures["acquire_key_lock"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        assert lines.all == [
            (
                f"ERROR cannot acquire a key lock for default:{event.id}:"
                " acquire_key_lock was told to fail"
            )
        ]

    async def test_a_key_lock_that_cannot_be_extended_is_logged(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()
        gate = asyncio.Event()
        began = _serial(receiver, gate)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, event))
            await until(lambda: began)
            store.failures["acquire_key_lock"] = 1
            await lines.has(
                "WARNING could not extend the key lock of serial: acquire_key_lock was told to fail"
            )
            gate.set()
            assert answer_of(await running) == (200, "handled")
        assert len(lines.all) == 1

    async def test_a_key_lock_that_cannot_be_released_is_logged(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()

        @receiver.on(CommentReceived, name="serial", serial_by=_one_key)
        async def fail(_: CommentReceived) -> None:
            raise ValueError("x")

        store.failures["release_key_lock"] = -1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (500, "handler_failed")
        assert lines.all[0] == (
            "ERROR could not release the key lock of serial; its lease will run out:"
            " release_key_lock was told to fail"
        )

    async def test_a_watermark_that_cannot_be_recorded_is_logged(self, lines: Lines) -> None:
        store = FaultyStore(MemoryStore())
        receiver = receiver_on(store, lease_seconds=LEASE, answer_seconds=0.2, drain_seconds=1.0)
        receiver.on("channel.*", name="latest", latest_by=_one_key)(lambda _: None)
        store.failures |= {"release_key_lock": -1, "extend": -1}
        async with receiver:
            outcome = await deliver(receiver, make_event(ChannelUnhealthy))
            assert answer_of(outcome) == (503, "still_running")
            await lines.has(
                "ERROR latest has succeeded, but its watermark could not be recorded before the"
                " lease ended; until it is, another process may handle an older event:"
                " release_key_lock was told to fail"
            )
        assert lines.all[-1] == (
            "ERROR latest has succeeded, but its watermark could not be recorded before the"
            " shutdown; an older event may run after the one that succeeded"
        )


@pytest.mark.parametrize("attempt", [1, 2, 9])
async def test_successful_deliveries_leave_no_warning(
    lines: Lines, file: FaultyStore, attempt: int
) -> None:
    receiver, event = receiver_on(file), comment()
    serial = _serial(receiver, gate := asyncio.Event())
    ran = counting(receiver)
    gate.set()
    async with receiver:
        assert answer_of(await deliver(receiver, event, attempt)) == (200, "handled")
        assert answer_of(await deliver(receiver, event, attempt)) == (200, "duplicate")
        assert file.calls["keep"] == (attempt == 9)
    assert serial == ran == [event.id]
    assert lines.all == []


def _one_key(_: object) -> str:
    return "k"


def _serial(receiver: Receiver, gate: asyncio.Event) -> list[str]:
    """Register a handler that waits at the gate, with one key; return its list of begun events."""
    began = list[str]()

    @receiver.on(CommentReceived, name="serial", serial_by=_one_key)
    async def wait(event: CommentReceived) -> None:
        began.append(event.id)
        await gate.wait()

    return began


class TestWhatIsLost:
    async def test_a_lost_lease_is_logged(self, lines: Lines) -> None:
        store = MemoryStore()
        receiver, event = receiver_on(store, lease_seconds=LEASE), comment()
        waiting = Waiting(receiver)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, event))
            await until(lambda: waiting.began)
            store._records.clear()
            await lines.has(
                f"ERROR the lease of default:{event.id} was lost; another attempt may have begun"
            )
            waiting.gate.set()
            await running
        assert sum("the lease of" in line for line in lines.all) == 1

    async def test_a_lost_key_lock_is_logged(self, lines: Lines) -> None:
        store = MemoryStore()
        receiver, gate = receiver_on(store, lease_seconds=LEASE), asyncio.Event()
        began = _serial(receiver, gate)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment()))
            await until(lambda: began)
            store._key_locks.clear()  # simulates that the lease has run out in the store
            await store.acquire_key_lock(KeyLock("default", "serial", "k"), new_token(), 60.0)
            await lines.has(
                "ERROR the key lock of serial was lost; another attempt may have acquired it"
            )
            gate.set()
            await running


class TestWhatIsNotHandled:
    async def test_no_secrets_to_verify_with(self, lines: Lines) -> None:
        class Vault:
            is_open = True

            def current(self) -> str:
                if not self.is_open:
                    raise SecretError("the vault is closed")
                return SECRET

        vault = Vault()
        receiver = Receiver(secrets=vault, store="memory://")
        request = signed_request(comment(), SECRET)
        async with receiver:
            vault.is_open = False
            outcome = await receiver.handle(request.body, request.headers)
        assert answer_of(outcome) == (500, "secrets_unavailable")
        assert lines.all == ["ERROR no delivery can be verified: the vault is closed"]

    async def test_an_unreadable_delivery_that_no_store_keeps(self, lines: Lines) -> None:
        receiver = receiver_on()
        request = signed_request(b"no event", SECRET, message_id="evt_1")
        async with receiver:
            outcome = await receiver.handle(request.body, request.headers)
        assert answer_of(outcome) == (500, "unreadable")
        [line] = lines.all
        assert re.fullmatch(
            "ERROR default:evt_1 cannot be read, and the store keeps no bodies: .*JSON.*", line
        )

    async def test_an_unknown_type(self, lines: Lines) -> None:
        receiver = receiver_on()
        request = signed_request(event_body("post.boosted", event_id="evt_1"), SECRET)
        async with receiver:
            outcome = await receiver.handle(request.body, request.headers)
        assert answer_of(outcome) == (200, "unknown_type")
        assert lines.all == ["WARNING default:evt_1 is of the unknown type 'post.boosted'; ignored"]

    async def test_a_full_inbox(self, lines: Lines, tmp_path: Path) -> None:
        receiver, late = receiver_on(sqlite_url(tmp_path), inbox=NO_WORKER), comment()
        counting(receiver)
        async with receiver:
            assert answer_of(await deliver(receiver, comment())) == (202, "stored")
            assert answer_of(await deliver(receiver, late)) == (503, "inbox_full")
        line = f"ERROR the inbox is full; the sender must deliver default:{late.id} again"
        assert line in lines.all

    async def test_outstanding_handlers_of_another_process(
        self, lines: Lines, tmp_path: Path
    ) -> None:
        here, there = receiver_on(sqlite_url(tmp_path)), receiver_on(sqlite_url(tmp_path))
        for name in ("b", "a"):
            on(there, name, _fail)
        on(here, "c", _fail)
        event = comment()
        async with here, there:
            await deliver(there, event)
            lines.records.clear()
            assert answer_of(await deliver(here, event, 2)) == (500, "handler_failed")
            assert await here.idle(5)
        outstanding, failed = lines.all
        assert outstanding == (
            f"ERROR default:{event.id} waits for the handlers a, b, which this process does not"
            " have; after a deployment, import the module that registers them, or roll back"
        )
        assert failed.startswith(
            f"ERROR comment.received {event.id} at default: attempt 2 failed: c: ValueError: "
        )
        assert failed.endswith("; the sender delivers it again")

    async def test_an_event_that_a_handler_rejects(self, lines: Lines, tmp_path: Path) -> None:
        receiver, event = receiver_on(sqlite_url(tmp_path)), comment()
        Handlers(receiver, "a").raises["a"] = Reject("spam")
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (202, "rejected")
            assert await receiver.idle(5)
            letter = await receiver.dead.show(event.id)
            assert letter is not None
            assert letter.outstanding == {"a"}
        assert lines.all == [
            (
                f"WARNING comment.received {event.id} at default: attempt 1 failed: a: Reject:"
                " spam; it is a dead letter now, as rejected"
            )
        ]

    async def test_a_replay_that_fails_again(self, lines: Lines, tmp_path: Path) -> None:
        receiver, event = receiver_on(sqlite_url(tmp_path)), comment()
        handlers = Handlers(receiver, "a", "b")
        handlers.raises["a"] = Reject("spam")
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (202, "rejected")
            assert await receiver.idle(5)
            handlers.raises["a"] = ValueError("no")
            outcome = await receiver.dead.replay(event.id)
            assert answer_of(outcome) == (202, "exhausted")
            assert await receiver.idle(5)
        record = lines.records[-1]
        assert record.getMessage().startswith(
            f"comment.received {event.id} at default: attempt 2 failed: a: ValueError: no; "
        )
        assert (vars(record)["handler"], vars(record)["attempt"]) == ("a", 2)

    @pytest.mark.parametrize(("names", "said"), [("a", "1 handler"), ("ab", "2 handlers")])
    async def test_an_event_whose_handlers_fail(self, lines: Lines, names: str, said: str) -> None:
        receiver, event = receiver_on(), comment()
        handlers = Handlers(receiver, *names)
        handlers.raises |= {name: ValueError(name) for name in names}
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (500, "handler_failed")
            assert await receiver.idle(5)
        [record] = lines.records
        failures = "; ".join(f"{name}: ValueError: {name}" for name in names)
        assert record.getMessage() == (
            f"comment.received {event.id} at default: attempt 1 failed: {failures};"
            " the sender delivers it again"
        )
        about = {"handler": names} if len(names) == 1 else {"handlers": [*names]}
        expected = {
            "event_id": event.id,
            "endpoint": "default",
            "type": "comment.received",
            "attempt": 1,
            **about,
        }
        assert {name: value for name, value in vars(record).items() if name in expected} == expected
        assert record.exc_info
        group = record.exc_info[1]
        assert isinstance(group, ExceptionGroup)
        assert group.message == f"{said} of comment.received failed"
        assert list(group.exceptions) == list(handlers.raises.values())
        assert [error.__notes__ for error in group.exceptions] == [
            [f"raised by the handler {name!r}"] for name in names
        ]


class TestWhatDoesNotEnd:
    async def test_handlers_that_do_not_end_at_a_shutdown_are_logged(self, lines: Lines) -> None:
        receiver = receiver_on(
            FaultyStore(MemoryStore()),
            answer_seconds=0.05,
            drain_seconds=0.05,
            store_seconds=0.05,
        )
        event, ended = comment(), asyncio.Event()

        async def stubborn(_: CommentReceived) -> None:
            try:
                while True:
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(3600)
            finally:
                ended.set()

        on(receiver, "stubborn", stubborn)
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "still_running")
        assert lines.all == [
            "WARNING handlers still running after 0.05 s: 1; their events are left to a retry",
            f"ERROR gave up waiting for stubborn, which is handling default:{event.id}",
        ]
        assert ended.is_set()
        await until(lambda: not receiver._wiring.attempts._by_task)

    async def test_a_thread_that_exceeds_its_time_limit_is_logged(self, lines: Lines) -> None:
        receiver = receiver_on(handler_timeout_seconds=0.05)
        gate = threading.Event()
        on(receiver, "endless", lambda _: gate.wait(20))
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment()))
            try:
                await lines.has(
                    "ERROR endless has been running for more than 0.05 s; a thread cannot be"
                    " cancelled, so it keeps its thread and its event until it ends"
                )
            finally:
                gate.set()
            assert answer_of(await running) == (200, "handled")
        assert len(lines.all) == 1

    async def test_a_handler_that_ignores_its_cancellation_is_logged(self, lines: Lines) -> None:
        receiver, gate, cancelled = (
            receiver_on(handler_timeout_seconds=0.05),
            asyncio.Event(),
            list[bool](),
        )

        async def stubborn(_: CommentReceived) -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    cancelled.append(True)

        on(receiver, "stubborn", stubborn)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment()))
            try:
                await lines.has(
                    "ERROR stubborn has been running for more than 0.05 s and does not end when it"
                    " is cancelled; it keeps its event until it ends: let CancelledError pass"
                )
                assert receiver._wiring.attempts.overdue == ("stubborn",)
            finally:
                gate.set()
            assert answer_of(await running) == (200, "handled")
        assert (len(cancelled), len(lines.all)) == (1, 1)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("coment.received", "; did you mean 'comment.received'?"),
        ("Comments.*", "; did you mean 'comment.received'?"),
        ("zzz", ""),
    ],
)
async def test_a_misspelt_type(lines: Lines, wanted: str, line: str) -> None:
    receiver_on().on(wanted, name="a")(lambda _: None)
    assert lines.all == [f"WARNING {wanted!r} is no event type known here{line}"]


async def _fail(_: Any) -> None:
    raise ValueError("x")


async def test_a_fault_in_the_library_is_an_internal_error(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A component that breaks its contract fails one attempt, and affects no other."""
    receiver, event = receiver_on(), comment()
    ran, fault = counting(receiver), RuntimeError("a fault in the library")

    def faulty(*_: object) -> Any:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("hookonce.delivery.attempt.may_be_last", faulty)
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (500, "internal_error")
    [record] = lines.records
    assert record.getMessage() == f"an attempt at default:{event.id} broke off"
    assert record.exc_info
    assert record.exc_info[1] is fault
    assert ran == []
