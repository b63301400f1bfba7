"""Lists of a store's events: dead letters, the inbox and handled events.

The commands filter, print, show and change the events of every list with this code. A new list is
another ``EventList``. A new filter is an option in ``filter_options`` and a field of
``EventFilter``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Generic, TypeAlias, TypeVar

import click

from hookonce.stores.filters import Condition, EventFilter, select
from hookonce.stores.handled import HandledEvent
from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import (
    DeadLetter,
    DeadReason,
    DeliveryKey,
    Entry,
    StoreStats,
    delivery_key,
)

from .output import Option, Output, json_option, one_line, together
from .statuses import Nothing, Status
from .stores import endpoint_option, store_argument, with_store
from .times import read_since_seconds, time_text

E = TypeVar("E", bound=DeadLetter | Entry | HandledEvent)

NOT_FOUND = "not found"
"""The result for an event that is not in the list."""

MANY = 20
"""A replay of more events than this shows a progress bar instead of a line for each success."""

# Read pages of this size, because a store may block other calls while it reads a page.
_PAGE = 500

# Run this many calls at the same time: a store puts concurrent calls into one commit or one round
# trip.
_AT_ONCE = 256

# With a filter, count at most this many events, because the store must read each of them.
_MOST_COUNTED = 1000

ReadPage: TypeAlias = Callable[[str | None, int], Awaitable[Sequence[E]]]
"""A function that returns one page of a list, oldest event first, given a cursor and a limit."""


@dataclass(frozen=True, slots=True)
class EventList(Generic[E]):
    """A list of a store's events, with the functions that read and print the list.

    Attributes:
        name: the noun for one of the events in messages.
        find: returns the store's method that lists the events.
        load: returns the store's method that reads one event with its body.
        count: returns the number of events from a store's counts; None if the counts lack it.
        record: returns the printed fields of one event.
        columns: the headings of the fields, as in ``Output.table``.
    """

    name: str
    nothing: str
    find: Callable[[InboxStore], Callable[..., Awaitable[Sequence[E]]]]
    load: Callable[[InboxStore], Callable[[DeliveryKey], Awaitable[E | None]]]
    count: Callable[[StoreStats], int] | None
    record: Callable[[E], Mapping[str, Any]]
    columns: Mapping[str, str]

    def pages(self, store: InboxStore, wanted: EventFilter) -> ReadPage[E]:
        """Return a function that reads one page of the events that pass the filter."""
        find, load = self.find(store), self.load(store)
        return lambda after, limit: select(find, load, wanted, after=after, limit=limit)

    async def endpoints_of(self, store: InboxStore, event_id: str) -> list[str]:
        found = await self.find(store)(event_id=event_id, limit=_PAGE)
        return [event.delivery.endpoint for event in found]


async def keys_of(
    read: ReadPage[E], *, is_wanted: Callable[[E], bool] = lambda _: True
) -> list[DeliveryKey]:
    """Return the key of every event in a list, oldest first.

    All keys are read before a command changes an event, because the list changes with it.
    """
    keys: dict[DeliveryKey, None] = {}
    after: str | None = None
    while events := await read(after, _PAGE):
        keys.update((event.delivery.key, None) for event in events if is_wanted(event))
        after = events[-1].place
    return list(keys)


def ids_of(key: DeliveryKey) -> tuple[str, str]:
    """Split a key at its first colon, and return the endpoint and the event id."""
    endpoint, _, event_id = key.partition(":")
    return endpoint, event_id


def _read_conditions(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    for text in texts:
        try:
            Condition.parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return texts


_reason_option: Option = click.option(
    "--reason",
    type=click.Choice([str(reason) for reason in DeadReason]),
    callback=lambda _, __, name: name and DeadReason(name),
    help="Only dead letters with this reason.",
)
type_option: Option = click.option("--type", "event_type", help="Only events of this type.")
where_option: Option = click.option(
    "--where",
    multiple=True,
    callback=_read_conditions,
    metavar="FIELD=VALUE",
    help="Only events whose body has this value, for example data.platform=instagram. Give the"
    " option again for a second condition.",
)


def since_option(name: str, read: Callable[..., Any]) -> Option:
    """Return the option ``--since`` for the parameter ``name``; ``read`` converts its text."""
    return click.option(
        "--since",
        name,
        callback=read,
        metavar="TIME",
        help="Only events of this time and later: 90m, 6h, 2d, or 2026-11-20T10:00Z.",
    )


_filter_options: Option = together(
    type_option, since_option("since_unix", read_since_seconds), where_option
)


def filter_options(
    *, with_reason: bool = False, handler: str | None = "has failed with or not run for"
) -> Option:
    """Return a decorator that adds the parameter ``wanted``, an ``EventFilter``, to a command.

    Args:
        with_reason: whether the events are dead letters, which have a reason.
        handler: what the handler of a filter has done with the events, for the help; None for a
            command that filters by no handler.
    """

    def decorated(command: Callable[..., None]) -> Any:
        @wraps(command)
        def filtered(
            event_type: str | None,
            since_unix: float | None,
            where: tuple[str, ...],
            handler: str | None = None,
            reason: DeadReason | None = None,
            **options: object,
        ) -> None:
            wanted = EventFilter(
                event_type=event_type,
                handler=handler,
                reason=reason,
                since_unix=since_unix,
                where=where,
            )
            command(wanted=wanted, **options)

        decorated_with = _reason_option(filtered) if with_reason else filtered
        if handler is not None:
            text = f"Only events that this handler {handler}."
            decorated_with = click.option("--handler", help=text)(decorated_with)
        return _filter_options(decorated_with)

    return decorated


list_options: Option = together(
    store_argument(),
    click.option("--endpoint", help="Only events of this endpoint."),
    click.option("--limit", default=100, show_default=True, type=click.IntRange(1)),
    click.option("--all", "every", is_flag=True, help="List all events; --limit has no effect."),
    json_option,
)


def print_list(
    events: EventList[E],
    store_url: str,
    limit: int | None,
    *,
    wanted: EventFilter,
    as_json: bool,
) -> None:
    """Print the oldest events of a list that pass a filter, and how many follow.

    Args:
        limit: how many to print; None for all.
    """
    output = Output(as_json=as_json)

    async def print_pages(store: InboxStore) -> None:
        read = events.pages(store, wanted)
        shown, after = 0, None
        while limit is None or shown < limit:
            count = _PAGE if limit is None else min(_PAGE, limit - shown)
            page = await read(after, count)
            if page or not shown:
                output.table([events.record(one) for one in page], events.columns, events.nothing)
            shown += len(page)
            if len(page) < count:
                return
            after = page[-1].place
        least = ""
        if events.count is not None and wanted.is_empty:
            more = events.count(await store.stats(endpoint=wanted.endpoint)) - shown
        else:
            # With `--where` the store must read each body. So do not count: only find out whether
            # one more event exists.
            most = 0 if wanted.where else _MOST_COUNTED
            more = len(await read(after, most + 1))
            if more > most:
                more, least = max(most, 1), "more than " if most else "at least "
        # Print this to standard error, because a program may parse standard output.
        if more > 0:
            click.echo(f"{least}{more} more; --all lists them", err=True)

    with_store(store_url, print_pages)


show_options: Option = together(
    store_argument("ID"),
    endpoint_option,
    click.option("--raw", is_flag=True, help="Write only the body, byte for byte."),
    json_option,
)


def print_one(
    events: EventList[E],
    store_url: str,
    event_ids: tuple[str, ...],
    endpoint: str | None,
    *,
    raw: bool,
    as_json: bool,
) -> None:
    """Print one event with its failed attempts and its body; exit if there is no such event.

    Args:
        event_ids: the words of the command line, which must be one id.
        raw: write only the body, byte for byte.
    """
    if len(event_ids) != 1:
        raise click.UsageError(f"name one event by its id, not {len(event_ids)}")
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    [event_id] = event_ids

    async def load(store: InboxStore) -> E | None:
        return await events.load(store)(await _one_key(events, store, event_id, endpoint))

    event = with_store(store_url, load)
    if event is None:  # the event was handled or discarded in the meantime
        raise Nothing(f"there is no {events.name} {event_id!r} any more")
    if raw:
        click.echo(event.delivery.body, nl=False)
        return
    body = event.delivery.body.decode("utf-8", "backslashreplace")
    shown = {**events.record(event), "finished": sorted(event.finished)}
    failed = [
        {"number": one.number, "ended_at": time_text(one.ended_unix), "error": one.error}
        for one in getattr(event, "history", ())  # a handled event has no history
    ]
    if record := getattr(event, "record", b""):  # only a dead letter set aside has a record
        shown["record"] = record.decode("ascii", "backslashreplace")
    lines = [
        *(f"{name}: {one_line(value)}" for name, value in shown.items()),
        *(f"attempt {a['number']}: {a['ended_at']} {one_line(a['error'])}" for a in failed),
    ]
    Output(as_json=as_json).record(
        {**shown, "history": failed, "body": body}, "\n".join([*lines, "", body])
    )


async def _one_key(
    events: EventList[E], store: InboxStore, event_id: str, endpoint: str | None
) -> DeliveryKey:
    """Return an event's key; exit with an error if no endpoint, or more than one, has the event."""
    places = await events.endpoints_of(store, event_id)
    named = [place for place in places if endpoint in {None, place}]
    if len(named) == 1:
        return delivery_key(named[0], event_id)
    elsewhere = " and ".join(map(repr, places))
    if named:
        raise Nothing(f"{event_id!r} is at {elsewhere}; name one of them with --endpoint")
    where = f" at {endpoint!r}" if endpoint else ""
    hint = f"; there is one at {elsewhere}" if places else ""
    raise Nothing(f"there is no {events.name} {event_id!r}{where}{hint}")


