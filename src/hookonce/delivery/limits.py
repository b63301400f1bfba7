"""The time limits and size limits of a receiver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..clock import span_seconds
from ..errors import shows_half_built
from ..sender import ANSWER_SECONDS

# Leave time for up to two store calls after the answer budget: the sender waits ten seconds.
_MOST_ANSWER_SECONDS = 8.5
_ON_THE_WAY_SECONDS = 0.1


@shows_half_built
@dataclass(frozen=True, slots=True, init=False)
class Limits:
    """Time limits and size limits.

    Each time limit takes seconds or a ``timedelta``, and is stored in seconds.

    Attributes:
        answer_seconds: when a delivery must be answered, counted from its arrival. A handler that
            needs longer continues, and the sender's next attempt finds its result. At most 8.5.
        lease_seconds: how long a claim lasts. It is extended every third of this while its handlers
            run. After a crash another process can claim the event when the lease is over.
        handler_timeout_seconds: after this an async handler is cancelled and counts as failed. A
            sync handler cannot be cancelled: it keeps its claim until it ends, and makes the
            receiver unready.
        store_seconds: the time limit of each call to the store; a slower one counts as failed.
        body_seconds: a request whose body takes longer than this to arrive is answered 408.
        drain_seconds: how long a shutdown waits for running handlers.
        body_bytes: the largest body; a larger one is answered 413 and never held in memory.
        bodies_bytes: the most memory for bodies that are still arriving, over all requests to an
            ASGI application. Beyond it, the oldest of these requests is answered 503. At least
            ``body_bytes``.
        threads: how many sync handlers run at the same time.
    """

    answer_seconds: float
    lease_seconds: float
    handler_timeout_seconds: float
    store_seconds: float
    body_seconds: float
    drain_seconds: float
    body_bytes: int
    bodies_bytes: int
    threads: int

    def __init__(
        self,
        *,
        answer_seconds: float | timedelta = 8.0,
        lease_seconds: float | timedelta = 30.0,
        handler_timeout_seconds: float | timedelta = 900.0,
        store_seconds: float | timedelta = 3.0,
        body_seconds: float | timedelta = 5.0,
        drain_seconds: float | timedelta = 20.0,
        body_bytes: int = 2 * 1024 * 1024,
        bodies_bytes: int = 128 * 1024 * 1024,
        threads: int = 8,
    ) -> None:
        for name, span in (
            ("answer_seconds", answer_seconds),
            ("lease_seconds", lease_seconds),
            ("handler_timeout_seconds", handler_timeout_seconds),
            ("store_seconds", store_seconds),
            ("body_seconds", body_seconds),
            ("drain_seconds", drain_seconds),
        ):
            object.__setattr__(self, name, span_seconds(name, span, positive=True))
        for name, number in (
            ("body_bytes", body_bytes),
            ("bodies_bytes", bodies_bytes),
            ("threads", threads),
        ):
            if not 0 < number < float("inf"):
                raise ValueError(f"{name} must be a finite number above 0, not {number!r}")
            object.__setattr__(self, name, number)
        if self.answer_seconds > _MOST_ANSWER_SECONDS:
            raise ValueError(
                f"answer_seconds must be at most {_MOST_ANSWER_SECONDS}, since the sender gives up"
                f" after {ANSWER_SECONDS:g} s"
            )
        if self.bodies_bytes < self.body_bytes:
            raise ValueError(
                f"bodies_bytes must be at least body_bytes, {self.body_bytes}, or the largest body"
                f" could never arrive; it is {self.bodies_bytes}"
            )


def store_seconds_within(limits: Limits, left: float) -> float:
    """Return the time limit of a call to the store if the answer is due in ``left`` seconds."""
    # Up to two calls after the answer budget share the seconds until the sender gives up.
    last_call_seconds = (ANSWER_SECONDS - _ON_THE_WAY_SECONDS - limits.answer_seconds) / 2
    return min(limits.store_seconds, max(left, last_call_seconds))
