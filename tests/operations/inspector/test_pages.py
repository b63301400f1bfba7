"""The contents of the pages; no shown value becomes active markup."""

import asyncio
import json
import re
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import httpx2
import pytest
from pydantic import AfterValidator, JsonValue
from starlette.applications import Starlette
from starlette.routing import Mount
from support.deliveries import long_ago
from support.servers import serving
from support.stores import FaultyStore
from support.waiting import PATIENCE_SECONDS, until, until_async

from hookonce import Inbox, Receiver, Reject
from hookonce.clock import system_clock
from hookonce.events import CommentReceived, Event
from hookonce.operations.inspector import Bounds, Inspector, Redaction
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, new_token
from hookonce.testing import SignedRequest, event_body, make_event, signed_request
from hookonce.verification.secrets import new_secret

from .inspecting import PATH, SECRET, TOKEN, a_receiver, inspected

pytestmark = [pytest.mark.anyio, pytest.mark.sample(9, of="file")]

HOSTILE = [
    "<script>pwned=1</script>",
    '"><img src=x onerror=pwned=1>',
    "' onfocus='pwned=1' autofocus='",
    "</pre></table></script><svg onload=pwned=1>",
    "javascript:pwned=1",
    "{{ 7*7 }}{% raw %}",
    "<!--",
    "&lt;b&gt;&#39;",
    "a\u2028b\u202ec\u200bd",
]


