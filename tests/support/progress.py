"""How far attempts have come, as their claims, settlements and holds on their events show."""

from itertools import product
from typing import NamedTuple

import pytest

from hookonce.delivery.attempt import Attempt
from hookonce.delivery.verdict import Complete

__all__ = ["PROGRESS", "Progress", "record_progress"]


class Progress(NamedTuple):
    """A row of the table in the docstring of `Attempt`.

    Attributes:
        has_claim: whether the store has granted a claim, or may have granted it.
        has_succeeded: whether every handler has succeeded; None before the settlement is decided.
        has_the_event: whether other attempts of the process must not claim the event.
        is_late: whether the lease ended before the store recorded the settlement.
    """

    has_claim: bool
    has_succeeded: bool | None
    has_the_event: bool
    is_late: bool = False


PROGRESS = {
    *(Progress(has_claim, None, held) for has_claim, held in product((False, True), repeat=2)),
    *(Progress(True, result, held) for result, held in product((False, True), repeat=2)),
    *(Progress(True, result, has_the_event=False, is_late=True) for result in (False, True)),
}
"""The rows of the table, with both results, and the ends of all attempts."""


def record_progress(patch: pytest.MonkeyPatch) -> set[Progress]:
    """Return a set that receives the progress of every attempt in this process from now on.

    An attempt that changes its settlement, or takes its event back, fails at that line.
    """
    seen = set[Progress]()

    def watch(name: str, first: object) -> None:
        slot = vars(Attempt)[name]

        def change(attempt: Attempt, value: object) -> None:
            before = getattr(attempt, name, first)
            assert before in (first, value), f"{name} changes from {before} to {value}"
            if hasattr(attempt, name):
                seen.add(progress_of(attempt))
            slot.__set__(attempt, value)
            if hasattr(attempt, "settlement") and hasattr(attempt, "has_the_event"):
                seen.add(progress_of(attempt))

        patch.setattr(Attempt, name, property(slot.__get__, change))

    watch("settlement", None)
    watch("has_the_event", first=True)
    return seen


def progress_of(attempt: Attempt) -> Progress:
    """Return how far an attempt has come."""
    lease, settlement = attempt.lease, attempt.settlement
    return Progress(
        lease.claim is not None,
        None if settlement is None else isinstance(settlement, Complete),
        attempt.has_the_event,
        is_late=not attempt.has_the_event and lease.is_unrecorded,
    )
