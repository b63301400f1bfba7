"""The names of a sender's headers: three signed headers, and hints outside the signature."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

from ..errors import no_sender

ID, TIMESTAMP, SIGNATURE = range(3)
ENDINGS = ("-id", "-timestamp", "-signature")


def fields_of(prefix: str) -> dict[str | bytes, int]:
    """Map the three header names with a prefix, as text and as bytes, to the fields they hold."""
    return {
        spelling: field
        for field, ending in enumerate(ENDINGS)
        for spelling in (f"{prefix}{ending}", f"{prefix}{ending}".encode())
    }


WEBHOOK = ("webhook",)
"""The prefix of the signed headers that the specification names."""


class Hints(NamedTuple):
    """The names of a sender's headers outside the signature: ``<service>-<ending>``.

    Attributes:
        event_type: the ending of the header with the type of the event.
        attempt: the ending of the header with the number of the attempt, from 1.
        service: the prefix of both, in any case; None takes the endings with any prefix.
    """

    event_type: str = "event-type"
    attempt: str = "delivery-attempt"
    service: str | None = None


class Signing(Protocol):
    """The sender's headers and tolerance, on which the verification of a delivery depends.

    ``hookonce.senders.Sender`` is such a class.
    """

    @property
    def headers(self) -> tuple[str, ...]:
        """The prefixes of the signed headers."""
        ...

    @property
    def hints(self) -> Hints | None:
        """The headers outside the signature; None if the sender has none."""
        ...

    @property
    def tolerance_seconds(self) -> float:
        """The largest difference allowed between a timestamp and the clock, in both directions."""
        ...


class HeaderNames:
    """The names of a sender's headers, looked up once for all of its deliveries.

    It is compared by identity, because each delivery looks it up in caches.

    Args:
        prefixes: the prefixes of the signed headers, each the prefix of a family.
        hints: the names of the headers outside the signature.
    """

    __slots__ = ("endings", "families", "fields", "prefixes", "service")

    def __init__(self, prefixes: tuple[str, ...], hints: Hints | None) -> None:
        self.prefixes: tuple[str, ...] = prefixes
        self.families: tuple[dict[str | bytes, int], ...] = tuple(map(fields_of, prefixes))
        self.fields: dict[str | bytes, tuple[int, int]] = {
            name: (family, field)
            for family, fields in enumerate(self.families)
            for name, field in fields.items()
        }
        self.endings: tuple[tuple[str, int], ...] = ()
        self.service: str | None = None
        if hints is not None:
            self.endings = (f"-{hints.event_type}", 0), (f"-{hints.attempt}", 1)
            self.service = None if hints.service is None else hints.service.lower()


_names = lru_cache(maxsize=64)(HeaderNames)


def names_of(sender: Signing | None) -> HeaderNames:
    """Return the names of a sender's headers; by default the names that most senders use."""
    if sender is None:
        return _names(WEBHOOK, Hints())
    try:
        return _names(sender.headers, sender.hints)
    except AttributeError:
        raise no_sender(sender) from None


def families_of(sender: Signing | None) -> HeaderNames | None:
    """Return the names of a sender's headers; None for ``webhook-*``, which has a faster path."""
    if sender is None:
        return None
    try:
        prefixes = sender.headers
    except AttributeError:
        raise no_sender(sender) from None
    return None if prefixes == WEBHOOK else names_of(sender)
