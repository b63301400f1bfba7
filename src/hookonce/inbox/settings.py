"""Settings of an inbox: concurrency, attempts, backoff and capacity."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from zlib import crc32

from ..clock import span_seconds


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """The wait of an event after a failed attempt: exponential backoff with jitter.

    Attributes:
        first_seconds: the wait after the first attempt.
        factor: each further wait is this many times as long as the previous wait.
        longest_seconds: the longest wait, before jitter.
        jitter: the largest random change of a wait, as a fraction of it, so that events that failed
            together are not all retried together; 0 for no change.
    """

    first_seconds: float
    factor: float
    longest_seconds: float
    jitter: float

    def __init__(
        self,
        *,
        first_seconds: float | timedelta = 10.0,
        factor: float = 3.0,
        longest_seconds: float | timedelta = timedelta(hours=6),
        jitter: float = 0.1,
    ) -> None:
        if not 1 <= factor < float("inf"):
            raise ValueError(f"factor must be at least 1, not {factor!r}")
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {jitter!r}")
        object.__setattr__(self, "first_seconds", span_seconds("first_seconds", first_seconds))
        object.__setattr__(self, "factor", factor)
        object.__setattr__(
            self, "longest_seconds", span_seconds("longest_seconds", longest_seconds)
        )
        object.__setattr__(self, "jitter", jitter)

    def seconds(self, attempt: int, event_id: str) -> float:
        """Return the seconds to wait after attempt number ``attempt``, counted from 1.

        The event's id decides the jitter, so that a simulation can be repeated.
        """
        seconds = self.first_seconds
        for _ in range(attempt - 1):
            if seconds >= self.longest_seconds:
                break
            seconds *= self.factor
        chance = (
            crc32(f"{attempt}:{event_id}".encode(errors="replace")) / 2**32
        )  # a number from 0 to 1
        return min(seconds, self.longest_seconds) * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """Answer as soon as a delivery is stored, and let workers handle the event.

    By default a failing event is tried for about a day, as long as the default sender would
    try.

    Attributes:
        concurrency: how many events a worker handles at once.
        max_attempts: the number of failed attempts after which an event is a dead letter.
        backoff: how long an event waits between attempts, unless ``Retry(after=…)`` says otherwise;
            a number is the first wait in seconds.
        max_depth: with this many events in the inbox, deliveries are answered 503, and the sender
            retries them.
        max_bytes: the same limit for the bytes of all bodies.
        embedded: run a worker in the application's own lifespan; with False, run
            ``hookonce worker`` instead.
    """

    concurrency: int = 16
    max_attempts: int = 12
    backoff: Backoff | float | timedelta = field(default_factory=Backoff)
    max_depth: int = 1_000_000
    max_bytes: int = 4 * 1024**3
    embedded: bool = True

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_attempts", "max_depth", "max_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, not {value!r}")
        if not isinstance(self.embedded, bool):
            raise TypeError(f"embedded takes True or False, not {self.embedded!r}")
        self.backoff_seconds(1, "")  # raises if `backoff` is invalid

    def backoff_seconds(self, attempt: int, event_id: str) -> float:
        """Return how long an event waits after failed attempt number ``attempt``, from 1."""
        backoff = self.backoff
        if not isinstance(backoff, Backoff):
            backoff = Backoff(first_seconds=span_seconds("backoff", backoff))
        return backoff.seconds(attempt, event_id)
