"""The command compares the log of an emulated service with a receiver's store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
from support.servers import serving
from support.waiting import until

from hookonce.emulator import EmulatedService
from hookonce.events import CommentReceived
from hookonce.http.app import Receive, Scope, Send
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, delivery_key, new_token

from .running import SECRET, Result, invoke

APP = """
from hookonce import Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets="{secret}", store="sqlite:///{file}")

@receiver.on(CommentReceived, name="note")
async def note(event: CommentReceived) -> None: ...
"""


class Site:
    """A service on a port, in its own event loop; a test chooses the answers of its endpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = 200
        self.loop = asyncio.new_event_loop()
        self.service = EmulatedService(self._answer, secret=SECRET)
        self.key = self.service.new_key()
        self.url = ""
        self._ready = asyncio.Event()
        self._over = asyncio.Event()

    async def _answer(self, scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def serve(self, ready: asyncio.Future[None]) -> None:
        async with self.service, serving(self.service.api) as site:
            self.url = site.url
            ready.set_result(None)
            await self._over.wait()

    def emit(self) -> str:
        """Emit an event and return its id; a later event then has a later time in the log."""
        emitted = asyncio.run_coroutine_threadsafe(self.service.emit(CommentReceived), self.loop)
        event_id = emitted.result(20).id
        later = self.service.now + timedelta(milliseconds=1)  # the log's times are milliseconds
        asyncio.run(until(lambda: self.service.now >= later))
        return event_id

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)

    def reconcile(self, *options: str, module: str) -> Result:
        environment = {"HOOKONCE_API_URL": self.url, "HOOKONCE_API_KEY": self.key}
        webhook = self.service.endpoint().id
        return invoke(
            *("reconcile", f"{module}:receiver", "--webhook", webhook, *options),
            environment=environment,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    ready = site.loop.create_future()
    thread = Thread(target=site.loop.run_until_complete, args=[site.serve(ready)])
    thread.start()
    asyncio.run_coroutine_threadsafe(_waited(ready), site.loop).result(20)
    yield site
    site.stop()
    thread.join()
    site.loop.close()


async def _waited(ready: asyncio.Future[None]) -> None:
    await ready


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"reconciled_{abs(hash(request.node.name))}"
    code = APP.format(secret=SECRET, file=tmp_path / "hooks.db")
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def handled(folder: Path, event_id: str) -> None:
    """Record an event as done in the store."""

    async def complete() -> None:
        store = SQLiteStore(folder / "hooks.db")
        claim = await store.claim(delivery_key("default", event_id), new_token(), 30.0)
        assert isinstance(claim, Claimed)
        await store.complete(claim)
        await store.aclose()

    asyncio.run(complete())


def test_without_gaps_reconcile_exits_with_0_and_prints_its_number_of_requests(
    site: Site, module: str, tmp_path: Path
) -> None:
    handled(tmp_path, site.emit())
    result = site.reconcile(module=module)
    assert result.status == 0, result
    assert "1 handled since" in result.output
    assert "2 requests of 50000 left in the quota" in result.output


def test_with_gaps_reconcile_exits_with_1_and_names_each_gap(
    site: Site, module: str, tmp_path: Path
) -> None:
    handled(tmp_path, "evt_before")
    missed = site.emit()
    site.status = 410
    given_up = site.emit()
    result = site.reconcile("--json", "--since", "2d", module=module)
    assert result.status == 1, result
    first, second, summary, state = map(json.loads, result.output.splitlines())
    assert (first["id"], first["why"], first["answer"]) == (missed, "unknown_here", 200)
    assert (second["id"], second["why"], second["answer"]) == (given_up, "failed_at_sender", 410)
    assert (summary["gap"], summary["handled"], summary["requests"]) == (2, 0, 2)
    assert state["status"] == "disabled"
    rows = site.reconcile("--since", "2d", module=module).output.splitlines()
    assert [row.split("\t")[1:4:2] for row in rows[:2]] == [
        [missed, "unknown_here"],
        [given_up, "failed_at_sender"],
    ]


def test_reconcile_exits_with_0_if_all_gaps_are_accepted_and_counts_them_later(
    site: Site, module: str, tmp_path: Path
) -> None:
    handled(tmp_path, "evt_before")
    missed = [site.emit() for _ in range(3)]
    result = site.reconcile("--accept", missed[0], missed[1], module=module)
    assert result.status == 1, result
    assert f"{missed[0]}: accepted\n{missed[1]}: accepted\n" in result.output
    assert "2 accepted, 1 gap since" in result.output
    result = site.reconcile("--accept", "--all", "--json", module=module)
    assert result.status == 0, result
    accepted, summary = map(json.loads, result.output.splitlines())
    assert (accepted["id"], accepted["result"]) == (missed[2], "accepted")
    assert (summary["gap"], summary["accepted"]) == (0, 3)
    result = site.reconcile(module=module)
    assert (result.status, "3 accepted since" in result.output) == (0, True), result
    result = site.reconcile("--accept", missed[0], module=module)
    assert (result.status, "3 accepted since" in result.output) == (0, True), result


def test_an_event_that_is_no_gap_is_not_accepted(site: Site, module: str, tmp_path: Path) -> None:
    handled(tmp_path, done := site.emit())
    missed = site.emit()
    result = site.reconcile("--accept", missed, done, "evt_typo", module=module)
    assert (result.status, result.output) == (2, "")
    assert f"no gap here, so nothing was accepted: {done}, evt_typo" in result.errors
    assert "1 gap since" in site.reconcile(module=module).output


@pytest.mark.parametrize(
    "options", [["--accept"], ["--all"], ["evt_1"], ["--accept", "--all", "evt_1"]]
)
def test_gaps_to_accept_are_named_by_ids_or_all_of_them(
    site: Site, module: str, options: list[str]
) -> None:
    result = site.reconcile(*options, module=module)
    assert (result.status, result.output) == (2, "")
    assert "name gaps to accept as --accept ID..., or --accept --all" in result.errors


def test_a_disabled_endpoint_is_reported_with_the_command_that_enables_it(
    site: Site, module: str, tmp_path: Path
) -> None:
    site.status = 410
    handled(tmp_path, site.emit())
    result = site.reconcile(module=module)
    assert (result.status, "the endpoint is disabled" in result.output) == (1, True), result
    assert f"hookonce endpoints enable {site.service.endpoint().id}" in result.output


def test_a_gap_is_named_even_if_an_on_gap_function_fails(
    site: Site, module: str, tmp_path: Path
) -> None:
    handled(tmp_path, "evt_before")
    missed = site.emit()
    file = tmp_path / f"{module}.py"
    hook = "async def sweep(gaps, client): await client.posts.get('nowhere')"
    file.write_text(f"{file.read_text()}\n@receiver.on_gap\n{hook}\n")
    result = site.reconcile("--json", module=module)
    assert result.status == 1, result
    gap, summary, failure = map(json.loads, result.output.splitlines())
    assert (gap["id"], summary["gap"], failure) == (missed, 1, {"on_gap": "NotFoundError"})


def test_a_service_that_does_not_report_the_endpoint_s_status_is_no_fault(
    site: Site, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object) -> None: ...

    monkeypatch.setattr("hookonce.client.webhooks.Webhooks.read", read)
    handled(tmp_path, site.emit())
    assert site.reconcile(module=module).status == 0


@pytest.mark.parametrize("since", ["yesterday", "2w", "12min", "2026-13-01"])
def test_a_time_that_cannot_be_read_is_refused(site: Site, module: str, since: str) -> None:
    result = site.reconcile("--since", since, module=module)
    assert result.status == 2
    assert f"{since!r} is neither a time" in result.errors


@pytest.mark.parametrize("since", ["0m", "2999-01-01"])
def test_a_since_time_that_is_not_in_the_past_is_refused(
    site: Site, module: str, since: str
) -> None:
    site.emit()
    result = site.reconcile("--since", since, module=module)
    assert (result.status, "has to lie in the past" in result.errors) == (2, True), result


def test_a_since_time_before_the_log_is_accepted(site: Site, module: str, tmp_path: Path) -> None:
    handled(tmp_path, site.emit())
    for since in ("90m", "999999d", "0001-01-01"):
        result = site.reconcile("--since", since, module=module)
        assert (result.status, "1 handled since" in result.output) == (0, True), result


def test_reconcile_exits_with_2_if_the_service_cannot_be_asked(
    site: Site, module: str, tmp_path: Path
) -> None:
    handled(tmp_path, "evt_before")
    site.service.revoke_key(site.key)
    result = site.reconcile(module=module)
    assert (result.status, result.output) == (2, "")
    assert "401" in result.errors
    assert site.key not in result.errors


@pytest.mark.parametrize(
    ("store", "words"),
    [("memory://", "call receiver.reconcile there"), ("sqlite:///nowhere.db", "there is no file")],
)
def test_a_store_other_than_the_receivers_is_refused(
    site: Site, module: str, tmp_path: Path, store: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.emit()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{module}.py"
    file.write_text(file.read_text().replace(f"sqlite:///{tmp_path / 'hooks.db'}", store))
    result = site.reconcile(module=module)
    assert (result.status, result.output) == (2, "")
    assert words in result.errors
    assert not (tmp_path / "nowhere.db").exists()
