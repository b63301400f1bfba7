"""What goes wrong at the platforms and on the way out, on purpose and drawn by a seed."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from random import Random

from ..resources import TargetError
from ..samples.finite import check_seconds
from .rules import SUBSCRIBABLE


@dataclass(slots=True)
class PlatformFault:
    """How a platform fails.

    Attributes:
        error: what a target shows of it.
        rate: the probability of it, from 0 to 1.
        times: how often it still happens; None for as long as it is not taken back.
        for_good: whether the service gives up at once, or tries again.

    """

    error: TargetError
    rate: float = 1.0
    times: int | None = None
    for_good: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is a probability from 0 to 1, not {self.rate!r}")
        if self.times is not None and self.times < 1:
            raise ValueError(f"times is at least 1, not {self.times!r}")

    def strikes(self, random: Random) -> bool:
        """Return whether it happens now, and count that."""
        if self.times == 0 or random.random() >= self.rate:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class Faults:
    """What is to go wrong.

    Attributes:
        platforms: how the platform of a channel fails, by the channel's id; None is every channel.
        slowness: how many seconds longer it takes, likewise.
        lost: how many events of a type get no delivery; None is every type.

    """

    platforms: dict[str | None, PlatformFault] = field(default_factory=dict)
    slowness: dict[str | None, float] = field(default_factory=dict)
    lost: dict[str | None, int] = field(default_factory=dict)

    def at_platform(self, channel_id: str, random: Random) -> PlatformFault | None:
        """Return how the platform of a channel fails this time, if it does."""
        for place in (channel_id, None):
            fault = self.platforms.get(place)
            if fault is not None and fault.strikes(random):
                return fault
        return None

    def delay(self, channel_id: str) -> float:
        """Return how many seconds longer the platform of a channel takes."""
        return self.slowness.get(channel_id, self.slowness.get(None, 0.0))

    def loses(self, event_type: str) -> bool:
        """Return whether this event is lost, and count that."""
        for place in (event_type, None):
            if self.lost.get(place, 0):
                self.lost[place] -= 1
                return True
        return False


class FaultsOnPurpose:
    """What a test can let go wrong; the service is one of these.

    Args:
        channels: the ids of the channels that there are.

    """

    def __init__(self, channels: Container[str]) -> None:
        self._channels = channels
        self._faults = Faults()

    def platform_fails(
        self,
        channel: str | None = None,
        *,
        code: str = "platform.rejected",
        message: str | None = None,
        rate: float = 1.0,
        times: int | None = None,
        for_good: bool = True,
    ) -> None:
        """Let the platform of a channel refuse what is published or answered there.

        Args:
            channel: its id; every channel by default.
            code: what the target's error says, or that of the refused reply.
            message: what it says to people.
            rate: the probability, from 0 to 1, drawn by the seed.
            times: how often; by default until ``platform_works``.
            for_good: whether publishing is given up at once; else it is tried again, three times
                in all.

        Raises:
            LookupError: there is no such channel.
            ValueError: ``rate`` is no probability, or ``times`` is below 1.

        """
        error = TargetError(code=code, message=message)
        self._faults.platforms[self._known(channel)] = PlatformFault(error, rate, times, for_good)

    def platform_is_slow(self, channel: str | None = None, *, seconds: float) -> None:
        """Let the platform of a channel, or each, take so many seconds longer for everything.

        Raises:
            LookupError: there is no such channel.
            ValueError: ``seconds`` is negative or not a finite number.

        """
        check_seconds("seconds", seconds)
        self._faults.slowness[self._known(channel)] = seconds

    def platform_works(self, channel: str | None = None) -> None:
        """Let the platform of a channel, or each that has no fault of its own, do as it should."""
        self._faults.platforms.pop(self._known(channel), None)
        self._faults.slowness.pop(channel, None)

    def lose_webhook(self, event_type: str | None = None, *, times: int = 1) -> None:
        """Let the next events of a type, or of any, be delivered to nobody and leave no trace."""
        if event_type is not None and event_type not in SUBSCRIBABLE:
            raise ValueError(f"there is no event type {event_type!r}")
        self._faults.lost[event_type] = times

    def _known(self, channel: str | None) -> str | None:
        if channel is not None and channel not in self._channels:
            raise LookupError(f"there is no channel {channel!r}")
        return channel
