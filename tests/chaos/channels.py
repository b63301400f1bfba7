"""Channel events under chaos: each channel must end with the status that it was given last.

They come late, twice, and out of order, and their handlers fail; ``latest_by`` keeps what is older
from overwriting what is newer. A second handler notes every event, to know what is newest.
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

# The other events are of types that nobody handles here: see `simulate`.
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
    if not (store == "memory" and mode is Mode.INBOX)  # it offers inline only
)


@dataclass(frozen=True, slots=True)
class _Status:
    """A channel's status, and which event it is from."""

    created_at: datetime
    event_id: str
    status: str


class Channels:
    """What became of the channels of a simulation.

    Args:
        place: where it is.
        url: of the store.
        events: how many events of channels there are, about, and at 10,000 at the least.
        seed: what chaos is drawn by.

    Attributes:
        report: of the simulation.
        count: how many events of channels there were.

    """

    def __init__(self, place: Place, url: str, *, events: int, seed: int) -> None:
        self._held: dict[str, _Status] = {}
        self._told: defaultdict[str, set[_Status]] = defaultdict(set)
        with silence():
            self.report: SimulationReport = simulate(
                self._receiver(),
                events=int(events / _CHANNEL_EVENTS),
                seed=seed,
                store=url,
                mode=place.mode,
                channels=CHANNELS,
            )
        self.count = sum(map(len, self._told.values()))

    def wrong(self) -> list[str]:
        """Return the channels that do not have their newest status."""
        wrong = []
        for channel, told in self._told.items():
            newest = max(status.created_at for status in told)
            # Of two of one time either may be the last.
            if self._held.get(channel) not in {one for one in told if one.created_at == newest}:
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
            self._held[event.data.id] = _status(event)

        @receiver.on(ChannelUnhealthy, ChannelDisconnected, name="note")
        async def note(event: ChannelUnhealthy | ChannelDisconnected) -> None:
            self._told[event.data.id].add(_status(event))

        return receiver


def _status(event: ChannelUnhealthy | ChannelDisconnected) -> _Status:
    return _Status(event.created_at, event.id, str(event.data.status))
