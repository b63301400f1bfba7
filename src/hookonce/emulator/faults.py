"""Injected faults: platforms that fail or are slow, and lost webhooks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from ..clock import span_seconds
from ..resources import TargetError
from .rules import SUBSCRIBABLE


@dataclass(slots=True)
class PlatformFault:
    """An injected fault of a platform.

    Attributes:
        rate: the probability of a failure, from 0 to 1.
        times: how many failures remain; None means no limit.
        for_good: whether the service gives up at once; otherwise it tries again.
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
        """Decide at random whether the platform fails now; if so, count the failure."""
        if self.times == 0 or random.random() >= self.rate:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class Faults:
    """The injected faults.

    Attributes:
        platforms: the fault of each channel's platform, by channel id; None stands for all others.
        slowness: the additional seconds of each channel's platform, by channel id; None stands for
            all others.
        lost: how many events of a type will get no delivery; None stands for any type.
    """

    platforms: dict[str | None, PlatformFault] = field(default_factory=dict)
    slowness: dict[str | None, float] = field(default_factory=dict)
    lost: dict[str | None, int] = field(default_factory=dict)

    def at_platform(self, channel_id: str, random: Random) -> PlatformFault | None:
        """Return the fault of a channel's platform if it fails now, else None."""
        for key in (channel_id, None):
            fault = self.platforms.get(key)
            if fault is not None and fault.strikes(random):
                return fault
        return None

    def delay(self, channel_id: str) -> float:
        """Return the additional seconds that a channel's platform takes."""
        return self.slowness.get(channel_id, self.slowness.get(None, 0.0))

    def loses(self, event_type: str) -> bool:
        """Decide whether to lose an event of this type now; if so, count the loss."""
        for key in (event_type, None):
            if self.lost.get(key, 0):
                self.lost[key] -= 1
                return True
        return False


class FaultInjection:
    """Injects faults into an emulated service.

    Get it from ``EmulatedService.faults``.

    Args:
        channels: the ids of the workspace's channels.
        faults: receives the faults.
    """

    def __init__(self, channels: Container[str], faults: Faults) -> None:
        self._channels = channels
        self._faults = faults

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
        """Let the platform of a channel refuse posts and replies.

        Args:
            channel: the channel's id; all channels by default.
            code: the error code of the target or the reply.
            message: the error message of the target or the reply.
            rate: the probability, from 0 to 1; the seed determines each draw.
            times: how often; by default until ``platform_works``.
            for_good: whether the service gives up at once; otherwise it tries three times in all.

        Raises:
            LookupError: there is no such channel.
            ValueError: ``rate`` is not from 0 to 1, or ``times`` is below 1.
        """
        error = TargetError(code=code, message=message)
        self._faults.platforms[self._known(channel)] = PlatformFault(error, rate, times, for_good)

    def platform_is_slow(self, channel: str | None = None, *, seconds: float | timedelta) -> None:
        """Slow down each post and reply on the platform of one channel, or of all channels.

        Raises:
            LookupError: there is no such channel.
            ValueError: ``seconds`` is negative or not finite.
        """
        self._faults.slowness[self._known(channel)] = span_seconds("seconds", seconds)

    def platform_works(self, channel: str | None = None) -> None:
        """Remove the faults of one channel; without ``channel``, the faults for all channels."""
        self._faults.platforms.pop(self._known(channel), None)
        self._faults.slowness.pop(channel, None)

    def lose_webhook(self, event_type: str | None = None, *, times: int = 1) -> None:
        """Lose the next events of a type, or of any type: they are not delivered and not logged."""
        if event_type is not None and event_type not in SUBSCRIBABLE:
            raise ValueError(f"there is no event type {event_type!r}")
        self._faults.lost[event_type] = times

    def _known(self, channel: str | None) -> str | None:
        if channel is not None and channel not in self._channels:
            raise LookupError(f"there is no channel {channel!r}")
        return channel
