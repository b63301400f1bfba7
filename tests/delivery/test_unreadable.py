"""A genuine delivery that its event class cannot parse becomes a dead letter in every mode."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import pytest
from pydantic import model_validator
from support.deliveries import SECRET, answer_of, receiver_on, sqlite_url
from support.waiting import until_async

from hookonce import Inbox, PayloadError, PayloadFault, Receiver, unwrap
from hookonce.events import Event
from hookonce.operations.inspector import Redaction
from hookonce.operations.inspector.models import model_of
from hookonce.operations.inspector.redactor import Redactor
from hookonce.routing.table import HandlerTable
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.values import DeadReason, Ownership
from hookonce.stores.wrapped import Wrapped
from hookonce.testing import event_body, make_event, signed_request
from hookonce.watching.records import DeliveryAnswered, EventBuried, Observer

pytestmark = pytest.mark.anyio

WATERMARK = "the words somebody wrote to the bakery"


class Unprintable(Exception):  # noqa: N818 - a user has chosen the name
    def __str__(self) -> str:
        raise RuntimeError("no text")


def recurse() -> None:
    recurse()


def fail(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> None:
        raise error

    return raise_it


class Paid(Event[dict[str, Any]]):
    type: Literal["invoice.paid"]


class Checked(Paid):
    """An event class whose validator raises the error that a test chooses."""

    @model_validator(mode="after")
    def check(self) -> Self:
        return does["now"]() or self


class Forgetful(Paid):
    @model_validator(mode="after")
    def check(self) -> Self:
        """Return nothing, like a validator without its ``return self``."""
        return None  # type: ignore[return-value]


does: dict[str, Callable[[], Any]] = {"now": lambda: None}

FAILURES: dict[str, Callable[[], Any]] = {
    "KeyError": fail(KeyError(WATERMARK)),
    "TypeError": fail(TypeError(WATERMARK)),
    "RecursionError": recurse,
    "StopIteration": fail(StopIteration(WATERMARK)),
    "MemoryError": fail(MemoryError()),
    "Unprintable": fail(Unprintable()),
}
BODY = event_body("invoice.paid", event_id="evt_1", data={"text": WATERMARK})


class Overtaken(Wrapped):
    """A store in which another process claims every event before it can be buried."""

    keeps_bodies = True

    async def bury(self, *_: Any, **__: Any) -> Ownership:
        return Ownership.LOST


class Notes(Observer):
    def __init__(self) -> None:
        self.buried: list[DeadReason] = []
        self.answered: list[str] = []

    def event_buried(self, record: EventBuried) -> None:
        self.buried.append(record.reason)

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        self.answered.append(record.outcome.reason)


@pytest.fixture(params=list(FAILURES))
def failure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the event class fail with each error in turn; return the name of the error."""
    monkeypatch.setitem(does, "now", FAILURES[request.param])
    return str(request.param)


@pytest.fixture
def notes() -> Notes:
    return Notes()


def receiver_with(
    event_class: type[Event[Any]], store: Store | str, *, inbox: Inbox | None = None
) -> tuple[Receiver, list[str]]:
    receiver, ran = receiver_on(store, inbox=inbox), []
    receiver.on(event_class, name="note")(lambda event: ran.append(event.id))
    return receiver, ran