class Markup(HTMLParser):
    """A page's markup; only the inspector's own script may be active in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        scripts = [attributes for tag, attributes in self.tags if tag == "script"]
        assert scripts == [{"type": "module", "src": f"{PATH}/static/inspector.js"}]
        assert not {"iframe", "object", "embed", "base", "style"} & {tag for tag, _ in self.tags}
        for _, attributes in self.tags:
            for name, value in attributes.items():
                assert not name.startswith("on"), name
                assert name != "style"
                if name in {"href", "src", "action", "formaction", "data-stream", "xlink:href"}:
                    assert value is not None
                    assert value == "#main" or value.startswith(f"{PATH}/"), value

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in {"dd", "td", "th", "p", "div"}:
            self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def spelt(text: str) -> str:
    """Return a text as a page shows it: with escapes for invisible characters."""
    for character in "\u2028\u202e\u200b":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def closed(receiver: Receiver, name: str = "shop") -> None:
    @receiver.on("*", name=name)
    async def reject(event: Event[object]) -> None:
        text = event.data.text if isinstance(event, CommentReceived) else ""
        raise Reject(f"closed for {text}")


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return a_receiver(store=f"sqlite:///{tmp_path}/hookonce.db")


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_no_genuine_delivery_can_script_a_page(receiver: Receiver, hostile: str) -> None:
    closed(receiver)
    event_id = f"evt_{hostile}".replace(".", "")
    event = make_event(
        CommentReceived,
        event_id=event_id,
        data={"text": hostile, hostile: [hostile]},
        extra=True,
    )
    async with inspected(receiver) as here:
        answer = await here.deliver(event, user_agent=hostile, x_other=hostile)
        assert answer.status_code == 202
        query = f"?type={quote(hostile)}&id={quote(hostile)}&kind={quote(hostile)}"
        listed = Markup(await here.page("/"))
        detail = Markup(await here.page(f"/deliveries/1{query}"))
        dead = Markup(await here.page("/dead"))
        letter = Markup(await here.page(f"/dead/letter?id={quote(event_id)}"))
        Markup(await here.page(f"/{query}"))
        Markup(await here.page(f"/dead{query}"))
        replayed = await here.replay(event_id)
    for page in (listed, detail, dead, letter):
        assert spelt(event_id) in page.text
    for page in (detail, letter):
        assert page.text.count(spelt(hostile)) >= 3
    assert detail.text.count(f"closed for {spelt(hostile)}") == 1
    assert f"closed for {spelt(hostile)}" in letter.text
    assert replayed.json()["outcome"] == "rejected"


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_no_forged_delivery_can_script_a_page(receiver: Receiver, hostile: str) -> None:
    async with inspected(receiver) as here:
        forged = {
            b"webhook-id": hostile.encode(),
            b"webhook-timestamp": hostile.encode(),
            b"webhook-signature": b"v1,none",
            b"example-event-type": hostile.encode(),
        }
        body = f'{{"id": "{hostile}'.encode()
        answer = await here.visitor.post("/webhooks", content=body, headers=forged)
        assert answer.status_code == 400
        listed, detail = Markup(await here.page("/")), Markup(await here.page("/deliveries/1"))
    assert listed.text.count(spelt(hostile)) >= 1
    assert detail.text.count(spelt(hostile)) >= 3


async def test_a_dead_letter_whose_body_is_no_text_is_shown(receiver: Receiver) -> None:
    async with inspected(receiver) as here:
        await here.sender.send(b"\xff<script>{", message_id="evt_bytes")
        letter = Markup(await here.page("/dead/letter?id=evt_bytes"))
    assert r"\xff<script>{" in letter.text
    assert "the body is not JSON" in letter.text


async def test_a_delivery_is_shown_with_all_that_decided_it(receiver: Receiver) -> None:
    closed(receiver, name="front door")
    async with inspected(receiver) as here:
        event = make_event(CommentReceived, data={"mood": "glad"}, extra=True)
        await here.sender.send(event, attempt=3, skew=42)
        text = " ".join(Markup(await here.page("/deliveries/1")).text.split())
    for part in (
        "202 rejected",
        "Verdict genuine",
        "Clock skew 4",  # an age of 42 s, plus the delay of a slow machine
        "Secret number 1 the first; 1 signature",
        "Sender's attempt 3 unsigned",
        "Dedup decision new here: attempt 1 began",
        "front door failed",
        "Traceback (most recent call last)",
        "hookonce.errors.Reject: closed for",
        "became a dead letter: rejected",
        "Event CommentReceived",
        "data.mood unknown field glad",
        "example-delivery-attempt 3",
        "webhook-signature [redacted]",
        '"text": "',
    ):
        assert part in text, part


async def test_a_forged_delivery_is_shown_with_the_reason(receiver: Receiver) -> None:
    async with inspected(receiver) as here:
        await here.sender.send(make_event(CommentReceived), tamper=True)
        await here.sender.send(make_event(CommentReceived), skew=4000)
        await here.visitor.get("/webhooks")
        forged, late, odd = [
            " ".join(Markup(await here.page(f"/deliveries/{number}")).text.split())
            for number in (1, 2, 3)
        ]
    assert "Verdict no signature matches" in forged
    assert "Steps of the event" not in forged
    assert "Clock skew 1 h 6 min" in late
    assert "405 method_not_allowed" in odd
    assert "Verdict not verified" in odd


async def test_a_duplicate_says_what_the_store_knew() -> None:
    receiver = a_receiver()
    receiver.on(CommentReceived, name="handler")(lambda _: None)
    async with inspected(receiver) as here:
        event = make_event(CommentReceived)
        await here.sender.send(event)
        await here.sender.send(event)
        first, again = [
            " ".join(Markup(await here.page(f"/deliveries/{number}")).text.split())
            for number in (1, 2)
        ]
    assert "Dedup decision new here: attempt 1 began" in first
    assert "Dedup decision the event had been handled before" in again


async def test_a_second_secret_is_named_by_its_number() -> None:
    receiver = a_receiver(secrets=[new_secret(), SECRET])
    async with inspected(receiver) as here:
        await here.sender.send(make_event(CommentReceived))
        text = Markup(await here.page("/deliveries/1")).text
    assert "number 2" in text
    assert "a rotation is under way" in text


async def test_filters_are_taken_from_the_url(receiver: Receiver) -> None:
    closed(receiver)
    async with inspected(receiver) as here:
        comment, message = make_event(CommentReceived), make_event("message.received")
        await here.sender.send(comment)
        await here.sender.send(message)
        await here.sender.send(make_event(CommentReceived), tamper=True)

        async def numbers(query: str) -> list[str | None]:
            tags = Markup(await here.page(f"/{query}")).tags
            return [a["data-number"] for tag, a in tags if tag == "tr" and "data-number" in a]

        assert await numbers("") == ["3", "2", "1"]
        assert await numbers("?kind=dead") == ["2", "1"]
        assert await numbers("?kind=refused") == ["3"]
        assert await numbers("?type=COMMENT") == ["3", "1"]
        assert await numbers(f"?id={message.id[4:]}") == ["2"]
        assert await numbers("?type=comment&kind=dead") == ["1"]
        assert await numbers("?kind=nonsense&other=1") == ["3", "2", "1"]
        page = await here.page("/?kind=dead&type=comment")
    assert 'href="/inspector/deliveries/1?kind=dead&amp;type=comment"' in page
    assert 'data-stream="/inspector/stream?kind=dead&amp;type=comment"' in page


async def test_configured_fields_are_hidden_on_every_page(receiver: Receiver) -> None:
    closed(receiver)
    redaction = Redaction(paths=["data.text"], headers=["x-tenant"])
    async with inspected(receiver, redaction=redaction) as here:
        event = make_event(
            CommentReceived, data={"text": "hush-hush", "password": "quiet-please"}, extra=True
        )
        request = signed_request(event, SECRET)
        secret = {"x-tenant": "tenant-secret", "authorization": "Bearer bearer-secret"}
        secret |= {"x-note": "from tenant-secret, with quiet-please"}
        await here.sender.post(SignedRequest(request.body, {**request.headers, **secret}))
        signature = request.headers["webhook-signature"].removeprefix("v1,")
        pages = [
            await here.page(path) for path in ("/", "/deliveries/1", f"/dead/letter?id={event.id}")
        ]
    for page in pages:
        for hidden in ("hush-hush", "quiet-please", "tenant-secret", "bearer-secret", signature):
            assert hidden not in page
    assert "closed for [redacted]" in pages[1]
    assert "closed for [redacted]" in pages[2]
    assert "Not shown: parts of it are redacted" in pages[1]


# The hidden values have characters that no random id or time contains.
QUOTED = "a'b \u00fc\n4#2"
HIDDEN = {"userPassword": QUOTED, "cvc": "7#7"}


async def quote_what_is_hidden(event: CommentReceived) -> None:
    data = event.data.model_dump()
    raise ValueError(f"no {data['userPassword']}, {data['cvc']}; {data!r}")


def shows_nothing_hidden(page: str) -> None:
    text = " ".join(Markup(page).text.split())
    assert "ValueError: no [redacted], [redacted]; {" in text
    assert "'userPassword': [redacted]" in text
    for part in ("a'b", "a\\'b", "4#2", "7#7"):
        assert part not in text.partition("ValueError")[2].partition("}")[0]


async def test_no_text_about_a_dead_letter_quotes_what_its_body_hides(receiver: Receiver) -> None:
    receiver.on(CommentReceived, name="shop")(quote_what_is_hidden)
    hidden = {**HIDDEN, "token": "hush-hush", "note": "hush-hush!"}
    async with inspected(receiver) as here:
        event = make_event(CommentReceived, created_at=long_ago(), data=hidden, extra=True)
        await here.sender.send(event, attempt=9)
        for path in ("/dead", f"/dead/letter?id={event.id}", "/deliveries/1"):
            page = await here.page(path)
            shows_nothing_hidden(page)
            assert "hush" not in page


async def test_a_kept_event_is_marked_and_can_be_replayed(receiver: Receiver) -> None:
    fails = [True]

    @receiver.on(CommentReceived, name="shop")
    async def shop(_: CommentReceived) -> None:
        if fails:
            raise ValueError("closed")

    async with inspected(receiver) as here:
        event = make_event(CommentReceived)
        (await here.sender.send(event, attempt=9)).expect(500, "handler_failed")
        page = await here.page("/dead")
        assert event.id in page
        assert ">kept</span>" in page
        page = await here.page(f"/dead/letter?id={event.id}")
        assert ">kept</span>" in page
        assert "The sender may deliver it again until" in page
        assert "<b>0</b> dead" in await here.page()
        fails.clear()
        assert (await here.replay(event.id)).json()["outcome"] == "handled"


async def test_no_text_about_the_inbox_quotes_what_a_body_hides(tmp_path: Path) -> None:
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/inbox.db", inbox=Inbox(backoff=3600))
    receiver.on(CommentReceived, name="shop")(quote_what_is_hidden)
    async with inspected(receiver) as here:
        await here.sender.send(make_event(CommentReceived, data=HIDDEN, extra=True))

        async def is_listed() -> bool:
            return "ValueError" in await here.page("/inbox")

        await until_async(is_listed, what="the failure in the list")
        shows_nothing_hidden(await here.page("/inbox"))


async def test_a_list_withholds_the_error_of_a_large_body(
    receiver: Receiver,
) -> None:
    closed(receiver)
    async with inspected(receiver) as here:
        await here.sender.send(make_event(CommentReceived, data={"text": "a" * 100_000}))
        assert "not shown: it may contain hidden values" in Markup(await here.page("/dead")).text


LARGE: list[dict[str, JsonValue]] = [
    {"text": "a" * 2_000_000},
    {"ones": [1] * 600_000},
    {"k" * 1_900_000: {f"a{n}": 1 for n in range(400)}},
    {"k" * 200_000: {f"a{n}": 1 for n in range(400)}},
    {"text": "a" * 200_000},
    {"all": [{"token": f"hush-{n:08}"} for n in range(60_000)]},
    {"all": [{"token": f"hush-{n:08}"} for n in range(6_000)]},
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("data", LARGE, ids=range(len(LARGE)))
async def test_the_page_of_a_large_event_is_small_and_says_what_is_cut(
    receiver: Receiver, data: dict[str, JsonValue]
) -> None:
    closed(receiver)
    async with inspected(receiver) as here:
        event = make_event(CommentReceived, data=data, extra=True)
        assert (await here.sender.send(event)).status == 202
        for path in ("/deliveries/1", f"/dead/letter?id={event.id}"):
            page = await here.page(path)
            text = Markup(page).text
            assert len(page) < 1_000_000
            assert "shop failed: Reject" in text
            assert "became a dead letter: rejected" in text
            assert "hush" not in text
            says = ("the rest is not shown", "more characters", "only its beginning is shown")
            assert any(part in text for part in says)


class Waits:
    """A validator that blocks while it is closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self.is_waiting = threading.Event()
        self.gate = threading.Event()

    def __call__(self, data: dict[str, object]) -> dict[str, object]:
        if self.is_closed:
            self.is_waiting.set()
            assert self.gate.wait(PATIENCE_SECONDS), "nobody else was answered meanwhile"
        return data