def check_selection(event_ids: Sequence[str], wanted: EventFilter, *, every: bool) -> None:
    """Exit with a usage error unless the user gives either ids, or --all or filters.

    Also exit if an argument's bytes are not UTF-8, since Python then reads them as lone surrogates.
    """
    if bool(event_ids) is (every or not wanted.is_empty):
        raise click.UsageError(
            "name events by their ids, or select them with --all or with filters such as --type"
        )
    for event_id in event_ids:
        try:
            event_id.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{event_id!r} is no id: it is not valid UTF-8") from None


def change_selected(
    events: EventList[E],
    store_url: str,
    change: Callable[[InboxStore, DeliveryKey], Awaitable[str]],
    *,
    event_ids: Sequence[str],
    wanted: EventFilter,
    is_wanted: Callable[[E], bool],
    nothing: str,
    as_json: bool,
) -> None:
    """Change the events with these ids; without ids, the events that ``is_wanted`` selects.

    Exits with 1 if an id is not found. If a listed event is removed before its turn, that is no
    failure.

    Args:
        change: changes one event, and returns the result to print.
        wanted: without ids, only events that pass this filter; with ids, only its endpoint counts.
        is_wanted: without ids, whether to change a listed event.
        nothing: what to print if no event was chosen.
    """
    output = Output(as_json=as_json)

    async def change_all(store: InboxStore) -> set[str]:
        if event_ids:
            keys = await _named_keys(events, store, event_ids, wanted.endpoint)
        else:
            read = events.pages(store, wanted)
            keys = await keys_of(read, is_wanted=is_wanted)
        return await _for_each(keys, partial(change, store), output)

    results = with_store(store_url, change_all)
    if not results:
        output.say(nothing)
    if event_ids and NOT_FOUND in results:
        raise SystemExit(Status.FOUND)


