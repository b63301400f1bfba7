"""Filters of the lists of events: dead letters, the inbox and handled events.

A store applies the filters of ``Wanted``. A store has no index of the contents of bodies, so
`select` applies ``where``: it reads the events in pages, and their bodies a few at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from .values import DeadReason, Delivery, DeliveryKey, WantedDeadLetters

_PAGE = 500
# Load few bodies at once, because one body may have several MiB.
_BODIES_AT_ONCE = 16


class Listed(Protocol):
    """An event of a list: a dead letter, an event of the inbox, or a handled event."""

    @property
    def delivery(self) -> Delivery:
        """The delivery; its body is empty in listings."""
        ...

    @property
    def place(self) -> str:
        """The cursor of the listing."""
        ...


E = TypeVar("E", bound=Listed)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the body of an event: the field at a path has a given value.

    Attributes:
        path: the names on the path to the field, as they are in the body.
        values: the values that meet the condition: a text, and the number, ``true``, ``false`` or
            ``null`` that it spells.
    """

    path: tuple[str, ...]
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition such as ``data.platform=instagram``.

        Raises:
            ValueError: the text is not a condition.
        """
        names, equals, value = text.partition("=")
        path = tuple(names.split("."))
        if not equals or not all(path):
            raise ValueError(
                f"a condition is FIELD=VALUE, such as data.platform=instagram, not {text!r:.100}"
            )
        values: tuple[Any, ...] = (value,)
        with suppress(ValueError, RecursionError):
            spelt = json.loads(value)
            if not isinstance(spelt, str | dict | list):
                values = (value, spelt)
        return cls(path, values)

    def is_met(self, body: object) -> bool:
        """Return whether a parsed body meets the condition; one element of a list is enough."""
        found = [body]
        for name in self.path:
            found = [one[name] for one in _elements(found) if isinstance(one, dict) and name in one]
        return any(_is_equal(one, value) for one in _elements(found) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """A filter for a list of events; an attribute that is None or empty does not apply.

    Attributes:
        endpoint: the name of the receiving endpoint.
        event_type: the event type.
        handler: in lists of handled events, a handler that has finished; in other lists, a handler
            that has failed or has not run.
        reason: why an event became a dead letter.
        since_unix: as in ``Wanted``.
        where: conditions on the body, all of which must be met; see ``Condition``.

    Raises:
        ValueError: a condition cannot be read.
    """

    endpoint: str | None = None
    event_type: str | None = None
    handler: str | None = None
    reason: DeadReason | None = None
    since_unix: float | None = None
    where: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", tuple(map(Condition.parse, self.where)))

    @property
    def is_empty(self) -> bool:
        """Whether the filter has no condition except the endpoint."""
        return not self.where and self.of_store.keys() <= {"endpoint"}

    @property
    def of_store(self) -> WantedDeadLetters:
        """The conditions that the store checks itself: all except those on bodies."""
        names = ("endpoint", "event_type", "handler", "reason", "since_unix")
        given = ((name, getattr(self, name)) for name in names)
        return cast("WantedDeadLetters", {name: one for name, one in given if one is not None})

    def passes(self, body: bytes) -> bool:
        """Return whether a body meets all conditions; a body that is not JSON meets none."""
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            return not self.conditions
        return all(condition.is_met(parsed) for condition in self.conditions)


async def select(
    find: Callable[..., Awaitable[Sequence[E]]],
    load: Callable[[DeliveryKey], Awaitable[E | None]],
    wanted: EventFilter,
    *,
    after: str | None = None,
    limit: int = 100,
) -> Sequence[E]:
    """Return the events of a list that pass a filter, oldest first, with empty bodies.

    Args:
        find: the method of the store that lists the events.
        load: the method of the store that returns one event with its body.
        wanted: the filter.
        after: the ``place`` of an event; the listing continues after it.
        limit: the largest number to return; fewer are returned only at the end of the list.
    """
    if not wanted.conditions:
        return await find(after=after, limit=limit, **wanted.of_store)
    found: list[E] = []
    while page := await find(after=after, limit=_PAGE, **wanted.of_store):
        for start in range(0, len(page), _BODIES_AT_ONCE):
            found += await passing(page[start : start + _BODIES_AT_ONCE], load, wanted)
            if len(found) >= limit:
                return found[:limit]
        after = page[-1].place
    return found


async def passing(
    events: Sequence[E], load: Callable[[DeliveryKey], Awaitable[E | None]], wanted: EventFilter
) -> list[E]:
    """Load the bodies of a few events, and return the events whose bodies meet the conditions."""

    async def passes(event: E) -> bool:
        loaded = await load(event.delivery.key)
        return loaded is not None and wanted.passes(loaded.delivery.body)

    passed = await asyncio.gather(*map(passes, events))
    return [event for event, is_wanted in zip(events, passed, strict=True) if is_wanted]


def _elements(values: Sequence[object]) -> list[Any]:
    """Flatten nested lists: return the values with each list replaced by its elements."""
    found, waiting = [], list(values)
    while waiting:  # no recursion: the sender decides how deep the lists are
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        else:
            found.append(value)
    return found


def _is_equal(found: object, value: object) -> bool:
    return found == value and isinstance(found, bool) is isinstance(value, bool)
