"""Simulations of channel events with faults: each channel must end with its newest status.

Events arrive late, twice and out of order, and their handlers fail. ``latest_by`` keeps an older
event from overwriting a newer status. A second handler records every event, so the test knows the
newest status.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from chaos.combinations import STORES, silence
from hookonce import Receiver
from hookonce.events import ChannelDisconnected, ChannelUnhealthy
from hookonce.simulation import Mode, SimulationReport, simulate
from hookonce.verification.secrets import new_secret

__all__ = ["CHANNELS", "PLACES", "Channels", "Place"]

CHANNELS = 100

# The share of channel events. The receiver has no handler for the other simulated events.
_CHANNEL_EVENTS = 0.92


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of store, and where handlers run."""

    store: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.store}, {self.mode.value}"


PLACES = tuple(
    Place(store, mode)
    for store in STORES
    for mode in (Mode.INLINE, Mode.INBOX)
    if not (store == "memory" and mode is Mode.INBOX)  # the memory store has no inbox
)


@dataclass(frozen=True, slots=True)
class _Status:
    """A channel's status, and the event that set it."""

    created_at: datetime
    event_id: str
    status: str


class Channels:
    """A simulation of channel events, and the final statuses.

    Args:
        place: the kind of store and the mode.
        url: the URL of the store.
        events: the approximate number of channel events.
        seed: the seed of the simulation.

    Attributes:
        report: the report of the simulation.
        count: the number of channel events.

    """

    def __init__(self, place: Place, url: str, *, events: int, seed: int) -> None:
        self._statuses: dict[str, _Status] = {}
        self._seen: defaultdict[str, set[_Status]] = defaultdict(set)
        with silence():
            self.report: SimulationReport = simulate(
                self._receiver(),
                events=int(events / _CHANNEL_EVENTS),
                seed=seed,
                store=url,
                mode=place.mode,
                channels=CHANNELS,
            )
        self.count = sum(map(len, self._seen.values()))

    def wrong(self) -> list[str]:
        """Return the channels that do not have their newest status."""
        wrong = []
        for channel, seen in self._seen.items():
            newest = max(status.created_at for status in seen)
            # If the two newest events have the same time, either status is right.
            if self._statuses.get(channel) not in {one for one in seen if one.created_at == newest}:
                wrong.append(channel)
        return wrong

    def _receiver(self) -> Receiver:
        receiver = Receiver(secrets=new_secret(), store="memory://")

        @receiver.on(
            ChannelUnhealthy,
            ChannelDisconnected,
            latest_by=lambda event: event.data.id,
            name="follow",
        )
        async def follow(event: ChannelUnhealthy | ChannelDisconnected) -> None:
            self._statuses[event.data.id] = _status(event)

        @receiver.on(ChannelUnhealthy, ChannelDisconnected, name="note")
        async def note(event: ChannelUnhealthy | ChannelDisconnected) -> None:
            self._seen[event.data.id].add(_status(event))

        return receiver


def _status(event: ChannelUnhealthy | ChannelDisconnected) -> _Status:
    return _Status(event.created_at, event.id, str(event.data.status))
