"""The table of outcomes, row by row, over HTTP through a real uvicorn.

Every answer in this file is also checked for what holds for all of them (``check_answer``), and
every log line for what must never be in one (``nothing_secret_is_logged``).
"""

import asyncio
import logging
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.servers import HttpSender, RawConnection, delivering, request_bytes, serving
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Limits, Receiver, Reject, Retry, sign
from hookonce.delivery.outcome import Outcome
from hookonce.events import ChannelUnhealthy, CommentReceived, UnknownEvent
from hookonce.http.app import DeliveryApp
from hookonce.http.guard import StatusGuard
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import DeadReason
from hookonce.testing import SignedRequest, event_body, make_event, new_event_id, signed_request
from hookonce.verification.headers import RawHeaders
from hookonce.verification.secrets import decode_secret, new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
COMMENT_TEXT = "the words somebody wrote to the bakery"


@pytest.fixture(autouse=True)
def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG, logger="hookonce")
    yield
    shown = caplog.text
    for hidden in (SECRET, b64encode(decode_secret(SECRET)).decode(), "v1,", COMMENT_TEXT):
        assert hidden not in shown


@pytest.fixture(params=["memory", "sqlite"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else sqlite_url(tmp_path)


def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hooks.db'}"


def comment(event_id: str | None = None) -> CommentReceived:
    return make_event(CommentReceived, event_id=event_id, data={"text": COMMENT_TEXT})


def retry_after(answer: Any) -> int:
    return int(answer.headers["retry-after"])


class Handled:
    """A handler that notes what it ran for, and does next what it was told to."""

    def __init__(self, receiver: Receiver) -> None:
        self.ids: list[str] = []
        self.does: Callable[[], Any] = lambda: None
        receiver.on(CommentReceived, name="handled")(self)

    @property
    def runs(self) -> int:
        return len(self.ids)

    async def __call__(self, event: CommentReceived) -> None:
        self.ids.append(event.id)
        result = self.does()
        if result is not None:
            await result

    def fails_with(self, error: BaseException) -> None:
        def fail() -> None:
            raise error

        self.does = fail

    def waits(self) -> asyncio.Event:
        gate = asyncio.Event()
        self.does = gate.wait
        return gate

    def succeeds(self) -> None:
        self.does = lambda: None


# handled now, or already done: 200


async def test_an_event_is_handled_and_its_duplicates_are_answered_200_without_a_run(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
        (await sender.send(event)).expect(200, "duplicate")
        assert handled.ids == [event.id]
        other = comment()
        (await sender.send(other)).expect(200, "handled")
        assert handled.ids == [event.id, other.id]


async def test_each_endpoint_handles_an_event_of_its_own_once(tmp_path: Path) -> None:
    event = comment()
    for endpoint in ("bakery", "cafe-2"):
        receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), endpoint=endpoint)
        handled = Handled(receiver)
        async with delivering(receiver, SECRET) as sender:
            (await sender.send(event)).expect(200, "handled")
            (await sender.send(event)).expect(200, "duplicate")
        assert handled.runs == 1


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_an_event_is_handled_through_either_http_implementation(http: Any) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    async with delivering(receiver, SECRET, http=http) as sender:
        (await sender.send(comment())).expect(200, "handled")
    assert handled.runs == 1


# the same event in flight elsewhere: wait, then 200 or 503


async def test_a_copy_of_an_event_in_flight_waits_and_is_answered_200_once_that_is_done(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handled = Handled(receiver)
    gate = handled.waits()
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: handled.runs == 1)
        copies = [asyncio.create_task(sender.send(event, attempt=2)) for _ in range(3)]
        done, _ = await asyncio.wait({first, *copies}, timeout=0.2)
        assert not done, "a copy was answered while the event was still in flight"
        gate.set()
        (await first).expect(200, "handled")
        for copy in copies:
            (await copy).expect(200, "duplicate")
    assert handled.runs == 1


async def test_a_copy_is_answered_503_with_retry_after_when_the_first_is_not_done_in_time(
    any_store: str,
) -> None:
    limits = Limits(answer_seconds=0.3, lease_seconds=10)
    receiver = Receiver(secrets=SECRET, store=any_store, limits=limits)
    handled = Handled(receiver)
    gate = handled.waits()
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: handled.runs == 1)
        began = time.monotonic()
        copy = (await sender.send(event, attempt=2)).expect(503, "in_flight")
        assert time.monotonic() - began < 2
        assert 1 <= retry_after(copy) <= 10
        (await first).expect(503, "still_running")
        gate.set()
        await until_async(lambda: is_done(sender, event))
    assert handled.runs == 1


