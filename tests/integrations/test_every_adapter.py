"""The outcomes of the guide page on answers, through every adapter and a production server.

``check_answer`` checks the rules that every answer follows, and every log line is checked for
secrets.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, comment, long_ago
from support.servers import request_bytes
from support.waiting import until, until_async

from hookonce import Context, Limits, Receiver, Reject, Retry
from hookonce.events import CommentReceived
from hookonce.senders import publishing
from hookonce.testing import SignedRequest, event_body, make_event, new_event_id, signed_request
from hookonce.verification.secrets import new_secret
from integrations.sites import ADAPTERS, Adapter, Served, sending

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("nothing_secret_is_logged"),
    pytest.mark.sample(4),
]

LIMITS = Limits(body_bytes=4096)
HURRIED = Limits(answer_seconds=0.5, body_seconds=0.3)


hurried = pytest.mark.parametrize("limits", [HURRIED], ids=["hurried"])


class Handler:
    """A handler that records bodies, waits while ``gate`` is closed, then raises any ``error``."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = 0
        self.gate = threading.Event()  # the handler may run in another thread's loop
        self.gate.set()
        self.error: Exception | None = None

    @property
    def runs(self) -> int:
        return len(self.bodies)

    async def __call__(self, event: CommentReceived, context: Context) -> None:  # noqa: ARG002 - handlers have this parameter
        self.bodies.append(context.body)
        await until(self.gate.is_set)
        self.ended += 1
        if self.error is not None:
            raise self.error


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
async def served(
    adapter: Adapter, handler: Handler, limits: Limits, tmp_path: Path
) -> AsyncIterator[Served]:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url, limits=limits)
    receiver.on(CommentReceived, name="handler")(handler)
    async with sending(adapter, receiver, secret=SECRET, store=url) as served:
        yield served
        handler.gate.set()