async def test_other_requests_are_answered_while_a_page_is_rendered() -> None:
    waits = Waits()

    class Slow(Event[Annotated[dict[str, object], AfterValidator(waits)]]):
        type: Literal["slow.event"]

    receiver = a_receiver()
    receiver.on(Slow, name="slow")(lambda _: None)
    async with inspected(receiver) as here:
        body = event_body("comment.received").replace(b"comment.received", b"slow.event")
        event_id = json.loads(body)["id"]
        assert (await here.sender.send(body, message_id=event_id)).status == 200
        waits.is_closed = True
        page = asyncio.create_task(here.page("/deliveries/1"))
        await until(waits.is_waiting.is_set, what="the page is being made")
        assert (await here.sender.send(make_event(CommentReceived))).status == 200
        assert "2" in Markup(await here.page("/")).text
        others = [asyncio.create_task(here.page("/deliveries/1")) for _ in range(7)]
        site = here.inspector._sites[0]
        await until(lambda: site._waiting_pages == 8, what="others wait their turn")
        assert "too many pages" in await here.page("/deliveries/1", status=503)
        waits.gate.set()
        for made in [page, *others]:
            assert "slow.event" in await made


async def test_a_page_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookonce.operations.inspector.site._PAGE_SECONDS", 0.1)
    waits = Waits()

    class Slow(Event[Annotated[dict[str, object], AfterValidator(waits)]]):
        type: Literal["slow.event"]

    receiver = a_receiver()
    receiver.on(Slow, name="slow")(lambda _: None)
    async with inspected(receiver) as here:
        body = event_body("comment.received").replace(b"comment.received", b"slow.event")
        await here.sender.send(body, message_id=json.loads(body)["id"])
        waits.is_closed = True
        assert "takes too long" in await here.page("/deliveries/1", status=503)
        assert (await here.sender.send(make_event(CommentReceived))).status == 200
        waits.gate.set()