async def is_done(sender: HttpSender, event: CommentReceived) -> bool:
    return (await sender.send(event)).reason == "duplicate"


async def test_a_waiting_copy_runs_the_event_itself_when_the_first_attempt_fails(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handled = Handled(receiver)
    gate = asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        handled.succeeds()
        raise ValueError("the first attempt fails")

    handled.does = fail
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: handled.runs == 1)
        copy = asyncio.create_task(sender.send(event, attempt=2))
        await asyncio.wait({copy}, timeout=0.1)
        gate.set()
        (await first).expect(500, "handler_failed")
        (await copy).expect(200, "handled")
    assert handled.runs == 2


async def test_a_copy_at_another_receiver_on_the_same_file_waits_for_the_first(
    tmp_path: Path,
) -> None:
    receivers = [Receiver(secrets=SECRET, store=sqlite_url(tmp_path)) for _ in range(2)]
    here, elsewhere = (Handled(receiver) for receiver in receivers)
    gate = here.waits()
    async with (
        delivering(receivers[0], SECRET) as sender,
        delivering(receivers[1], SECRET) as other_sender,
    ):
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: here.runs == 1)
        copy = asyncio.create_task(other_sender.send(event, attempt=2))
        done, _ = await asyncio.wait({copy}, timeout=0.2)
        assert not done
        gate.set()
        (await first).expect(200, "handled")
        (await copy).expect(200, "duplicate")
    assert (here.runs, elsewhere.runs) == (1, 0)


async def test_a_copy_at_another_receiver_is_answered_503_when_the_first_is_not_done_in_time(
    tmp_path: Path,
) -> None:
    limits = Limits(answer_seconds=0.3, lease_seconds=20)
    receivers = [
        Receiver(secrets=SECRET, store=sqlite_url(tmp_path), limits=limits) for _ in range(2)
    ]
    here, elsewhere = (Handled(receiver) for receiver in receivers)
    gate = here.waits()
    async with (
        delivering(receivers[0], SECRET) as sender,
        delivering(receivers[1], SECRET) as other_sender,
    ):
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: here.runs == 1)
        copy = (await other_sender.send(event, attempt=2)).expect(503, "in_flight")
        assert 1 <= retry_after(copy) <= 20
        gate.set()
        await first
    assert elsewhere.runs == 0


# handler failed: release, 500


async def test_a_failed_handler_is_answered_500_and_the_retry_runs_it_again(any_store: str) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handled = Handled(receiver)
    handled.fails_with(ValueError("a detail that is nobody's business"))
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        answer = (await sender.send(event)).expect(500, "handler_failed")
        assert b"nobody's business" not in answer.body
        (await sender.send(event, attempt=2)).expect(500, "handler_failed")
        handled.succeeds()
        (await sender.send(event, attempt=3)).expect(200, "handled")
        (await sender.send(event, attempt=4)).expect(200, "duplicate")
    assert handled.runs == 3


async def test_a_retry_that_was_asked_for_is_answered_503_with_its_wait(any_store: str) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        handled.fails_with(Retry(after=77))
        answer = (await sender.send(event)).expect(503, "retry_requested")
        assert retry_after(answer) == 77
        handled.fails_with(Retry())
        answer = (await sender.send(event)).expect(503, "retry_requested")
        assert retry_after(answer) >= 1
        handled.succeeds()
        (await sender.send(event)).expect(200, "handled")


# answer budget spent: 503, and the handler goes on


async def test_a_handler_beyond_the_answer_budget_goes_on_and_the_retry_is_no_second_run(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store, limits=Limits(answer_seconds=0.3))
    handled = Handled(receiver)
    gate = handled.waits()
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        began = time.monotonic()
        answer = (await sender.send(event)).expect(503, "still_running")
        assert 0.3 <= time.monotonic() - began < 2
        assert retry_after(answer) >= 1
        gate.set()
        await until_async(lambda: is_done(sender, event))
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert handled.runs == 1