async def is_logged(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Wait until a delivery with this reason has been logged."""

    def written() -> bool:
        return any(getattr(record, "reason", None) == reason for record in caplog.records)

    await until(written, what=f"a line about {reason}")


async def test_an_event_is_handled_once_and_a_duplicate_is_answered_200(
    served: Served, handler: Handler
) -> None:
    event = comment()
    (await served.sender.send(event)).expect(200, "handled")
    (await served.sender.send(event, attempt=2)).expect(200, "duplicate")
    assert handler.runs == 1


async def test_copies_at_the_same_time_run_one_handler_and_all_are_accepted(
    served: Served, handler: Handler
) -> None:
    handler.gate.clear()
    event = comment()
    copies = [asyncio.create_task(served.sender.send(event)) for _ in range(4)]
    await until(lambda: handler.runs == 1)
    handler.gate.set()
    answers = await asyncio.gather(*copies)
    assert sorted((a.status, a.reason) for a in answers) == [
        *[(200, "duplicate")] * 3,
        (200, "handled"),
    ]
    assert handler.runs == 1


async def test_the_bytes_that_were_signed_arrive_as_they_are(
    served: Served, handler: Handler
) -> None:
    body = event_body("comment.received").replace(b'":', b'" :\t').replace(b"{", b"{\r\n  ", 1)
    body = body.replace("🍞".encode(), rb"\ud83c\udf5e\u00e9" + "é\u2028🍞".encode())
    (await served.sender.send(body + b"\n")).expect(200, "handled")
    assert handler.bodies == [body + b"\n"]


async def test_either_secret_of_a_rotation_may_have_signed(
    served: Served, handler: Handler
) -> None:
    (await served.sender.send(comment(), secrets=[new_secret(), SECRET])).expect(200, "handled")
    (await served.sender.send(comment(), secrets=new_secret())).expect(401, "no_matching_signature")
    assert handler.runs == 1


async def test_a_delivery_that_is_not_genuine_is_refused(served: Served, handler: Handler) -> None:
    event = comment()
    (await served.sender.send(event, tamper=True)).expect(401, "no_matching_signature")
    (await served.sender.send(event, skew=301)).expect(401, "timestamp_too_old")
    (await served.sender.send(event, skew=-400)).expect(401, "timestamp_too_new")
    headers = {**signed_request(event, SECRET).headers, "webhook-id": "a.b"}
    (await served.sender.post(SignedRequest(b"{}", headers))).expect(400, "malformed_id")
    assert handler.runs == 0


async def test_a_missing_signed_header_is_answered_400(served: Served, handler: Handler) -> None:
    whole = signed_request(comment(), SECRET)
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        headers = {key: value for key, value in whole.headers.items() if key != name}
        reason = f"missing_{name.removeprefix('webhook-')}"
        (await served.sender.post(SignedRequest(whole.body, headers))).expect(400, reason)
    assert handler.runs == 0


async def test_a_request_without_a_body_is_refused(served: Served) -> None:
    (await served.sender.post(SignedRequest(b"", {}))).expect(400, "missing_id")


async def test_a_body_over_the_limit_is_answered_413_before_it_is_read(
    adapter: Adapter, served: Served, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    request = signed_request(b"x" * (LIMITS.body_bytes + 1), SECRET)
    if not adapter.listens:
        (await served.sender.post(request)).expect(413, "body_too_large")
    else:
        async with await served.connection() as connection:
            headers = {"content-length": str(10**12 if adapter.sees_bodies_arrive else 4097)}
            await connection.write(request_bytes(request, path=adapter.path, headers=headers))
            if not adapter.sees_bodies_arrive:
                await connection.write(request.body)
            (await connection.answer()).expect(413, "body_too_large")
    assert handler.runs == 0
    await is_logged(caplog, "body_too_large")


async def test_a_body_of_exactly_the_limit_is_read(served: Served) -> None:
    filler = b"x" * LIMITS.body_bytes
    (await served.sender.send(filler)).expect(202, "quarantined")


# These adapters see a body while it arrives; behind any other adapter, a server or framework waits
# for the whole body first.
SEEING = [name for name, a in ADAPTERS.items() if a.listens and a.sees_bodies_arrive]


@pytest.mark.sample(3)
@pytest.mark.parametrize("adapter", SEEING, indirect=True)
@hurried
async def test_a_body_that_arrives_too_slowly_is_answered_408(
    adapter: Adapter, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    request = signed_request(comment(), SECRET)
    async with await served.connection() as connection:
        headers = {"content-length": "4000"}
        await connection.write(request_bytes(request, path=adapter.path, headers=headers))
        answer = asyncio.create_task(connection.answer())
        while not answer.done():  # a blocking server checks the time limit at the next byte
            await connection.write(b"x")
            await asyncio.wait({answer}, timeout=1.5 * HURRIED.body_seconds)
        (await answer).expect(408, "body_timeout")
    await is_logged(caplog, "body_timeout")


@pytest.mark.sample(3)
@hurried
async def test_an_answer_comes_within_the_budget_and_the_retry_finds_a_slow_handler_done(
    adapter: Adapter, served: Served, handler: Handler
) -> None:
    handler.gate.clear()
    event = comment()
    first = asyncio.create_task(served.sender.send(event))
    await until(lambda: handler.runs == 1)
    if adapter.listens:
        assert (await first).headers["retry-after"]
        assert handler.ended == 0
    else:  # a function waits for the handler, since Lambda freezes it after the answer
        await asyncio.wait({first}, timeout=2 * HURRIED.answer_seconds)
        assert not first.done()
    handler.gate.set()
    (await first).expect(503, "still_running")

    async def is_done() -> bool:
        return (await served.sender.send(event, attempt=2)).status == 200

    await until_async(is_done)
    assert served.sender.answers[-1].reason == "duplicate"
    assert handler.runs == 1


async def test_a_failure_is_answered_500_and_the_retry_is_handled(
    served: Served, handler: Handler
) -> None:
    event = comment()
    handler.error = ConnectionError("the shop is closed")
    (await served.sender.send(event)).expect(500, "handler_failed")
    handler.error = Retry(after=7)
    answer = (await served.sender.send(event, attempt=2)).expect(503, "retry_requested")
    assert answer.headers["retry-after"] == "7"
    handler.error = None
    (await served.sender.send(event, attempt=3)).expect(200, "handled")
    assert handler.runs == 3


async def test_an_event_that_can_never_succeed_is_a_dead_letter(
    served: Served, handler: Handler
) -> None:
    event = comment()
    handler.error = Reject("this post was deleted")
    (await served.sender.send(event)).expect(202, "rejected")
    (await served.sender.send(event, attempt=2)).expect(202, "already_dead")
    handler.error = ConnectionError("closed")
    last = comment(created_at=long_ago())
    (await served.sender.send(last, attempt=9)).expect(202, "exhausted")
    (await served.sender.send(b"no JSON")).expect(202, "quarantined")


def challenged(body: Mapping[str, Any]) -> dict[str, Any] | None:
    return {"challenge": body["challenge"]} if body.get("type") == "verification" else None


async def test_the_answer_to_a_challenge_arrives_whole(adapter: Adapter, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    sender = replace(publishing, handshake=challenged)
    receiver = Receiver(secrets=SECRET, store=url, sender=sender)
    challenge = "n0nce: ü 🍞 " * 500
    body = json.dumps({"type": "verification", "challenge": challenge}).encode()
    request, failing = (
        signed_request(body, SECRET),
        signed_request(b'{"type": "verification"}', SECRET),
    )
    async with sending(adapter, receiver, secret=SECRET, store=url) as served:
        for _ in range(2):
            answer = await served.sender.client.post(
                adapter.path, content=request.body, headers=dict(request.headers)
            )
            assert (answer.status_code, answer.json()) == (200, {"challenge": challenge})
            assert answer.headers["content-type"] == "application/json"
        (await served.sender.post(request.tampered())).expect(401, "no_matching_signature")
        (await served.sender.post(failing)).expect(500, "handshake")


async def test_an_unknown_type_and_one_without_a_handler_are_accepted(
    served: Served, handler: Handler
) -> None:
    (await served.sender.send(make_event("invoice.paid"))).expect(200, "unknown_type")
    (await served.sender.send(make_event("channel.unhealthy"))).expect(200, "no_handler")
    assert handler.runs == 0


@pytest.mark.sample(6)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_another_method_is_answered_405(
    adapter: Adapter, served: Served, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = signed_request(comment(), SECRET)
    answer = await served.sender.request(method, adapter.path, request)
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    assert answer.reason == ("" if method == "HEAD" else "method_not_allowed")
    await is_logged(caplog, "method_not_allowed")


async def test_a_trailing_slash_is_answered_without_a_redirect(
    adapter: Adapter, served: Served, handler: Handler
) -> None:
    event = comment()
    request = signed_request(event, SECRET)
    answer = await served.sender.request("POST", f"{adapter.path}/", request)
    answer.expect(200, "handled")
    answer = await served.sender.request("GET", f"{adapter.path}/", request)
    answer.expect(405, "method_not_allowed")
    assert handler.runs == 1


@pytest.mark.sample(4)
async def test_deliveries_of_many_events_at_once_are_each_handled_once(
    served: Served, handler: Handler
) -> None:
    ids = [new_event_id() for _ in range(20)]
    bodies = [event_body("comment.received", event_id=event_id) for event_id in ids]
    answers = await asyncio.gather(*(served.sender.send(body) for body in bodies * 2))
    # On a busy machine a copy may exceed this short budget: 503, and the sender would retry.
    assert {(answer.status, answer.reason) for answer in answers} <= {
        (200, "handled"),
        (200, "duplicate"),
        (503, "in_flight"),
        (503, "still_running"),
    }
    await until(lambda: handler.ended == len(ids))
    again = await asyncio.gather(*(served.sender.send(body) for body in bodies))
    assert {(answer.status, answer.reason) for answer in again} == {(200, "duplicate")}
    assert sorted(handler.bodies) == sorted(bodies)