async def test_a_list_that_takes_too_long_leaves_out_what_failed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(receiver)
    async with inspected(receiver) as here:
        event = make_event(CommentReceived)
        await here.sender.send(event)
        assert "closed for" in await here.page("/dead")
        monkeypatch.setattr("hookonce.operations.inspector.site._LIST_SECONDS", 0.0)
        page = await here.page("/dead")
    assert "closed for" not in page
    assert "not shown" in page
    assert event.id in page


LONG = "9" * 5000


@pytest.mark.parametrize("path", [f"/deliveries/{LONG}", "/deliveries/-1", "/deliveries/1e3"])
async def test_an_invalid_delivery_number_is_not_found(path: str) -> None:
    async with inspected(a_receiver()) as here:
        Markup(await here.page(path, status=404))
        Markup(await here.page(f"{path}?kind={LONG}&type={LONG}&id={LONG}", status=404))
        Markup(await here.page(f"/?kind={LONG}&type={LONG}&id={LONG}"))
        Markup(await here.page(f"/dead/letter?id={LONG}", status=404))


async def test_control_characters_are_spelt_out_wherever_they_stand(receiver: Receiver) -> None:
    hostile = "a\x1b[31mb\rc\x00d\x85e\u202ef\xadg\U000e0041h"

    @receiver.on(CommentReceived, name="closed")
    async def reject(event: CommentReceived) -> None:
        raise Reject(event.data.text)

    async with inspected(receiver) as here:
        event = make_event(CommentReceived, data={"text": hostile, hostile: 1}, extra=True)
        await here.sender.send(event)
        pages = [
            await here.page(path)
            for path in ("/", "/deliveries/1", "/dead", f"/dead/letter?id={event.id}")
        ]
    for page in pages:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u202e\U000e0041]", page)
    assert r"a\u001b[31mb\u000dc\u0000d\u0085e\u202ef\u00adg\U000e0041h" in Markup(pages[1]).text


