"""Checks of a running server, over HTTP."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from integrations.gunicorn_apps import behind_gunicorn
from integrations.nginx import behind_nginx
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.redis_servers import free_port
from support.secrets import ChangingSecrets
from support.servers import serving

from hookonce import Limits, Receiver
from hookonce.emulator.over_http import OverHttp
from hookonce.emulator.transport import CALM, Network, OutgoingRequest
from hookonce.events import WebhookTest
from hookonce.http.inprocess import Answer
from hookonce.operations.doctor import Finding, Level, Subject
from hookonce.operations.doctor import unfinished as unfinished_module
from hookonce.operations.doctor.site import examine_site
from hookonce.senders import publishing
from hookonce.verification.secrets import new_key_pair, new_secret

from . import apps
from .findings import above_note, only

pytestmark = [pytest.mark.anyio, pytest.mark.sample(8, of="file")]

SECRET = new_secret()


@dataclass
class Counting:
    """Counts the requests that reach an application."""

    app: ASGIApp
    paths: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.paths.append(scope["path"])
        await self.app(scope, receive, send)


def new_receiver(secret: str = SECRET, **settings: Any) -> Receiver:
    limits = Limits(body_seconds=0.2)  # the receiver's time limit for an unfinished body
    return Receiver(secrets=secret, store="memory://", limits=limits, **settings)


async def looked_at(
    app: ASGIApp, *, path: str = "/webhooks", receiver: Receiver | None = None
) -> list[Finding]:
    """Serve an application; return the doctor's findings for it with a receiver's settings."""
    receiver = receiver or new_receiver()
    subject = Subject(receiver, receiver, "/webhooks")
    async with serving(app) as site, OverHttp() as transport:
        return await examine_site(subject, site.url + path, transport)


async def test_a_sound_server_has_no_finding_to_fix_and_gets_five_requests() -> None:
    served = new_receiver()
    ran: list[str] = []

    @served.on(WebhookTest, name="test")
    async def test(event: WebhookTest) -> None:
        ran.append(event.id)

    @served.on("*", name="business")
    async def business(_: object) -> None:
        ran.append("business")

    app = Counting(apps.sound(served))
    findings = await looked_at(app)
    assert above_note(findings) == []
    assert {f.check for f in findings if f.level is Level.OK} == {
        "url.answer",
        "url.clock",
        "url.forgery",
        "url.size",
        "url.slash",
        "url.time",
        "url.unfinished",
    }
    assert only(findings, "url.address").level is Level.NOTE, "the sender would refuse loopback"
    assert "401" in only(findings, "url.forgery").found
    assert app.paths == ["/webhooks", "/webhooks", "/webhooks", "/webhooks/", "/webhooks"]
    assert "never ends after 0." in only(findings, "url.unfinished").found
    [event_id] = ran
    assert event_id.startswith("evt_doctor_")


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (apps.behind(apps.Recoding), "url.body", "parses and rewrites the body"),
        (apps.behind(apps.Stripping), "url.answer", "missing_id: the webhook-id header is missing"),
        (apps.behind(apps.Leading), "url.answer", "302, a redirect to /login,"),
        (apps.mounted, "url.slash", "/webhooks is redirected (307) to http"),
        (apps.answering(200), "url.answer", "something other than the receiver answers 200"),
        (apps.answering(410), "url.answer", "disables the endpoint"),
        (apps.failing, "url.answer", "a handler of the test event failed"),
        (
            lambda _: apps.sound(new_receiver(new_secret())),
            "url.answer",
            "the server has other secrets",
        ),
        (
            lambda _: apps.sound(new_receiver(clock=lambda: 1_000_000.0)),
            "url.answer",
            "the server's clock is behind",
        ),
    ],
)
async def test_each_planted_obstacle_is_the_only_fault_found(
    make: Callable[[Receiver], ASGIApp], check: str, words: str
) -> None:
    app = Counting(make(new_receiver()))
    findings = await looked_at(app)
    [found] = above_note(findings)
    assert (found.check, found.level) == (check, Level.FAULT)
    assert words in found.found
    assert found.fix
    assert "opensesame" not in repr(findings)
    assert len(app.paths) <= 3


async def test_a_redirect_at_the_other_spelling_of_the_path_is_a_warning() -> None:
    findings = await looked_at(apps.mounted(new_receiver()), path="/webhooks/")
    [found] = above_note(findings)
    assert (found.check, found.level) == ("url.slash", Level.WARNING)


@pytest.mark.parametrize(
    ("status", "words"), [(413, "a proxy answers 413"), (403, "is answered 403 by something other")]
)
async def test_a_proxy_that_refuses_large_bodies_is_a_warning(status: int, words: str) -> None:
    [found] = above_note(await looked_at(apps.refusing_large(new_receiver(), 1_000_000, status)))
    assert (found.check, found.level) == ("url.size", Level.WARNING)
    assert words in found.found
    assert "client_max_body_size" in found.fix


async def test_a_server_with_a_lower_limit_than_is_configured_here_is_a_warning() -> None:
    def limited_to(body_bytes: int) -> Receiver:
        limits = Limits(body_bytes=body_bytes, body_seconds=0.2)
        return Receiver(secrets=SECRET, store="memory://", limits=limits)

    app = apps.sound(limited_to(2000))
    [found] = above_note(await looked_at(app, receiver=limited_to(4000)))
    assert (found.check, found.level) == ("url.size", Level.WARNING)
    assert "over the limit of the server" in found.found


async def test_a_connection_that_breaks_at_a_large_body_is_a_warning() -> None:
    class Breaking(OverHttp):
        async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
            if len(request.body) > 1_000_000:
                raise ConnectionError("no answer: ReadError")
            return await super().post(request, network)

    receiver = new_receiver()
    subject = Subject(receiver, receiver, "/webhooks")
    async with serving(apps.sound(new_receiver())) as site, Breaking() as transport:
        findings = await examine_site(subject, f"{site.url}/webhooks", transport)
    [found] = above_note(findings)
    assert (found.check, found.level) == ("url.size", Level.WARNING)
    assert "gets no answer (no answer: ReadError)" in found.found


async def test_a_slow_answer_is_a_warning() -> None:
    [found] = above_note(await looked_at(apps.slow(new_receiver(), 2.05)))
    assert (found.check, found.level) == ("url.time", Level.WARNING)


async def test_no_answer_within_the_sender_s_time_limit_is_a_fault() -> None:
    held = asyncio.Event()

    async def holding(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await apps.sound(new_receiver())(scope, receive, send)
        await held.wait()

    impatient = replace(publishing, rules=replace(publishing.rules, answer_seconds=0.2))
    receiver = Receiver(secrets=SECRET, store="memory://", sender=impatient)
    subject = Subject(receiver, receiver, "/webhooks")
    async with serving(holding) as site:
        async with OverHttp() as transport:
            findings = await examine_site(subject, f"{site.url}/webhooks", transport)
        held.set()
    found = only(findings, "url.answer")
    assert found.level is Level.FAULT
    assert found.found == "no answer within 0.2 s, the sender's time limit"


async def test_an_unreachable_server_is_a_fault() -> None:
    receiver = new_receiver()
    subject = Subject(receiver, receiver, "/webhooks")
    async with OverHttp() as transport:
        url = f"http://127.0.0.1:{free_port()}/webhooks"
        findings = await examine_site(subject, url, transport)
    assert only(findings, "url.answer").level is Level.FAULT


async def test_a_server_s_clock_is_read_from_its_answer() -> None:
    class InThePast(OverHttp):
        """A transport whose answers have a date that is years in the past."""

        async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
            answer = await super().post(request, network)
            headers = {**answer.headers, "date": "Fri, 20 Nov 2020 09:30:04 GMT"}
            return Answer(answer.status, headers, answer.body)

    receiver = new_receiver()
    subject = Subject(receiver, receiver, "/webhooks")
    async with serving(apps.sound(new_receiver())) as site, InThePast() as transport:
        findings = await examine_site(subject, f"{site.url}/webhooks", transport)
    found = only(findings, "url.clock")
    assert found.level is Level.FAULT
    assert "behind this machine's" in found.found


async def test_a_server_that_verifies_nothing_is_found_by_a_forged_delivery() -> None:
    async def trusting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await apps.sound(new_receiver())(scope, receive, send)
            return
        body = b'{"status": "accepted", "reason": "handled"}'
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    found = only(await looked_at(trusting), "url.forgery")
    assert found.level is Level.FAULT


async def test_with_public_keys_alone_only_forged_deliveries_are_sent() -> None:
    receiver = new_receiver(new_key_pair().public)
    app = Counting(apps.sound(receiver))
    findings = await looked_at(app, receiver=receiver)
    assert above_note(findings) == []
    assert "only the sender can sign" in only(findings, "url.answer").found
    assert {f.check for f in findings if f.level is Level.OK} == {"url.forgery", "url.size"}
    assert app.paths == ["/webhooks"] * 2


async def test_without_a_usable_secret_nothing_is_sent() -> None:
    app = Counting(apps.sound(new_receiver()))
    provider = ChangingSecrets(SECRET)
    receiver = Receiver(secrets=provider, store="memory://")
    provider.secrets = ()
    findings = await looked_at(app, receiver=receiver)
    assert [finding.check for finding in findings] == ["url.address"]
    assert app.paths == []


async def test_a_server_that_waits_for_a_body_that_never_ends_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unfinished_module, "_MORE_SECONDS", 0.5 - publishing.rules.patience_seconds)
    app = apps.sound(new_receiver())

    async def holding(scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body first, without a limit, as Django does under ASGI."""
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(message.get("body", b"") for message in messages)
        whole = iter([{**messages[-1], **({"body": body} if scope["type"] == "http" else {})}])

        async def given() -> Message:
            return next(whole, None) or await receive()

        await app(scope, given, send)

    [found] = above_note(await looked_at(holding))
    assert (found.check, found.level) == ("url.unfinished", Level.WARNING)
    assert "client_body_timeout" in found.fix


async def test_a_thread_blocked_by_an_unfinished_body_is_a_warning_unless_nginx_buffers(
    tmp_path: Path,
) -> None:
    receiver = new_receiver()
    subject = Subject(receiver, receiver, "/webhooks")
    with behind_gunicorn("wsgi", here=tmp_path, secret=SECRET) as (port, _):
        async with OverHttp() as transport:
            url = f"http://127.0.0.1:{port}/webhooks"
            found = only(await examine_site(subject, url, transport), "url.unfinished")
            assert found.level is Level.WARNING
            assert "blocks one of the server's threads" in found.found
            with behind_nginx(port, here=tmp_path / "nginx") as proxy:
                url = f"http://127.0.0.1:{proxy}/webhooks"
                findings = await examine_site(subject, url, transport)
    assert only(findings, "url.unfinished").level is Level.OK
