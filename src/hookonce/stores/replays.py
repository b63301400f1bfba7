"""Batches of replays: one handler runs again for the handled events that a plan selects.

A store keeps the last batch of each handler. The generation of a handler's batches never falls, so
that the done records and ledger rows of an earlier batch never answer for a later batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import datetime

from ..clock import utc
from ..errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The events that a batch selects, and options for the handler; equal plans are the same batch.

    A filter that is None or empty does not apply.

    Attributes:
        event_type: only events of this type.
        since_unix: only events handled at this time or later, in Unix seconds.
        since_seconds: only events handled at most this many seconds before the start of the batch.
        where: only events whose body meets all these conditions, sorted.
        event_ids: only these events, sorted.
        late: whether ``latest_by`` also lets an event run if a newer event has succeeded. The
            events then run in the order of their creation.
        new_key: whether ``Context.idempotency_key`` differs from that of earlier runs.
    """

    event_type: str | None = None
    since_unix: float | None = None
    since_seconds: float | None = None
    where: tuple[str, ...] = ()
    event_ids: tuple[str, ...] = ()
    late: bool = False
    new_key: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", tuple(sorted(set(self.where))))
        object.__setattr__(self, "event_ids", tuple(sorted(set(self.event_ids))))

    def dump(self) -> str:
        """Return the plan as JSON in ASCII, for a store."""
        given = asdict(self)
        # Compare each value with its default, because 0.0 is false but a valid `since_unix`.
        defaults = {one.name: one.default for one in fields(self)}
        return json.dumps({name: one for name, one in given.items() if one != defaults[name]})

    @classmethod
    def load(cls, text: str | bytes) -> ReplayPlan:
        """Read a plan that ``dump`` has written.

        Raises:
            StoreError: the text is no plan.
        """
        try:
            given = json.loads(text)
            lists = {name: tuple(given[name]) for name in ("where", "event_ids") if name in given}
            return cls(**{**given, **lists})
        except (ValueError, TypeError) as error:
            raise StoreError("the store's record of a batch of replays cannot be read") from error

    def describe(self) -> str:
        """Return the plan as text for an operator, such as ``event_type=comment.received``."""
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                shown += [f"{field.name}={one}" for one in value]
            elif value != field.default:
                shown.append(field.name if value is True else f"{field.name}={value}")
        return ", ".join(shown) or "every event"


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """A batch of replays of one handler.

    Attributes:
        endpoint: the name of the receiving endpoint.
        handler: the handler that runs again.
        generation: the number of the batch, from 1; see ``Context.generation``.
        plan: the events that it selects, and how the handler runs.
        started_unix: when it was begun, in Unix seconds. It selects only events that were handled
            before this time.
        finished_unix: when all its events were replayed, in Unix seconds; None while it is open.
    """

    endpoint: str
    handler: str
    generation: int
    plan: ReplayPlan
    started_unix: float
    finished_unix: float | None = None

    @property
    def started_at(self) -> datetime:
        """The start of the batch, as an aware UTC ``datetime``."""
        return utc(self.started_unix)

    @property
    def finished_at(self) -> datetime | None:
        """The end of the batch, as an aware UTC ``datetime``; None while the batch is open."""
        return None if self.finished_unix is None else utc(self.finished_unix)

    @property
    def since_unix(self) -> float | None:
        """The Unix time from which handled events are selected; None for no limit."""
        plan = self.plan
        if plan.since_seconds is not None:
            return self.started_unix - plan.since_seconds
        return plan.since_unix
