"""Access to the inspector, over a real server: addresses, Hosts, tokens, sessions, Origins."""

import asyncio
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.types import ASGIApp
from support.servers import serving
from support.waiting import PATIENCE_SECONDS

from hookonce.http.app import application, elsewhere
from hookonce.operations.inspector import Bounds, Inspector
from hookonce.operations.inspector.access import SESSION_SECONDS, Access

from .inspecting import PATH, TOKEN, Inspected, a_receiver, acting, inspected

pytestmark = [pytest.mark.anyio, pytest.mark.sample(30, of="file")]

PAGES = ["/", "/deliveries/1", "/dead", "/dead/letter?id=x", "/inbox", "/stream", "/nowhere"]
PAGES += ["/handled", "/handled/event?id=x"]


async def status(here: Inspected, path: str = "/", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await here.visitor.get(f"{PATH}{path}", headers=named)).status_code


async def log_in(here: Inspected, token: str = TOKEN, to: str = f"{PATH}/", **headers: str):  # type: ignore[no-untyped-def]  # mypy cannot name the response's type
    sent = {"origin": here.site.url, **headers}
    return await here.visitor.post(f"{PATH}/login", data={"token": token, "to": to}, headers=sent)


def visitor_with(**headers: str) -> HTTPConnection:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": encoded})


CLIENTS = ["127.0.0.1", "::1", "::ffff:127.0.0.1", "203.0.113.9", "10.0.0.1", "", "localhost"]


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_client_address_is_admitted_without_the_token(client: str) -> None:
    """Behind a proxy on this machine that adds no header, every visitor seems to be local."""
    async with inspected(a_receiver(), token=TOKEN, client=client) as here:
        assert {await status(here, path, host="localhost") for path in PAGES} == {401}
        for action in ("dead/replay", "dead/discard", "inbox/retry", "logout"):
            answer = await here.visitor.post(f"{PATH}/{action}", json={"id": "evt_1"})
            assert answer.status_code == 401, action
        assert await status(here, authorization=f"Bearer {TOKEN}") == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_plain_proxy_lets_no_stranger_in(version: str) -> None:
    """A plain nginx sends such requests, and so does a HAProxy that sets the Host."""
    async with inspected(a_receiver(), token=TOKEN) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.site.port)
        lines = [f"GET {PATH}/dead HTTP/{version}", "host: localhost", "connection: close", "", ""]
        writer.write("\r\n".join(lines).encode())
        assert (await reader.read()).split(b" ", 2)[1] == b"401"
        writer.close()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1:x",
        "",
        "[::2]",
    ],
)
async def test_a_foreign_host_name_is_refused(host: str) -> None:
    """DNS rebinding: the browser treats the attacker's page and ours as one site."""
    async with inspected(a_receiver()) as here:
        assert {await status(here, path, host=host) for path in PAGES} == {403}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:99", "[::1]"]
)
async def test_the_names_of_this_machine_are_accepted_with_any_port(host: str) -> None:
    async with inspected(a_receiver()) as here:
        assert await status(here, host=host) == 200


async def test_a_host_with_a_port_is_accepted_with_that_port_only() -> None:
    async with inspected(a_receiver(), hosts=["hooks.internal:8000"]) as here:
        assert await status(here, host="hooks.internal:8000") == 200
        assert await status(here, host="hooks.internal:8001") == 403
        assert await status(here, host="hooks.internal") == 403


def test_a_repeated_host_header_is_refused() -> None:
    visitor = visitor_with(host="localhost")
    assert Access(TOKEN, ["localhost"]).host_refusal(visitor) is None
    visitor.scope["headers"] *= 2
    assert Access(TOKEN, ["localhost"]).host_refusal(HTTPConnection(visitor.scope)) is not None


@pytest.mark.parametrize("host", ["*", "", "http://localhost", "a b"])
def test_an_invalid_host_is_refused_at_construction(host: str) -> None:
    with pytest.raises(ValueError, match="a host is a name"):
        Inspector(a_receiver(), token=TOKEN, hosts=[host])


def test_a_single_string_is_refused_as_hosts() -> None:
    with pytest.raises(TypeError, match="collection"):
        Inspector(a_receiver(), token=TOKEN, hosts="localhost")


@pytest.mark.parametrize("token", [None, "", "short", "ü" * 20])
def test_a_missing_short_or_non_ascii_token_is_refused(token: Any) -> None:
    with pytest.raises(ValueError, match=r"at least 16 characters.*token_urlsafe") as refused:
        Inspector(a_receiver(), token=token)
    assert not token or token not in str(refused.value)