async def test_the_inbox_is_listed_where_there_is_one(tmp_path: Path) -> None:
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/inbox.db", inbox=Inbox(backoff=3600))

    @receiver.on(CommentReceived, name="shop")
    async def fail(_: CommentReceived) -> None:
        raise ConnectionError("token=hush-hush")

    async with inspected(receiver) as here:
        event = make_event(CommentReceived)
        await here.sender.send(event)

        def retried() -> bool:
            history = here.inspector._sites[0]._journal.history_of(event.id)
            return history is not None and any(s.what == "retried" for s in history.steps)

        await until(retried, what="the event waits for another attempt")
        text = " ".join(Markup(await here.page("/inbox")).text.split())
        for query in (f"where=id%3D{event.id}&handler=shop", "type=comment.*&age=1h"):
            assert f"<bdi>{event.id}</bdi>" in await here.page(f"/inbox?{query}")
        for query in ("where=id%3Dother", "handler=count", "type=channel.*"):
            page = await here.page(f"/inbox?{query}")
            assert "No event of the inbox matches" in page, query
        detail = Markup(await here.page("/deliveries/1")).text
    assert f"waiting comment.received {event.id} 1" in text
    assert "token=[redacted]" in text
    assert "1 in the inbox, 1 worker" in text
    assert "the next attempt is in" in detail


async def test_a_receiver_without_an_inbox_has_no_page_of_it(receiver: Receiver) -> None:
    async with inspected(receiver) as here:
        assert "/inbox" not in await here.page("/")
        assert "has no inbox" in await here.page("/inbox", status=404)


async def test_dropped_and_unknown_pages_are_not_found(receiver: Receiver) -> None:
    async with inspected(receiver, bounds=Bounds(deliveries=1)) as here:
        await here.sender.send(make_event(CommentReceived))
        await here.sender.send(make_event(CommentReceived))
        for path in ("/deliveries/1", "/deliveries/99", "/dead/letter?id=evt_none"):
            Markup(await here.page(path, status=404))


async def test_a_failing_store_affects_only_the_pages_that_need_it() -> None:
    store = FaultyStore(MemoryStore(clock=system_clock))
    async with inspected(a_receiver(store=store)) as here:
        await here.sender.send(make_event(CommentReceived))
        store.failures = {"stats": -1, "warnings": -1, "dead_letters": -1}
        listed = Markup(await here.page("/"))
        assert "the store does not answer" in listed.text
        assert "not ready" in listed.text
        Markup(await here.page("/deliveries/1"))
        assert "the log says why" in await here.page("/dead", status=503)


async def test_the_inspector_can_be_served_alone() -> None:
    inspector = Inspector(a_receiver(endpoint="alone"), token=TOKEN)
    async with serving(inspector) as site, httpx2.AsyncClient(base_url=site.url) as visitor:
        page = await visitor.get("/", headers={"authorization": f"Bearer {TOKEN}"})
    assert 'href="/static/inspector.css"' in page.text
    assert "alone" in page.text


