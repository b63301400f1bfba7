"""Type checkers infer the event classes of every sender, as users write them.

Pyright does not see that events are immutable, so a class that narrows ``type`` needs a comment.
"""

from pathlib import Path

import pytest
from support.type_checkers import (
    lines_marked_wrong,
    lines_mypy_refuses,
    lines_pyright_refuses,
)

SNIPPET = """
from datetime import datetime
from typing import Any, Literal

from hookonce import Context, Event, Receiver, Router, unwrap
from hookonce.events import CommentReceived, PublishingEvent, UnknownEvent
from hookonce.events.openai import OpenAIEvent, ResponseCompleted, ResponseFailed
from hookonce.events.standard import StandardEvent
from hookonce.senders import Envelope, Sender, openai, standard
from hookonce.testing import TestSender, make_event
from hookonce.testing.pytest_plugin import SenderFactory

acme = Sender(name="acme", envelope=Envelope(type=lambda body: body["kind"], created_at="meta.at"))
receiver = Receiver(secrets="whsec_", sender=openai)
router = Router(sender=acme)


class UserCreated(Event[dict[str, str]]):
    type: Literal["user.created"]  # pyright: ignore[reportIncompatibleVariableOverride]
    tenant: str


class ContactCreated(StandardEvent[int]):
    type: Literal["contact.created"]  # pyright: ignore[reportIncompatibleVariableOverride]


class AdPublished(PublishingEvent[int]):
    type: Literal["ad.published"]  # pyright: ignore[reportIncompatibleVariableOverride]


@receiver.on(ResponseCompleted, latest_by=lambda event: event.data.id)
async def completed(event: ResponseCompleted, context: Context) -> None:
    at: datetime = event.created_at
    name: str = event.data.id + event.body_id + (event.object or "")
    print(at, name)


@receiver.on(ResponseCompleted, ResponseFailed)
async def either(event: ResponseCompleted | ResponseFailed) -> None: ...


@receiver.on("response.*")
async def pattern(event: OpenAIEvent[Any]) -> None: ...


@router.on(UserCreated, serial_by=lambda event: event.tenant)
async def created(event: UserCreated) -> None:
    at: datetime | None = event.created_at
    print(at, event.data["name"])


def about(event: Event[int], ad: AdPublished, contact: ContactCreated) -> str:
    times: list[datetime] = [ad.created_at, contact.created_at]
    return f"{about(ad, ad, contact)}{about(contact, ad, contact)}{ad.workspace_id}{times}"


def others(event: Event[object]) -> str:
    match event:
        case ResponseCompleted():
            return event.data.id
        case CommentReceived():
            return event.workspace_id
        case PublishingEvent():
            return event.workspace_id
        case UnknownEvent():
            return event.type
        case _:
            return event.id


others(unwrap(b"", {}, "whsec_", sender=standard, events=(ContactCreated,)))

match unwrap(b"", {}, "whsec_", sender=openai):
    case ResponseCompleted() as done:
        identifiers: list[str] = [done.data.id, done.body_id]
        print(done.workspace_id)  # WRONG
    case OpenAIEvent() as other:
        times: datetime = other.created_at
    case _:
        pass


async def test(webhook_sender: SenderFactory) -> None:
    made: ResponseCompleted = make_event(ResponseCompleted, data={"id": "resp_1"})
    mine = make_event(UserCreated, data={"name": "Ada"}, sender=acme)
    mistaken: ResponseFailed = make_event(ResponseCompleted)  # WRONG
    async with webhook_sender(receiver) as client, TestSender(receiver, secrets="whsec_") as other:
        status: int = (await client.send(made)).status
        print(status, mine.tenant, await other.send(mine), mistaken)


def timeless(event: Event[int]) -> datetime:
    return event.created_at  # WRONG


def foreign(event: UserCreated) -> str:
    return event.workspace_id  # WRONG


@receiver.on(ResponseCompleted)  # WRONG
async def other_class(event: ResponseFailed) -> None: ...


@router.on(UserCreated, serial_by=lambda event: event.tennant)  # WRONG
async def misspelt(event: UserCreated) -> None: ...
"""


@pytest.mark.full("mypy: 8 s of processor time")
def test_mypy_finds_every_mistake_and_no_other(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    assert lines_mypy_refuses(SNIPPET, tmp_path, pytestconfig) == lines_marked_wrong(SNIPPET)


@pytest.mark.full("pyright: 5 s")
def test_pyright_finds_every_mistake_and_no_other(tmp_path: Path) -> None:
    assert lines_pyright_refuses(SNIPPET, tmp_path) == lines_marked_wrong(SNIPPET)
