"""Event types lead to handlers: registering, looking up, including. Nothing is run here.

Everything that can be wrong with a handler is found when it is registered: its signature, its name,
a pattern that can match nothing. A delivery must not be the first to notice.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_type_hints, overload

from .context import Context
from .events import (
    EVENT_CLASSES,
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    Event,
    EventClass,
    EventParser,
    MessageReceived,
    PostTargetFailed,
    PostTargetPublished,
    UnknownEvent,
    WebhookTest,
    event_types_of,
)

__all__ = ["ErrorHook", "Handler", "HandlerDecorator", "Router"]

E = TypeVar("E")
E1 = TypeVar("E1", bound=Event[Any])
E2 = TypeVar("E2", bound=Event[Any])
E3 = TypeVar("E3", bound=Event[Any])
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class HandlerDecorator(Protocol[E]):
    """Takes a handler of the event, with or without a context, and gives it back unchanged."""

    @overload
    def __call__(self, handler: Callable[[E], R], /) -> Callable[[E], R]: ...
    @overload
    def __call__(self, handler: Callable[[E, Context], R], /) -> Callable[[E, Context], R]: ...


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler.

    Attributes:
        name: the stable name under which its success is remembered.
        function: the user's callable.
        is_async: whether calling it gives an awaitable; others run in threads.
        takes_context: whether it wants a ``Context`` as second argument.
        types: the type strings it is registered for.
        patterns: the patterns it is registered for.
        for_unknown: whether it is for every type that has no model.

    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    types: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()
    for_unknown: bool = False

    def wants(self, event_type: str, *, known: bool) -> bool:
        """Return whether an event of this type is for this handler.

        A test event is for those only that named it: test traffic must not run business code by
        way of a pattern.
        """
        if event_type in self.types:
            return True
        if event_type == _TEST:
            return False
        if self.for_unknown and not known:
            return True
        return any(pattern.fullmatch(event_type) for pattern in self.patterns)


_TEST = "webhook.test"


@dataclass(frozen=True, slots=True)
class ErrorHook:
    """A function that is told of failures, and how many of (error, event, context) it takes."""

    function: Callable[..., Any]
    is_async: bool
    arguments: int


class Router:
    """A set of handlers that a receiver, or another router, can include."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._classes: dict[str, EventClass] = {}
        self._error_hooks: list[ErrorHook] = []
        self._included_by: list[Router] = []
        self._found: dict[str, tuple[Handler, ...]] = {}
        self._parser: EventParser | None = None

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Every handler, in the order of registration."""
        return tuple(self._handlers.values())

    @property
    def error_hooks(self) -> tuple[ErrorHook, ...]:
        """Every function registered with ``on_error``."""
        return tuple(self._error_hooks)

    @property
    def parser(self) -> EventParser:
        """A parser that knows the event classes handlers were registered with."""
        if self._parser is None:
            self._parser = EventParser(dict.fromkeys(self._classes.values()))
        return self._parser

    def find(self, event: Event[Any]) -> tuple[Handler, ...]:
        """Return the handlers an event is for, in the order of registration."""
        known = not isinstance(event, UnknownEvent)
        if not known:  # not remembered: the sender could make the table grow without end
            return tuple(h for h in self._handlers.values() if h.wants(event.type, known=False))
        found = self._found.get(event.type)
        if found is None:
            found = tuple(h for h in self._handlers.values() if h.wants(event.type, known=True))
            self._found[event.type] = found
        return found

    # The literal type strings are spelled out so that type checkers infer the class of each.
    @overload
    def on(self, event: type[E1], /, *, name: str | None = None) -> HandlerDecorator[E1]: ...
    @overload
    def on(
        self, first: type[E1], second: type[E2], /, *, name: str | None = None
    ) -> HandlerDecorator[E1 | E2]: ...
    @overload
    def on(
        self, first: type[E1], second: type[E2], third: type[E3], /, *, name: str | None = None
    ) -> HandlerDecorator[E1 | E2 | E3]: ...
    @overload
    def on(
        self, event: Literal["post.target.published"], /, *, name: str | None = None
    ) -> HandlerDecorator[PostTargetPublished]: ...
    @overload
    def on(
        self, event: Literal["post.target.failed"], /, *, name: str | None = None
    ) -> HandlerDecorator[PostTargetFailed]: ...
    @overload
    def on(
        self, event: Literal["comment.received"], /, *, name: str | None = None
    ) -> HandlerDecorator[CommentReceived]: ...
    @overload
    def on(
        self, event: Literal["message.received"], /, *, name: str | None = None
    ) -> HandlerDecorator[MessageReceived]: ...
    @overload
    def on(
        self, event: Literal["channel.unhealthy"], /, *, name: str | None = None
    ) -> HandlerDecorator[ChannelUnhealthy]: ...
    @overload
    def on(
        self, event: Literal["channel.disconnected"], /, *, name: str | None = None
    ) -> HandlerDecorator[ChannelDisconnected]: ...
    @overload
    def on(
        self, event: Literal["webhook.test"], /, *, name: str | None = None
    ) -> HandlerDecorator[WebhookTest]: ...
    @overload
    def on(
        self, *events: str | type[Event[Any]], name: str | None = None
    ) -> HandlerDecorator[Any]: ...

    def on(self, *events: str | type[Event[Any]], name: str | None = None) -> HandlerDecorator[Any]:
        """Register a handler for event classes, type strings or patterns.

        In a pattern ``*`` stands for one segment, and at the end for one or more: ``channel.*``,
        ``post.*.failed``, ``*``. ``webhook.test`` is reached by name or class only.

        Args:
            events: what the handler is for; several are one handler.
            name: the stable name under which its success is remembered, the function's module and
                qualified name by default. Give one before you move or rename a function.

        Raises:
            TypeError: the function cannot be called as a handler of these events.
            ValueError: a name is taken, or a pattern can match nothing.

        """
        if not events:
            raise TypeError("on() takes at least one event class, type string or pattern")
        types: dict[str, EventClass | None] = {}
        patterns = []
        for wanted in events:
            if not isinstance(wanted, str):
                types |= dict.fromkeys(event_types_of(wanted), wanted)
            elif "*" in wanted:
                patterns.append(_pattern(wanted))
            else:
                types.setdefault(_type_string(wanted), None)

        def register(function: F, /) -> F:
            handler = Handler(
                name=_name(function, name),
                function=function,
                is_async=_is_async(function),
                takes_context=_takes_context(function),
                types=frozenset(types),
                patterns=tuple(patterns),
            )
            classes = {wanted: cls for wanted, cls in types.items() if cls is not None}
            _check_annotation(function, classes)
            self._add(handler, classes)
            return function

        return register

    @overload
    def on_unknown(self, function: F, /) -> F: ...
    @overload
    def on_unknown(self, /, *, name: str | None = None) -> Callable[[F], F]: ...

    def on_unknown(
        self, function: F | None = None, /, *, name: str | None = None
    ) -> F | Callable[[F], F]:
        """Register a handler for every event whose type has no model (``UnknownEvent``).

        It is a handler like any other: run once, and again if it fails. Without one, such events
        are answered 200 and noted in the log.
        """

        def register(function: F, /) -> F:
            self._add(
                Handler(
                    name=_name(function, name),
                    function=function,
                    is_async=_is_async(function),
                    takes_context=_takes_context(function),
                    for_unknown=True,
                ),
                {},
            )
            return function

        return register if function is None else register(function)

    def on_error(self, function: F, /) -> F:
        """Register a function that is told of every failure: ``(error, event, context)``.

        ``error`` is one ``ExceptionGroup`` of all that failed in this attempt; each exception has
        a note that names its handler. A function may take fewer of the three arguments. What it
        raises is logged and changes nothing.
        """
        arguments = next((count for count in (3, 2, 1) if _accepts(function, count)), None)
        if arguments is None:
            raise TypeError(
                f"{function!r} must be callable as (error), (error, event) or"
                " (error, event, context)"
            )
        self._add_error_hook(ErrorHook(function, _is_async(function), arguments))
        return function

    def include(self, other: Router) -> None:
        """Take over the handlers of another router, also those it will get later.

        Raises:
            ValueError: a name is taken, or one of the two includes the other already.

        """
        if other is self or self in other._lineage():
            raise ValueError("a router cannot include itself")
        if other in self._lineage():
            raise ValueError("this router is included already")
        for handler in other.handlers:
            self._add(handler, {t: c for t, c in other._classes.items() if t in handler.types})
        for hook in other.error_hooks:
            self._add_error_hook(hook)
        other._included_by.append(self)

    def _lineage(self) -> list[Router]:
        """Return this router's includers and theirs."""
        return [r for parent in self._included_by for r in (parent, *parent._lineage())]

    def _add(self, handler: Handler, classes: Mapping[str, EventClass]) -> None:
        everyone = [self, *self._lineage()]
        for router in everyone:  # check all before changing any
            router._check(handler, classes)
        for router in everyone:
            router._handlers[handler.name] = handler
            router._classes |= {t: router._narrower(t, cls) for t, cls in classes.items()}
            router._found.clear()
            router._parser = None

    def _add_error_hook(self, hook: ErrorHook) -> None:
        for router in [self, *self._lineage()]:
            router._error_hooks.append(hook)

    def _check(self, handler: Handler, classes: Mapping[str, EventClass]) -> None:
        if handler.name in self._handlers:
            raise ValueError(
                f"a handler named {handler.name!r} is registered already; give one of them"
                " another name=…, or pass several events to one on()"
            )
        for event_type, cls in classes.items():
            self._narrower(event_type, cls)

    def _narrower(self, event_type: str, cls: EventClass) -> EventClass:
        """Return the class whose instances suit every handler of this type."""
        known = self._classes.get(event_type, cls)
        if issubclass(cls, known):
            return cls
        if issubclass(known, cls):
            return known
        raise ValueError(
            f"{event_type!r} is handled as {known.__name__} already, and {cls.__name__} is neither"
            " a subclass nor a base of it; derive one from the other"
        )


