"""Registered handlers, and the checks of a user's function at registration.

A function's signature, name and annotations are checked when it is registered, so that a mistake
shows before the first delivery.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from ..effects.ledger import AnyLedger
from ..effects.trial import RolledBack
from ..events import Event, EventClass
from .context import Context
from .keyed import Keyed

E = TypeVar("E")
L_co = TypeVar("L_co", bound=AnyLedger[Any] | None, covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class HandlerDecorator(Protocol[E, L_co]):
    """A decorator that registers a handler and returns it unchanged. A handler may take a context.

    With ``within=`` the handler's arguments are the event, the transaction and optionally the
    context.
    """

    @overload
    def __call__(
        self: HandlerDecorator[E, None], handler: Callable[[E], R], /
    ) -> Callable[[E], R]: ...
    @overload
    def __call__(
        self: HandlerDecorator[E, None], handler: Callable[[E, Context], R], /
    ) -> Callable[[E, Context], R]: ...
    @overload
    def __call__(
        self: HandlerDecorator[E, AnyLedger[T]], handler: Callable[[E, T], R], /
    ) -> Callable[[E, T], R]: ...
    @overload
    def __call__(
        self: HandlerDecorator[E, AnyLedger[T]], handler: Callable[[E, T, Context], R], /
    ) -> Callable[[E, T, Context], R]: ...


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler.

    Attributes:
        name: the stable name under which its success is remembered.
        function: the user's callable.
        is_async: whether a call returns an awaitable; other functions run in threads.
        takes_context: whether the function takes a ``Context`` as second argument.
        types: the type strings the handler is registered for.
        patterns: the patterns the handler is registered for.
        classes: the event class for each type, if the handler names or is annotated with classes.
        for_unknown: whether the handler is for every type that has no model.
        written: the type strings and patterns, exactly as the user wrote them.
        ledger: the ledger that records the handler's effects; None without ``within=``. With a
            ledger the function takes the context and begins the transaction itself.
        keyed: the handler's key function; None if it has none.
        needs_time: whether the handler compares the times of events, because of ``latest_by``.
        roll_back: runs the handler in a transaction that is rolled back; None without a ledger.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    types: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    classes: Mapping[str, EventClass] = field(default_factory=dict, hash=False)
    for_unknown: bool = False
    written: tuple[str, ...] = ()
    ledger: AnyLedger[Any] | None = None
    keyed: Keyed | None = None
    needs_time: bool = False
    roll_back: Callable[[Event[Any], Context, RolledBack], Any] | None = None

    def wants(self, event_type: str, *, known: bool, test_type: str | None) -> bool:
        """Return whether an event of this type is for this handler.

        A pattern never matches test events, so that test traffic does not run business code.
        """
        if event_type in self.types:
            return True
        if event_type == test_type:
            return False
        if self.for_unknown and not known:
            return True
        return any(pattern.fullmatch(event_type) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class ErrorHook:
    """A function registered with ``on_error``.

    Attributes:
        function: the user's callable.
        is_async: whether a call returns an awaitable; other functions run in threads.
        arguments: how many of (error, event, context) the function takes.
    """

    function: Callable[..., Any]
    is_async: bool
    arguments: int


def stable_name(function: Callable[..., Any], name: str | None) -> str:
    """Return the name under which the store remembers a handler's success, or raise ValueError."""
    if name is not None:
        if not name or not name.isprintable():
            raise ValueError("a handler's name must be printable text")
        return name
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    if module is None or qualified is None or "<lambda>" in qualified:
        raise ValueError(
            f"{described(function)} has no stable name; register it with name=…, under which its"
            " success is remembered"
        )
    return f"{module}.{qualified}"


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is async; other functions run in a thread."""
    # A plain function that returns a coroutine also runs in a thread; the caller awaits the
    # coroutine.
    call = getattr(function, "__call__", None)  # noqa: B004 - the code inspects `__call__`, and does not call it
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_context(function: Callable[..., Any], *given: str) -> bool:
    """Return whether a handler takes a context as its last argument.

    Args:
        function: the user's function.
        given: the names of its other arguments, for a message.

    Raises:
        TypeError: the function cannot be a handler.
    """
    _check_no_generator(function)
    count, others = len(given), ", ".join(given)
    bare, full = accepts(function, count), accepts(function, count + 1)
    if not bare and not full:
        raise TypeError(
            f"{described(function)} must be callable as ({others}) or ({others}, context)"
        )
    # An optional last parameter gets a context only if its name or annotation says so.
    last = list(inspect.signature(function).parameters.values())[count : count + 1]
    return full and (not bare or any(map(is_context, last)))


def _check_no_generator(function: Callable[..., Any]) -> None:
    """Refuse a generator function, because a call would not run its body."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the code inspects `__call__`, and does not call it
    for candidate in (function, inspect.unwrap(function), call):
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TypeError(
                f"{described(function)} is a generator; a handler is a plain or async function"
            )


def is_context(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter's name or annotation says that it is the context."""
    return parameter.name == "context" or parameter.annotation in {Context, Context.__name__}


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Return whether the function can be called with ``count`` positional arguments."""
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"{function!r} is not a function")
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError as error:
        raise TypeError(f"{described(function)} has no signature to be checked") from error
    except TypeError:
        return False
    return True


def annotated_classes(function: Callable[..., Any]) -> tuple[EventClass, ...]:
    """Return the event classes that a handler's first parameter is annotated with.

    Empty if the annotation contains anything but event classes, or cannot be read.
    """
    try:
        hints = get_type_hints(inspect.unwrap(function))
        parameters = list(inspect.signature(function).parameters)
    except (NameError, TypeError, AttributeError):
        # The annotation names a class that is not imported at run time, as under TYPE_CHECKING.
        return ()
    first, second = ([hints.get(name) for name in parameters] + [None, None])[:2]
    if first is Context or (isinstance(second, type) and issubclass(second, Event)):
        raise TypeError(f"{described(function)} takes its context before its event; swap them")
    members = get_args(first) if get_origin(first) in {Union, UnionType} else (first,)
    if not all(isinstance(one, type) and issubclass(one, Event) for one in members):
        return ()
    # For Event[Any] pydantic creates another class, whose origin is Event.
    return tuple(one.__pydantic_generic_metadata__["origin"] or one for one in members)


def check_annotation(
    function: Callable[..., Any], annotated: Sequence[EventClass], classes: Mapping[str, EventClass]
) -> None:
    """Refuse a handler whose annotation does not fit the classes of its events."""
    for event_type, cls in classes.items():
        if annotated and not issubclass(cls, tuple(annotated)):
            names = " | ".join(one.__name__ for one in annotated)
            raise TypeError(
                f"{described(function)} expects {names}, but is registered for {event_type!r},"
                f" whose events are {cls.__name__}"
            )


def described(function: Callable[..., Any]) -> str:
    """Return the name of a function for a message."""
    return getattr(function, "__qualname__", None) or repr(function)
