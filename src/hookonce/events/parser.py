"""``EventParser``: verified bodies become typed events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from operator import or_
from typing import Annotated, Any, Literal, Protocol, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import core_schema, from_json, to_json

from ..errors import PayloadError, PayloadFault, no_sender
from .envelope import Envelope, MissingFieldError
from .event import Event, EventClass, UnknownEvent, event_types_of
from .publishing import PUBLISHING_EVENTS


class Vocabulary(Protocol):
    """The part of a sender that says how its bodies become events."""

    @property
    def envelope(self) -> Envelope:
        """The places of an event's type, time and data in the bodies."""
        ...

    @property
    def event_classes(self) -> tuple[EventClass, ...]:
        """The sender's own event classes."""
        ...

    @property
    def unknown_event(self) -> type[UnknownEvent]:
        """The class for events of an unknown type."""
        ...


# Two classes that match no event: a tagged union needs at least two members, even if neither the
# sender nor the user has a class.
class _Nothing(UnknownEvent):
    type: Literal["\0nothing"]


class _NothingElse(UnknownEvent):
    type: Literal["\0nothing else"]


# Building an adapter takes milliseconds, and the tests of an application make many receivers.
@lru_cache(maxsize=32)
def _adapter_of(classes: tuple[EventClass, ...]) -> TypeAdapter[Event[Any]]:
    """Return an adapter that parses each body as the class of its event type."""
    # A tagged union: pydantic reads `type` once and validates against that class alone.
    # It is joined with `|` because Union[tuple] is an error from Python 3.14 on.
    union: Any = reduce(or_, (*classes, _Nothing, _NothingElse))
    adapter: TypeAdapter[Event[Any]] = TypeAdapter(Annotated[union, Field(discriminator="type")])
    # Pydantic delays a class that it cannot build yet. Build it now, or the first delivery would
    # fail.
    adapter.rebuild()
    return adapter


