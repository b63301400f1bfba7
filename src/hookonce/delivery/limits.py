"""The time limits and size limits of a receiver."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from ..clock import span_seconds
from ..errors import shows_half_built
from ..senders import Rules, publishing

# The answer budget as a share of the time that the sender waits. The rest of that time is for up
# to two store calls after the answer budget.
_USUAL_SHARE = 0.8
_LARGEST_SHARE = 0.85
# Time for the transport of the request and of the answer, during which the sender waits, too.
_ON_THE_WAY_SECONDS = 0.1


class _KnownOfSender:
    """The fields of `Limits` that depend on the sender.

    These are no settings, so they have a base class of their own: ``dataclasses.fields`` and
    ``asdict`` show settings only.

    Attributes:
        _answer_is_usual: whether the user has left the answer time to the sender's rules.
        _sender_seconds: how long the sender waits.
    """

    _answer_is_usual: bool
    _sender_seconds: float


@shows_half_built
@dataclass(frozen=True, init=False)
class Limits(_KnownOfSender):
    """Time limits and size limits.

    Each time limit takes seconds or a ``timedelta``, and is stored in seconds.

    Attributes:
        answer_seconds: when a delivery must be answered, counted from its arrival. A handler that
            needs longer continues, and the sender's next attempt finds its result. By default 80
            percent of the time that the receiver's sender waits, and at most 85 percent.
        lease_seconds: how long a claim lasts. It is extended every third of this while its handlers
            run. After a crash another process can claim the event when the lease is over.
        handler_timeout_seconds: after this an async handler is cancelled and counts as failed. A
            sync handler cannot be cancelled: it keeps its claim until it ends, and makes the
            receiver unready.
        store_seconds: the time limit of each call to the store; a slower call counts as failed.
        body_seconds: a request whose body takes longer than this to arrive is answered 408.
        drain_seconds: how long a shutdown waits for running handlers.
        body_bytes: the largest body; a larger body is answered 413 and never held in memory.
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
        answer_seconds: float | timedelta | None = None,
        lease_seconds: float | timedelta = 30.0,
        handler_timeout_seconds: float | timedelta = 900.0,
        store_seconds: float | timedelta = 3.0,
        body_seconds: float | timedelta = 5.0,
        drain_seconds: float | timedelta = 20.0,
        body_bytes: int = 2 * 1024 * 1024,
        bodies_bytes: int = 128 * 1024 * 1024,
        threads: int = 8,
    ) -> None:
        patience = publishing.rules.patience_seconds
        usual = _USUAL_SHARE * patience
        object.__setattr__(self, "_answer_is_usual", answer_seconds is None)
        object.__setattr__(self, "_sender_seconds", patience)
        for name, span in (
            ("answer_seconds", usual if answer_seconds is None else answer_seconds),
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
        if self.bodies_bytes < self.body_bytes:
            raise ValueError(
                f"bodies_bytes must be at least body_bytes, {self.body_bytes}, or the largest body"
                f" could never arrive; it is {self.bodies_bytes}"
            )

    def for_sender(self, rules: Rules) -> Self:
        """Return these limits for a sender that delivers by these rules.

        Raises:
            ValueError: the answer would come too late for the sender.
        """
        patience = rules.patience_seconds
        answer_seconds = _USUAL_SHARE * patience if self._answer_is_usual else self.answer_seconds
        most = _LARGEST_SHARE * patience
        if answer_seconds > most:
            known = (
                "the sender gives up after"
                if rules.answer_seconds
                else ("the sender does not say how long it waits, which counts as")
            )
            raise ValueError(
                f"answer_seconds must be at most {most:g}, since {known} {patience:g} s"
            )
        limits = copy(self)
        object.__setattr__(limits, "answer_seconds", answer_seconds)
        object.__setattr__(limits, "_sender_seconds", patience)
        return limits

    def store_seconds_within(self, left: float) -> float:
        """Return the time limit of a call to the store if the answer is due in ``left`` seconds."""
        # After the answer budget, up to two calls share the time until the sender gives up.
        last_call_seconds = (self._sender_seconds - _ON_THE_WAY_SECONDS - self.answer_seconds) / 2
        return min(self.store_seconds, max(left, last_call_seconds))
