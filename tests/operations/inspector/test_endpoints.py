"""One inspector for several receivers: each has its own pages, all share one login."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support.handlers import succeed
from support.servers import serving
from support.waiting import PATIENCE_SECONDS

from hookonce import Receiver, Reject
from hookonce.events import CommentReceived
from hookonce.operations.inspector import Inspector
from hookonce.testing import TestSender, make_event

from .inspecting import SECRET, TOKEN, a_receiver

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop() -> Receiver:
    receiver = a_receiver(endpoint="shop")
    receiver.on(CommentReceived)(succeed)
    return receiver


@pytest.fixture
def club(tmp_path: object) -> Receiver:
    receiver = a_receiver(endpoint="club", store=f"sqlite:///{tmp_path}/club.db")

    @receiver.on(CommentReceived, name="note")
    async def note(_: CommentReceived) -> None:
        raise Reject("the club is closed")

    return receiver


@asynccontextmanager
async def visiting(inspector: Inspector) -> AsyncIterator[httpx2.AsyncClient]:
    app = Starlette(routes=[Mount("/inspector", inspector)])
    async with (
        serving(app) as site,
        httpx2.AsyncClient(
            base_url=site.url, timeout=PATIENCE_SECONDS, follow_redirects=True
        ) as visitor,
    ):
        yield visitor


async def test_each_endpoint_has_its_own_deliveries_and_dead_letters(
    shop: Receiver, club: Receiver
) -> None:
    inspector = Inspector([shop, club], token=TOKEN)
    sold, noted = make_event(CommentReceived), make_event(CommentReceived)
    async with (
        TestSender(shop, secrets=SECRET) as to_shop,
        TestSender(club, secrets=SECRET) as to_club,
        visiting(inspector) as visitor,
    ):
        await to_shop.send(sold)
        await to_club.send(noted)
        first = await visitor.get("/inspector/", params={"token": TOKEN})
        assert first.url.path == "/inspector/at/shop/"
        assert sold.id in first.text
        assert noted.id not in first.text
        assert 'href="/inspector/at/club/"' in first.text
        assert 'href="/inspector/at/shop/deliveries/1"' in first.text
        second = await visitor.get("/inspector/at/club/dead")
        assert noted.id in second.text
        assert sold.id not in second.text
        style = await visitor.get("/inspector/static/inspector.css")
        assert style.status_code == 200
        acting = {"origin": str(visitor.base_url).rstrip("/")}
        there = "/inspector/at/{}/dead/discard"
        wrong = await visitor.post(there.format("shop"), json={"id": noted.id}, headers=acting)
        assert wrong.status_code == 404
        gone = await visitor.post(there.format("club"), json={"id": noted.id}, headers=acting)
        assert gone.json() == {"id": noted.id, "ok": True, "outcome": "discarded"}


async def test_one_login_opens_the_pages_of_every_endpoint(shop: Receiver, club: Receiver) -> None:
    async with visiting(Inspector([shop, club], token=TOKEN)) as visitor:
        asked = await visitor.get("/inspector/at/club/dead?type=x")
        assert asked.status_code == 401
        assert 'value="/inspector/at/club/dead?type=x"' in asked.text
        origin = {"origin": str(visitor.base_url).rstrip("/")}
        form = {"token": TOKEN, "to": "/inspector/at/club/dead?type=x"}
        inside = await visitor.post("/inspector/login", data=form, headers=origin)
        assert (inside.status_code, inside.url.path) == (200, "/inspector/at/club/dead")
        assert (await visitor.get("/inspector/at/shop/")).status_code == 200


@pytest.mark.parametrize("names", [(), ("shop", "shop")])
def test_receivers_without_distinct_endpoints_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="an endpoint of their own"):
        Inspector([a_receiver(endpoint=name) for name in names], token=TOKEN)