async def test_a_handler_that_fails_beyond_the_answer_budget_is_run_again_by_the_retry(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store, limits=Limits(answer_seconds=0.3))
    handled = Handled(receiver)
    gate = asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        handled.succeeds()
        raise ValueError("too late and wrong")

    handled.does = fail
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event)).expect(503, "still_running")
        gate.set()
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handled.runs == 2


async def test_a_handler_beyond_its_lease_keeps_its_claim_by_heartbeats(tmp_path: Path) -> None:
    limits = Limits(answer_seconds=0.2, lease_seconds=0.6)
    receivers = [
        Receiver(secrets=SECRET, store=sqlite_url(tmp_path), limits=limits) for _ in range(2)
    ]
    here, elsewhere = (Handled(receiver) for receiver in receivers)
    gate = here.waits()
    async with (
        delivering(receivers[0], SECRET) as sender,
        delivering(receivers[1], SECRET) as other_sender,
    ):
        event = comment()
        began = time.monotonic()
        (await sender.send(event)).expect(503, "still_running")
        while time.monotonic() - began < 2.5 * limits.lease_seconds:
            (await other_sender.send(event, attempt=2)).expect(503, "in_flight")
        gate.set()
        await until_async(lambda: is_done(other_sender, event))
    assert (here.runs, elsewhere.runs) == (1, 0)


# store unreachable: 503 within about 3 s


async def test_a_locked_store_is_answered_503_within_three_seconds_and_the_retry_is_handled(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        blocker = apsw.Connection(str(tmp_path / "hooks.db"))
        blocker.execute("BEGIN IMMEDIATE")
        try:
            began = time.monotonic()
            answer = (await sender.send(event)).expect(503, "store_unavailable")
            assert time.monotonic() - began < 3.5
            assert retry_after(answer) >= 1
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        assert handled.runs == 0
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handled.runs == 1


async def test_a_store_that_hangs_is_answered_503_and_the_retry_is_handled(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(store_seconds=0.2))
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        gate = store.hang("claim")
        began = time.monotonic()
        answer = (await sender.send(event)).expect(503, "store_unavailable")
        assert 0.2 <= time.monotonic() - began < 2
        assert retry_after(answer) >= 1
        assert handled.runs == 0
        gate.set()
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handled.runs == 1


async def test_a_store_that_cannot_be_opened_is_answered_503(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'missing' / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url)
    handled = Handled(receiver)
    async with delivering(receiver, SECRET, lifespan="off") as sender:
        event = comment()
        (await sender.send(event)).expect(503, "store_unavailable")
        (tmp_path / "missing").mkdir()
        (await sender.send(event, attempt=2)).expect(200, "handled")
        await receiver.store.aclose()
    assert handled.runs == 1


@pytest.mark.parametrize(("call", "error"), [("release", ValueError("x")), ("bury", Reject("x"))])
async def test_a_failure_that_cannot_be_settled_is_answered_503_and_runs_again_after_the_lease(
    tmp_path: Path, call: str, error: Exception
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.3))
    handled = Handled(receiver)
    handled.fails_with(error)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures[call] = -1
        (await sender.send(event)).expect(503, "store_unavailable")
        handled.succeeds()
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handled.runs == 2


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


async def test_an_unreadable_delivery_that_another_process_has_buried_meanwhile_is_no_202(
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


# completion could not be recorded: 200, recorded later


async def test_a_success_that_cannot_be_recorded_is_answered_200_and_recorded_later(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store)
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures["complete"] = 2
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert store.calls["complete"] == 3
    assert handled.runs == 1


async def test_a_success_whose_recording_hangs_is_answered_200_within_the_budget(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(answer_seconds=0.4, store_seconds=5)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        gate = store.hang("complete")
        began = time.monotonic()
        (await sender.send(event)).expect(200, "handled")
        assert time.monotonic() - began < 2
        gate.set()
        await until_async(lambda: is_done(sender, event))
    assert handled.runs == 1


async def test_a_success_that_is_never_recorded_is_said_loudly_and_not_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.5))
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures = {"complete": -1, "extend": -1}
        (await sender.send(event)).expect(200, "handled")
        await until(
            lambda: [
                record
                for record in caplog.records
                if record.levelno == logging.ERROR
                and "could not be recorded" in record.getMessage()
                and event.id in record.getMessage()
            ]
        )
        assert store.calls["complete"] >= 2
        (await sender.send(event, attempt=2)).expect(200, "handled")  # the store is still away
        store.failures.clear()
        await until_async(lambda: is_done(sender, event))
    assert handled.runs == 1, "what has succeeded is never forgotten"


