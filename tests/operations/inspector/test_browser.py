"""The inspector in a browser, with real signed deliveries: by mouse, by keyboard, in the dark.

With HOOKONCE_SCREENSHOT in the environment, the test of the picture leaves it there.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Page, expect
from support.waiting import PATIENCE_SECONDS, until

from hookonce import Inbox, Receiver, Reject
from hookonce.events import CommentReceived, Event, MessageReceived, PostTargetPublished
from hookonce.operations.inspector import Bounds
from hookonce.testing import make_event

from .browsing import a_page
from .inspecting import PATH, TOKEN, Inspected, a_receiver, inspected

pytestmark = [pytest.mark.anyio, pytest.mark.sample(1, of="file"), pytest.mark.costs("2 to 3 s")]

expect.set_options(timeout=1000 * PATIENCE_SECONDS)


class Shop:
    """A receiver whose handler rejects comments until a test repairs the handler."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.is_broken = True
        receiver.on(CommentReceived, name="answer-comments")(self.answer)
        receiver.on("*", name="count")(self.count)

    async def answer(self, _: CommentReceived) -> None:
        if self.is_broken:
            raise Reject("the shop is closed")

    async def count(self, _: Event[object]) -> None:
        return


@dataclass(frozen=True)
class Visit:
    """A browser at the inspector of a running receiver."""

    shop: Shop
    here: Inspected
    page: Page

    async def to(self, path: str = "/") -> None:
        await self.page.goto(f"{self.here.site.url}{PATH}{path}")

    async def is_live(self) -> None:
        await expect(self.page.locator("#status")).to_have_text("live")

    async def shows(self, selector: str, *texts: str) -> None:
        """Wait until the elements have exactly these texts."""
        await expect(self.page.locator(selector)).to_have_text(texts)

    async def sees(self, text: str) -> None:
        await expect(self.page.get_by_text(text).first).to_be_visible()

    async def arrives(self, path: str) -> None:
        await self.page.wait_for_url(f"**{PATH}{path}")

    async def click(self, selector: str) -> None:
        await self.page.locator(selector).click()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def comment(self) -> str:
        event = make_event(CommentReceived)
        await self.here.sender.send(event)
        return event.id

    async def message(self) -> str:
        event = make_event(MessageReceived)
        await self.here.sender.send(event)
        return event.id


LISTED = "#deliveries tbody bdi"
PAGES = (
    "/",
    "/deliveries/1",
    "/deliveries/5",
    "/dead",
    "/dead/letter?id=evt_cut",
    "/inbox",
    "/handled",
    "/handled/event?id=evt_handled",
    "/workers",
)

# Ignore the content of boxes that scroll or cut it off on purpose: it does not widen the page.
WIDER_THAN_THE_SCREEN = """() => [...document.querySelectorAll("body *")]
  .filter((one) => !one.closest(".sr, .skip, thead, svg, .cut, pre") && one.getClientRects().length)
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.outerHTML.slice(0, 80))"""


@asynccontextmanager
async def visiting(shop: Shop, **options: Any) -> AsyncIterator[Visit]:
    async with inspected(shop.receiver, **options) as here, a_page() as page:
        if "token" not in options:
            await page.goto(entrance(here))
        yield Visit(shop, here, page)


def entrance(here: Inspected) -> str:
    """Return the URL that ``hookonce serve`` prints."""
    return f"{here.site.url}{PATH}/?token={quote(TOKEN)}"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(a_receiver(store=f"sqlite:///{tmp_path}/hookonce.db", keep_handled=3600))


async def test_deliveries_appear_while_the_page_is_open_newest_first(shop: Shop) -> None:
    """The browser connects again after the stream ends, and the page misses no delivery."""
    async with visiting(shop, bounds=Bounds(stream_seconds=0.7)) as visit:
        await visit.to()
        await visit.is_live()
        await visit.sees("No delivery yet")
        sent: list[str] = []
        for _ in range(5):
            sent.insert(0, await visit.comment())
            await visit.shows(LISTED, *sent)
        await visit.shows("#news", "1 new, 1 of them not accepted")


