"""Every request to ``hookonce serve`` is counted, and a wrong path leaves a line in the log."""

import logging
from collections import Counter
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from support.deliveries import SECRET

from hookonce import Receiver
from hookonce.cli.requests import RequestLog
from hookonce.events import CommentReceived
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio


class Site:
    """An application with a mounted receiver, behind the log of requests."""

    def __init__(
        self, log: RequestLog, client: httpx2.AsyncClient, counts: Counter[tuple[str, int]]
    ) -> None:
        self.log = log
        self.client = client
        self.counts = counts

    async def deliver(self, path: str) -> int:
        request = signed_request(make_event(CommentReceived), SECRET)
        answer = await self.client.post(path, content=request.body, headers=request.headers)
        return answer.status_code


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    receiver = Receiver(secrets=SECRET, store="memory://")
    counts: Counter[tuple[str, int]] = Counter()
    app = Starlette(
        routes=[
            Mount("/hooks", routes=receiver.routes("/")),
            Route("/shop", lambda _: PlainTextResponse("open")),
            Route("/broken", _broken),
            *receiver.health_routes(),
        ]
    )
    logged = RequestLog(
        app,
        own_paths=["/livez", "/readyz"],
        delivery_paths=["/hooks"],
        count=lambda kind, status: counts.update([(kind, status)]),
    )
    transport = httpx2.ASGITransport(app=logged, raise_app_exceptions=False)
    async with receiver, httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        yield Site(logged, client, counts)


def _broken(_: object) -> PlainTextResponse:
    raise RuntimeError("the application is broken")


def logged(caplog: pytest.LogCaptureFixture, *levels: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "hookonce.requests" and record.levelname in levels
    ]


async def test_every_request_is_counted_by_what_answered_it(site: Site) -> None:
    assert await site.deliver("/hooks/") == 200
    assert await site.deliver("/hooks") == 307
    assert await site.deliver("/hook") == 404
    for path in ("/wp-login.php", "/shop", "/broken", "/livez", "/readyz"):
        await site.client.get(path)
    assert site.counts == {
        ("receiver", 200): 1,
        ("misdirected", 307): 1,
        ("misdirected", 404): 1,
        ("unknown", 404): 1,
        ("application", 200): 1,
        ("application", 500): 1,
        ("server", 200): 2,
    }


async def test_a_delivery_to_a_wrong_path_is_a_warning_that_names_the_right_one(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.deliver("/hooks")
    [warning] = logged(caplog, "WARNING")
    assert warning == (
        "a delivery did not reach a receiver: POST '/hooks' (answered 307), and the sender follows"
        " no redirect; exempt the path from redirects (instead of a Mount, use"
        " receiver.routes(path)), or register the target as the endpoint's URL"
    )


async def test_a_scanner_leaves_two_lines_a_minute(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookonce.requests")
    for number in range(250):
        await site.client.get(f"/admin/{number % 125}?token=opensesame")
    site.log._summarise()  # the timer calls this method after a minute
    first, summary = logged(caplog, "INFO")
    assert first == "a request to an unknown path: GET '/admin/0' (answered 404)"
    assert summary.startswith("in the last 60 s, 250 requests went to unknown paths: ")
    assert len(summary) < 300
    assert "opensesame" not in caplog.text
    assert site.counts == {("unknown", 404): 250}


async def test_the_summary_is_written_at_a_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    app = RequestLog(Starlette(), own_paths=[])
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        for _ in range(3):
            await client.post("/webhook", headers={"webhook-id": "evt_1"})

    async def nothing(*_: object) -> None: ...

    app._app = nothing
    await app({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]
    assert logged(caplog, "WARNING")[1:] == [
        (
            "in the last 60 s, 3 deliveries did not reach a receiver: 3 times POST '/webhook'"
            " (answered 404)"
        )
    ]


async def test_known_requests_are_logged_for_debugging_only(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hookonce.requests")
    await site.client.get("/shop?token=opensesame")
    await site.client.get("/livez")
    assert logged(caplog, "DEBUG") == ["GET '/shop' (answered 200)", "GET '/livez' (answered 200)"]


async def test_a_long_path_is_cut(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookonce.requests")
    await site.client.get("/" + "a" * 5000)
    assert len(logged(caplog, "INFO")[0]) < 200