async def test_recording_is_retried_beyond_the_first_lease_while_heartbeats_keep_it_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(lease_seconds=0.8))
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        store.failures["complete"] = 4  # 0.1 + 0.2 + 0.4 + 0.8 s of pauses: two leases
        (await sender.send(event)).expect(200, "handled")
        await until_async(lambda: is_done(sender, event))
    assert store.calls["complete"] == 5
    assert handled.runs == 1
    assert "could not be recorded" not in caplog.text


# missing or malformed signature headers: 400


async def test_missing_or_malformed_headers_are_answered_400() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    genuine = signed_request(comment(), SECRET)
    async with delivering(receiver, SECRET) as sender:
        for name, value, reason in (
            ("webhook-id", None, "missing_id"),
            ("webhook-timestamp", None, "missing_timestamp"),
            ("webhook-signature", None, "missing_signature"),
            ("webhook-id", "evt.with.stops", "malformed_id"),
            ("webhook-id", "x" * 513, "malformed_id"),
            ("webhook-timestamp", "soon", "malformed_timestamp"),
            ("webhook-timestamp", "+1763700000", "malformed_timestamp"),
        ):
            headers = {**genuine.headers, name: value}
            kept = {n: v for n, v in headers.items() if v is not None}
            (await sender.post(SignedRequest(genuine.body, kept))).expect(400, reason)
    assert handled.runs == 0


async def test_a_repeated_id_with_another_value_is_answered_400() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    request = signed_request(comment(), SECRET)
    async with serving(receiver) as site, await RawConnection.to(site) as connection:
        head = request_bytes(request, headers={"Webhook-Id": new_event_id()})
        length = f"content-length: {len(request.body)}\r\n\r\n".encode()
        await connection.write(head[:-2] + length + request.body)
        (await connection.answer()).expect(400, "conflicting_id")


# no signature matches, or timestamp outside the tolerance: 401


async def test_a_tampered_body_is_answered_401() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event, tamper=True)).expect(401, "no_matching_signature")
        (await sender.send(event, secrets=new_secret())).expect(401, "no_matching_signature")
        assert handled.runs == 0
        (await sender.send(event, secrets=[new_secret(), SECRET])).expect(200, "handled")


@pytest.mark.parametrize(
    ("skew", "reason"), [(4_000.0, "timestamp_too_old"), (-4_000.0, "timestamp_too_new")]
)
async def test_a_timestamp_outside_the_tolerance_is_answered_401_and_its_skew_is_recorded(
    caplog: pytest.LogCaptureFixture, skew: float, reason: str
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        answer = (await sender.send(comment(), skew=skew)).expect(401, reason)
        assert not re.search(rb"[0-9]", answer.body)
    assert handled.runs == 0
    recorded = re.search(r"our clock minus it: ([-+][0-9]+) s", caplog.text)
    assert recorded is not None
    assert int(recorded[1]) == pytest.approx(skew, abs=5)


# 413, 408, 405


LENGTH_LIMIT = Limits(body_bytes=2_000, body_seconds=20)


async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_answered_413() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LENGTH_LIMIT)
    async with delivering(receiver, SECRET) as sender:
        (await sender.send(b"x" * 2_000)).expect(500, "unreadable")
        (await sender.send(b"x" * 2_001)).expect(413, "body_too_large")