_SEGMENT = r"[^\s.*]+"
_TYPE = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")


def _type_string(text: str) -> str:
    if _TYPE.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is no event type; types are words joined by full stops, such as"
            " 'comment.received'"
        )
    return text


def _pattern(text: str) -> re.Pattern[str]:
    segments = text.split(".")
    if any(segment != "*" and re.fullmatch(_SEGMENT, segment) is None for segment in segments):
        raise ValueError(
            f"the pattern {text!r} can match nothing; '*' stands for whole segments, as in"
            " 'channel.*' or 'post.*.failed'"
        )
    parts = [_SEGMENT if segment == "*" else re.escape(segment) for segment in segments]
    if segments[-1] == "*":
        parts[-1] = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
    pattern = re.compile(r"\.".join(parts))
    if [name for name in EVENT_CLASSES if pattern.fullmatch(name)] == [_TEST]:
        raise ValueError(
            f"the pattern {text!r} can match nothing: {_TEST!r} is reached by its name or class"
            " only, so that tests do not run business code"
        )
    return pattern


def _name(function: Callable[..., Any], name: str | None) -> str:
    if name is not None:
        if not name or not name.isprintable():
            raise ValueError("a handler's name must be printable text")
        return name
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    if module is None or qualified is None or "<lambda>" in qualified:
        raise ValueError(
            f"{function!r} has no stable name of its own; register it with name='…', under which"
            " its success is remembered"
        )
    return f"{module}.{qualified}"


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - the method is what is looked at
    candidates = (inspect.unwrap(function), getattr(function, "func", None), call)
    return any(inspect.iscoroutinefunction(candidate) for candidate in candidates)