async def test_the_inspector_can_be_mounted_like_any_application() -> None:
    receiver = a_receiver()
    app = Starlette(
        routes=[
            *receiver.routes("/webhooks"),
            Mount("/admin/hooks", Inspector(receiver, token=TOKEN)),
        ],
        lifespan=receiver.lifespan,
    )
    async with serving(app) as site, httpx2.AsyncClient(base_url=site.url) as visitor:
        page = await visitor.get("/admin/hooks", params={"token": TOKEN}, follow_redirects=True)
        style = await visitor.get("/admin/hooks/static/inspector.css")
    assert 'href="/admin/hooks/static/inspector.css"' in page.text
    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")


async def test_dead_letters_are_filtered_by_reason_age_handler_and_type(tmp_path: Path) -> None:
    ahead = 0.0
    receiver = a_receiver(
        store=f"sqlite:///{tmp_path}/dead.db", clock=lambda: system_clock() + ahead
    )

    @receiver.on(CommentReceived, name="answer")
    async def answer(_: CommentReceived) -> None:
        raise Reject("closed")

    async with inspected(receiver) as here:
        old = make_event(CommentReceived)
        await here.sender.send(old)
        ahead = 2 * 3600.0
        new = make_event(CommentReceived)
        await here.sender.send(new, skew=-ahead)
        await here.sender.send(b"{", message_id="evt_cut", skew=-ahead)

        async def shown(query: str) -> set[str]:
            page = await here.page(f"/dead?{query}")
            return set(re.findall(r"<bdi>(.*?)</bdi>", page))

        assert await shown("") == {old.id, new.id, "evt_cut"}
        assert await shown("reason=unreadable") == {"evt_cut"}
        assert await shown("age=1h&reason=rejected") == {new.id}
        assert await shown("age=24h&handler=answ") == {old.id, new.id}
        assert await shown("handler=count") == set()
        assert await shown("type=comment.*&age=1h") == {new.id}
        assert "No dead letter matches" in await here.page("/dead?type=channel.*")
        assert await shown(f"where=id%3D{new.id}") == {new.id}
        assert await shown(f"where=id%3D{new.id}&reason=unreadable") == set()
        assert await shown("where=type%3Dcomment.received&age=1h") == {new.id}


async def test_no_hidden_value_can_be_found_by_searching_for_it(tmp_path: Path) -> None:
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/dead.db")

    @receiver.on(CommentReceived, name="answer")
    async def answer(_: CommentReceived) -> None:
        raise Reject("closed")

    async with inspected(receiver) as here:
        event = make_event(CommentReceived, data={"apiToken": {"part": "abc"}}, extra=True)
        await here.sender.send(event)
        for where in ("data.apiToken%3Dabc", "data.apiToken.part%3Dabc"):
            page = await here.page(f"/dead?where={where}")
            assert "the inspector hides the field data.apiToken" in page
            assert event.id not in page
        assert "a condition is FIELD=VALUE" in await here.page("/dead?where=nonsense")


async def test_a_search_in_bodies_that_takes_long_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookonce.operations.inspector.site._LIST_SECONDS", 0.0)
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/dead.db")
    async with inspected(receiver) as here:
        for number in range(20):
            await here.sender.send(b"{", message_id=f"evt_{number}")
        page = await here.page("/dead?where=a%3Db")
        assert "No dead letter matches" in page
        assert "Only the oldest 8 were searched" in page
        assert "Only the oldest" not in await here.page("/dead?type=a")


async def test_filters_search_beyond_the_first_page_of_dead_letters() -> None:
    receiver = a_receiver()
    store = receiver.store
    for number in range(450):
        is_last = number == 449
        kind, reason = (
            ("rare.one", DeadReason.REJECTED) if is_last else ("a.b", DeadReason.EXHAUSTED)
        )
        one = Delivery("default", f"evt_{number}", kind, 1e9, b"{}")
        claim = await store.claim(one.key, new_token(), 30)
        assert isinstance(claim, Claimed)
        outstanding = frozenset({"last" if is_last else "other"})
        await store.bury(claim, reason, outstanding=outstanding, delivery=one)
    async with inspected(receiver) as here:
        for query in ("type=rare.*", "reason=rejected", "handler=las*", "age=1h&type=rare"):
            page = await here.page(f"/dead?{query}")
            assert re.findall(r"<bdi>(.*?)</bdi>", page) == ["evt_449"], query
        assert len(re.findall(r"<bdi>evt_", await here.page("/dead"))) == 200
