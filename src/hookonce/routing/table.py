"""The handlers and error hooks of one router, and the event class for each event type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..events import Event, EventClass, EventParser, UnknownEvent
from .handler import ErrorHook, Handler


class HandlerTable:
    """The handlers and error hooks of one router, by their names and event types.

    Args:
        handlers: the handlers, in the order of registration.
        error_hooks: the functions to call with every failure.

    Attributes:
        classes: the event classes that handlers name or are annotated with, by event type.

    Raises:
        ValueError: two handlers have one name, or two unrelated classes for one event type.
    """

    def __init__(
        self, handlers: Iterable[Handler] = (), error_hooks: Iterable[ErrorHook] = ()
    ) -> None:
        self.classes: dict[str, EventClass] = {}
        self._handlers: dict[str, Handler] = {}
        self._error_hooks = list(error_hooks)
        self._found: dict[str, tuple[Handler, ...]] = {}
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
        """A parser that knows the event classes of the handlers."""
        if self._parser is None:
            self._parser = EventParser(dict.fromkeys(self.classes.values()))
        return self._parser

    def find(self, event: Event[Any]) -> tuple[Handler, ...]:
        """Return the handlers that an event is for, in the order of registration."""
        found = self._found.get(event.type)
        if found is None:
            known = not isinstance(event, UnknownEvent)
            found = tuple(h for h in self._handlers.values() if h.wants(event.type, known=known))
            if known:  # unknown types are not cached, so that a sender cannot fill the memory
                self._found[event.type] = found
        return found

    def check(self, handler: Handler) -> None:
        """Raise ValueError if the handler cannot be added."""
        if handler.name in self._handlers:
            raise ValueError(
                f"a handler named {handler.name!r} is registered already; give one of them"
                " another name=…, or pass several events to one on()"
            )
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
        """Return the most derived class for this type, so that every handler's class fits."""
        known = self.classes.get(event_type, cls)
        if issubclass(cls, known):
            return cls
        if issubclass(known, cls):
            return known
        raise ValueError(
            f"{event_type!r} is handled as {known.__name__} already, and {cls.__name__} is neither"
            f" a subclass nor a base of {known.__name__}; derive one class from the other"
        )