async def _named_keys(
    events: EventList[E], store: InboxStore, event_ids: Sequence[str], endpoint: str | None
) -> list[DeliveryKey]:
    """Return the keys of these events at an endpoint, or at all endpoints if it is None.

    The key of an unknown id has the default endpoint: the change will report it as not found.
    """
    if endpoint is not None:
        return [delivery_key(endpoint, event_id) for event_id in event_ids]
    return [
        delivery_key(place, event_id)
        for event_id in event_ids
        for place in (await events.endpoints_of(store, event_id) or ["default"])
    ]


async def _for_each(
    keys: Sequence[DeliveryKey],
    change: Callable[[DeliveryKey], Awaitable[str]],
    output: Output,
) -> set[str]:
    """Change events, many at the same time; print each result and return the distinct results."""
    found = set()
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        results = await asyncio.gather(*(change(key) for key in some))
        for key, result in zip(some, results, strict=True):
            print_result(key, result, output)
        found.update(results)
    return found


def print_result(key: DeliveryKey, result: str, output: Output, style: str = "") -> None:
    """Print the result for one event; name its endpoint unless it is the default endpoint."""
    endpoint, event_id = ids_of(key)
    where = "" if endpoint == "default" else f" at {endpoint}"
    output.record(
        {"id": event_id, "endpoint": endpoint, "result": result},
        f"{event_id}{where}: {result}",
        style,
    )