@pytest.mark.full("a browser: 2 s")
async def test_a_delivery_is_read_out_when_it_is_answered(shop: Shop) -> None:
    goes_on = asyncio.Event()

    @shop.receiver.on(MessageReceived, name="waits")
    async def waits(_: MessageReceived) -> None:
        await goes_on.wait()
        raise Reject("the shop is closed")

    async with visiting(shop) as visit:
        await visit.to()
        await visit.is_live()
        sending = asyncio.create_task(visit.message())
        await visit.shows("#deliveries tbody .badge", "in flight")
        await visit.shows("#news", "")
        goes_on.set()
        await visit.shows("#news", "1 new, 1 of them not accepted")
        await sending


async def test_a_dead_letter_is_replayed_to_success_by_clicking(shop: Shop) -> None:
    async with visiting(shop) as visit:
        event_id = await visit.comment()
        await visit.to()
        await visit.click("#deliveries tbody a")
        await visit.sees("answer-comments failed")
        await visit.sees("Reject: the shop is closed")
        await visit.click("text=open the dead letter")
        await visit.click(".replay")
        await visit.shows(".outcome", "rejected")
        visit.shop.is_broken = False
        await visit.click(".replay")
        await visit.shows(".outcome", "handled")
        await visit.to("/dead")
        await visit.sees("There are no dead letters")
        letter = await visit.here.page(f"/dead/letter?id={event_id}", status=404)
        assert "no such dead letter" in letter


@pytest.mark.full("a browser: 2 s")
async def test_many_dead_letters_are_replayed_and_a_failing_one_stops_no_other(shop: Shop) -> None:
    async with visiting(shop) as visit:
        await visit.comment()
        await visit.here.sender.send(b"{", message_id="evt_cut")
        await visit.comment()
        await visit.to("/dead")
        visit.shop.is_broken = False
        await visit.click("#every")
        await visit.shows("#replay-selected", "Replay 3 selected")
        await visit.click("#replay-selected")
        await visit.shows("#progress", "3 of 3 replayed, 2 handled")
        outcomes = ("handled", "still unreadable: not_json", "handled")
        await visit.shows("#dead-letters .outcome", *outcomes)
        await visit.shows("#facts a", "1 dead")


@pytest.mark.full("a browser: 2 s")
async def test_filters_are_in_the_url_and_survive_a_reload(shop: Shop) -> None:
    async with visiting(shop) as visit:
        page = visit.page
        comment = await visit.comment()
        message = await visit.message()
        await visit.to()
        await visit.shows(LISTED, message, comment)
        kind, name = page.locator("[name=kind]"), page.locator("[name=type]")
        await name.fill("message")
        await visit.press("Enter")
        await visit.arrives("/?type=message")
        await kind.select_option("accepted")
        await visit.arrives("/?kind=accepted&type=message")
        await page.reload()
        await visit.is_live()
        await expect(name).to_have_value("message")
        await visit.comment()
        other = await visit.message()
        await visit.shows(LISTED, other, message)
        await visit.click("#deliveries tbody a >> nth=0")
        await visit.click("#back")
        await visit.arrives("/?kind=accepted&type=message")


async def test_the_inspector_works_with_the_keyboard_alone(shop: Shop) -> None:
    async with visiting(shop) as visit:
        name = visit.page.locator("[name=type]")
        first = await visit.comment()
        await visit.comment()
        await visit.to()
        await visit.is_live()
        await visit.press("j", "j", "Enter")
        await visit.arrives("/deliveries/1")
        await visit.sees(first)
        await visit.press("u")
        await visit.arrives("/")
        await visit.press("/", "j", "p")
        await expect(name).to_have_value("jp")
        await visit.press("Escape", "p")
        await visit.shows("#status", "paused")
        await visit.press("g", "d")
        await visit.arrives("/dead")
        visit.shop.is_broken = False
        await visit.press("j", "x")
        await visit.shows("#replay-selected", "Replay 1 selected")
        await visit.press("r")
        await visit.shows(".outcome", "handled", "")
        await visit.press("g", "h")
        await visit.arrives("/handled")
        await visit.press("j", "Enter")
        await visit.arrives("/handled/event?id=*")
        await visit.press("u")
        await visit.arrives("/handled")