class EventParser:
    """Parses verified bodies as typed events.

    Pydantic reads JSON that has the field names of ``Event``. The bodies of the default sender have
    these names. For another sender, the envelope first renames the fields.

    Args:
        classes: the user's own event classes; a class for a type of the sender replaces the
            sender's class.
        sender: the sender of the bodies, such as ``hookonce.senders.openai``; the Social Publishing
            Service by default.

    Attributes:
        classes: the known event types, each with its class.

    Raises:
        TypeError: a class names no event type, or ``sender`` is no sender.
        pydantic.errors.PydanticErrorMixin: pydantic cannot build a class, for example because an
            annotation names an undefined class.
    """

    def __init__(
        self,
        classes: Iterable[EventClass] = (),
        *,
        sender: Vocabulary = PUBLISHING_EVENTS,
    ) -> None:
        try:
            known = sender.event_classes
        except AttributeError:
            raise no_sender(sender) from None
        self.classes: Mapping[str, EventClass] = {
            name: cls for cls in (*known, *classes) for name in event_types_of(cls)
        }
        self._envelope = sender.envelope
        self._unknown = sender.unknown_event
        self._is_direct = sender.envelope.is_direct
        self._known = _adapter_of(tuple(dict.fromkeys(self.classes.values())))

    def parse(self, body: bytes, message_id: str | None = None) -> Event[Any]:
        """Return the event in ``body``.

        Args:
            body: the verified bytes.
            message_id: the signed webhook-id, which becomes the event's id, and which the id in the
                body must equal if the envelope says so. Without it the id comes from the body.

        Raises:
            PayloadError: the body is not JSON, not an envelope, not of its type's shape, or has
                another id; or a validator of the event class, or a function of the envelope, raised
                any error.
        """
        event: Event[Any]
        if not self._is_direct:
            body = self._rewritten(body, message_id)
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
            if event.created_at is None:
                self._check_timeless()
        except AttributeError:
            why = "a validator returned no event; `return self` may be missing"
            raise PayloadError(PayloadFault.CLASS_FAILED, (why,)) from None
        if message_id is not None and event_id != message_id:
            raise PayloadError(PayloadFault.ID_MISMATCH)
        return event

    def _rewritten(self, body: bytes, message_id: str | None) -> bytes:
        """Return the body with the field names of ``Event``; the envelope finds the fields."""
        try:
            parsed = from_json(body)
        except ValueError:
            try:
                parsed = from_json(_without_lone_surrogates(body))
            except ValueError:
                raise PayloadError(PayloadFault.NOT_JSON) from None
        if not isinstance(parsed, dict):
            raise PayloadError(PayloadFault.NOT_ENVELOPE, ("body: Input should be an object",))
        try:
            fields = self._envelope.read(parsed, message_id)
        except MissingFieldError as missing:
            raise _lacking(missing.field) from None
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            problem = f"a function of the envelope raised {_raised(error)}"
            raise PayloadError(PayloadFault.NOT_ENVELOPE, (problem,)) from None
        try:
            return to_json(fields, inf_nan_mode="constants")
        except ValueError:  # only a value from a function can fail: all other values come from JSON
            problem = "a function of the envelope returned a value that JSON cannot hold"
            raise PayloadError(PayloadFault.NOT_ENVELOPE, (problem,)) from None

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
                return self._unknown.model_validate_json(body)
            except ValidationError as unknown:
                raise self._unreadable(unknown, tags=0) from None
        if fault["type"] == "union_tag_not_found" and fault["loc"] == ():
            raise PayloadError(
                PayloadFault.NOT_ENVELOPE, _problems(error), field=self._envelope.path_of("type")
            ) from None
        # `loc` starts with the tag of the union, which is the event type; the field's name follows.
        raise self._unreadable(error, tags=1) from None

    def _unreadable(self, error: ValidationError, *, tags: int) -> PayloadError:
        """Return an error that names each unreadable field by its path in the sender's body.

        Args:
            error: the error of pydantic.
            tags: how many names stand before the name of the event's field: 1 in a tagged union.
        """

        def place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
            own, below = loc[tags : tags + 1], loc[tags + 1 :]
            names = [self._envelope.path_of(name) for name in own if isinstance(name, str)]
            return (*loc[:tags], *names, *below)

        details = error.errors(include_url=False, include_input=False, include_context=False)
        locs = [detail["loc"] for detail in details]
        # An unknown type accepts any `data`, so the error must be in its envelope.
        in_envelope = [loc for loc in locs if not tags or loc[tags : tags + 1] != ("data",)]
        first = place(next(iter(in_envelope), locs[0]))
        fault = PayloadFault.NOT_ENVELOPE if in_envelope else PayloadFault.WRONG_SHAPE
        field = ".".join(str(part) for part in first[tags:])
        return PayloadError(fault, _problems(error, place), field=field or None)

    def _check_timeless(self) -> None:
        """Refuse an event without a time if the envelope has a place for the time."""
        if self._envelope.created_at is not None:
            raise _lacking(self._envelope.path_of("created_at"))


def _lacking(field: str) -> PayloadError:
    return PayloadError(PayloadFault.NOT_ENVELOPE, (f"{field}: Field required",), field=field)


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
    """Return the class and line of a validator's error, but no message, which may show values."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = (
        "" if frame is None else f" in {frame.tb_frame.f_code.co_qualname}, line {frame.tb_lineno}"
    )
    return f"{type(error).__name__}{where}"


_MAX_PROBLEMS = 5
# The kinds of pydantic errors whose message never quotes the invalid value. The messages of the
# kinds removed here, and of kinds that a user's class defines, may quote the value.
_DISCREET = frozenset(get_args(core_schema.ErrorType)) - {
    "union_tag_invalid",
    "value_error",
    "assertion_error",
}


def _problems(
    error: ValidationError,
    place: Callable[[tuple[int | str, ...]], tuple[int | str, ...]] = lambda loc: loc,
) -> tuple[str, ...]:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return tuple(
        f"{'.'.join(str(part) for part in place(detail['loc'])) or 'body'}:"
        f" {detail['msg'] if detail['type'] in _DISCREET else 'not accepted'}"
        for detail in details[:_MAX_PROBLEMS]
    )