async def test_a_lost_claim_is_not_reported_as_a_burial(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    receiver, _ = receiver_with(Paid, Overtaken(MemoryStore()))
    receiver.observe(notes)
    request = signed_request(b"{", SECRET, message_id="evt_1")
    async with receiver:
        outcome = await receiver.handle(request.body, request.headers)
    assert answer_of(outcome) == (503, "in_flight")
    assert notes.buried == []
    assert "is a dead letter now" not in caplog.text


@pytest.mark.parametrize("inbox", [None, Inbox()], ids=["inline", "inbox"])
async def test_an_unreadable_delivery_is_quarantined_and_can_be_replayed_later(
    tmp_path: Path,
    inbox: Inbox | None,
    failure: str,
    notes: Notes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver, ran = receiver_with(Checked, sqlite_url(tmp_path), inbox=inbox)
    receiver.observe(notes)
    request = signed_request(BODY, SECRET)
    async with receiver:
        outcome = await receiver.handle(request.body, request.headers)
        assert answer_of(outcome) == (202, "quarantined")
        again = await receiver.handle(request.body, request.headers)
        assert answer_of(again) == (202, "already_dead")
        letter = await receiver.dead.show("evt_1")
        assert letter is not None
        assert (letter.reason, letter.delivery.body) == (DeadReason.UNREADABLE, BODY)
        assert letter.error.startswith(f"a validator of the event class failed ({failure} in ")
        with pytest.raises(PayloadError) as caught:
            await receiver.dead.replay("evt_1")
        assert caught.value.fault is PayloadFault.CLASS_FAILED
        assert ran == []
        does["now"] = lambda: None
        assert (await receiver.dead.replay("evt_1")).reason == "handled"
    assert ran == ["evt_1"]
    assert notes.buried == [DeadReason.UNREADABLE]
    assert notes.answered == ["quarantined", "already_dead"]
    assert WATERMARK not in caplog.text
    assert WATERMARK not in letter.error


async def test_without_stored_bodies_an_unreadable_delivery_is_answered_500(failure: str) -> None:
    receiver, _ = receiver_with(Checked, "memory://")
    request = signed_request(BODY, SECRET)
    async with receiver:
        outcome = await receiver.handle(request.body, request.headers)
    assert answer_of(outcome) == (500, "unreadable"), failure


async def test_a_worker_buries_what_another_version_of_the_class_could_read(
    tmp_path: Path, failure: str, notes: Notes
) -> None:
    url = sqlite_url(tmp_path)
    intake, _ = receiver_with(Paid, url, inbox=Inbox(embedded=False))
    worker, ran = receiver_with(Checked, url, inbox=Inbox(embedded=False))
    worker.observe(notes)
    request = signed_request(BODY, SECRET)
    async with intake, worker.working():
        outcome = await intake.handle(request.body, request.headers)
        assert answer_of(outcome) == (202, "stored")

        async def is_dead() -> bool:
            return await intake.dead.show("evt_1") is not None

        await until_async(is_dead, what="a dead letter")
        letter = await intake.dead.show("evt_1")
    assert letter is not None
    assert (letter.reason, letter.delivery.body) == (DeadReason.UNREADABLE, BODY), failure
    assert notes.buried == [DeadReason.UNREADABLE]
    assert ran == []


def test_unwrap_raises_a_payload_error_with_the_path_but_not_the_value(failure: str) -> None:
    request = signed_request(BODY, SECRET)
    with pytest.raises(PayloadError) as caught:
        unwrap(request.body, request.headers, SECRET, events=(Checked,))
    assert caught.value.fault is PayloadFault.CLASS_FAILED
    assert failure in str(caught.value)
    assert WATERMARK not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_validator_that_returns_no_event_is_named_as_the_fault() -> None:
    request = signed_request(BODY, SECRET)
    with pytest.raises(PayloadError, match="`return self` may be missing"):
        unwrap(request.body, request.headers, SECRET, events=(Forgetful,))


def test_the_inspector_shows_why_a_delivery_is_unreadable(failure: str) -> None:
    receiver, _ = receiver_with(Checked, "memory://")
    shown = model_of(BODY, "evt_1", HandlerTable(receiver.handlers).parser, Redactor(Redaction()))
    assert shown.problem.startswith(f"a validator of the event class failed ({failure} in ")


def test_make_event_refuses_data_that_its_class_cannot_read(failure: str) -> None:
    with pytest.raises(ValueError, match=f"a validator of the event class failed.*{failure}"):
        make_event(Checked)


async def test_an_interrupt_during_parsing_is_raised_and_not_blamed_on_the_delivery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KeyboardInterrupt must end the program; the delivery is not the cause."""
    monkeypatch.setitem(does, "now", fail(KeyboardInterrupt()))
    request = signed_request(BODY, SECRET)
    with pytest.raises(KeyboardInterrupt):
        unwrap(request.body, request.headers, SECRET, events=(Checked,))


async def test_deliveries_are_left_to_a_retry_if_a_mistake_makes_all_of_them_unreadable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise one mistake in the program would turn every event into a dead letter."""

    class Unbuilt(Event["NowhereDefined"]):  # type: ignore[name-defined] # the test needs an unknown name
        type: Literal["invoice.paid"]

    receiver, _ = receiver_with(Unbuilt, sqlite_url(tmp_path))
    request = signed_request(BODY, SECRET)
    with caplog.at_level(logging.ERROR):  # the receiver was not started, as in a mounted app
        outcome = await receiver.handle(request.body, request.headers)
    assert answer_of(outcome) == (500, "internal_error")
    assert "NowhereDefined" in caplog.text