@pytest.mark.full("a browser: 2 s")
async def test_shortcuts_can_be_switched_off(shop: Shop) -> None:
    async with visiting(shop) as visit:
        await visit.to("/dead")
        await visit.click("#shortcuts")
        await visit.page.reload()
        await visit.shows("#shortcuts", "Shortcuts off")
        await visit.press("/", "g", "l")
        await expect(visit.page.locator("[name=type]")).not_to_be_focused()
        assert visit.page.url.endswith("/dead")


async def test_the_printed_url_opens_a_session_and_leaves_no_token_behind(shop: Shop) -> None:
    async with visiting(shop, token=TOKEN) as visit:
        sent: list[tuple[str, str]] = []
        visit.page.on("request", lambda one: sent.append((one.url, one.headers.get("referer", ""))))
        await visit.page.goto(entrance(visit.here))
        await visit.is_live()
        assert visit.page.url == f"{visit.here.site.url}{PATH}/"
        assert "token=" in sent[0][0]
        assert len(sent) > 3
        assert not any("token=" in part for one in sent[1:] for part in one)
        assert not await visit.page.evaluate("document.referrer.includes('token')")


async def test_a_token_opens_a_session_and_the_pages_are_live_in_it(shop: Shop) -> None:
    async with visiting(shop, token=TOKEN) as visit:
        await visit.to("/dead?type=x")
        await visit.page.get_by_label("token").fill("a wrong one of some length")
        await visit.press("Enter")
        await visit.sees("Wrong token")
        await visit.page.get_by_label("token").fill(TOKEN)
        await visit.press("Enter")
        await visit.arrives("/dead?type=x")
        assert TOKEN not in visit.page.url
        assert await visit.page.evaluate("document.cookie") == ""
        await visit.to()
        await visit.is_live()
        await visit.click("text=Log out")
        await visit.sees("The inspector's token")


HOSTILE = "<img src=x onerror=alert(1)>'\"</script><script>alert(2)</script>\u2028"


@pytest.mark.full("a browser: 2 s")
async def test_no_text_of_a_sender_runs_as_code_in_the_browser(shop: Shop) -> None:
    """``a_page`` fails if a dialog opens, or if the content security policy blocks something."""
    async with visiting(shop) as visit:
        event_id = f"evt_{HOSTILE}"
        event = make_event(CommentReceived, event_id=event_id, data={"text": HOSTILE})
        await visit.to()
        await visit.is_live()
        answer = await visit.here.deliver(event)
        assert answer.status_code == 202
        await visit.sees("202 rejected")
        await visit.click("#deliveries tbody a")
        await visit.sees("answer-comments failed")
        await visit.click("text=open the dead letter")
        visit.shop.is_broken = False
        await visit.click(".replay")
        await visit.shows(".outcome", "handled")


async def something_of_everything(visit: Visit) -> None:
    await visit.comment()
    await visit.message()
    await visit.here.sender.send(make_event(MessageReceived, event_id="evt_handled"))
    await visit.here.sender.send(b"{", message_id="evt_cut")
    await visit.here.sender.send(b"{}", tamper=True)


@pytest.mark.full("a browser: 2 s")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_are_accessible_in_light_and_dark(
    shop: Shop, scheme: Literal["light", "dark"]
) -> None:
    """axe-core checks contrasts, names, roles, the order of headings, and more."""
    async with visiting(shop) as visit:
        page, axe = visit.page, Axe()
        await page.emulate_media(color_scheme=scheme)
        await something_of_everything(visit)
        for path in PAGES:
            await visit.to(path)
            found = await axe.run(page)
            assert [f"{one['id']}: {one['help']}" for one in found.response["violations"]] == [], (
                path
            )
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        is_dark = int(re.findall(r"\d+", ground)[0]) < 128
        assert is_dark is (scheme == "dark")


@pytest.mark.full("a browser: 2 s")
async def test_on_a_telephone_nothing_is_cut_off_and_the_list_comes_first(shop: Shop) -> None:
    async with visiting(shop) as visit:
        page = visit.page
        await page.set_viewport_size({"width": 390, "height": 844})
        await something_of_everything(visit)
        for path in PAGES:
            await visit.to(path)
            assert await page.evaluate(WIDER_THAN_THE_SCREEN) == [], path
        await visit.to()
        box = await page.locator("#deliveries tbody tr").first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 844


