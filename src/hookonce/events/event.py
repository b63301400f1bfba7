"""``Event``, the base of every event class, and the type strings that a class names."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, get_args

from pydantic import ConfigDict, JsonValue

from ..resources import Instant, Resource

# Covariant because events are immutable: an Event[Comment] is also an Event[object].
DataT = TypeVar("DataT", covariant=True)  # noqa: PLC0105 - users see this name, so it has no suffix "_co"


class Event(Resource, Generic[DataT]):
    """The base of every event class: the fields that the events of every sender have.

    Derive an event class of your own for a type that has no class here, and name the type::

        class AdPublished(Event[AdData]):
            type: Literal["ad.published"]

    The bases of single senders add fields: ``PublishingEvent`` has ``workspace_id``, and
    ``OpenAIEvent`` has ``object``. A class of your own may derive from them, and may add more
    fields of the body's top level.

    Attributes:
        id: the webhook-id, which the sender has signed. Each id is handled once.
        type: the event type, for example ``comment.received``.
        created_at: when the event happened; None if the sender's bodies have no time. Deliveries
            arrive in any order; compare this to order them.
        data: the payload of the type.
    """

    owner: ClassVar[str | None] = None  # the name of the only sender of these events

    id: str
    type: str
    created_at: Instant | None = None
    data: DataT


EventClass: TypeAlias = type[Event[Any]]
"""An event class: a class of this package, or a class of your own that derives from ``Event``."""


class UnknownEvent(Event[JsonValue]):
    """An event of a type that has no class, with its data as it arrived.

    If the sender's events have a base class of their own, such as ``PublishingEvent``, the event is
    an instance of that class too.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(title="UnknownEvent")


def event_types_of(event_class: EventClass) -> tuple[str, ...]:
    """Return the type strings that an event class names.

    Raises:
        TypeError: it is not an event class, or names no type.
    """
    if not (isinstance(event_class, type) and issubclass(event_class, Event)):
        raise TypeError(f"{event_class!r} is not an event class; derive it from hookonce.Event")
    if issubclass(event_class, UnknownEvent):
        raise TypeError("UnknownEvent names no type; use on_unknown")
    types = get_args(event_class.model_fields["type"].annotation)
    if not types or not all(isinstance(name, str) for name in types):
        raise TypeError(
            f"{event_class.__name__} names no event type; give it `type: Literal['…']`,"
            " or use the pattern '*' for every event"
        )
    return types
