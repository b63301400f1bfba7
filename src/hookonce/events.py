"""The event envelope, the seven documented event types, and the parser of verified bodies.

Every delivery's body is the envelope ``id, type, createdAt, workspaceId, data`` (interface, Events:
Delivery format). The interface documents each field of ``comment.received``; the other types carry
"the shape of the matching resource". A type without a class here becomes an ``UnknownEvent``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache, reduce
from operator import or_
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import core_schema

from .errors import PayloadError, PayloadFault, WebhookError
from .resources import Channel, Instant, PostTarget, ReceivedComment, ReceivedMessage, Resource
from .verification.headers import RawHeaders
from .verification.secrets import SecretSource
from .verification.signature import DEFAULT_TOLERANCE, verify

__all__ = [
    "EVENT_CLASSES",
    "ChannelDisconnected",
    "ChannelUnhealthy",
    "CommentReceived",
    "Event",
    "EventClass",
    "EventParser",
    "MessageReceived",
    "PostTargetFailed",
    "PostTargetPublished",
    "UnknownEvent",
    "WebhookTest",
    "event_types_of",
    "unwrap",
]

# Covariant because events are immutable: Event[Comment] may stand for Event[object].
DataT = TypeVar("DataT", covariant=True)  # noqa: PLC0105 - a public name of its own


class Event(Resource, Generic[DataT]):
    """The base of every event class: the envelope.

    For a type without a class here, or with more fields, derive an event class of your own and name
    the type::

        class AdPublished(Event[AdData]):
            type: Literal["ad.published"]

    Attributes:
        id: the event's id, the same as the webhook-id.
        type: the event type, for example ``comment.received``.
        created_at: when it happened. Deliveries arrive in any order; compare this to order them.
        workspace_id: the workspace in which it happened.
        data: the payload of the type.
    """

    id: str
    type: str
    created_at: Instant
    workspace_id: str
    data: DataT


EventClass: TypeAlias = type[Event[Any]]
"""An event class: one of the classes below, or a class of your own that derives from ``Event``."""


class PostTargetPublished(Event[PostTarget]):
    """A post was published on one of its channels."""

    type: Literal["post.target.published"]


class PostTargetFailed(Event[PostTarget]):
    """A post could not be published on one of its channels, and nobody tries again."""

    type: Literal["post.target.failed"]


class CommentReceived(Event[ReceivedComment]):
    """Someone else wrote a comment. If the service polls the platform, the event is late."""

    type: Literal["comment.received"]


class MessageReceived(Event[ReceivedMessage]):
    """A direct message or a story reply arrived; ``data.message.kind`` says which."""

    type: Literal["message.received"]


class ChannelUnhealthy(Event[Channel]):
    """The connection to a channel stopped working, so its posts are held."""

    type: Literal["channel.unhealthy"]


class ChannelDisconnected(Event[Channel]):
    """A channel was disconnected from the workspace."""

    type: Literal["channel.disconnected"]


class WebhookTest(Event[dict[str, JsonValue]]):
    """A test event, requested in the app or by the test operation; its data is not documented.

    The sender never retries it, and no endpoint can subscribe to it.
    """

    type: Literal["webhook.test"]


class UnknownEvent(Event[JsonValue]):
    """An event of a type that has no class here, with its data as it arrived."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="UnknownEvent")


def event_types_of(event_class: EventClass) -> tuple[str, ...]:
    """Return the type strings that an event class names.

    Raises:
        TypeError: it is not an event class, or names no type.
    """
    if not (isinstance(event_class, type) and issubclass(event_class, Event)):
        raise TypeError(f"{event_class!r} is not an event class; derive it from hookonce.Event")
    if event_class is UnknownEvent:
        raise TypeError("UnknownEvent names no type; use on_unknown")
    types = get_args(event_class.model_fields["type"].annotation)
    if not types or not all(isinstance(name, str) for name in types):
        raise TypeError(
            f"{event_class.__name__} names no event type; give it `type: Literal['…']`,"
            " or use the pattern '*' for every event"
        )
    return types


EVENT_CLASSES: Mapping[str, EventClass] = MappingProxyType(
    {
        name: event_class
        for event_class in (
            PostTargetPublished,
            PostTargetFailed,
            CommentReceived,
            MessageReceived,
            ChannelUnhealthy,
            ChannelDisconnected,
            WebhookTest,
        )
        for name in event_types_of(event_class)
    }
)
"""The documented event types and their classes (interface, Events: Event types)."""


