"""The settings of a receiver: checked once, and frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any, TypedDict, Unpack

from ..clock import Clock, span_seconds
from ..delivery.limits import Limits
from ..errors import SecretError
from ..inbox.settings import Inbox
from ..senders import Sender
from ..senders.rules import retention_fault
from ..senders.sender import check_sender
from ..stores import open_store
from ..stores.handled import HandledStore, Keeping
from ..stores.protocols import DEFAULT_RETENTION, InboxStore, Store
from ..verification.providers import UNUSABLE
from ..verification.secrets import SecretSource, SecretsProvider, fault_among, secrets_of

# A stored key is `endpoint:id`. A colon in the endpoint could give two different pairs the same
# key.
_ENDPOINT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class HiddenSecrets:
    """Hides secrets, or their provider, from the repr of the settings.

    Args:
        secrets: the argument of ``Receiver``; a list is copied.

    Raises:
        SecretError: there is no secret, or the provider fails.
    """

    __slots__ = ("source",)

    def __init__(self, secrets: SecretSource) -> None:
        known = secrets_of(secrets)
        self.source: SecretsProvider | tuple[str, ...] = (
            secrets if isinstance(secrets, SecretsProvider) else known
        )


class Changes(TypedDict, total=False):
    """The arguments of ``Receiver.copy``; they mean the same as the arguments of ``Receiver``.

    Attributes:
        secrets: one secret, several (newest first), or a provider of them.
        store: a store, or its URL.
        endpoint: the endpoint's name; each event is handled once for each name.
        sender: the sender, with its rules.
        tolerance: how far a timestamp may be from the clock, in seconds or as a ``timedelta``.
        keep_handled: how long the deliveries of handled events are kept; None keeps none.
        keep_handled_bytes: the largest sum of the sizes of the kept bodies; None for no limit.
        inbox: the settings of the inbox; None handles events inside the request.
        limits: time limits and sizes.
        clock: Unix time in seconds.
    """

    secrets: SecretSource
    store: Store | str
    endpoint: str
    sender: Sender
    tolerance: float | timedelta | None
    keep_handled: float | timedelta | None
    keep_handled_bytes: int | None
    inbox: Inbox | None
    limits: Limits
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The settings of a receiver; the arguments are those of ``Receiver``.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument cannot be used.
    """

    secrets: HiddenSecrets
    store: Store
    endpoint: str
    sender: Sender
    tolerance: float | timedelta | None
    retention: float | timedelta | None
    keep_handled: float | timedelta | None
    keep_handled_bytes: int | None
    inbox: Inbox | None
    limits: Limits
    clock: Clock

    def __post_init__(self) -> None:
        endpoint = self.endpoint
        if not isinstance(endpoint, str) or _ENDPOINT.fullmatch(endpoint) is None:
            raise ValueError(
                "endpoint takes 1 to 64 letters, digits, underscores, full stops and hyphens,"
                f" not {endpoint!r}"
            )
        if self.inbox is not None and not isinstance(self.inbox, Inbox):
            raise TypeError(
                f"inbox takes an Inbox, such as Inbox(concurrency=16), not {self.inbox!r}"
            )
        if self.inbox is not None and not isinstance(self.store, InboxStore):
            raise ValueError(
                f"{type(self.store).__name__} has no inbox, because its events do not outlive the"
                " process; use sqlite:///file.db, postgresql://host/database or redis://host, or"
                " leave `inbox` out to handle events inside the request"
            )
        self._check_keep_handled()
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits takes Limits, such as Limits(threads=16), not {self.limits!r}")
        check_sender(self.sender)
        object.__setattr__(self, "limits", self.limits.for_sender(self.sender.rules))
        fault = retention_fault(self.sender.rules, getattr(self.store, "retention_seconds", None))
        if fault is not None:
            raise ValueError(fault)
        if self.tolerance is not None:
            seconds = span_seconds("tolerance", self.tolerance)
            object.__setattr__(self, "tolerance", seconds)

    def _check_keep_handled(self) -> None:
        most = self.keep_handled_bytes
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(
                f"keep_handled_bytes must be a whole number of bytes from 1, not {most!r}"
            )
        if self.keep_handled is None and most is not None:
            raise ValueError(
                "keep_handled_bytes needs keep_handled, such as timedelta(days=3): how long the"
                " deliveries of handled events are kept"
            )
        if self.keep_handled is not None:
            span_seconds("keep_handled", self.keep_handled, positive=True)
        if self.keep_handled is not None and not isinstance(self.store, HandledStore):
            raise ValueError(
                f"{type(self.store).__name__} cannot keep handled events: it lacks the calls of"
                " HandledStore; leave keep_handled out, or use a store of hookonce"
            )

    @property
    def keeping(self) -> Keeping | None:
        """The time and size limits of the kept handled events; None if the store keeps none."""
        if self.keep_handled is None:
            return None
        seconds = span_seconds("keep_handled", self.keep_handled)
        return Keeping(seconds, self.keep_handled_bytes)

    @property
    def tolerance_seconds(self) -> float:
        """The largest allowed distance between a timestamp and the clock, in both directions."""
        if self.tolerance is None:
            return self.sender.tolerance_seconds
        return span_seconds("tolerance", self.tolerance)

    def replaced(self, **changes: Unpack[Changes]) -> ReceiverSettings:
        """Return a copy of the settings with these changes; raise the errors of the constructor."""
        changed: dict[str, Any] = {**changes}
        if "secrets" in changes:
            changed["secrets"] = HiddenSecrets(changes["secrets"])
        if "store" in changes:
            store, clock = changes["store"], changes.get("clock", self.clock)
            retention = self.retention if isinstance(store, str) else None
            changed["store"] = opened_store(store, retention, clock)
        return replace(self, **changed)

    def current_secrets(self) -> tuple[str, ...]:
        """Return the secrets in force, newest first; see ``Receiver.current_secrets``."""
        secrets = secrets_of(self.secrets.source)
        fault = fault_among(secrets, "force")
        if not secrets:
            fault = "at least one secret is needed, but none is in force"
        if fault is not None:
            del secrets
            raise SecretError(fault)
        return secrets

    def secrets_fault(self) -> tuple[str, ...]:
        """Return why the provider cannot use the new secrets; empty if there is no fault."""
        fault = getattr(self.secrets.source, "fault", None)
        return () if fault is None else (f"{UNUSABLE}: {fault}",)


def opened_store(store: Store | str, retention: float | timedelta | None, clock: Clock) -> Store:
    """Return the given store, or a new store for a URL.

    Raises:
        TypeError: the argument is neither a store nor a URL.
        ValueError: the URL cannot be used, or ``retention`` is given together with a store.
        ImportError: the backend is not installed.
    """
    if isinstance(store, str):
        kept = DEFAULT_RETENTION if retention is None else retention
        return open_store(store, retention=kept, clock=clock)
    if isinstance(store, type) or not isinstance(store, Store):
        raise TypeError(_store_fault(store))
    if retention is not None:
        raise ValueError("give retention to the store itself, or the store as a URL")
    return store


def _store_fault(store: object) -> str:
    """Return the error message for an invalid store, without its repr: it may hold a password."""
    takes = (
        "store takes a URL, such as sqlite:///hookonce.db, postgresql://host/database or redis://host,"
        " or a store"
    )
    if store is None:
        return f"{takes}, not None; is the setting it comes from missing?"
    if isinstance(store, type):
        return f"{takes}, not the class {store.__name__}: make an instance of it"
    if isinstance(store, PurePath):
        return f"{takes}, not a path: write f'sqlite:///{{path}}'"
    return f"{takes}, not {type(store).__name__}"
