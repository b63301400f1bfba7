"""Detects two applications under one endpoint: in one process that is an error, else a warning."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ..clock import moment_text
from ..logs import get_logger
from ..stores.applications import Application, RegisteringStore, strangers
from ..verification.secrets import fingerprint
from .handler import Handler

_log = get_logger("hookonce")

# Limit how often the store is asked: a readiness probe may come every second, and each registration
# writes to the store.
_PAUSE_SECONDS = 60.0


def application_of(
    handlers: Sequence[Handler], secrets: Iterable[str], endpoint: str
) -> Application | None:
    """Return the identity of an application: its handlers and secrets; None without handlers."""
    if not handlers:
        return None
    return Application(
        frozenset(handler.name for handler in handlers),
        frozenset(fingerprint(secret, f"application at {endpoint}") for secret in secrets),
    )


def warning_of(stranger: Application, endpoint: str) -> str:
    """Return the warning about another application at the same endpoint."""
    return (
        f"another application receives under the endpoint {endpoint!r} on this store"
        f" ({stranger.describe()}, last seen {moment_text(stranger.seen_unix)}): an event that one"
        " of them has handled is a duplicate for the other; give one of them Receiver(endpoint=…)"
    )


@dataclass(eq=False, repr=False)
class Registration:
    """Registers this application in the store, and warns of other applications at its endpoint.

    Attributes:
        store: the receiver's store; None if it cannot register applications.
        endpoint: the name of the endpoint.
        application: returns the identity of this application; None if it has no handlers or its
            secrets cannot be read.
    """

    store: RegisteringStore | None
    endpoint: str
    application: Callable[[], Application | None]
    _warnings: tuple[str, ...] = ()
    _warned_of: set[Application] = field(default_factory=set)
    _next: float = 0.0

    async def register(self) -> None:
        """Register this application.

        Raises:
            ValueError: another application receives under this endpoint in this process.
            StoreError: the store does not answer.
        """
        own = self.application()
        if own is None or self.store is None:
            return
        with _lock:
            here = (self.store.place, self.endpoint)
            present = [other for place, other in _registered.values() if place == here]
            for other in strangers(own, present):
                raise ValueError(
                    f"two applications receive under the endpoint {self.endpoint!r} on one store:"
                    f" {other.describe()}, and {own.describe()}. An event that one of them has"
                    " handled is a duplicate for the other; give one of them"
                    " Receiver(endpoint=…)"
                )
            _registered[self] = here, own
        self._next = 0.0
        await self.renew()

    def unregister(self) -> None:
        """Unregister this application."""
        with _lock:
            _registered.pop(self, None)

    async def renew(self) -> tuple[str, ...]:
        """Renew the registration, at most once a minute; return warnings about other applications.

        Raises:
            StoreError: the store does not answer.
        """
        now = asyncio.get_running_loop().time()
        own = self.application()
        if self.store is None or own is None or now < self._next:
            return self._warnings
        known = await self.store.register(self.endpoint, own)
        self._next = now + _PAUSE_SECONDS
        others = strangers(own, known)
        self._warnings = tuple(warning_of(other, self.endpoint) for other in others)
        for other, warning in zip(others, self._warnings, strict=True):
            if other not in self._warned_of:
                _log.warning("%s", warning)
        self._warned_of = set(others)
        return self._warnings


_lock = threading.Lock()
_registered: weakref.WeakKeyDictionary[Registration, tuple[tuple[Hashable, str], Application]] = (
    weakref.WeakKeyDictionary()
)
