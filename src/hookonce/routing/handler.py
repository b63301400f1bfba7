"""Registered handlers, and the checks of a user's function at registration.

Everything that can be wrong with a function is found here, when it is registered: its signature,
its name, its annotations. A delivery must not be the first to notice.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from ..effects.ledger import AnyLedger
from ..events import Event, EventClass
from ..sender import TEST_TYPE
from .context import Context
from .keyed import Keyed

E = TypeVar("E")
L_co = TypeVar("L_co", bound=AnyLedger[Any] | None, covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class HandlerDecorator(Protocol[E, L_co]):
    """Decorator that registers a handler, with or without a context, and returns it unchanged.

    Within a ledger it takes a handler of the event and a transaction, with or without a context.
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
        is_async: whether calling it gives an awaitable; others run in threads.
        takes_context: whether it wants a ``Context`` as second argument.
        types: the type strings it is registered for.
        patterns: the patterns it is registered for.
        classes: the classes in which events come for it, by their types, where it names or is
            annotated with any.
        for_unknown: whether it is for every type that has no model.
        written: the type strings and patterns as they were written.
        ledger: where its effects are recorded, if it runs within one; its function then takes the
            context and begins the transaction itself.
        keyed: the function that gives its key lock, if it has one.

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

    def wants(self, event_type: str, *, known: bool) -> bool:
        """Return whether an event of this type is for this handler.

        A test event is for those only that named it: test traffic must not run business code by
        way of a pattern.
        """
        if event_type in self.types:
            return True
        if event_type == TEST_TYPE:
            return False
        if self.for_unknown and not known:
            return True
        return any(pattern.fullmatch(event_type) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class ErrorHook:
    """A function registered with ``on_error``.

    Attributes:
        function: the user's callable.
        is_async: whether calling it gives an awaitable; other functions run in threads.
        arguments: how many of (error, event, context) the function takes.

    """

    function: Callable[..., Any]
    is_async: bool
    arguments: int


def stable_name(function: Callable[..., Any], name: str | None) -> str:
    """Return the name under which a handler's success is remembered, or raise ValueError."""
    if name is not None:
        if not name or not name.isprintable():
            raise ValueError("a handler's name must be printable text")
        return name
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    if module is None or qualified is None or "<lambda>" in qualified:
        raise ValueError(
            f"{described(function)} has no stable name of its own; register it with name=…, under"
            " which its success is remembered"
        )
    return f"{module}.{qualified}"


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling it gives an awaitable at once; others run in a thread."""
    # What a plain wrapper around an async function returns is awaited after it has run in a thread.
    call = getattr(function, "__call__", None)  # noqa: B004 - the method is what is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_context(function: Callable[..., Any], *given: str) -> bool:
    """Return whether a handler wants a context behind its other arguments; TypeError if it is none.

    Args:
        function: the user's.
        given: the names of its other arguments, for a message.

    """
    _check_no_generator(function)
    count, others = len(given), ", ".join(given)
    bare, full = accepts(function, count), accepts(function, count + 1)
    if not bare and not full:
        raise TypeError(
            f"{described(function)} must be callable as ({others}) or ({others}, context)"
        )
    # An optional last parameter is the handler's own business unless it says it is the context.
    last = list(inspect.signature(function).parameters.values())[count : count + 1]
    return full and (not bare or any(map(is_context, last)))


def _check_no_generator(function: Callable[..., Any]) -> None:
    """Refuse a generator function: a call would not run its body."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the method is what is looked at
    for candidate in (function, inspect.unwrap(function), call):
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TypeError(
                f"{described(function)} is a generator; a handler is a plain or async function"
            )


def is_context(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter says that it is the context, by its name or annotation."""
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
    """Return the event classes a handler's first parameter is annotated with; none if others are.

    It is one class, or the members of a union.
    """
    try:
        hints = get_type_hints(inspect.unwrap(function))
        parameters = list(inspect.signature(function).parameters)
    except (NameError, TypeError, AttributeError):
        return ()  # an annotation that cannot be read here is the type checker's affair
    first, second = ([hints.get(name) for name in parameters] + [None, None])[:2]
    if first is Context or (isinstance(second, type) and issubclass(second, Event)):
        raise TypeError(f"{described(function)} takes its context before its event; swap them")
    members = get_args(first) if get_origin(first) in {Union, UnionType} else (first,)
    if not all(isinstance(one, type) and issubclass(one, Event) for one in members):
        return ()
    # Event[Any] and the like are classes of their own to pydantic.
    return tuple(one.__pydantic_generic_metadata__["origin"] or one for one in members)


def check_annotation(
    function: Callable[..., Any], annotated: Sequence[EventClass], classes: Mapping[str, EventClass]
) -> None:
    """Refuse a handler annotated with other events' classes than it will be given."""
    for event_type, cls in classes.items():
        if annotated and not issubclass(cls, tuple(annotated)):
            names = " | ".join(one.__name__ for one in annotated)
            raise TypeError(
                f"{described(function)} expects {names} and is registered for {event_type!r},"
                f" which comes as {cls.__name__}"
            )


def described(function: Callable[..., Any]) -> str:
    """Return the name of a function for a message."""
    return getattr(function, "__qualname__", None) or repr(function)
