"""The pages of handled events: their list, its filters, and an event with its body."""

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hookonce import Receiver
from hookonce.clock import system_clock
from hookonce.events import CommentReceived, Event
from hookonce.testing import make_event

from .inspecting import Inspected, a_receiver, inspected
from .test_pages import HIDDEN, HOSTILE, Markup, spelt

pytestmark = pytest.mark.anyio

HOUR = 3600.0


def keeping(folder: Path, *, names: Sequence[str] = ("answer",), **options: Any) -> Receiver:
    receiver = a_receiver(
        store=f"sqlite:///{folder}/hooks.db",
        **{"keep_handled": timedelta(days=3), **options},
    )

    async def do_nothing(_: Event[Any]) -> None: ...

    for name in names:
        receiver.on("*", name=name)(do_nothing)
    return receiver


async def listed(here: Inspected, query: str = "") -> list[str]:
    """Return the ids in the list of handled events."""
    return re.findall(r"<bdi>(.*?)</bdi>", await here.page(f"/handled?{query}"))


async def test_a_handled_event_is_listed_and_shown_with_its_body(tmp_path: Path) -> None:
    receiver = keeping(tmp_path, names=("count", "answer"))
    async with inspected(receiver) as here:
        assert "No handled events are kept." in await here.page("/handled")
        event = make_event(CommentReceived, data={"text": "walnut bread?"})
        await here.sender.send(event)
        table = await here.page("/handled")
        shown = " ".join(Markup(await here.page(f"/handled/event?id={event.id}")).text.split())
    assert f'href="/inspector/handled/event?id={event.id}"' in table
    assert "answer, count" in table
    assert "walnut" not in table
    assert f"handled comment.received {event.id}" in shown
    assert "Succeeded handlers answer, count" in shown
    assert "CommentReceived" in shown
    assert shown.count("walnut bread?") >= 2  # in the event's field, and in its body
    assert "answer succeeded" in shown


async def test_handled_events_are_filtered_by_age_handler_type_and_body(tmp_path: Path) -> None:
    ahead = 0.0
    receiver = keeping(tmp_path, clock=lambda: system_clock() + ahead)

    @receiver.on(CommentReceived, name="count")
    async def count(_: CommentReceived) -> None: ...

    async with inspected(receiver) as here:
        old = make_event(CommentReceived)
        await here.sender.send(old)
        ahead = 2 * HOUR
        new, other = make_event(CommentReceived), make_event("shop.opened")
        await here.sender.send(new, skew=-ahead)
        await here.sender.send(other, skew=-ahead)
        every = [old.id, new.id, other.id]
        assert await listed(here) == every
        assert await listed(here, "age=24h&handler=answ") == every
        assert await listed(here, "age=1h") == [new.id, other.id]
        assert await listed(here, "handler=cou*") == [old.id, new.id]
        assert await listed(here, "type=shop.*") == [other.id]
        assert await listed(here, f"where=id%3D{new.id}") == [new.id]
        assert await listed(here, "where=type%3Dcomment.received&age=1h") == [new.id]
        assert "No handled event matches" in await here.page("/handled?handler=book")
        assert "a condition is FIELD=VALUE" in await here.page("/handled?where=nonsense")


async def test_an_event_that_is_older_than_the_receiver_keeps_is_not_shown(tmp_path: Path) -> None:
    ahead = 0.0
    receiver = keeping(
        tmp_path, keep_handled=timedelta(hours=1), clock=lambda: system_clock() + ahead
    )
    async with inspected(receiver) as here:
        event = make_event(CommentReceived)
        await here.sender.send(event)
        assert await listed(here) == [event.id]
        ahead = HOUR + 1
        assert await listed(here) == []
        page = await here.page(f"/handled/event?id={event.id}", status=404)
    assert "no such handled event is kept any more" in page


async def test_no_page_of_a_handled_event_shows_or_finds_what_is_hidden(tmp_path: Path) -> None:
    async with inspected(keeping(tmp_path)) as here:
        event = make_event(
            CommentReceived, data={**HIDDEN, "token": "hush-hush", "note": "hush-hush!"}, extra=True
        )
        await here.sender.send(event)
        shown = await here.page(f"/handled/event?id={event.id}")
        found = await here.page("/handled?where=data.token%3Dhush-hush")
    assert "Not shown: parts of it are redacted" in shown
    for part in ("a'b", "7#7", "hush"):
        assert part not in Markup(shown).text
    assert "the inspector hides the field data.token" in found
    assert event.id not in found


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_no_handled_event_can_script_a_page(tmp_path: Path, hostile: str) -> None:
    event_id = f"evt_{hostile}".replace(".", "")
    event = make_event(
        CommentReceived, event_id=event_id, data={"text": hostile, hostile: [hostile]}, extra=True
    )
    async with inspected(keeping(tmp_path)) as here:
        assert (await here.deliver(event)).status_code == 200
        table = Markup(await here.page("/handled"))
        shown = Markup(await here.page(f"/handled/event?id={quote(event_id)}"))
        Markup(await here.page(f"/handled?type={quote(hostile)}&where={quote(hostile)}"))
    for page in (table, shown):
        assert spelt(event_id) in page.text
    assert shown.text.count(spelt(hostile)) >= 3


async def test_a_receiver_that_keeps_no_handled_events_has_no_page_of_them() -> None:
    async with inspected(a_receiver()) as here:
        assert "/handled" not in await here.page("/")
        for path in ("/handled", "/handled/event?id=evt_1"):
            assert "keeps no handled events" in await here.page(path, status=404)