class EventParser:
    """Parses verified bodies as typed events.

    Args:
        classes: the user's own event classes; a class for a documented type replaces ours.

    Raises:
        TypeError: a class names no event type.
        pydantic.errors.PydanticErrorMixin: pydantic cannot build a class, for example because an
            annotation names an undefined class.
    """

    def __init__(self, classes: Iterable[EventClass] = ()) -> None:
        self.classes: Mapping[str, EventClass] = {
            **EVENT_CLASSES,
            **{name: cls for cls in classes for name in event_types_of(cls)},
        }
        # A tagged union: pydantic reads `type` once and validates against that class alone.
        # It is joined with `|` because Union[tuple] is an error from Python 3.14 on.
        union: Any = reduce(or_, dict.fromkeys(self.classes.values()))
        self._known: TypeAdapter[Event[Any]] = TypeAdapter(
            Annotated[union, Field(discriminator="type")]
        )
        # Pydantic delays a class that it cannot build yet. Build it now, or the first delivery
        # would fail.
        self._known.rebuild()

    def parse(self, body: bytes, message_id: str | None = None) -> Event[Any]:
        """Return the event in ``body``.

        Args:
            body: the verified bytes.
            message_id: the signed webhook-id, which the body's ``id`` must equal.

        Raises:
            PayloadError: the body is not JSON, not an envelope, not of its type's shape, or has
                another id; or a validator of the event class raised any error.
        """
        event: Event[Any]
        try:
            try:
                # Call the validator directly, because the adapter's own `validate_json` is slower.
                event = self._known.validator.validate_json(body)
            except ValidationError as error:
                event = self._reread(body, error)
        except PayloadError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's validator may raise anything
            raise PayloadError(PayloadFault.CLASS_FAILED, (_raised(error),)) from None
        try:
            event_id = event.id
        except AttributeError:
            why = "a validator returned no event; `return self` may be missing"
            raise PayloadError(PayloadFault.CLASS_FAILED, (why,)) from None
        if message_id is not None and event_id != message_id:
            raise PayloadError(PayloadFault.ID_MISMATCH)
        return event

    def _reread(self, body: bytes, error: ValidationError) -> Event[Any]:
        """Return an event that the fast path could not read, or raise PayloadError."""
        # Raise `from None`: pydantic's error holds the body, and a log would print that error.
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if fault["type"] == "json_invalid":
            try:
                return self.parse(_without_lone_surrogates(body))
            except ValueError:
                raise PayloadError(PayloadFault.NOT_JSON) from None
        if fault["type"] == "union_tag_invalid" and fault["loc"] == ():
            try:
                return UnknownEvent.model_validate_json(body)
            except ValidationError as unknown:
                raise PayloadError(PayloadFault.NOT_ENVELOPE, _problems(unknown)) from None
        # `loc` starts with the tag of the union, which is the event type; the field's name follows.
        in_data = fault["loc"][1:2] == ("data",)
        raise PayloadError(
            PayloadFault.WRONG_SHAPE if in_data else PayloadFault.NOT_ENVELOPE, _problems(error)
        ) from None


def _without_lone_surrogates(body: bytes) -> bytes:
    r"""Return JSON with ``?`` for each escaped lone surrogate, or raise ValueError.

    A sender that cuts a text in the middle of an emoji writes ``"\ud83d"``. It is valid JSON, but
    no Unicode text can hold it. A genuine comment must not become a dead letter for this.
    """
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    replaced = text.encode("utf-8", "replace")
    if replaced == text.encode("utf-8", "surrogatepass"):
        raise ValueError("no lone surrogate")
    return replaced


def _raised(error: Exception) -> str:
    """Return the class and line of a validator's error, but not its message: it may show values."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = (
        "" if frame is None else f" in {frame.tb_frame.f_code.co_qualname}, line {frame.tb_lineno}"
    )
    return f"{type(error).__name__}{where}"


_MAX_PROBLEMS = 5
# The kinds of pydantic errors whose message never quotes the invalid value. The kinds removed here,
# and kinds that a user's class defines, may quote it.
_DISCREET = frozenset(get_args(core_schema.ErrorType)) - {
    "union_tag_invalid",
    "value_error",
    "assertion_error",
}


def _problems(error: ValidationError) -> tuple[str, ...]:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return tuple(
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}:"
        f" {detail['msg'] if detail['type'] in _DISCREET else 'not accepted'}"
        for detail in details[:_MAX_PROBLEMS]
    )


_parser = lru_cache(maxsize=32)(EventParser)


def unwrap(
    body: bytes,
    headers: RawHeaders,
    secrets: SecretSource,
    *,
    tolerance: float | timedelta = DEFAULT_TOLERANCE,
    now: float | datetime | None = None,
    events: tuple[EventClass, ...] = (),
) -> Event[Any]:
    """Return the typed event of a genuine delivery: ``verify``, then read the body.

    Args:
        body: the raw request body, exactly as received.
        headers: a mapping or (name, value) pairs, str or bytes, any case.
        secrets: one ``whsec_`` secret, several, or a provider; one match is enough.
        tolerance: how far the timestamp may be from ``now``, in both directions: seconds or a
            ``timedelta``.
        now: an aware ``datetime`` or Unix seconds; the system's clock by default.
        events: event classes of your own.

    Raises:
        VerificationError: the delivery is not genuine.
        PayloadError: the delivery is genuine, but its body cannot be read as an event.
        SecretError: a secret cannot be used, or there is none.
    """
    try:
        delivery = verify(body, headers, secrets, tolerance=tolerance, now=now)
    except (WebhookError, TypeError, ValueError) as error:
        del secrets  # error trackers send the local variables of every frame
        raise error.with_traceback(None) from error.__cause__
    del secrets
    return _parser(events).parse(delivery.body, delivery.id)
