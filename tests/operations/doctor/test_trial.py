"""The doctor tries an application in this process, with a copy in place of its receiver."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from litestar import Litestar
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from support.waiting import PATIENCE_SECONDS

from hookonce import Inbox, Limits, Receiver
from hookonce.events import CommentReceived, WebhookTest
from hookonce.integrations import fastapi as for_fastapi
from hookonce.integrations import litestar as for_litestar
from hookonce.operations.doctor import Finding, Level, examine, subjects_in
from hookonce.operations.doctor import trial as trial_module
from hookonce.operations.doctor.trial import trial_findings
from hookonce.testing import TestSender, make_event
from hookonce.verification.secrets import new_secret
from hookonce.watching import loop_monitor

from . import apps
from .findings import above_note, only

pytestmark = [pytest.mark.anyio, pytest.mark.sample(9, of="file")]

SECRET = new_secret()


def new_receiver(
    inbox: Inbox | None = None,
    store: str = "sqlite:///never-made.db",
    limits: Limits | None = None,
) -> Receiver:
    return Receiver(secrets=SECRET, store=store, inbox=inbox, limits=limits)


async def tried(app: ASGIApp) -> list[Finding]:
    [subject] = subjects_in(app)
    return await trial_findings(subject, host="hooks.example")


def fastapi(receiver: Receiver) -> ASGIApp:
    app = FastAPI(lifespan=receiver.lifespan)
    for_fastapi.mount(app, receiver)
    return app


def litestar(receiver: Receiver) -> ASGIApp:
    app = Litestar(lifespan=[receiver.lifespan])
    for_litestar.mount(app, receiver)
    return app  # type: ignore[return-value]  # the framework has its own ASGI types


@pytest.mark.parametrize(
    "make", [apps.sound, fastapi, litestar, apps.behind(HTTPSRedirectMiddleware)]
)
async def test_a_sound_application_has_no_finding_to_fix(
    make: Callable[[Receiver], ASGIApp],
) -> None:
    findings = await tried(make(new_receiver(Inbox())))
    assert {finding.level for finding in findings} == {Level.OK}
    assert {finding.check for finding in findings} == {
        "application.answer",
        "application.body",
        "application.lifespan",
        "application.slash",
        "application.time",
    }


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (apps.behind(apps.Recoding), "application.body", "rewrites the body"),
        (apps.behind(apps.Stripping), "application.headers", "webhook-signature"),
        (apps.behind(apps.Leading), "application.answer", "302, a redirect to /login,"),
        (apps.mounted, "application.slash", "/webhooks is redirected (307) to http"),
        (
            apps.answering(200),
            "application.answer",
            "something other than the receiver answers 200",
        ),
        (apps.answering(410), "application.answer", "disables the endpoint"),
        (apps.answering(404), "application.answer", "there is nothing at this path"),
        (apps.failing, "application.answer", "a handler of the test event failed"),
        (apps.starting(apps.unlocking), "application.lifespan", "KeyError in apps.py"),
        (apps.starting(apps.connecting), "application.lifespan", "TimeoutError in apps.py"),
    ],
)
async def test_each_planted_obstacle_is_the_only_fault_found(
    make: Callable[[Receiver], ASGIApp], check: str, words: str
) -> None:
    findings = await tried(make(new_receiver()))
    [found] = above_note(findings)
    assert (found.check, found.level) == (check, Level.FAULT)
    assert words in found.found
    assert found.fix
    assert "opensesame" not in repr(findings)


async def test_middleware_that_consumes_bodies_is_not_taken_for_a_slow_client() -> None:
    [found] = above_note(await tried(apps.behind(apps.Eating)(new_receiver())))
    assert found.check == "application.body"
    assert "middleware or a proxy read it first" in found.found


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_slow_handler_of_tests_is_a_warning(is_async: bool) -> None:
    [found] = above_note(await tried(apps.slow(new_receiver(), 2.05, is_async=is_async)))
    assert (found.check, found.level) == ("application.time", Level.WARNING)
    assert "s to answer, and the sender waits" in found.found


async def test_a_handler_of_tests_that_blocks_the_event_loop_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_monitor, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(loop_monitor, "BLOCKED_SECONDS", 0.1)
    receiver = new_receiver()

    @receiver.on(WebhookTest, name="blocks")
    async def blocked(_: WebhookTest) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while all(monitor._looks < 10 for monitor in list(loop_monitor._monitor_thread._monitors)):
            assert time.monotonic() < deadline
            time.sleep(0.005)  # noqa: ASYNC251 - the doctor must find this blocking call

    [found, *_] = above_note(await tried(apps.sound(receiver)))
    assert (found.check, found.level) == ("handlers.blocking", Level.WARNING)
    assert "the handler blocks blocked the event loop" in found.found


async def test_a_handler_over_the_answer_budget_is_one_fault_although_it_delays_the_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_module, "_LIFESPAN_SECONDS", 0.3)
    receiver = new_receiver(limits=Limits(answer_seconds=0.2))
    [found] = above_note(await tried(apps.slow(receiver, 60)))
    assert (found.check, found.level) == ("application.answer", Level.FAULT)
    assert "still_running" in found.found


async def test_a_lifespan_that_does_not_start_in_time_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_module, "_LIFESPAN_SECONDS", 0.1)
    [found] = await tried(apps.starting(asyncio.Event().wait)(new_receiver()))
    assert (found.check, found.level) == ("application.lifespan", Level.FAULT)
    assert "does not start within 0.1 s" in found.found


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("", [SystemExit(3)])])
async def test_an_application_that_exits_is_a_fault_and_does_not_stop_the_doctor(
    error: BaseException,
) -> None:
    async def refuse() -> None:
        raise error

    [found] = await tried(apps.starting(refuse)(new_receiver()))
    assert (found.check, found.level) == ("application.lifespan", Level.FAULT)
    named = type(error).__name__
    assert f"fails at its start: {named} in test_trial.py, line" in found.found

    def guarded(app: ASGIApp) -> ASGIApp:
        async def reached(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                raise error
            await app(scope, receive, send)

        return reached

    [found] = above_note(await tried(apps.behind(guarded)(new_receiver())))
    assert (found.check, found.level) == ("application.answer", Level.FAULT)
    assert f"{named} in test_trial.py, line" in found.found


@pytest.mark.parametrize(
    ("inbox", "level"),
    [(None, Level.WARNING), (Inbox(embedded=False), Level.WARNING), (Inbox(), Level.FAULT)],
)
async def test_a_lifespan_without_the_receiver_s_is_a_fault_if_workers_run_in_it(
    inbox: Inbox | None, level: Level
) -> None:
    [found] = above_note(await tried(apps.unwired(new_receiver(inbox))))
    assert (found.check, found.level) == ("application.lifespan", level)
    assert "lifespan=receiver.lifespan" in found.fix


async def test_a_receiver_without_an_application_is_a_note() -> None:
    findings = await tried(new_receiver())
    assert only(findings, "application.lifespan").level is Level.NOTE
    assert above_note(findings) == []


async def test_the_store_is_not_created_and_no_worker_starts(tmp_path: Path) -> None:
    path = tmp_path / "hooks.db"
    receiver = new_receiver(Inbox(), f"sqlite:///{path}")
    opened: list[bool] = []

    @asynccontextmanager
    async def noting(app: object = None) -> AsyncIterator[None]:
        async with receiver.lifespan(app):
            opened.append(path.exists())
            yield

    app = FastAPI(lifespan=noting, routes=list(receiver.routes("/webhooks")))
    findings = await tried(app)
    assert only(findings, "application.lifespan").level is Level.OK
    assert opened == [False]
    assert not path.exists()


async def test_only_handlers_of_webhook_test_run_and_the_receiver_works_afterwards(
    tmp_path: Path,
) -> None:
    receiver = new_receiver(store=f"sqlite:///{tmp_path}/hooks.db")
    ran: list[str] = []

    @receiver.on(WebhookTest, name="test")
    async def test(event: WebhookTest) -> None:
        ran.append(event.type)

    @receiver.on("*", name="business")
    async def business(_: object) -> None:
        ran.append("business")

    app = apps.sound(receiver)
    [subject] = subjects_in(app)
    findings = await examine(subject)
    assert above_note(findings) == []
    assert ran == ["webhook.test"], "twice delivered, and handled once"
    async with TestSender(app, secrets=SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert ran == ["webhook.test", "business"]
    assert (tmp_path / "hooks.db").exists()


async def test_a_wrong_clock_of_the_receiver_is_a_fault() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", clock=lambda: 1_000_000.0)
    [subject] = subjects_in(apps.sound(receiver))
    findings = await examine(subject)
    assert only(findings, "clock").level is Level.FAULT
    assert only(findings, "application.answer").level is Level.OK