async def test_two_mebibytes_are_read_by_default_and_one_byte_more_is_answered_413() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    request = signed_request(b"x" * 2 * 1024 * 1024, SECRET)
    async with serving(receiver) as site, await RawConnection.to(site) as connection:
        length = {"content-length": str(len(request.body))}
        await connection.write(request_bytes(request, headers=length) + request.body)
        (await connection.answer()).expect(500, "unreadable")
        length = {"content-length": str(len(request.body) + 1)}
        await connection.write(request_bytes(request, headers=length))
        (await connection.answer()).expect(413, "body_too_large")


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_length_over_the_limit_is_answered_413_without_a_byte_of_the_body(
    http: Any,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LENGTH_LIMIT)
    request = signed_request(comment(), SECRET)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        await connection.write(request_bytes(request, headers={"content-length": "2001"}))
        answer = (await connection.answer()).expect(413, "body_too_large")
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_stream_over_the_limit_is_answered_413_before_it_ends(http: Any) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LENGTH_LIMIT)
    request = signed_request(comment(), SECRET)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        await connection.write(request_bytes(request, headers={"transfer-encoding": "chunked"}))
        for _ in range(21):
            await connection.write_chunk(b"x" * 100)
        answer = (await connection.answer()).expect(413, "body_too_large")
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()


