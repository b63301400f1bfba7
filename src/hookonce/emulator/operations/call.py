"""One call of an operation: what it is about, and what it needs to be answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from ...resources import ApiKey, WebhookDelivery
from ..faults import Faults
from ..publishing import Publishing
from ..records import DeliveryRow
from ..storage import Storage
from ..workspace import WorkspaceState


class Service(Protocol):
    """What the API needs of the service behind it."""

    @property
    def workspace(self) -> WorkspaceState:
        """The workspace of every key."""
        ...

    @property
    def now(self) -> float:
        """The Unix time of the service."""
        ...

    async def test(self, endpoint: str) -> WebhookDelivery:
        """Deliver a test event at once."""
        ...

    def rotate_secret(self, endpoint: str) -> str:
        """Give an endpoint another secret."""
        ...

    def enable(self, endpoint: str) -> None:
        """Turn an endpoint back on."""
        ...

    def disable(self, endpoint: str) -> None:
        """Turn an endpoint off."""
        ...

    async def wait(self, seconds: float) -> None:
        """Let what happens at once take so long, where time flows."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What operations work with.

    Attributes:
        service: the service behind the API.
        publishing: takes posts to their platforms.
        storage: takes the bytes of media.
        faults: what goes wrong at the platforms.
        log: gives the deliveries of an endpoint, newest first.
        new_id: gives an id that starts with a prefix.
        random: draws what happens at once, such as whether a platform takes a reply.
        allow_loopback: whether endpoints may have http and loopback addresses.

    """

    service: Service
    publishing: Publishing
    storage: Storage
    faults: Faults
    log: Callable[[str], list[DeliveryRow]]
    new_id: Callable[[str], str]
    random: Random
    allow_loopback: bool

    @property
    def workspace(self) -> WorkspaceState:
        """The workspace of every key."""
        return self.service.workspace

    @property
    def now(self) -> float:
        """The Unix time of the service."""
        return self.service.now


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request that was admitted.

    Attributes:
        desk: what there is to work with.
        key: who calls.
        base_url: what the service's own addresses begin with, as the caller reached it.
        row: the row that the path names, if it names one.
        query: the query, of the model that the operation has for it.
        body: the body, likewise.

    """

    desk: Desk
    key: ApiKey
    base_url: str
    row: Any = None  # of the type that the operation's path names
    query: Any = None  # of the type in the table of operations
    body: Any = None  # likewise
