"""The inspector replays dead letters, and the log says who asked for a replay."""

import asyncio
import logging
from pathlib import Path

import pytest
from support.waiting import until

from hookonce import Context, Receiver, Reject
from hookonce.events import CommentReceived
from hookonce.operations.inspector import Bounds
from hookonce.testing import make_event

from .inspecting import PATH, TOKEN, Inspected, a_receiver, acting, inspected
from .test_pages import Markup

pytestmark = pytest.mark.anyio


class Shop:
    """A handler that rejects events while it is closed, and waits if a test says so."""

    def __init__(self, receiver: Receiver) -> None:
        self.is_closed = True
        self.gate: asyncio.Event | None = None
        receiver.on(CommentReceived, name="shop")(self)

    async def __call__(self, event: CommentReceived) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.is_closed:
            raise Reject(f"closed for {event.data.text}")


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return a_receiver(store=f"sqlite:///{tmp_path}/hookonce.db")


async def buried(here: Inspected, text: str = "hello") -> str:
    event = make_event(CommentReceived, data={"text": text})
    (await here.sender.send(event)).expect(202, "rejected")
    return event.id


async def test_a_dead_letter_is_replayed_to_success(receiver: Receiver) -> None:
    shop = Shop(receiver)
    async with inspected(receiver) as here:
        event_id = await buried(here)
        assert event_id in await here.page("/dead")
        assert "closed for hello" in await here.page(f"/dead/letter?id={event_id}")
        shop.is_closed = False
        answer = await here.replay(event_id)
        assert (answer.status_code, answer.json()) == (
            200,
            {"id": event_id, "ok": True, "outcome": "handled"},
        )
        assert event_id not in await here.page("/dead")
        assert "shop succeeded" in await here.page("/deliveries/1")


async def test_a_replay_that_fails_says_so_and_the_dead_letter_stays(receiver: Receiver) -> None:
    Shop(receiver)
    async with inspected(receiver) as here:
        event_id = await buried(here)
        answer = await here.replay(event_id)
        assert answer.json() == {"id": event_id, "ok": False, "outcome": "rejected"}
        assert event_id in await here.page("/dead")


async def test_an_unreadable_body_stays_a_dead_letter(receiver: Receiver) -> None:
    async with inspected(receiver) as here:
        (await here.sender.send(b"{", message_id="evt_cut")).expect(202, "quarantined")
        answer = await here.replay("evt_cut")
        assert (answer.status_code, answer.json()["outcome"]) == (422, "still unreadable: not_json")


async def test_each_replay_leaves_a_line_in_the_log_and_no_body(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(receiver)
    async with inspected(receiver, client="127.9.9.9") as here:
        event_id = await buried(here, text="hush-hush")
        shop.is_closed = False
        caplog.clear()
        caplog.set_level(logging.INFO)
        await here.replay(event_id)
        await here.replay("evt_\n1")
    lines = [r.getMessage() for r in caplog.records if r.name == "hookonce.inspector"]
    by = "at default, asked for by 127.9.9.9"
    assert lines == [
        f"replay of {event_id!r} {by}: handled",
        rf"replay of 'evt_\n1' {by}: there is no such dead letter any more",
    ]
    assert "hush-hush" not in caplog.text


async def test_actions_at_the_same_time_are_limited(receiver: Receiver) -> None:
    shop = Shop(receiver)
    async with inspected(receiver, bounds=Bounds(actions=1)) as here:
        first, second = await buried(here), await buried(here)
        shop.gate, shop.is_closed = asyncio.Event(), False
        running = asyncio.create_task(here.replay(first))
        await until(lambda: here.inspector._sites[0]._actions._running == 1)
        assert (await here.replay(second)).status_code == 429
        shop.gate.set()
        assert (await running).json()["ok"]
        assert (await here.replay(second)).json()["ok"]


NO_EVENTS = [
    b"",
    b"[]",
    b'{"id": 1}',
    rb'{"id": "\ud800"}',
    b"{",
    b"[" * 5000,
    b"9" * 5000,
    b"x" * 100_000,
]


@pytest.mark.parametrize("body", NO_EVENTS)
async def test_a_request_without_an_event_id_is_refused(receiver: Receiver, body: bytes) -> None:
    async with inspected(receiver) as here:
        answer = await here.visitor.post(
            f"{PATH}/dead/replay", content=body, headers=acting(here.site)
        )
        assert answer.status_code == 400


async def test_a_get_replays_nothing(receiver: Receiver) -> None:
    Shop(receiver)
    async with inspected(receiver) as here:
        answer = await here.visitor.get(f"{PATH}/dead/replay", headers=acting(here.site))
        assert answer.status_code == 405


async def test_text_from_outside_cannot_forge_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hookonce.inspector")
    hostile = "10.0.0.1\n2026-11-22 ERROR forged \x1b[2J\u2028\x9b"
    async with inspected(a_receiver(), token=TOKEN, client=hostile) as here:
        headers = {"authorization": f"Bearer {TOKEN}"}
        content = {"id": hostile}
        await here.visitor.post(f"{PATH}/dead/replay", json=content, headers=headers)
        await here.visitor.get(f"{PATH}/", headers={"authorization": "Bearer wrong"})
    lines = [record.getMessage() for record in caplog.records if "10.0.0.1" in record.getMessage()]
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


async def test_the_failed_replay_of_a_handled_event_is_shown_and_replayed(tmp_path: Path) -> None:
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/hookonce.db", keep_handled=3600)
    shop, generations = Shop(receiver), list[int]()
    shop.is_closed = False

    @receiver.on(CommentReceived, name="mail")
    async def mail(_: CommentReceived, context: Context) -> None:
        generations.append(context.generation)

    async with inspected(receiver) as here:
        event = make_event(CommentReceived, data={"text": "walnut bread?"})
        (await here.sender.send(event)).expect(200, "handled")
        shop.is_closed = True
        batch = await receiver.handled.open_batch(handler="shop")
        assert [one.reason async for one in receiver.handled.replay_all(batch)] == ["rejected"]
        event_id = f"{event.id}.1.shop"
        assert event_id in await here.page("/dead")
        shown = Markup(await here.page(f"/dead/letter?id={event_id}")).text
        assert "CommentReceived" in shown
        assert shown.count("walnut bread?") >= 2  # in the event's field, and in its body
        shop.is_closed = False
        answer = await here.replay(event_id)
        assert answer.json() == {"id": event_id, "ok": True, "outcome": "handled"}
        assert event_id not in await here.page("/dead")
    assert generations == [0], "no other handler runs"
