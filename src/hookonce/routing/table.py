"""The handlers and error hooks of one router, and the event class for each event type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..events import Event, EventClass, EventParser, UnknownEvent, event_types_of
from ..senders import Sender, publishing
from ..senders.rules import retention_fault
from .handler import ErrorHook, Handler


class HandlerTable:
    """The handlers and error hooks of one router, by their names and event types.

    Args:
        handlers: the handlers, in the order of registration.
        error_hooks: the functions to call with every failure.
        sender: who sends the events; None for a router that may join any receiver.

    Attributes:
        classes: the event classes that handlers name or are annotated with, by event type.

    Raises:
        ValueError: two handlers have one name, or two unrelated classes for one event type.
    """

    def __init__(
        self,
        handlers: Iterable[Handler] = (),
        error_hooks: Iterable[ErrorHook] = (),
        sender: Sender | None = None,
    ) -> None:
        self.classes: dict[str, EventClass] = {}
        self._handlers: dict[str, Handler] = {}
        self._error_hooks = list(error_hooks)
        self._found: dict[str, tuple[Handler, ...]] = {}
        self._sender = sender
        self._parser: EventParser | None = None
        for handler in handlers:
            self.check(handler)
            self.add(handler)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Every handler, in the order of registration."""
        return tuple(self._handlers.values())

    @property
    def error_hooks(self) -> tuple[ErrorHook, ...]:
        """Every error hook, in the order of registration."""
        return tuple(self._error_hooks)

    @property
    def parser(self) -> EventParser:
        """A parser that knows the event classes of the sender and of the handlers."""
        if self._parser is None:
            self._parser = EventParser(
                dict.fromkeys(self.classes.values()), sender=self._sender or publishing
            )
        return self._parser

    @property
    def known(self) -> dict[str, EventClass]:
        """The event classes of the sender and of the handlers, by event type."""
        own = (self._sender or publishing).event_classes
        return {**{name: cls for cls in own for name in event_types_of(cls)}, **self.classes}

    @property
    def test_type(self) -> str | None:
        """The type of the sender's test event; None if it has no test event."""
        return (self._sender or publishing).rules.test_type

    @property
    def sender_names_types(self) -> bool:
        """Whether the sender has event classes of its own."""
        return bool((self._sender or publishing).event_classes)

    def serve(self, sender: Sender) -> None:
        """Set the sender whose events the handlers handle.

        Raises:
            ValueError: a handler does not fit the sender.
        """
        for handler in self._handlers.values():
            _check_sender(handler, sender)
        self._sender = sender
        self._parser = None
        self._found.clear()

    def find(self, event: Event[Any]) -> tuple[Handler, ...]:
        """Return the handlers for an event, in the order of registration."""
        found = self._found.get(event.type)
        if found is None:
            known = not isinstance(event, UnknownEvent)
            found = self._wanting(event.type, known=known)
            if known:  # unknown types are not cached, so that a sender cannot fill the memory
                self._found[event.type] = found
        return found

    def of_type(self, event_type: str) -> tuple[Handler, ...]:
        """Return the handlers for events of a type, in the order of registration."""
        return self._wanting(event_type, known=event_type in self.parser.classes)

    def _wanting(self, event_type: str, *, known: bool) -> tuple[Handler, ...]:
        return tuple(
            handler
            for handler in self._handlers.values()
            if handler.wants(event_type, known=known, test_type=self.test_type)
        )

    def check(self, handler: Handler) -> None:
        """Raise ValueError if the handler cannot be added."""
        if handler.name in self._handlers:
            raise ValueError(
                f"a handler named {handler.name!r} is registered already; give one of them"
                " another name=…, or pass several events to one on()"
            )
        if self._sender is not None:
            _check_sender(handler, self._sender)
        for event_type, cls in handler.classes.items():
            self._narrower(event_type, cls)

    def add(self, handler: Handler) -> None:
        """Add a handler that has been checked."""
        self._handlers[handler.name] = handler
        self.classes |= {t: self._narrower(t, cls) for t, cls in handler.classes.items()}
        self._found.clear()
        self._parser = None

    def add_error_hook(self, hook: ErrorHook) -> None:
        """Add an error hook, unless it is there already: two included routers may share it."""
        if hook not in self._error_hooks:
            self._error_hooks.append(hook)

    def _narrower(self, event_type: str, cls: EventClass) -> EventClass:
        """Return the more derived event class, so that an event fits every handler's class."""
        known = self.classes.get(event_type, cls)
        if issubclass(cls, known):
            return cls
        if issubclass(known, cls):
            return known
        raise ValueError(
            f"{event_type!r} is handled as {known.__name__} already, and {cls.__name__} is neither"
            f" a subclass nor a base of {known.__name__}; derive one class from the other"
        )


def _check_sender(handler: Handler, sender: Sender) -> None:
    """Raise ValueError if a handler cannot handle the events of this sender."""
    if handler.needs_time and sender.envelope.created_at is None:
        raise ValueError(
            f"{handler.name!r} has latest_by, which compares the times of events, but the bodies of"
            f" the sender {sender.name!r} have no time; use serial_by, or give the sender an"
            " Envelope(created_at=…)"
        )
    if fault := retention_fault(sender.rules, getattr(handler.ledger, "retention_seconds", None)):
        raise ValueError(f"the ledger of {handler.name!r}: {fault}")
    for cls in handler.classes.values():
        if cls.owner is not None and cls.owner != sender.unknown_event.owner:
            raise ValueError(
                f"{cls.__name__} is an event of the sender {cls.owner!r}, but the receiver's sender"
                f" is {sender.name!r}; give the receiver sender=…, or use another class"
            )
        if cls.model_fields["created_at"].is_required() and sender.envelope.created_at is None:
            raise ValueError(
                f"{cls.__name__} requires created_at, but the bodies of the sender"
                f" {sender.name!r} have no time; derive the class from hookonce.Event"
            )