async def test_every_page_asks_for_the_token_and_shows_nothing_before() -> None:
    async with inspected(a_receiver(endpoint="hush"), token=TOKEN, client="203.0.113.9") as here:
        for path in PAGES:
            answer = await here.visitor.get(f"{PATH}{path}")
            assert answer.status_code == 401
            assert ("password" in answer.text) is (path != "/stream")
            assert "in flight" not in answer.text
        assert (await here.replay("evt_1")).status_code == 401
        assert await status(here, "/static/inspector.css") == 200


async def test_a_bearer_token_is_accepted() -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        assert await status(here, authorization=f"Bearer {TOKEN}") == 200
        assert await status(here, authorization=f"Bearer {TOKEN}x") == 401
        assert await status(here, authorization=f"Basic {TOKEN}") == 401


async def test_a_url_with_the_token_leads_to_its_page_with_a_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After the printed URL was used, no address, no Referer and no log holds the token."""
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        query = {"type": "a b", "token": TOKEN, "kind": "dead"}
        answer = await here.visitor.get(f"{PATH}/", params=query)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"{PATH}/?type=a+b&kind=dead"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert TOKEN not in str(answer.headers)
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert await status(here) == 200
    assert quote(TOKEN) not in caplog.text


async def test_a_wrong_token_in_the_url_counts_against_the_limit() -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        wrong = "a guess of sixteen or more"
        answer = await here.visitor.get(f"{PATH}/dead", params={"token": wrong})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert wrong not in unescape(answer.text)
        assert f'value="{PATH}/dead"' in answer.text
        for _ in range(12):
            answer = await here.visitor.get(f"{PATH}/static/page.js", params={"token": wrong})
        assert answer.status_code == 429
        right = await here.visitor.get(f"{PATH}/", params={"token": TOKEN})
        assert right.status_code == 429


async def test_a_token_in_the_url_opens_pages_only() -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        for path in ("/dead/replay", "/dead/discard"):
            answer = await here.visitor.post(f"{PATH}{path}", params={"token": TOKEN}, json={})
            assert answer.status_code == 401
        gone = await here.visitor.get(
            f"{PATH}//evil.example/", params={"token": TOKEN}, follow_redirects=False
        )
        assert gone.headers["location"] == f"{PATH}/"


@pytest.mark.parametrize("is_mounted", [True, False])
async def test_the_servers_own_access_log_shows_no_token(
    *, is_mounted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = a_receiver()
    inspector = Inspector(receiver, token=TOKEN)
    app: ASGIApp = application(
        receiver.routes("/webhooks"), receiver.lifespan, inspector.below(PATH, elsewhere)
    )
    if is_mounted:
        app = Starlette(routes=[Mount(PATH, inspector)])
    with caplog.at_level("INFO", "uvicorn.access"):
        async with (
            serving(app, access_log=True) as site,
            httpx2.AsyncClient(base_url=site.url) as visitor,
        ):
            for token in (TOKEN, "wrong wrong wrong wrong"):
                await visitor.get(f"{PATH}/", params={"token": token, "kind": "dead"})
    logged = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert len(logged) == 2
    for line in logged:
        assert f'"GET {PATH}/?kind=dead HTTP/1.1"' in line


async def test_a_login_gives_a_session_that_is_not_the_token() -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        answer = await log_in(here, to=f"{PATH}/dead?type=x")
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PATH}/dead?type=x")
        cookie = answer.headers["set-cookie"]
        assert TOKEN not in cookie
        for part in ("HttpOnly", "SameSite=strict", f"Path={PATH}", "Max-Age=43200"):
            assert part in cookie
        assert await status(here) == 200  # the client keeps the cookie
        await here.visitor.post(f"{PATH}/logout", headers={"origin": here.site.url})
        assert await status(here) == 401


async def test_a_copied_cookie_is_worthless_after_the_logout() -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        await log_in(here)
        cookie = "; ".join(f"{name}={value}" for name, value in here.visitor.cookies.items())
        here.visitor.cookies.clear()
        assert await status(here, cookie=cookie) == 200
        other = (await log_in(here)).headers["set-cookie"].split(";")[0]
        here.visitor.cookies.clear()
        leaving = {"origin": here.site.url, "cookie": cookie}
        assert (await here.visitor.post(f"{PATH}/logout", headers=leaving)).status_code == 303
        assert await status(here, cookie=cookie) == 401
        assert await status(here, cookie=other) == 200


async def test_the_logout_ends_the_live_page_of_its_session() -> None:
    """In this test streams last for an hour, so only the logout can have ended them."""
    bounds = Bounds(stream_seconds=3600)
    async with inspected(a_receiver(), token=TOKEN, bounds=bounds) as here:
        await log_in(here)
        async with here.visitor.stream("GET", f"{PATH}/stream") as live:
            lines = live.aiter_lines()
            assert await anext(lines)
            await here.visitor.post(f"{PATH}/logout", headers={"origin": here.site.url})
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for _ in lines:
                    pass


async def test_another_applications_cookies_hide_no_session() -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        await log_in(here)
        own = here.visitor.cookies["hookonce_inspector"]
        here.visitor.cookies.clear()
        cookie = f'a:b["=x; hookonce_inspector=made-up; hookonce_inspector={own}'
        assert await status(here, cookie=cookie) == 200


async def test_wrong_tokens_in_form_and_header_are_limited_but_sessions_go_on() -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        await log_in(here)
        session = here.visitor.cookies["hookonce_inspector"]
        here.visitor.cookies.clear()
        answers = []
        for guess in range(15):
            if guess % 2:
                answer = await log_in(here, token=f"a guess of sixteen or more, {guess}")
            else:
                headers = {"authorization": f"Bearer a guess of sixteen, {guess}"}
                answer = await here.visitor.get(f"{PATH}/", headers=headers)
            answers.append(answer)
        assert answers[0].status_code == 401
        late = answers[-1]
        assert late.status_code == 429
        assert 1 <= int(late.headers["retry-after"]) <= 2
        # The right token is refused too: otherwise an attacker could go on guessing.
        assert (await log_in(here)).status_code == 429
        assert await status(here, authorization=f"Bearer {TOKEN}") == 429
        assert await status(here, cookie=f"hookonce_inspector={session}") == 200


@pytest.mark.parametrize("path", ["/login", "/static/page.js"])
async def test_a_path_that_asks_for_no_token_does_not_say_whether_one_is_right(path: str) -> None:
    """If the answers differed, anybody could guess bearer tokens at these paths without a limit."""
    async with inspected(a_receiver(), token=TOKEN) as here:
        answers = set()
        for token in (TOKEN, "a guess of sixteen or more"):
            headers = {"authorization": f"Bearer {token}"}
            answer = await here.visitor.post(f"{PATH}{path}", headers=headers)
            answers.add((answer.status_code, answer.text))
        assert len(answers) == 1


async def test_a_wrong_token_gives_no_session(caplog: pytest.LogCaptureFixture) -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        answer = await log_in(here, token="a guess of sixteen or more")
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "Wrong token" in answer.text
    assert "a wrong token for the inspector, from 203.0.113.9" in caplog.text
    assert "a guess" not in caplog.text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://[", "//[::1"])
async def test_another_site_cannot_log_anybody_in(origin: str) -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        assert (await log_in(here, origin=origin)).status_code == 403


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example/",
        "//evil.example",
        "///evil.example",
        f"{PATH}//evil.example",
        f"{PATH}/\\evil",
        f"{PATH}/%2f%2fevil.example",
        f"{PATH}/%5cevil.example",
        f"{PATH}/../evil",
        f"{PATH}/dead\r\nset-cookie: a=b",
        f"{PATH}/\tdead",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/other",
    ],
)
async def test_a_login_leads_to_a_page_of_the_inspector_and_nowhere_else(to: str) -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        assert (await log_in(here, to=to)).headers["location"] == f"{PATH}/"


HOSTS = ["///h.example", "//h.example", "/\\h.example", "\\\\h.example", "/\t/h.example"]
HOSTS += ["/%2fh.example", "/%5ch.example", "/.//h.example", "/deliveries/1//h.example", " //h"]


@pytest.mark.parametrize("to", HOSTS)
async def test_a_login_at_a_root_mount_leads_only_to_a_page_of_the_inspector(to: str) -> None:
    inspector = Inspector(a_receiver(), token=TOKEN)
    async with serving(inspector) as site, httpx2.AsyncClient(base_url=site.url) as visitor:
        data, headers = {"token": TOKEN, "to": to}, {"origin": site.url}
        answer = await visitor.post("/login", data=data, headers=headers)
    assert answer.headers["location"] == "/"


async def test_a_login_leads_back_to_the_page_that_asked_for_it() -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        pages = ["/deliveries/7?kind=dead", "/dead/letter?id=evt_1%2F%C3%BC", "/inbox", "/"]
        for page in [*pages, "/handled?age=1h", "/handled/event?id=evt_1"]:
            asked = (await here.visitor.get(f"{PATH}{page}")).text
            to = unescape(asked.partition('name="to" value="')[2].partition('"')[0])
            assert (await log_in(here, to=to)).headers["location"] == f"{PATH}{page}"
            here.visitor.cookies.clear()


@pytest.mark.parametrize("root", ["//evil.example", "/\\evil.example"])
async def test_the_mount_path_is_never_taken_for_a_host(root: str) -> None:
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": root,
        "root_path": root,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())],
        "client": ("127.0.0.1", 1),
    }
    await Inspector(a_receiver(), token=TOKEN)(scope, None, send)  # type: ignore[arg-type]  # the request has no body to read
    location = dict(sent[0]["headers"])[b"location"]
    assert location in {b"/evil.example/", b"/%5Cevil.example/"}


CHANGES: list[Callable[[str], str]] = [
    lambda name: name[1:],
    lambda name: name[:-1],
    lambda name: f"{name}~",
    lambda _: "",
    str.swapcase,
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
async def test_a_changed_cookie_is_no_session(change: Callable[[str], str]) -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        await log_in(here)
        session = here.visitor.cookies["hookonce_inspector"]
        here.visitor.cookies.clear()
        assert await status(here, cookie=f"hookonce_inspector={session}") == 200
        assert await status(here, cookie=f"hookonce_inspector={change(session)}") == 401


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def access(time: Time) -> Access:
    return Access(TOKEN, ["localhost"], clock=time)


def in_session(session: str) -> HTTPConnection:
    return visitor_with(cookie=f"a=b; hookonce_inspector={session}")


def test_a_session_ends_with_its_time_or_at_the_logout(access: Access, time: Time) -> None:
    one, other = (in_session(access.begin_session()) for _ in range(2))
    access.end_session(one)
    assert (access.has_session(one), access.has_session(other)) == (False, True)
    time.now += SESSION_SECONDS - 1
    assert access.has_session(other)
    time.now += 1
    assert not access.has_session(other)


def test_the_oldest_session_ends_when_there_are_too_many(access: Access) -> None:
    visitors = [in_session(access.begin_session()) for _ in range(101)]
    assert [access.has_session(visitor) for visitor in visitors] == [False, *[True] * 100]


@pytest.mark.parametrize("name", ["", "0", "9" * 5000, "\x80", TOKEN])
def test_an_unknown_name_is_no_session(access: Access, name: str) -> None:
    access.begin_session()
    assert not access.has_session(in_session(name))
    access.end_session(in_session(name))


def test_a_session_is_unknown_to_another_inspector(access: Access) -> None:
    session = Access("another token, as long", ["localhost"]).begin_session()
    assert not access.has_session(in_session(session))


@pytest.mark.parametrize(
    "change",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": None},
    ],
)
async def test_no_page_of_another_site_can_replay(change: Mapping[str, str | None]) -> None:
    async with inspected(a_receiver()) as here:
        headers = {k: v for k, v in {**acting(here.site), **change}.items() if v is not None}
        answer = await here.visitor.post(
            f"{PATH}/dead/replay", json={"id": "evt_1"}, headers=headers
        )
        assert answer.status_code == 403
        assert (await here.replay("evt_1")).status_code == 404


async def test_a_program_with_the_token_needs_no_origin() -> None:
    async with inspected(a_receiver(), token=TOKEN) as here:
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await here.visitor.post(
            f"{PATH}/dead/replay", json={"id": "evt_1"}, headers=headers
        )
        assert answer.status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/", "/nowhere", "/static/inspector.js", "/static/none", "/stream?cursor=x", "", "/dead"],
)
async def test_every_answer_has_the_security_headers(path: str) -> None:
    async with inspected(a_receiver()) as here:
        for host in ("localhost", "evil.example"):
            answer = await here.visitor.get(f"{PATH}{path}", headers={"host": host})
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"


async def test_a_websocket_is_closed_and_deliveries_go_their_way() -> None:
    async with inspected(a_receiver(), token=TOKEN, client="203.0.113.9") as here:
        (await here.sender.send({"id": "evt_1"}, tamper=True)).expect(401)
    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    await Inspector(a_receiver(), token=TOKEN)({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
