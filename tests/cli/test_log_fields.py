"""In JSON logs, each record about an event has the event's fields, whatever its outcome."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from hookonce.samples.events import event_body
from hookonce.testing import signed_request

from .inboxes import url_of
from .running import OLD_SECRET, SECRET, Process, eventually, running

APP = '''
"""Two receivers whose handlers do what the id of the event says."""
import asyncio
from pathlib import Path

from hookonce import EnvironmentSecrets, Inbox, Receiver, Reject, Retry, Router
from hookonce.events import CommentReceived

router = Router()


@router.on(CommentReceived, name="answer")
async def answer(event: CommentReceived) -> None:
    if "fails" in event.id:
        raise ConnectionError("the shop is closed")
    if "rejected" in event.id:
        raise Reject("spam")
    if "retried" in event.id:
        raise Retry(after=0.01)


@router.on(CommentReceived, name="count")
async def count(event: CommentReceived) -> None:
    if "fails twice" in event.id:
        raise ValueError("no number")


@router.on(CommentReceived, name="serial", serial_by=lambda event: "key")
async def serial(event: CommentReceived) -> None:
    Path(f"began {event.id}").touch()
    while "waits" in event.id and not Path("opened").exists():
        await asyncio.sleep(0.005)


store, secrets = "sqlite:///hookonce.db", EnvironmentSecrets()
shop = Receiver(secrets=secrets, store=store, endpoint="shop")
queue = Receiver(
    secrets=secrets, store=store, endpoint="queue", inbox=Inbox(max_attempts=2, backoff=0)
)
shop.include(router)
queue.include(router)
receivers = [shop, queue]
'''
COMMENT = "comment.received"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "hooks.py").write_text(APP)
    return tmp_path


@contextmanager
def serving(here: Path, *options: str) -> Iterator[tuple[Process, str]]:
    arguments = ["hooks:receivers", "--port", "0", "--log-format", "json", *options]
    with running("serve", *arguments, here=here, secrets=[SECRET]) as server:
        yield server, url_of(server)


def deliver(
    url: str, event_id: str, *, body: bytes | None = None, attempt: int = 1, secret: str = SECRET
) -> int:
    """Deliver a comment and return the status of the answer."""
    sent = event_body(COMMENT, event_id=event_id) if body is None else body
    request = signed_request(sent, secret, message_id=event_id, attempt=attempt)
    answer = httpx2.post(url, content=sent, headers=dict(request.headers), trust_env=False)
    return answer.status_code


def records(server: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.errors.splitlines()]


def records_of(server: Process, event_id: str, *, most: int) -> list[dict[str, Any]]:
    """Return the fields of each record of an event, once there are this many records."""

    def found() -> list[dict[str, Any]]:
        return [record for record in records(server) if record.get("event_id") == event_id]

    eventually(lambda: len(found()) >= most, what=f"{most} records of {event_id}: {server.errors}")
    left_out = {"time", "level", "logger", "process", "message", "milliseconds", "exception"}
    return [{k: v for k, v in record.items() if k not in left_out} for record in found()]


def fields(endpoint: str, event_id: str, attempt: int | None, **more: object) -> dict[str, object]:
    return {
        "endpoint": endpoint,
        "event_id": event_id,
        "type": COMMENT,
        "attempt": attempt,
        **more,
    }


def answered(
    event_id: str, status: int, reason: str, *, endpoint: str = "shop", attempt: int = 1
) -> dict[str, object]:
    return fields(endpoint, event_id, attempt, status=status, reason=reason)


def test_json_lines_of_inline_deliveries_have_the_events_fields(here: Path) -> None:
    with serving(here) as (server, base):
        url = f"{base}/webhooks/shop"
        assert deliver(url, "evt_handled", attempt=3) == 200
        assert records_of(server, "evt_handled", most=1) == [
            answered("evt_handled", 200, "handled", attempt=3)
        ]
        assert deliver(url, "evt_fails") == 500
        failed = records_of(server, "evt_fails", most=2)
        assert sorted(failed, key=lambda one: "status" in one) == [
            fields("shop", "evt_fails", 1, handler="answer"),
            answered("evt_fails", 500, "handler_failed"),
        ]
        assert deliver(url, "evt_fails twice") == 500
        failed = records_of(server, "evt_fails twice", most=2)
        assert sorted(failed, key=lambda one: "status" in one) == [
            fields("shop", "evt_fails twice", 1, handlers=["answer", "count"]),
            answered("evt_fails twice", 500, "handler_failed"),
        ]
        assert deliver(url, "evt_rejected") == 202
        rejected = records_of(server, "evt_rejected", most=2)
        assert sorted(rejected, key=lambda one: "status" in one) == [
            fields("shop", "evt_rejected", 1, handler="answer"),
            answered("evt_rejected", 202, "rejected"),
        ]
        assert deliver(url, "evt_garbage", body=b"no event") == 202
        assert [
            (one["endpoint"], one["type"], one["attempt"])
            for one in records_of(server, "evt_garbage", most=2)
        ] == [("shop", None, 1)] * 2
        assert deliver(url, "evt_forged", secret=OLD_SECRET) == 401
        [refused] = [one for one in records(server) if "evt_forged" in one["message"]]
        assert {name: refused[name] for name in ("endpoint", "event_id", "type", "attempt")} == {
            "endpoint": "shop",
            "event_id": None,
            "type": None,
            "attempt": None,
        }
        assert_complete(server)


@pytest.mark.full("1 s")
def test_json_lines_of_inbox_deliveries_have_the_events_fields(here: Path) -> None:
    with serving(here) as (server, base):
        url = f"{base}/webhooks/queue"
        assert deliver(url, "evt_fails") == 202
        in_order = records_of(server, "evt_fails", most=5)
        stored = answered("evt_fails", 202, "stored", endpoint="queue")
        assert [one for one in in_order if one != stored] == [
            *in_any_order(
                in_order,
                fields("queue", "evt_fails", 1, reason="retried"),
                fields("queue", "evt_fails", 1, handler="answer"),
            ),
            *in_any_order(
                in_order,
                fields("queue", "evt_fails", 2, reason="exhausted"),
                fields("queue", "evt_fails", 2, handler="answer"),
            ),
        ]
        assert deliver(url, "evt_waits first") == 202
        eventually((here / "began evt_waits first").exists, what="the first has the key lock")
        assert deliver(url, "evt_waits second") == 202
        deferred = fields("queue", "evt_waits second", 1, reason="parked")
        eventually(
            lambda: deferred in records_of(server, "evt_waits second", most=1), what="deferred"
        )
        (here / "opened").touch()
        handled = fields("queue", "evt_waits second", 1, reason="handled")
        eventually(
            lambda: handled in records_of(server, "evt_waits second", most=1), what="handled"
        )
        assert_complete(server)


def in_any_order(found: list[dict[str, Any]], *some: dict[str, object]) -> list[dict[str, object]]:
    """Return the records ``some`` in their order in ``found``."""
    return sorted(some, key=found.index)


def assert_complete(server: Process) -> None:
    """Check that each record that names an event in its text has the event's fields."""
    for record in records(server):
        if re.search(r"\bevt_", record["message"]):
            assert {"endpoint", "event_id", "type", "attempt"} <= record.keys(), record
