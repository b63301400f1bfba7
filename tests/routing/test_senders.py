"""A handler must fit the sender of its receiver."""

from typing import Any, Literal

import pytest

from hookonce import Event, Receiver, Router
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived, PublishingEvent, UnknownEvent
from hookonce.events.openai import OpenAIEvent, ResponseCompleted
from hookonce.events.standard import StandardEvent
from hookonce.senders import openai, publishing, standard, svix
from hookonce.verification.secrets import new_secret

SECRET = new_secret()


class UserCreated(Event[dict[str, Any]]):
    type: Literal["user.created"]


class ContactCreated(StandardEvent[dict[str, Any]]):
    type: Literal["contact.created"]


def receiver_of(sender: Any) -> Receiver:
    return Receiver(secrets=SECRET, store="memory://", sender=sender)


async def handle(event: Event[Any]) -> None:
    pass


def key(event: Event[object]) -> str:
    return event.id


NO_TIME = "has latest_by, .* the bodies of the sender 'svix' have no time; use serial_by"


def test_latest_by_is_refused_at_registration_where_events_have_no_time() -> None:
    for router in (receiver_of(svix), Router(sender=svix)):
        for register in (router.on(UserCreated, latest_by=key), router.on("*", latest_by=key)):
            with pytest.raises(ValueError, match=NO_TIME):
                register(handle)
        with pytest.raises(ValueError, match=NO_TIME):
            router.on_unknown(latest_by=key)(handle)
        router.on(UserCreated, serial_by=key)(handle)
        assert len(router.handlers) == 1


def test_latest_by_within_a_ledger_is_refused_where_events_have_no_time() -> None:
    def within(event: Event[Any], connection: object) -> None:
        pass

    router = Router(sender=svix)
    with pytest.raises(ValueError, match=NO_TIME):
        router.on(UserCreated, latest_by=key, within=SQLiteLedger("x.db"))(within)


def test_latest_by_is_refused_when_a_router_joins_the_receiver() -> None:
    router, receiver = Router(), receiver_of(svix)
    router.on(UserCreated, latest_by=key)(handle)
    with pytest.raises(ValueError, match=NO_TIME):
        receiver.include(router)
    assert receiver.handlers == ()
    joined = Router()
    receiver.include(joined)
    with pytest.raises(ValueError, match=NO_TIME):
        joined.on(UserCreated, latest_by=key)(handle)
    assert joined.handlers == receiver.handlers == ()


def test_latest_by_is_refused_for_a_copy_with_another_sender() -> None:
    receiver = receiver_of(standard)
    receiver.on(UserCreated, latest_by=key)(handle)
    with pytest.raises(ValueError, match=NO_TIME):
        receiver.copy(sender=svix)


@pytest.mark.parametrize("sender", [publishing, standard, openai])
def test_latest_by_is_taken_where_every_body_has_a_time(sender: Any) -> None:
    receiver_of(sender).on("*", latest_by=key)(handle)


@pytest.mark.parametrize(
    ("sender", "event_class"),
    [
        (publishing, ResponseCompleted),
        (openai, CommentReceived),
        (svix, CommentReceived),
        (standard, ResponseCompleted),
    ],
)
def test_a_class_with_the_fields_of_another_sender_is_refused(
    sender: Any, event_class: type[Event[Any]]
) -> None:
    with pytest.raises(ValueError, match=f"{event_class.__name__} is an event of the sender"):
        receiver_of(sender).on(event_class)(handle)
    router = Router()
    router.on(event_class)(handle)
    with pytest.raises(ValueError, match=f"but the receiver's sender is {sender.name!r}"):
        receiver_of(sender).include(router)


def test_annotations_are_checked_against_the_senders_own_classes() -> None:
    async def of_openai(event: OpenAIEvent[Any]) -> None:
        pass

    async def of_publishing(event: PublishingEvent[Any]) -> None:
        pass

    receiver = receiver_of(openai)
    receiver.on("response.*", "batch.completed")(of_openai)
    receiver.on_unknown(name="unknown")(of_openai_unknown)
    with pytest.raises(TypeError, match=r"registered for 'batch\.[a-z]+', whose events are Batch"):
        receiver.on("batch.*")(of_publishing)


async def of_openai_unknown(event: UnknownEvent) -> None:
    pass


def test_a_misspelt_type_is_compared_with_the_senders_types(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver_of(openai).on("response.complete")(handle)
    assert "did you mean 'response.completed'?" in caplog.text
    caplog.clear()
    receiver_of(openai).on("response.completed")(handle)
    assert not caplog.text


def test_a_class_of_the_users_own_needs_no_base_of_a_sender() -> None:
    for sender in (publishing, standard, openai, svix):
        receiver_of(sender).on(UserCreated)(handle)
    for sender in (publishing, standard, openai):
        receiver_of(sender).on(ContactCreated)(handle)
    with pytest.raises(ValueError, match="ContactCreated requires created_at, but the bodies"):
        receiver_of(svix).on(ContactCreated)(handle)
