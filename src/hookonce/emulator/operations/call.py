"""The call of an operation, and the objects that all operations use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ...resources import ApiKey, WebhookDelivery
from ..deliveries import Deliveries
from ..faults import Faults
from ..publishing import Publishing
from ..storage import Storage
from ..timeline import Timeline
from ..workspace import WorkspaceState


@dataclass(frozen=True, slots=True)
class Backend:
    """The objects that all operations use.

    Attributes:
        deliver_test: delivers a test event at once, given the endpoint's id.
        new_id: makes an id, given its prefix.
        random: draws what happens within a call, such as whether a platform accepts a reply.
        allow_loopback: whether endpoints may have loopback addresses, also by http.
    """

    workspace: WorkspaceState
    timeline: Timeline
    deliveries: Deliveries
    publishing: Publishing
    storage: Storage
    faults: Faults
    deliver_test: Callable[[str], Awaitable[WebhookDelivery]]
    new_id: Callable[[str], str]
    random: Random
    allow_loopback: bool

    @property
    def now(self) -> float:
        return self.timeline.now


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request with a valid key, role, path, query and body.

    Attributes:
        base_url: the first part of the service's URLs, as the caller reached the service.
        row: the row that the path names, if any.
        query: the query, as the operation's model.
        body: the body, as the operation's model.
    """

    backend: Backend
    key: ApiKey
    base_url: str
    row: Any = None  # the table `OPERATIONS` determines the types of `row`, `query` and `body`
    query: Any = None
    body: Any = None
