"""The id under which the store knows the replay of a handled event."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from ..delivery.origin import Replay

# [0-9], since `\\d` accepts digits of any script.
_ID = re.compile(r"([^.]+)\.([0-9]+)(l?)(k?)\.(.+)", re.DOTALL)


class ReplayId(NamedTuple):
    """The replay of a handled event by one handler; the store treats the replay as an event.

    As text it is ``EVENT_ID.GENERATION.HANDLER``. An ``l`` after the generation stands for
    ``late``, and a ``k`` for ``new_key``, so the id of a dead letter says how to run it. No
    delivered event has such an id: the signature covers ``webhook-id.timestamp.body``, so a
    webhook-id contains no full stop.

    Attributes:
        event_id: the webhook-id of the handled event.
        generation: the number of the replay, from 1.
        handler: the handler that runs again.
        late: whether it also runs if a newer event with the same key has succeeded.
        new_key: whether its idempotency key differs from that of earlier runs.
    """

    event_id: str
    generation: int
    handler: str
    late: bool = False
    new_key: bool = False

    def __str__(self) -> str:
        flags = "l" * self.late + "k" * self.new_key
        return f"{self.event_id}.{self.generation}{flags}.{self.handler}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the replay that an id names; None for the id of a delivered event."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        event_id, generation, late, new_key, handler = found.groups()
        return cls(event_id, int(generation), handler, bool(late), bool(new_key))

    @classmethod
    def event_of(cls, text: str) -> str:
        """Return the id of the replayed event if this is the id of a replay, else the id itself."""
        again = cls.parse(text)
        return text if again is None else again.event_id

    def origin(self, *, is_last: bool) -> Replay:
        """Return the ``Replay`` that describes an attempt at this replay."""
        return Replay(is_last, self.generation, self.late, self.new_key)
