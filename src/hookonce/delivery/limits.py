"""The limits a receiver keeps to, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..clock import span_seconds
from ..errors import shows_half_built
from ..sender import ANSWER_SECONDS

# What may come after the budget is two last calls to the store, and the sender waits ten seconds.
_MOST_ANSWER_SECONDS = 8.5
_ON_THE_WAY_SECONDS = 0.1


@shows_half_built
@dataclass(frozen=True, slots=True, init=False)
class Limits:
    """How long and how large things may become.

    Each limit of time takes seconds or a ``timedelta``, and is held in seconds.

    Attributes:
        answer_seconds: a delivery is answered this long after it arrived at the latest; a handler
            that needs longer goes on, and the retry finds it done. At most 8.5.
        lease_seconds: a claim is renewed at a third of this while its handlers run, and is free
            again this long after a crash.
        handler_timeout_seconds: after this an async handler is cancelled and counts as failed; a
            sync one cannot be, keeps its claim until it ends, and makes the receiver unready.
        store_seconds: a store that has not answered by then counts as unreachable.
        body_seconds: a request whose body has not arrived by then is answered 408.
        drain_seconds: how long a shutdown waits for running handlers.
        body_bytes: the largest body; a larger one is answered 413 and never held in memory.
        bodies_bytes: how much is held of bodies that have not arrived whole, over all requests to
            an ASGI application; beyond it the one under way longest is answered 503. At least
            ``body_bytes``.
        threads: how many sync handlers run at once.

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
                f"answer_seconds must be at most {_MOST_ANSWER_SECONDS}: the sender gives up at 10"
            )
        if self.bodies_bytes < self.body_bytes:
            raise ValueError(
                f"bodies_bytes must be at least body_bytes, {self.body_bytes}, or the largest body"
                f" could never arrive; it is {self.bodies_bytes}"
            )

    @property
    def last_look_seconds(self) -> float:
        """How long a call to the store may take that begins at the end of the answer budget.

        There can be two of them, and they share what is left until the sender gives up.
        """
        return (ANSWER_SECONDS - _ON_THE_WAY_SECONDS - self.answer_seconds) / 2

    def store_seconds_within(self, left: float) -> float:
        """Return how long a call to the store may take, with so many seconds to the answer."""
        return min(self.store_seconds, max(left, self.last_look_seconds))
