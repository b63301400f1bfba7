"""``Sender``, the value that holds everything that differs between services."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from ..clock import span_seconds
from ..errors import no_sender
from ..events import Envelope, EventClass, UnknownEvent, event_types_of
from ..verification.header_names import Hints
from ..verification.signature import DEFAULT_TOLERANCE
from .rules import Rules

# The prefix of a header's name, in lower case as HTTP/2 sends it (RFC 9113, 8.2.1).
_PREFIX = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


Handshake: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""A function from the parsed body of a challenge to the JSON object that answers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """A service that signs its deliveries by Standard Webhooks.

    Attributes:
        name: a short name for messages and commands.
        headers: the prefixes of the signed headers: with ``("webhook", "svix")`` a delivery carries
            ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``, or ``svix-id`` and so
            on. A delivery that carries two families must carry the same values in both.
        envelope: where the bodies have the type, the time and the data of an event; by default as
            the payload of the specification.
        event_classes: the classes of the sender's event types. The classes that handlers are
            registered for need not be listed.
        unknown_event: the class of events whose type has no class.
        handshake: answers the challenge that some senders send first. The function gets the parsed
            body of a genuine delivery, and returns the JSON object of the answer, or None if the
            body is no challenge. If it raises an exception, the answer is 500.
        hints: the names of the headers outside the signature that tell the event's type and the
            number of the attempt; None if the sender has no such headers.
        rules: the rules by which the sender delivers.
        tolerance_seconds: how far a timestamp may be from the clock, in both directions, unless the
            receiver says otherwise.

    Raises:
        TypeError: a value has a wrong type.
        ValueError: a value cannot be used; the message says what to do.
    """

    name: str
    headers: tuple[str, ...] = ("webhook",)
    envelope: Envelope = field(default_factory=Envelope)
    event_classes: tuple[EventClass, ...] = ()
    unknown_event: type[UnknownEvent] = UnknownEvent
    handshake: Handshake | None = None
    hints: Hints | None = None
    rules: Rules = field(default_factory=Rules)
    tolerance_seconds: float = DEFAULT_TOLERANCE

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _PREFIX.fullmatch(self.name) is None:
            raise ValueError(
                "name takes lower-case letters, digits and hyphens, such as 'acme', not"
                f" {self.name!r}"
            )
        _check_prefixes(self.headers)
        object.__setattr__(self, "headers", tuple(dict.fromkeys(self.headers)))
        if not isinstance(self.envelope, Envelope):
            raise TypeError(
                "envelope takes an Envelope, such as Envelope(created_at='timestamp'), not"
                f" {self.envelope!r}"
            )
        object.__setattr__(self, "event_classes", tuple(self.event_classes))
        for event_class in self.event_classes:
            event_types_of(event_class)
        if self.handshake is not None and not callable(self.handshake):
            raise TypeError(f"handshake takes a function of the body, not {self.handshake!r}")
        if iscoroutinefunction(self.handshake):
            raise TypeError(f"handshake takes a plain function, not the async {self.handshake!r}")
        unknown: object = self.unknown_event
        if not (isinstance(unknown, type) and issubclass(unknown, UnknownEvent)):
            raise TypeError(
                f"unknown_event takes UnknownEvent or a class derived from it, not {unknown!r}"
            )
        _check_hints(self.hints)
        if not isinstance(self.rules, Rules):
            raise TypeError(
                f"rules takes Rules, such as Rules(answer_seconds=15), not {self.rules!r}"
            )
        object.__setattr__(
            self,
            "tolerance_seconds",
            span_seconds("tolerance_seconds", self.tolerance_seconds),
        )

    def __hash__(self) -> int:
        """Return the hash of the name: a cache finds the sender of each delivery by its hash."""
        return hash(self.name)

    @property
    def countable_rules(self) -> Rules:
        """The rules; their ``attempts`` is None if a receiver cannot count the attempts.

        A receiver does not see the attempts that never arrive, so it can count attempts only by a
        header with the number of the attempt. Without hints every attempt may be the last.
        """
        if self.hints is not None or self.rules.attempts == 1:
            return self.rules
        return replace(self.rules, attempts=None)

    def with_service(self, name: str) -> Sender:
        """Return this sender with the name of the service as the prefix of its hint headers.

        Without a prefix, the receiver recognises the hint headers by the endings of their names.

        Args:
            name: ``acme`` for ``acme-event-type`` and ``acme-delivery-attempt``, in any case.

        Raises:
            TypeError: the name is not text, or is empty.
            ValueError: this sender has no hints.
        """
        if not (isinstance(name, str) and name):
            raise TypeError(
                f"with_service takes the prefix of the sender's hint headers, not {name!r}"
            )
        if self.hints is None:
            raise ValueError(f"the sender {self.name!r} has no hint headers, so no prefix either")
        return replace(self, hints=self.hints._replace(service=name))


def _check_prefixes(headers: object) -> None:
    if isinstance(headers, str) or not isinstance(headers, Iterable) or not (found := [*headers]):
        raise TypeError(
            f"headers takes a tuple of prefixes, such as ('webhook', 'svix'), not {headers!r}"
        )
    for prefix in found:
        if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:
            raise ValueError(
                "headers takes prefixes in lower case without the final hyphen, such as 'svix'"
                f" for svix-id, not {prefix!r}"
            )


def _check_hints(hints: object) -> None:
    if hints is None:
        return
    if not isinstance(hints, Hints):
        raise TypeError(f"hints takes Hints or None, not {hints!r}")
    names: list[object] = [hints.event_type, hints.attempt]
    names += [] if hints.service is None else [hints.service]
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError(
            f"hints takes Hints with text, such as Hints(event_type='event-type'), not {hints!r}"
        )


def check_sender(sender: object) -> None:
    """Raise TypeError if the value is not a sender, for example if it is a sender's name."""
    if not isinstance(sender, Sender):
        raise no_sender(sender)
