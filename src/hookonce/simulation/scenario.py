"""A scenario: everything that happens to a receiver in one simulation, as a value.

Each event and each fault has its own identity: a request fault belongs to an attempt of an event,
and a handler fault to a call of a handler for an event. So each of them can be left out, and all
others stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pydantic import JsonValue

from ..emulator.chaos import RequestFault, RequestFaults
from .faults import HandlerFault, HandlerFaults, Injection


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """An event that the emulated service emits in a scenario.

    Attributes:
        id: the event's id.
        type: the event's type.
        at: when the service emits the event, in seconds from the start.
        data: fields that replace those of a realistic event, by wire name.
    """

    id: str
    type: str
    at: float = 0.0
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of the receiver: a new receiver opens, and then the old receiver closes.

    Attributes:
        at: when, in seconds from the start.
    """

    at: float


PlannedFault: TypeAlias = RequestFault | HandlerFault | Restart
"""A fault of a request, a fault of a call of a handler, or a restart."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The events and faults of a simulation.

    Attributes:
        events: the events, in the order of their emission.
        faults: the faults; everything else goes well.
        seed: decides what a scenario does not name, such as the exact time of a retry.
        channels: the number of channels; by default, the channels of the emulated service.
    """

    events: Sequence[PlannedEvent]
    faults: Sequence[PlannedFault] = ()
    seed: int = 0
    channels: int | None = None

    @property
    def restarts(self) -> list[Restart]:
        """The restarts, in the order of time."""
        restarts = [fault for fault in self.faults if isinstance(fault, Restart)]
        return sorted(restarts, key=lambda restart: restart.at)

    def only(self, event_ids: Collection[str]) -> Scenario:
        """Return the scenario with these events only; faults of other events are left out."""
        return replace(
            self,
            events=tuple(event for event in self.events if event.id in event_ids),
            faults=tuple(
                fault
                for fault in self.faults
                if isinstance(fault, Restart) or fault.event_id in event_ids
            ),
        )

    def renamed(self, name: Callable[[int], str]) -> Scenario:
        """Return the scenario with other ids for its events and their comments.

        Args:
            name: returns the end of a new id for the n-th of the old ids in their order.
        """
        order = sorted(event.id for event in self.events)
        ids = {old: f"evt_{name(number)}" for number, old in enumerate(order, 1)}
        comments = sorted({comment for event in self.events if (comment := _comment_id(event))})
        new = {old: f"cmt_{name(number)}" for number, old in enumerate(comments, 1)}
        return replace(
            self,
            events=tuple(_renamed(event, ids, new) for event in self.events),
            faults=tuple(
                fault
                if isinstance(fault, Restart)
                else replace(fault, event_id=ids.get(fault.event_id, fault.event_id))
                for fault in self.faults
            ),
        )


def _comment_id(event: PlannedEvent) -> str:
    found = event.data.get("id") if event.type.startswith("comment.") else None
    return found if isinstance(found, str) else ""


def _renamed(
    event: PlannedEvent, ids: Mapping[str, str], comments: Mapping[str, str]
) -> PlannedEvent:
    data = event.data
    if comment_id := _comment_id(event):
        data = {**data, "id": comments[comment_id]}
    return replace(event, id=ids[event.id], data=data)


class ScriptedFaults:
    """The faults of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._requests: dict[tuple[str, int], RequestFault] = {}
        self._calls: dict[tuple[str, str, int], Injection] = {}
        for fault in scenario.faults:
            match fault:
                case RequestFault(event_id, attempt):
                    self._requests[event_id, attempt] = fault
                case HandlerFault(event_id, handler, call, kind, seconds):
                    self._calls[event_id, handler, call] = Injection(kind, seconds)

    def request(self, event_id: str, attempt: int) -> RequestFault | None:
        """Return the fault of an attempt, or None."""
        return self._requests.get((event_id, attempt))

    def injection(self, event_id: str, handler: str, number: int) -> Injection | None:
        """Return the fault of a call of a handler, or None."""
        return self._calls.get((event_id, handler, number))


class RecordedFaults:
    """Passes on the faults of other objects, and records the faults that occurred.

    Args:
        requests: returns the fault of an attempt.
        handlers: has the faults of the calls of handlers.
    """

    def __init__(self, requests: RequestFaults, handlers: HandlerFaults) -> None:
        self._requests = requests
        self._handlers = handlers
        self._occurred: dict[RequestFault | HandlerFault, None] = {}

    def request(self, event_id: str, attempt: int) -> RequestFault | None:
        """Return the fault of an attempt, or None."""
        fault = self._requests(event_id, attempt)
        if fault is not None:
            self._occurred[fault] = None
        return fault

    def injection(self, event_id: str, handler: str, number: int) -> Injection | None:
        """Return the fault of a call of a handler, or None."""
        injection = self._handlers.injection(event_id, handler, number)
        if injection is not None:
            fault = HandlerFault(event_id, handler, number, injection.fault, injection.seconds)
            self._occurred[fault] = None
        return injection

    @property
    def occurred(self) -> tuple[RequestFault | HandlerFault, ...]:
        """The faults, in the order in which they first occurred."""
        return tuple(self._occurred)
