"""Checks of the store, with real files and servers."""

import subprocess
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette
from support.postgres import PostgresServer, postgres_server
from support.redis_servers import RedisServer, free_port, redis_server
from support.waiting import until_async

from hookonce import Inbox, Receiver, Reject
from hookonce.events import CommentReceived
from hookonce.operations.doctor import Finding, Level, Subject, endpoint_findings, subjects_in
from hookonce.operations.doctor.storage import store_findings
from hookonce.samples.events import event_body
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import DeadReason, Delivery, new_token
from hookonce.testing import TestSender, make_event
from hookonce.verification.secrets import new_secret

from .findings import above_note, only

pytestmark = [pytest.mark.anyio, pytest.mark.sample(10, of="file")]

SECRET = new_secret()


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """Return a list of mounts that contains only a disk."""
    return mounted(tmp_path)


def mounted(folder: Path, *more: str) -> Path:
    path = folder / "mounts"
    path.write_text("\n".join(["/dev/sda1 / ext4 rw 0 0", *more]))
    return path


def subject_of(store: str, inbox: Inbox | None = None) -> Subject:
    receiver = Receiver(secrets=SECRET, store=store, inbox=inbox)
    return Subject(receiver, receiver, "/webhooks")


async def on_file(path: Path, *, waiting: int = 0) -> str:
    """Create a database with ``waiting`` events in the inbox, and return its URL."""
    store = SQLiteStore(path)
    for number in range(waiting):
        event_id = f"evt_{number}"
        body = event_body("comment.received", event_id=event_id)
        delivery = Delivery("default", event_id, "comment.received", 0.0, body)
        await store.enqueue(delivery, new_token())
    await store.open()
    await store.aclose()
    return f"sqlite:///{path}"


async def examined(store: str, mounts: Path, inbox: Inbox | None = None) -> list[Finding]:
    return await store_findings(subject_of(store, inbox), mounts=mounts)


class TestDurability:
    async def test_a_store_in_memory_is_a_fault(self, mounts: Path) -> None:
        found = only(await examined("memory://", mounts), "store.durability")
        assert found.level is Level.FAULT
        assert "sqlite:///" in found.fix

    async def test_a_file_on_a_disk_is_fine(self, tmp_path: Path, mounts: Path) -> None:
        findings = await examined(await on_file(tmp_path / "hooks.db"), mounts)
        assert {finding.level for finding in findings} == {Level.OK}

    async def test_a_file_in_memory_is_a_fault(self, tmp_path: Path) -> None:
        mounts = mounted(tmp_path, f"tmpfs {tmp_path} tmpfs rw 0 0")
        findings = await examined(await on_file(tmp_path / "hooks.db"), mounts)
        assert only(findings, "store.durability").level is Level.FAULT


