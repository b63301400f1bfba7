"""Router: registers handlers, and finds the handlers of an event."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from ..effects.ledger import AnyLedger
from ..events import (
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    Event,
    EventClass,
    MessageReceived,
    PostTargetFailed,
    PostTargetPublished,
    UnknownEvent,
    WebhookTest,
    event_types_of,
)
from ..logs import get_logger
from ..senders import Sender
from ..senders.sender import check_sender
from .handler import (
    ErrorHook,
    Handler,
    HandlerDecorator,
    accepts,
    annotated_classes,
    check_annotation,
    described,
    is_async,
    stable_name,
    takes_context,
)
from .keyed import HandlerOptions, Keyed, keyed_by
from .patterns import check_is_no_test, meets_any, pattern_of, type_string
from .table import HandlerTable
from .within import within_ledger

_log = get_logger("hookonce")

if TYPE_CHECKING:  # typing.TypeVar has defaults from Python 3.13 on
    from typing_extensions import TypeVar as TypeVarWithDefault

    L = TypeVarWithDefault("L", bound=AnyLedger[Any] | None, default=None)
E1 = TypeVar("E1", bound=Event[Any])
E2 = TypeVar("E2", bound=Event[Any])
E3 = TypeVar("E3", bound=Event[Any])
F = TypeVar("F", bound=Callable[..., Any])


class Router:
    """A set of handlers that a receiver or another router can include.

    Args:
        handlers: the first handlers, such as those of another router, perhaps each changed with
            ``dataclasses.replace``, for example to measure its calls.
        error_hooks: functions that ``on_error`` has registered elsewhere.
        sender: whose events the handlers are for. Without it, annotations and patterns are checked
            as for the default sender, and the handlers are checked against the sender of the
            receiver that includes the router.

    Raises:
        ValueError: two handlers have one name, or two unrelated classes for one event type; or a
            handler does not fit the sender.
    """

    def __init__(
        self,
        handlers: Iterable[Handler] = (),
        error_hooks: Iterable[ErrorHook] = (),
        *,
        sender: Sender | None = None,
    ) -> None:
        if sender is not None:
            check_sender(sender)
        self._table = HandlerTable(handlers, error_hooks, sender)
        self._included_by: list[Router] = []

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Every handler, in the order of registration."""
        return self._table.handlers

    @property
    def error_hooks(self) -> tuple[ErrorHook, ...]:
        """Every function registered with ``on_error``."""
        return self._table.error_hooks

    @property
    def event_types(self) -> frozenset[str]:
        """The event types that have a class: a class of the sender, or a class of a handler."""
        return frozenset(self._table.known)

    @property
    def is_included(self) -> bool:
        """Whether another router includes this router."""
        return bool(self._included_by)

    # Each overload lets type checkers infer the event's class and the transaction's class. With the
    # last overload the class is unknown, and a key function sees only the envelope.
    @overload
    def on(
        self, event: type[E1], /, **options: Unpack[HandlerOptions[E1, L]]
    ) -> HandlerDecorator[E1, L]: ...
    @overload
    def on(
        self, first: type[E1], second: type[E2], /, **options: Unpack[HandlerOptions[E1 | E2, L]]
    ) -> HandlerDecorator[E1 | E2, L]: ...
    @overload
    def on(
        self,
        first: type[E1],
        second: type[E2],
        third: type[E3],
        /,
        **options: Unpack[HandlerOptions[E1 | E2 | E3, L]],
    ) -> HandlerDecorator[E1 | E2 | E3, L]: ...
    @overload
    def on(
        self,
        event: Literal["post.target.published"],
        /,
        **options: Unpack[HandlerOptions[PostTargetPublished, L]],
    ) -> HandlerDecorator[PostTargetPublished, L]: ...
    @overload
    def on(
        self,
        event: Literal["post.target.failed"],
        /,
        **options: Unpack[HandlerOptions[PostTargetFailed, L]],
    ) -> HandlerDecorator[PostTargetFailed, L]: ...
    @overload
    def on(
        self,
        event: Literal["comment.received"],
        /,
        **options: Unpack[HandlerOptions[CommentReceived, L]],
    ) -> HandlerDecorator[CommentReceived, L]: ...
    @overload
    def on(
        self,
        event: Literal["message.received"],
        /,
        **options: Unpack[HandlerOptions[MessageReceived, L]],
    ) -> HandlerDecorator[MessageReceived, L]: ...
    @overload
    def on(
        self,
        event: Literal["channel.unhealthy"],
        /,
        **options: Unpack[HandlerOptions[ChannelUnhealthy, L]],
    ) -> HandlerDecorator[ChannelUnhealthy, L]: ...
    @overload
    def on(
        self,
        event: Literal["channel.disconnected"],
        /,
        **options: Unpack[HandlerOptions[ChannelDisconnected, L]],
    ) -> HandlerDecorator[ChannelDisconnected, L]: ...
    @overload
    def on(
        self, event: Literal["webhook.test"], /, **options: Unpack[HandlerOptions[WebhookTest, L]]
    ) -> HandlerDecorator[WebhookTest, L]: ...
    @overload
    def on(
        self,
        first: str,
        /,
        *more: str | type[Event[Any]],
        **options: Unpack[HandlerOptions[Any, L]],
    ) -> HandlerDecorator[Any, L]: ...
    @overload
    def on(
        self, *events: str | type[Event[Any]], **options: Unpack[HandlerOptions[Event[object], L]]
    ) -> HandlerDecorator[Any, L]: ...

    def on(
        self, *events: str | type[Event[Any]], **options: Unpack[HandlerOptions[Any, Any]]
    ) -> HandlerDecorator[Any, Any]:
        """Register a handler for event classes, type strings or patterns.

        In a pattern ``*`` stands for one segment, and at the end for one or more: ``channel.*``,
        ``post.*.failed``, ``*``. No pattern matches ``webhook.test``: use its name or class.

        Args:
            events: the events of the handler: classes, type strings and patterns in any mixture.
            within: the ledger in whose transaction the handler runs. The effect and its record are
                committed together, so the effect happens once or not at all. The transaction is
                the handler's second argument, the context the third (``hookonce.effects``).
            options: the handler's name and key function; see ``HandlerOptions``.

        Raises:
            TypeError: the function cannot be called as a handler of these events.
            ValueError: the name is taken, a pattern can match nothing, options contradict each
                other, or ``latest_by`` is given for a sender whose bodies have no time.
        """
        if not events:
            raise TypeError("on() takes at least one event class, type string or pattern")
        if inspect.isfunction(events[0]):
            raise TypeError(
                "on() takes the events of the handler, not the handler:"
                " @receiver.on(CommentReceived), or a type string"
            )
        types: dict[str, EventClass | None] = {}
        patterns = []
        for wanted in events:
            if not isinstance(wanted, str):
                types |= dict.fromkeys(event_types_of(wanted), wanted)
                continue
            if "*" in wanted:
                patterns.append(pattern_of(wanted))
                check_is_no_test(wanted, self._table.known, self._table.test_type)
            else:
                types.setdefault(type_string(wanted), None)
            self._warn_of_misspelling(wanted)

        keyed = keyed_by(options)

        def register(function: F, /) -> F:
            handler = replace(
                _handler(function, options, keyed),
                types=tuple(types),
                patterns=tuple(patterns),
                classes={event_type: cls for event_type, cls in types.items() if cls is not None},
                written=tuple(wanted for wanted in events if isinstance(wanted, str)),
            )
            self._add(replace(handler, classes=self._classes_of(handler)))
            return function

        return register

    @overload
    def on_unknown(self, function: F, /) -> F: ...
    @overload
    def on_unknown(
        self, /, **options: Unpack[HandlerOptions[UnknownEvent, L]]
    ) -> HandlerDecorator[UnknownEvent, L]: ...

    def on_unknown(
        self,
        function: Callable[..., Any] | None = None,
        /,
        **options: Unpack[HandlerOptions[UnknownEvent, Any]],
    ) -> Callable[..., Any] | HandlerDecorator[Any, Any]:
        """Register a handler for every event whose type has no model (``UnknownEvent``).

        It has the same options as any other handler, and runs again if it fails. Without any
        handler for it, an unknown event is answered 200 and logged.
        """
        keyed = keyed_by(options)

        def register(function: F, /) -> F:
            annotated = annotated_classes(function)
            check_annotation(function, annotated, {"every unknown type": UnknownEvent})
            self._add(replace(_handler(function, options, keyed), for_unknown=True))
            return function

        return register if function is None else register(function)

    def on_error(self, function: F, /) -> F:
        """Register a function that is called with every failure: ``(error, event, context)``.

        ``error`` is an ``ExceptionGroup`` of all failures of one attempt; a note on each exception
        names its handler. The function may take only the first one or two of the arguments. An
        exception from the function is logged and changes nothing.
        """
        arguments = next((count for count in (3, 2, 1) if accepts(function, count)), None)
        if arguments is None:
            raise TypeError(
                f"{described(function)} must be callable as (error), (error, event) or"
                " (error, event, context)"
            )
        self._add_error_hook(ErrorHook(function, is_async(function), arguments))
        return function

    def _classes_of(self, handler: Handler) -> Mapping[str, EventClass]:
        """Return the event classes that a handler names or is annotated with, by event type.

        Raises TypeError if the annotation does not fit the handler's events.
        """
        annotated = annotated_classes(handler.function)
        own: dict[str, EventClass] = {}
        for cls in annotated:
            with suppress(TypeError):  # a base of several event classes names no type
                own |= dict.fromkeys(event_types_of(cls), cls)
        known = {**self._table.known, **own}
        test_type = self._table.test_type
        matched = [name for name in known if handler.wants(name, known=True, test_type=test_type)]
        expected = {name: known.get(name, UnknownEvent) for name in [*handler.types, *matched]}
        expected |= handler.classes
        check_annotation(handler.function, annotated, expected)
        if not annotated or Event in annotated:
            return handler.classes
        asked_for = own.keys() & expected.keys() | {n for n in handler.types if n in known}
        return {**handler.classes, **{name: expected[name] for name in asked_for}}

    def _warn_of_misspelling(self, wanted: str) -> None:
        """Log a warning if no known type matches: the type may be new, or misspelt.

        If the sender names no types, nothing is known about them.
        """
        known = self._table.known
        if meets_any(wanted, known) or not self._table.sender_names_types:
            return
        likely = get_close_matches(wanted.lower().removesuffix(".*"), known, n=1, cutoff=0.5)
        _log.warning(
            "%r is no event type known here%s",
            wanted,
            f"; did you mean {likely[0]!r}?" if likely else "",
        )

    def include(self, other: Router) -> None:
        """Add the handlers of another router, including handlers that it registers later.

        Raises:
            ValueError: a name is taken, one router includes the other already, or a handler does
                not fit the receiver's sender.
        """
        if other in self._lineage():
            raise ValueError("a router cannot include itself")
        if self in other._lineage():
            raise ValueError("this router is included already")
        self._add(*other.handlers)
        for hook in other.error_hooks:
            self._add_error_hook(hook)
        other._included_by.append(self)

    def _lineage(self) -> list[Router]:
        """Return this router and all routers that include it, directly or not."""
        return [self, *(r for parent in self._included_by for r in parent._lineage())]

    def _add(self, *handlers: Handler) -> None:
        ahead = [(router, handler) for router in self._lineage() for handler in handlers]
        # Check in all routers before the first change, so that a refusal changes nothing.
        for router, handler in ahead:
            router._table.check(handler)
        for router, handler in ahead:
            router._table.add(handler)

    def _add_error_hook(self, hook: ErrorHook) -> None:
        for router in self._lineage():
            router._table.add_error_hook(hook)


def _handler(
    function: Callable[..., Any], options: HandlerOptions[Any, Any], keyed: Keyed | None
) -> Handler:
    """Check a user's function, and return a handler that has no event types yet."""
    name, ledger = stable_name(function, options.get("name")), options.get("within")
    latest = keyed if keyed is not None and keyed.is_latest else None
    needs_time = latest is not None
    if ledger is None:
        with_context = takes_context(function, "event")
        return Handler(
            name, function, is_async(function), with_context, keyed=keyed, needs_time=needs_time
        )
    # The ledger has a watermark of its own for `latest_by`, so the handler needs no key lock.
    serial = None if latest else keyed
    within = within_ledger(ledger, function, name, latest)
    return Handler(
        name,
        within.run,
        is_async(within.run),
        takes_context=True,
        ledger=ledger,
        roll_back=within.roll_back,
        keyed=serial,
        needs_time=needs_time,
    )