def _takes_context(function: Callable[..., Any]) -> bool:
    for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TypeError(f"{function!r} is a generator; a handler is a plain or async function")
    if not _accepts(function, 1):
        if _accepts(function, 2):
            return True
        raise TypeError(f"{function!r} must be callable as (event) or (event, context)")
    # An optional second parameter is the handler's own business unless it says it is the context.
    second = list(inspect.signature(function).parameters.values())[1:2]
    return _accepts(function, 2) and any(
        parameter.name == "context" or parameter.annotation in {Context, Context.__name__}
        for parameter in second
    )


def _accepts(function: Callable[..., Any], count: int) -> bool:
    """Return whether the function can be called with ``count`` positional arguments."""
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"{function!r} is not a function")
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError as error:
        raise TypeError(f"{function!r} has no signature that can be checked") from error
    except TypeError:
        return False
    return True


def _check_annotation(function: Callable[..., Any], classes: Mapping[str, EventClass]) -> None:
    """Refuse a handler whose first parameter is annotated with another event's class."""
    try:
        hints = get_type_hints(inspect.unwrap(function))
        first = next(iter(inspect.signature(function).parameters))
    except (NameError, TypeError, AttributeError, StopIteration):
        return  # an annotation that cannot be read here is the type checker's affair
    annotation = hints.get(first)
    if not (isinstance(annotation, type) and issubclass(annotation, Event)):
        return
    for event_type, cls in classes.items():
        if not issubclass(cls, annotation):
            raise TypeError(
                f"{function!r} expects {annotation.__name__} and is registered for"
                f" {event_type!r}, which comes as {cls.__name__}"
            )