class TestReachability:
    async def test_a_file_that_does_not_exist_yet_is_not_created(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        findings = await examined(f"sqlite:///{tmp_path}/new.db", mounts)
        assert only(findings, "store.reachable").level is Level.NOTE
        assert not (tmp_path / "new.db").exists()

    async def test_a_missing_file_is_a_warning_if_a_server_is_running(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        subject = subject_of(f"sqlite:///{tmp_path}/new.db")
        findings = await store_findings(subject, served=True, mounts=mounts)
        assert only(findings, "store.reachable").level is Level.WARNING

    async def test_a_missing_folder_is_a_fault(self, tmp_path: Path, mounts: Path) -> None:
        findings = await examined(f"sqlite:///{tmp_path}/nowhere/new.db", mounts)
        assert only(findings, "store.reachable").level is Level.FAULT

    async def test_a_file_that_is_no_database_is_a_fault(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        (tmp_path / "hooks.db").write_text("no database " * 100)
        findings = await examined(f"sqlite:///{tmp_path}/hooks.db", mounts)
        assert "not an SQLite database" in only(findings, "store.reachable").found

    @pytest.mark.parametrize("url", ["redis://:{}@{}", "postgresql://me:{}@{}/hooks"])
    async def test_an_unreachable_server_is_a_fault_that_does_not_show_its_password(
        self, url: str, mounts: Path
    ) -> None:
        place = f"127.0.0.1:{free_port()}"
        findings = await examined(url.format("opensesame", place), mounts)
        found = only(findings, "store.reachable")
        assert found.level is Level.FAULT
        assert "opensesame" not in repr(findings)


class TestServers:
    async def test_a_server_without_persistence_that_evicts_has_two_findings(
        self, mounts: Path
    ) -> None:
        with redis_server("--maxmemory-policy", "allkeys-lru") as server:
            findings = await examined(server.url, mounts)
        eviction, persistence = (f for f in findings if f.check == "store.settings")
        assert (eviction.level, eviction.fix) == (Level.FAULT, "set it to noeviction")
        assert "allkeys-lru" in eviction.found
        assert (persistence.level, persistence.fix) == (Level.WARNING, "set appendonly yes")

    async def test_missing_persistence_is_a_fault_for_an_inbox(
        self, mounts: Path, valkey: RedisServer
    ) -> None:
        findings = await examined(valkey.url, mounts, Inbox())
        assert only(findings, "store.settings").level is Level.FAULT

    async def test_a_persistent_server_is_fine_and_its_clock_is_checked(
        self, mounts: Path, lasting_valkey: RedisServer
    ) -> None:
        findings = await examined(lasting_valkey.url, mounts)
        assert {finding.level for finding in findings} == {Level.OK}
        assert "agree" in only(findings, "clock.store").found

    async def test_postgresql_that_may_lose_data_is_a_fault_for_an_inbox(
        self, mounts: Path, postgres: PostgresServer
    ) -> None:
        findings = await examined(postgres.url, mounts, Inbox())
        found = only(findings, "store.settings")
        assert (found.level, found.fix) == (Level.FAULT, "set fsync to on")
        assert "agree" in only(findings, "clock.store").found

    async def test_postgresql_with_its_usual_settings_is_fine(self, mounts: Path) -> None:
        with postgres_server(fsync="on") as server:
            findings = await examined(server.url, mounts)
            assert {finding.level for finding in findings} == {Level.OK}
            findings = await examined(f"{server.url}?durability=remote_apply", mounts)
        assert "waits for no standby" in only(findings, "store.settings").found


class TestInbox:
    async def test_no_worker_is_a_fault_if_workers_run_as_separate_processes(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        url = await on_file(tmp_path / "hooks.db")
        found = only(await examined(url, mounts, Inbox(embedded=False)), "inbox")
        assert (found.level, found.fix) == (Level.FAULT, "start hookonce worker")

    async def test_a_live_worker_is_found(self, tmp_path: Path, mounts: Path) -> None:
        url = await on_file(tmp_path / "hooks.db")
        worker = Receiver(secrets=SECRET, store=url, inbox=Inbox(embedded=False))
        subject = subject_of(url, Inbox(embedded=False))

        async def is_seen() -> bool:
            findings = await store_findings(subject, mounts=mounts)
            return only(findings, "inbox").level is Level.OK

        async with worker.working():
            await until_async(is_seen, what="the worker has asked for work")

    @pytest.mark.parametrize(
        ("waiting", "served", "level"),
        [(0, False, Level.NOTE), (0, True, Level.FAULT), (2, False, Level.FAULT)],
    )
    async def test_no_worker_is_a_note_until_the_application_with_its_workers_starts(
        self, waiting: int, served: bool, level: Level, tmp_path: Path, mounts: Path
    ) -> None:
        url = await on_file(tmp_path / "hooks.db", waiting=waiting)
        findings = await store_findings(subject_of(url, Inbox()), served=served, mounts=mounts)
        assert only(findings, "inbox").level is level

    async def test_events_in_an_inbox_that_the_receiver_no_longer_has_are_a_fault(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        url = await on_file(tmp_path / "hooks.db", waiting=3)
        found = only(await examined(url, mounts), "inbox")
        assert found.level is Level.FAULT
        assert "no worker (3 waiting)" in found.found
        assert "inbox=Inbox()" in found.fix

    async def test_the_check_fetches_no_event_and_does_not_count_as_a_worker(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        url = await on_file(tmp_path / "hooks.db", waiting=1)
        for _ in range(2):
            found = only(await examined(url, mounts, Inbox()), "inbox")
            assert "events waiting: 1" in found.found


async def test_dead_letters_are_a_warning(tmp_path: Path, mounts: Path) -> None:
    url = await on_file(tmp_path / "hooks.db")
    receiver = Receiver(secrets=SECRET, store=url)
    async with TestSender(receiver, secrets=SECRET) as sender:
        unreadable = make_event(CommentReceived).model_dump_json().encode()[:-1]
        (await sender.send(unreadable)).expect(202, "quarantined")
    found = only(await examined(url, mounts), "dead_letters")
    assert found.level is Level.WARNING
    assert "hookonce dead list" in found.fix


async def test_deliveries_that_could_not_be_read_are_a_warning_that_names_the_field(
    tmp_path: Path, mounts: Path
) -> None:
    url = await on_file(tmp_path / "hooks.db")
    receiver = Receiver(secrets=SECRET, store=url)
    receiver.on(CommentReceived)(reject)
    async with TestSender(receiver, secrets=SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(202, "rejected")
        assert "unreadable" not in str(await examined(url, mounts))
        for body in (b"{", b'{"type": "order.paid", "time": 1}'):
            (await sender.send(body, message_id=f"evt_{len(body)}")).expect(202, "quarantined")
    found = only(await examined(url, mounts), "dead_letters.unreadable")
    assert found.level is Level.WARNING
    assert (
        "that could not be read: 2. The last of these: the body is not an event envelope"
        in found.found
    )
    assert "id: Field required" in found.found
    assert "`hookonce dead replay MODULE:RECEIVER --reason unreadable --all`" in found.fix


def reject(_: CommentReceived) -> None:
    raise Reject("closed")


class TestOtherProcesses:
    async def test_a_process_that_uses_a_deleted_file_is_named_with_the_path_of_the_file(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        file = tmp_path / "hooks.db"
        url = await on_file(file)
        with file.open("rb") as held:
            holder = subprocess.Popen(["sleep", "60"], stdin=held)  # noqa: ASYNC220 - a blocking start is short
        try:
            assert above_note(await examined(url, mounts)) == []
            (tmp_path / "backup.db").write_bytes(file.read_bytes())
            (tmp_path / "backup.db").replace(file)
            found = only(await examined(url, mounts), "store.file")
        finally:
            holder.kill()
            holder.wait()
        assert found.level is Level.FAULT
        assert f"process {holder.pid} " in found.found
        assert f"/proc/{holder.pid}/fd/0" in found.fix
        assert above_note(await examined(url, mounts)) == []

    @pytest.mark.parametrize("scheme", ["sqlite", "redis"])
    async def test_another_application_on_the_endpoint_is_a_warning_and_the_check_registers_nothing(
        self, scheme: str, tmp_path: Path, mounts: Path, lasting_valkey: RedisServer
    ) -> None:
        url = lasting_valkey.url if scheme == "redis" else await on_file(tmp_path / "hooks.db")
        other = Receiver(secrets=new_secret(), store=url)
        other.on("*", name="club.note")(ignore)
        subject = subject_of(url)
        subject.receiver.on("*", name="shop.greet")(ignore)
        async with other:
            pass
        for _ in range(2):
            found = only(await store_findings(subject, mounts=mounts), "applications")
            assert found.level is Level.WARNING
            assert "club.note" in found.found
            assert "endpoint=" in found.fix
        async with other:
            assert not (await other.check()).warnings


class TestOutstandingHandlers:
    async def test_events_that_wait_for_a_missing_handler_are_a_warning_for_each_name(
        self, tmp_path: Path, mounts: Path
    ) -> None:
        url = await on_file(tmp_path / "hooks.db", waiting=3)
        async with aclosing(SQLiteStore(tmp_path / "hooks.db")) as store:
            outstanding = frozenset({"shop.greet", "shop.removed"})
            batch = await store.fetch(3, 60.0, endpoint="default", worker="w", token=new_token())
            for taken in batch.fetched[:2]:
                await store.retry(taken.claim, 3600.0, error="it failed", outstanding=outstanding)
            await store.bury(batch.fetched[2].claim, DeadReason.EXHAUSTED, outstanding=outstanding)
        subject = subject_of(url, Inbox())
        subject.receiver.on("*", name="shop.greet")(ignore)
        found = only(await store_findings(subject, mounts=mounts), "handlers.outstanding")
        assert found.level is Level.WARNING
        assert "need the handler shop.removed, which this receiver does not have: 3" in found.found


async def ignore(event: object) -> None: ...


@pytest.mark.parametrize("scheme", ["memory", "sqlite", "postgresql", "redis"])
def test_the_retention_of_every_store_is_known(scheme: str, tmp_path: Path) -> None:
    url = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/hooks.db",
        "postgresql": "postgresql://127.0.0.1:1/hooks",
        "redis": "redis://127.0.0.1:1",
    }[scheme]
    receiver = Receiver(secrets=SECRET, store=url, retention=timedelta(days=3))
    assert getattr(receiver.store, "retention_seconds", None) == 3 * 86_400


async def test_a_receiver_that_is_sound_has_nothing_above_a_note(
    tmp_path: Path, mounts: Path
) -> None:
    url = await on_file(tmp_path / "hooks.db")
    assert above_note(await examined(url, mounts, Inbox())) == []


@pytest.mark.parametrize(("endpoint", "count"), [("other", 0), ("default", 1)])
def test_two_receivers_with_one_store_and_endpoint_are_a_fault(
    endpoint: str, count: int, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = Receiver(secrets=SECRET, store=url)
    second = Receiver(secrets=SECRET, store=url, endpoint=endpoint)
    app = Starlette(routes=[*first.routes("/one"), *second.routes("/two")])
    findings = endpoint_findings(subjects_in(app))
    assert len(findings) == count
    for found in findings:
        assert (found.check, found.level) == ("endpoint", Level.FAULT)
        assert "at /one and /two share" in found.found