class Spy:
    """Stands where the pipeline stands, and notes what reaches it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.unread: list[Outcome] = []

    def note_unread(self, outcome: Outcome, seconds: float) -> None:
        assert seconds >= 0
        self.unread.append(outcome)

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        assert headers
        assert started is not None
        self.bodies.append(body)
        return Outcome(200, "handled")


def delivery_scope(headers: list[tuple[bytes, bytes]]) -> Scope:
    return {"type": "http", "method": "POST", "http_version": "1.1", "headers": headers}


async def test_a_length_over_the_limit_asks_the_server_for_no_body_and_verifies_nothing() -> None:
    spy, sent = Spy(), list[Message]()

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    app = DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)
    await app(delivery_scope([(b"content-length", b"2001")]), receive, send)
    assert sent[0]["status"] == 413
    assert not spy.bodies
    assert [outcome.reason for outcome in spy.unread] == ["body_too_large"]


async def test_of_an_endless_stream_no_more_is_taken_than_the_limit_and_a_chunk() -> None:
    spy, sent, taken = Spy(), list[Message](), list[int]()

    async def receive() -> Message:
        taken.append(300)
        return {"type": "http.request", "body": b"x" * 300, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    await DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)(
        delivery_scope([]), receive, send
    )
    assert sent[0]["status"] == 413
    assert sum(taken) == 2_100
    assert not spy.bodies


async def test_a_body_that_lies_about_its_length_is_held_to_the_limit_all_the_same() -> None:
    spy, sent = Spy(), list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 300, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = delivery_scope([(b"content-length", b"300")])
    await DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)(scope, receive, send)
    assert sent[0]["status"] == 413
    assert not spy.bodies


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_body_that_does_not_arrive_in_time_is_answered_408(http: Any) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_seconds=0.2))
    handled = Handled(receiver)
    request = signed_request(comment(), SECRET)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        length = {"content-length": str(len(request.body))}
        await connection.write(request_bytes(request, headers=length) + request.body[:-1])
        began = time.monotonic()
        answer = (await connection.answer()).expect(408, "body_timeout")
        assert time.monotonic() - began < 2
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()
    assert handled.runs == 0


async def test_a_body_that_drips_is_answered_408_although_bytes_keep_coming() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_seconds=0.3))
    request = signed_request(comment(), SECRET)
    async with serving(receiver) as site, await RawConnection.to(site) as connection:
        await connection.write(request_bytes(request, headers={"transfer-encoding": "chunked"}))
        answer = asyncio.create_task(connection.answer())
        while not answer.done():
            try:
                await connection.write_chunk(b"x")
            except ConnectionError:  # the server has closed after its answer
                break
            await asyncio.wait({answer}, timeout=0.02)
        (await answer).expect(408, "body_timeout")


@pytest.mark.parametrize("face", ["itself", "routes"])
async def test_other_methods_are_answered_405_and_run_nothing(face: str) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    app: ASGIApp = receiver
    if face == "routes":
        app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    async with delivering(app, SECRET) as sender:
        request = signed_request(comment(), SECRET)
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"):
            answer = await sender.request(method, "/webhooks", request)
            answer.expect(405, "method_not_allowed")
            assert answer.headers["allow"] == "POST"
        answer = (await sender.request("HEAD", "/webhooks", request)).expect(405)
        assert (answer.headers["allow"], answer.body) == ("POST", b"")
    assert handled.runs == 0


# verified but unreadable: dead letter, 202


UNREADABLE = {
    "not JSON": b"this is not JSON",
    "not UTF-8": b'{"id": "evt_1", "text": "\xff\xfe"}',
    "empty": b"",
    "no envelope": b'{"hello": "world"}',
    "a list": b"[]",
    "data of another shape": event_body("comment.received", event_id="evt_shape").replace(
        b'"isHidden":false', b'"isHidden":[1]'
    ),
    "another id": event_body("comment.received", event_id="evt_another"),
    "nested without end": b"[" * 100_000,
}


async def test_a_verified_body_that_cannot_be_read_is_quarantined_with_its_bytes(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        for body in UNREADABLE.values():
            event_id = new_event_id()
            request = SignedRequest(body, sign(SECRET, event_id, body))
            (await sender.post(request)).expect(202, "quarantined")
            letter = await receiver.dead.show(event_id)
            assert letter is not None
            assert letter.delivery.body == body
            assert letter.delivery.event_type is None
            assert letter.reason is DeadReason.UNREADABLE
            assert letter.error
            (await sender.post(request)).expect(202, "already_dead")
        assert len(await receiver.dead.list()) == len(UNREADABLE)
    assert handled.runs == 0


async def test_an_unreadable_body_is_answered_500_where_the_store_keeps_no_bodies() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    async with delivering(receiver, SECRET) as sender:
        for body, attempt in product(UNREADABLE.values(), ("1", "2", "9")):
            headers = {**sign(SECRET, "evt_shape", body), "example-delivery-attempt": attempt}
            (await sender.post(SignedRequest(body, headers))).expect(500, "unreadable")
        assert await receiver.dead.list() == []


# unknown type, or nobody registered: 200


async def test_an_unknown_type_is_answered_200_and_noted(
    any_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = make_event("invoice.paid")
        (await sender.send(event)).expect(200, "unknown_type")
        (await sender.send(event, attempt=2)).expect(200, "unknown_type")
    assert handled.runs == 0
    assert any(
        r.levelno == logging.WARNING and "invoice.paid" in r.getMessage() for r in caplog.records
    )


async def test_an_unknown_type_goes_to_the_hook_once(any_store: str) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    seen: list[UnknownEvent] = []

    @receiver.on_unknown
    async def unknown(event: UnknownEvent) -> None:
        seen.append(event)

    async with delivering(receiver, SECRET) as sender:
        event = make_event("invoice.paid", data={"total": 12})
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert [(e.id, e.data) for e in seen] == [(event.id, {"total": 12})]


async def test_an_event_nobody_is_registered_for_is_answered_200_and_not_remembered(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    Handled(receiver)
    seen: list[str] = []
    async with delivering(receiver, SECRET) as sender:
        event = make_event(ChannelUnhealthy)
        (await sender.send(event)).expect(200, "no_handler")

        @receiver.on(ChannelUnhealthy)
        async def late(event: ChannelUnhealthy) -> None:
            seen.append(event.id)

        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert seen == [event.id]


# Reject: dead letter, 202


async def test_a_rejected_event_is_a_dead_letter_and_is_not_run_again(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    handled.fails_with(Reject("this post was deleted"))
    async with delivering(receiver, SECRET) as sender:
        request = signed_request(comment(event_id := new_event_id()), SECRET)
        (await sender.post(request)).expect(202, "rejected")
        letter = await receiver.dead.show(event_id)
        assert letter is not None
        assert letter.reason is DeadReason.REJECTED
        assert "this post was deleted" in letter.error
        assert letter.delivery.body == request.body
        assert letter.delivery.event_type == "comment.received"
        handled.succeeds()
        (await sender.post(request)).expect(202, "already_dead")
        (await sender.post(request)).expect(202, "already_dead")
    assert handled.runs == 1


async def test_a_rejected_event_is_answered_202_by_the_memory_store_too() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    handled.fails_with(Reject("no"))
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event)).expect(202, "rejected")
        (await sender.send(event)).expect(202, "already_dead")
    assert handled.runs == 1


# the last chance: dead letter with raw bytes, 202


@pytest.mark.parametrize("error", [ValueError("down"), Retry(after=3)])
async def test_a_failure_of_the_ninth_delivery_is_a_dead_letter_with_its_bytes(
    tmp_path: Path, error: Exception
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    handled.fails_with(error)
    async with delivering(receiver, SECRET) as sender:
        request = signed_request(comment(event_id := new_event_id()), SECRET, attempt=9)
        (await sender.post(request)).expect(202, "exhausted")
        letter = await receiver.dead.show(event_id)
        assert letter is not None
        assert letter.reason is DeadReason.EXHAUSTED
        assert letter.delivery.body == request.body
        assert letter.attempts == 1
        (await sender.post(request)).expect(202, "already_dead")
    assert handled.runs == 1


async def test_the_eighth_own_attempt_is_the_last_chance_whatever_the_hint_says(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    handled.fails_with(ValueError("down"))
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        for _ in range(7):
            (await sender.send(event, attempt=1)).expect(500, "handler_failed")
        assert await receiver.dead.show(event.id) is None
        (await sender.send(event, attempt=1)).expect(202, "exhausted")
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.attempts == 8
        assert letter.delivery.body
        (await sender.send(event, attempt=1)).expect(202, "already_dead")
    assert handled.runs == 8


async def test_a_success_at_the_last_chance_leaves_no_dead_letter(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event, attempt=9)).expect(200, "handled")
        assert await receiver.dead.list() == []
        (await sender.send(event, attempt=9)).expect(200, "duplicate")
    assert handled.runs == 1


async def test_an_eighth_delivery_is_not_the_last_chance(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handled = Handled(receiver)
    handled.fails_with(ValueError("down"))
    async with delivering(receiver, SECRET) as sender:
        (await sender.send(comment(), attempt=8)).expect(500, "handler_failed")
        assert await receiver.dead.list() == []


async def test_the_last_chance_is_answered_500_where_the_store_keeps_no_bodies() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    handled.fails_with(ValueError("down"))
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        for _ in range(9):
            (await sender.send(event, attempt=9)).expect(500, "handler_failed")
        handled.succeeds()
        (await sender.send(event, attempt=9)).expect(200, "handled")


# a handler or middleware produced 410 or 3xx: 500, logged


async def test_an_http_exception_of_a_handler_is_a_failure_like_any_other() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handled = Handled(receiver)
    app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    async with delivering(app, SECRET) as sender:
        event = comment()
        for status in (410, 301, 302, 303, 307, 308, 200, 204, 404):
            handled.fails_with(HTTPException(status, headers={"location": "/login"}))
            answer = (await sender.send(event)).expect(500, "handler_failed")
            assert "location" not in answer.headers
        handled.succeeds()
        (await sender.send(event)).expect(200, "handled")


class Answering:
    """Middleware that answers by itself, with a status of its own."""

    def __init__(self, app: ASGIApp, status: int) -> None:
        self.app = app
        self.status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {"location": "/login"}
        await PlainTextResponse("go away", self.status, headers)(scope, receive, send)


class Raising:
    """Middleware that raises instead of answering."""

    def __init__(self, app: ASGIApp, error: Exception) -> None:
        self.app = app
        self.error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        raise self.error


async def test_middleware_of_the_routes_cannot_answer_a_status_that_is_punished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    punished = (410, 300, 301, 302, 303, 304, 307, 308, 399)
    app = Starlette(
        routes=[
            route
            for status in punished
            for route in receiver.routes(f"/{status}", middleware=[Middleware(Answering, status)])
        ]
    )
    async with delivering(app, SECRET) as sender:
        for status in punished:
            caplog.clear()
            sender.path = f"/{status}"
            answer = (await sender.send(comment())).expect(500, "internal_error")
            assert "location" not in answer.headers
            assert any(
                record.levelno == logging.ERROR and f"{status}" in record.getMessage()
                for record in caplog.records
            )


async def test_middleware_of_the_routes_may_answer_any_other_status() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    allowed = (200, 204, 299, 400, 401, 409, 411, 429, 503)
    app = Starlette(
        routes=[
            route
            for status in allowed
            for route in receiver.routes(f"/{status}", middleware=[Middleware(Answering, status)])
        ]
    )
    async with delivering(app, SECRET) as sender:
        for status in allowed:
            response = await sender.client.post(f"/{status}")
            assert response.status_code == status
            assert response.headers["location"] == "/login"


async def test_middleware_of_the_routes_that_raises_is_answered_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    errors = {"gone": HTTPException(410), "found": HTTPException(302), "bug": KeyError("x")}
    app = Starlette(
        routes=[
            route
            for name, error in errors.items()
            for route in receiver.routes(f"/{name}", middleware=[Middleware(Raising, error)])
        ]
    )
    async with delivering(app, SECRET) as sender:
        for name, error in errors.items():
            sender.path = f"/{name}"
            (await sender.send(comment())).expect(500, "internal_error")
            assert any(r.exc_info and r.exc_info[1] is error for r in caplog.records)


async def test_middleware_of_the_routes_runs_in_its_order_around_the_receiver() -> None:
    order: list[str] = []

    class Noting:
        def __init__(self, app: ASGIApp, name: str) -> None:
            self.app = app
            self.name = name

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            order.append(self.name)
            await self.app(scope, receive, send)

    receiver = Receiver(secrets=SECRET, store="memory://")
    Handled(receiver)
    middleware = [Middleware(Noting, "outer"), Middleware(Noting, name="inner")]
    routes = receiver.routes("/webhooks", middleware=middleware)
    async with delivering(Starlette(routes=routes), SECRET) as sender:
        (await sender.send(comment())).expect(200, "handled")
    assert order == ["outer", "inner"]


@asynccontextmanager
async def behind_guard(
    receiver: Receiver, *middleware: Middleware, guard: Middleware
) -> AsyncIterator[HttpSender]:
    async def page(request: Request) -> Response:
        return RedirectResponse(f"/elsewhere?from={request.url.path}")

    app = Starlette(
        routes=[*receiver.routes("/webhooks"), Route("/page", page)],
        middleware=[guard, *middleware],
        lifespan=receiver.lifespan,
    )
    async with delivering(app, SECRET) as sender:
        yield sender


async def test_a_guard_around_an_application_turns_its_redirect_of_a_delivery_into_500() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    guard = Middleware(StatusGuard, paths=["/webhooks"])
    async with behind_guard(receiver, Middleware(HTTPSRedirectMiddleware), guard=guard) as sender:
        (await sender.send(comment())).expect(500, "internal_error")
        sender.path = "/webhooks/"
        (await sender.send(comment())).expect(500, "internal_error")
        assert (await sender.client.get("/page")).status_code == 307


async def test_a_guard_around_an_application_lets_good_answers_and_other_paths_pass() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    Handled(receiver)
    guard = Middleware(StatusGuard, paths=["/webhooks/"])
    async with behind_guard(receiver, guard=guard) as sender:
        (await sender.send(comment())).expect(200, "handled")
        assert (await sender.client.get("/page")).status_code == 307


async def test_a_guard_without_paths_guards_the_whole_application() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    async with behind_guard(receiver, guard=Middleware(StatusGuard)) as sender:
        assert (await sender.client.get("/page")).status_code == 500


@pytest.mark.parametrize("status", [410, 302])
async def test_a_guard_around_an_application_answers_500_for_what_its_middleware_answers(
    status: int,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    guard = Middleware(StatusGuard, paths=["/webhooks"])
    async with behind_guard(receiver, Middleware(Answering, status), guard=guard) as sender:
        (await sender.send(comment())).expect(500, "internal_error")


async def test_a_guard_around_an_application_answers_500_for_what_its_middleware_raises() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    guard = Middleware(StatusGuard, paths=["/webhooks"])
    raising = Middleware(Raising, HTTPException(410))
    async with behind_guard(receiver, raising, guard=guard) as sender:
        (await sender.send(comment())).expect(500, "internal_error")


async def test_a_fault_of_a_store_that_breaks_its_contract_is_answered_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(MemoryStore):
        async def claim(self, *_: object) -> Any:
            raise RuntimeError("a bug in somebody's own store")

    receiver = Receiver(secrets=SECRET, store=Broken())
    handled = Handled(receiver)
    async with delivering(receiver, SECRET) as sender:
        (await sender.send(comment())).expect(500, "internal_error")
    assert handled.runs == 0
    assert "a bug in somebody's own store" in caplog.text