@pytest.mark.full("a browser: 2 s")
async def test_filters_apply_to_live_changes(shop: Shop) -> None:
    async with visiting(shop) as visit:
        comment = await visit.comment()
        message = await visit.message()
        await visit.to("/?state=dead")
        await visit.is_live()
        await visit.shows(LISTED, comment)
        await visit.to("/?type=*.received&handlers=failed")
        await visit.shows(LISTED, comment)
        await visit.to("/?state=handled")
        await visit.shows(LISTED, message)
        await visit.to("/?state=dead")
        await visit.is_live()
        visit.shop.is_broken = False
        await visit.here.replay(comment)
        await visit.shows(LISTED)


@pytest.mark.full("a browser: 2 s")
async def test_a_selection_is_replayed_and_discarded_by_the_keyboard(shop: Shop) -> None:
    async with visiting(shop) as visit:
        await visit.comment()
        await visit.comment()
        await visit.to("/dead")
        visit.shop.is_broken = False
        await visit.press("a")
        await visit.shows("#replay-selected", "Replay 2 selected")
        await visit.press("R")
        await visit.shows("#progress", "2 of 2 replayed, 2 handled")
        visit.shop.is_broken = True
        last = await visit.comment()
        await visit.to("/dead")
        await visit.press("j", "d")
        await visit.sees("Discard for good?")
        assert last in await visit.here.page("/dead")
        await visit.press("d")
        await visit.shows(".outcome", "discarded")
        assert last not in await visit.here.page("/dead")


@pytest.mark.full("a browser: 2 s")
async def test_a_waiting_event_can_be_made_due_by_clicking(tmp_path: Path) -> None:
    url, inbox = f"sqlite:///{tmp_path}/inbox.db", Inbox(backoff=3600.0)
    receiver = a_receiver(store=url, inbox=inbox)
    runs = [RuntimeError("not yet"), None]

    @receiver.on(CommentReceived)
    async def answer(_: CommentReceived) -> None:
        if (failure := runs.pop(0)) is not None:
            raise failure

    async with inspected(receiver) as here, a_page() as page:
        await here.sender.send(make_event(CommentReceived))
        await until(lambda: len(runs) == 1, what="the first attempt")
        await page.goto(entrance(here))
        await page.goto(f"{here.site.url}{PATH}/inbox")
        await page.locator(".act").click()
        await expect(page.locator(".outcome")).to_have_text("due now")
        await until(lambda: not runs, what="the second attempt")


@pytest.mark.full("a browser: 2 s")
async def test_a_picture_is_written_to_the_requested_path(tmp_path: Path) -> None:
    """For the README, set HOOKONCE_SCREENSHOT=tests/operations/inspector/inspector.png."""
    asked_for = os.environ.get("HOOKONCE_SCREENSHOT")
    url, inbox = f"sqlite:///{tmp_path}/inbox.db", Inbox(max_attempts=2, backoff=0.5)
    shop = Shop(a_receiver(store=url, endpoint="social", inbox=inbox))
    async with visiting(shop) as visit:
        await visit.to()
        await visit.is_live()
        for turn in range(150 if asked_for else 1):
            await some_traffic(visit, turn)
        await visit.shows(".fact.accepted", "ready")
        await visit.page.emulate_media(reduced_motion="reduce")
        await visit.page.set_viewport_size({"width": 1280, "height": 540})
        path = Path(asked_for or tmp_path / "inspector.png")
        picture = await visit.page.screenshot(path=path)
    assert 20_000 < len(picture) < 150_000


async def some_traffic(visit: Visit, turn: int) -> None:
    """Send typical traffic: many successes, some duplicates, and a few failures."""
    send = visit.here.sender.send
    for number in range(2 + turn * 7 % 5):
        kind = (MessageReceived, PostTargetPublished)[number % 2]
        event = make_event(kind)
        await send(event)
        if number == 3:
            await send(event, attempt=2)
    if turn % 3 == 0:
        await visit.comment()
    if turn % 5 == 3:
        await send(make_event(CommentReceived), tamper=True)
    await visit.page.wait_for_timeout(300)
