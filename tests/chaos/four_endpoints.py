"""One application with an endpoint for each built-in sender, on one store, in virtual time.

Each endpoint has a simulated sender of its own, which delivers by its own rules. All four send at
the same time, and their events have the same ids: only the endpoint keeps them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

from chaos.channels import PLACES, Place
from chaos.combinations import silence
from hookonce import Event, Receiver
from hookonce.emulator.chaos import Disturbance, RequestFault
from hookonce.senders import Sender, openai, publishing, standard, svix
from hookonce.simulation import Fault, HandlerFault, Mode, PlannedEvent, PlannedFault, Scenario
from hookonce.simulation.report import RecordedReport
from hookonce.simulation.simulation import Drawing, Simulation
from hookonce.simulation.virtual_loop import VirtualLoop, run_virtually
from hookonce.verification.secrets import new_secret

__all__ = [
    "ENDPOINTS",
    "SENDERS",
    "attempts_of",
    "simulate_drawn",
    "simulate_to_the_last_attempt",
]

SENDERS = {sender.name: sender for sender in (publishing, standard, svix, openai)}

# Each endpoint has its own receiver here, and receivers cannot share a store in memory.
ENDPOINTS = tuple(place for place in PLACES if place.store != "memory")

_TYPES = {publishing.name: "comment.received", openai.name: "response.completed"}
_CHAOS = 0.5


def simulate_drawn(
    place: Place, url: str, *, events: int, seed: int
) -> Mapping[str, RecordedReport]:
    """Simulate random events and faults; return each endpoint's report by its sender's name.

    Args:
        place: where handlers run.
        url: the URL of the store.
        events: the number of events of each sender.
        seed: determines the events and faults.
    """
    drawing = Drawing(events, _CHAOS, seed, channels=None)
    return _simulate(place.mode, url, lambda _: drawing)


def simulate_to_the_last_attempt(
    url: str, *, events: int, seed: int
) -> Mapping[str, RecordedReport]:
    """Simulate senders whose attempts fail, except the last attempt; return the reports.

    Handlers run inside the request, because an inbox would retry by its own schedule.
    """

    def script(sender: Sender) -> Scenario:
        planned = [
            PlannedEvent(f"evt_{number}", _TYPES.get(sender.name, "order.paid"), float(number))
            for number in range(events)
        ]
        faults = (
            fault
            for event, fail in zip(planned, cycle(_FAILURES), strict=False)
            for number in range(1, attempts_of(sender))
            for fault in fail(event.id, number)
        )
        return Scenario(planned, tuple(faults), seed)

    return _simulate(Mode.INLINE, url, script)


def attempts_of(sender: Sender) -> int:
    """Return the greatest number of times that the sender delivers an event."""
    return 1 + len(sender.rules.tried_retry_seconds)


def _unreachable(event_id: str, number: int) -> Iterator[PlannedFault]:
    yield RequestFault(event_id, number, Disturbance.RESET, 0.5)


def _unheard(event_id: str, number: int) -> Iterator[PlannedFault]:
    yield RequestFault(event_id, number, Disturbance.LOST_ANSWER)


def _refused(event_id: str, number: int) -> Iterator[PlannedFault]:
    yield RequestFault(event_id, number, Disturbance.CLOCK_SKEW, -600.0)


def _failing(event_id: str, number: int) -> Iterator[PlannedFault]:
    yield HandlerFault(event_id, "note", number, Fault.FAILS_BEFORE)


_FAILURES: tuple[Callable[[str, int], Iterator[PlannedFault]], ...] = (
    *(_unreachable, _unheard),
    *(_refused, _failing),
)


def _simulate(
    mode: Mode, url: str, script: Callable[[Sender], Scenario | Drawing]
) -> dict[str, RecordedReport]:
    async def run(loop: VirtualLoop) -> dict[str, RecordedReport]:
        async with asyncio.TaskGroup() as simulations:
            running = {
                name: simulations.create_task(
                    Simulation(_receiver(sender), loop, url, mode, script(sender)).run()
                )
                for name, sender in SENDERS.items()
            }
        return {name: simulation.result() for name, simulation in running.items()}

    with silence():
        return run_virtually(run)


def _receiver(sender: Sender) -> Receiver:
    receiver = Receiver(
        secrets=new_secret(), store="sqlite:///never-opened.db", sender=sender, endpoint=sender.name
    )

    @receiver.on("*", name="note")
    async def note(event: Event[Any]) -> None: ...

    @receiver.on("*", name="count")
    def count(event: Event[Any]) -> None: ...

    return receiver
