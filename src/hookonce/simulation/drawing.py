"""Makes the events and restarts of a scenario at random, from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from pydantic import JsonValue

from ..clock import Clock
from ..emulator.chaos import Chaos, moments_of
from ..emulator.generated import EventGenerator
from ..emulator.rules import SUBSCRIBABLE, subscribable
from ..resources import Channel
from ..routing.table import HandlerTable
from ..senders import Sender
from .scenario import PlannedEvent, Restart, Scenario

# About as many events as one process can handle, so that many deliveries are in flight at once.
_EVENTS_PER_SECOND = 200.0

# The share of events whose type is chosen from all types, with or without a handler.
_OTHER_TYPES = 0.1

# Most comments belong to a few recent posts, so that handlers with the post as key must wait for
# each other.
_SAME_POST, _POSTS = 0.7, 5

_EVENTS_PER_BURST = 250
_LONGEST_PAUSE_SECONDS = 3 * 3600.0


def drawn_scenario(
    events: int,
    chaos: Chaos,
    seed: int,
    *,
    types: Sequence[str],
    all_types: Sequence[str],
    data: Mapping[str, Mapping[str, JsonValue]],
    channels: int | None,
    clock: Clock,
) -> Scenario:
    """Return events in bursts, with pauses of up to three hours, and a restart in each burst.

    The scenario has no faults of requests and calls, because most of them would never occur.

    Args:
        types: the types of most events.
        all_types: the types of the other events.
        data: fields that replace those of generated data, by event type.
        channels: the number of channels; by default, the channels of the emulated service.
        clock: the present; all times in the events are before it.
    """
    draw = _Draw(seed, types, all_types, data, channels_of(channels), clock)
    planned: list[PlannedEvent] = []
    restarts: list[Restart] = []
    begins_at = 0.0
    for first in range(0, events, _EVENTS_PER_BURST):
        size = min(_EVENTS_PER_BURST, events - first)
        restart_after = draw.random.randrange(size)
        at = begins_at
        for number, moment in enumerate(moments_of(chaos, seed + first, size, _EVENTS_PER_SECOND)):
            at = begins_at + moment
            planned.append(draw.event(at))
            if number == restart_after:
                restarts.append(Restart(at))
        begins_at = at + draw.random.uniform(0, _LONGEST_PAUSE_SECONDS)
    return Scenario(tuple(planned), tuple(restarts), seed, channels)


def paced_scenario(
    events: int,
    chaos: Chaos,
    seed: int,
    *,
    per_second: float,
    types: Sequence[str],
    data: Mapping[str, Mapping[str, JsonValue]],
    clock: Clock,
) -> Scenario:
    """Return events at an even rate, and some in bursts, for a receiver in real time.

    Args:
        per_second: how many events on average.
        types: the types of the events.
        data: fields that replace those of generated data, by event type.
        clock: the present; all times in the events are before it.
    """
    draw = _Draw(seed, types, types, data, channels_of(None), clock)
    moments = moments_of(chaos, seed, events, per_second)
    return Scenario(tuple(draw.event(moment) for moment in moments), seed=seed)


def types_of(
    sender: Sender, table: HandlerTable, data: Mapping[str, Mapping[str, JsonValue]]
) -> tuple[str, ...]:
    """Return the event types that can be made for a receiver, without the test event.

    They are the types that the publishing service names. For another sender they are the types of
    its event classes, of the handlers and of the given data; a handler of a pattern gets a type
    that matches it, if the sender has no classes.
    """
    if known := subscribable(sender):
        return known
    written = [name for handler in table.handlers for name in handler.written]
    if sender.event_classes:
        written = [name for name in written if "*" not in name]
    types = dict.fromkeys((*table.known, *data, *written))
    return tuple(name.replace("*", "example") for name in types if name != sender.rules.test_type)


def channels_of(count: int | None) -> list[Channel]:
    """Return ``count`` channels, or an empty list to use the channels of the emulated service."""
    usual = EventGenerator(0).channels
    return [
        usual[n % len(usual)].model_copy(update={"id": f"ch_{n + 1:04}"}) for n in range(count or 0)
    ]


class _Draw:
    """Makes random events; the same seed makes the same events."""

    def __init__(
        self,
        seed: int,
        types: Sequence[str],
        all_types: Sequence[str],
        data: Mapping[str, Mapping[str, JsonValue]],
        channels: Sequence[Channel],
        clock: Clock,
    ) -> None:
        self.random = Random(f"{seed}:simulation")  # noqa: S311 - not used for secrets
        self._random_ids = Random(f"{seed}:ids")  # noqa: S311 - not used for secrets
        self._random_posts = Random(f"{seed}:posts")  # noqa: S311 - not used for secrets
        self._types = types
        self._all_types = all_types
        self._given = data
        self._generator = EventGenerator(seed, clock=clock, channels=channels)
        self._posts: list[JsonValue] = []

    def event(self, at: float) -> PlannedEvent:
        """Return an event with a new id."""
        event_id = f"evt_{self._random_ids.randbytes(12).hex()}"
        types = self._all_types if self.random.random() < _OTHER_TYPES else self._types
        event_type = self.random.choice(types)
        return PlannedEvent(event_id, event_type, at, self._data(event_type))

    def _data(self, event_type: str) -> dict[str, JsonValue]:
        """Return the data of an event; a comment often has the same post as earlier comments."""
        data = self._generator.data(event_type) if event_type in SUBSCRIBABLE else {}
        data.update(self._given.get(event_type, {}))
        post = data.get("postId")
        if post is not None:
            if self._posts and self._random_posts.random() < _SAME_POST:
                data["postId"] = self._random_posts.choice(self._posts)
            else:
                self._posts = [*self._posts[1 - _POSTS :], post]
        return data
