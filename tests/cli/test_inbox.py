"""`hookonce inbox` shows the events that wait for workers, and makes them due."""

import asyncio
import json
import re
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hookonce.clock import system_clock
from hookonce.samples.events import event_body
from hookonce.stores import open_store
from hookonce.stores.protocols import InboxStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Delivery, Token, delivery_key
from hookonce.watching.workers import AttemptCounts, RunningHandler, WorkerReport

from .running import COMMAND, Result, invoke, on_a_terminal

pytestmark = pytest.mark.sample(12, of="file")

HOSTILE_BODY = b"first\nsecond\t\x1b[31mred\xff\r"
HOUR = 3600.0


async def put(
    store: InboxStore,
    event_id: str,
    event_type: str = "comment.received",
    *,
    endpoint: str = "default",
    age: float = 0.0,
    body: bytes | None = None,
) -> None:
    body = event_body(event_type, event_id=event_id) if body is None else body
    received_at = system_clock() - age
    delivery = Delivery(endpoint, event_id, event_type, received_at, body)
    await store.enqueue(delivery, Token(f"put {event_id}"))


async def fail_or_hold(store: InboxStore, event_id: str, error: str | None) -> None:
    """Fetch the only due event; let it fail and wait for an hour, or keep it claimed."""
    batch = await store.fetch(
        1, 300, endpoint="default", worker="a test", token=Token(f"take {event_id}")
    )
    (taken,) = batch.fetched
    assert taken.delivery.event_id == event_id
    if error is not None:
        await store.retry(taken.claim, HOUR, frozenset({"count"}), error)


async def fill(store: InboxStore) -> None:
    """Store an event in each state, and one at another endpoint."""
    await put(store, "evt_flying", age=2 * HOUR + 65)
    await fail_or_hold(store, "evt_flying", None)
    await put(store, "evt_waiting", "message.received")
    await fail_or_hold(store, "evt_waiting", "reply: away")
    await put(store, "evt_ready")
    await put(store, "evt_elsewhere", endpoint="social")


def prepared(here: Path, prepare: Callable[[InboxStore], Awaitable[None]]) -> str:
    """Prepare a store in a folder and return its URL."""

    async def do() -> None:
        store = SQLiteStore(here / "hookonce.db")
        await store.open()
        await prepare(store)
        await store.aclose()

    asyncio.run(do())
    return f"sqlite:///{here / 'hookonce.db'}"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return the URL of a store with an event in every state."""
    return prepared(tmp_path, fill)


@pytest.fixture
def empty(tmp_path: Path) -> str:
    async def nothing(_: InboxStore) -> None:
        pass

    return prepared(tmp_path, nothing)


def records(result: Result) -> list[dict[str, Any]]:
    assert result.errors == ""
    return [json.loads(line) for line in result.output.splitlines()]


def states(store: str, *options: str) -> dict[str, str]:
    listed = records(invoke("inbox", "list", store, "--json", *options))
    return {record["id"]: record["state"] for record in listed}


def test_stats_counts_the_events_of_all_endpoints_or_of_one(store: str) -> None:
    result = invoke("inbox", "stats", store)
    assert (result.status, result.errors) == (0, "")
    assert result.output.splitlines()[:2] == ["endpoint: all", "depth: 4"]
    lines = dict(line.split(": ") for line in result.output.splitlines())
    assert lines["bytes"].endswith(" KiB")
    assert lines["oldest"] == "2 h 1 min"
    assert (lines["in flight"], lines["dead"], lines["workers"]) == ("1", "0", "1")
    (record,) = records(invoke("inbox", "stats", store, "--endpoint", "social", "--json"))
    size = len(event_body("comment.received", event_id="evt_elsewhere"))
    age = record.pop("oldest_age_seconds")
    assert 0 <= age < HOUR
    assert record == {
        "endpoint": "social",
        "depth": 1,
        "bytes": size,
        "in_flight": 0,
        "dead": 0,
        "workers": 0,
    }


def test_stats_warns_if_events_wait_and_no_worker_runs(store: str) -> None:
    alone = invoke("inbox", "stats", store, "--endpoint", "social").output
    assert alone.splitlines()[-1] == "the inbox has no worker: start `hookonce worker`"
    assert "start `hookonce worker`" not in invoke("inbox", "stats", store).output


def test_stats_shows_an_empty_inbox(empty: str) -> None:
    output = invoke("inbox", "stats", empty).output
    assert output == (
        "endpoint: all\ndepth: 0\nbytes: 0 B\noldest: -\nin flight: 0\ndead: 0\nworkers: 0\n"
    )


def test_list_prints_each_event_on_a_line_oldest_first(store: str) -> None:
    result = invoke("inbox", "list", store)
    assert (result.status, result.errors) == (0, "")
    rows = [line.split("\t") for line in result.output.splitlines()]
    shown = [(endpoint, *rest, error) for _, endpoint, *rest, _, _, error in rows]
    assert shown == [
        ("default", "evt_flying", "comment.received", "in flight", ""),
        ("default", "evt_waiting", "message.received", "waiting", "reply: away"),
        ("default", "evt_ready", "comment.received", "ready", ""),
        ("social", "evt_elsewhere", "comment.received", "ready", ""),
    ]
    until, attempts = zip(*((row[5], row[6]) for row in rows), strict=True)
    assert attempts == ("1", "1", "0", "0")
    assert until[0].endswith("Z")
    assert until[1] > until[0], "it waits for an hour, and the lease is five minutes"
    assert until[2:] == ("", "")


def test_list_selects_by_endpoint_and_type(store: str) -> None:
    assert set(states(store, "--endpoint", "social")) == {"evt_elsewhere"}
    assert set(states(store, "--type", "message.received")) == {"evt_waiting"}
    short = invoke("inbox", "list", store, "--json", "--limit", "2")
    ids = {json.loads(line)["id"] for line in short.output.splitlines()}
    assert (ids, short.errors) == ({"evt_flying", "evt_waiting"}, "2 more; --all lists them\n")
    assert states(store, "--limit", "2", "--all") == states(store)
    assert states(store, "--type", "a.b") == {}


def test_list_selects_by_fields_of_the_body(store: str) -> None:
    assert set(states(store, "--where", "type=message.received")) == {"evt_waiting"}
    assert set(states(store, "--where", "id=evt_elsewhere", "--endpoint", "default")) == set()


def test_an_empty_list_prints_a_sentence_for_people_and_nothing_for_programs(empty: str) -> None:
    assert invoke("inbox", "list", empty) == Result(0, "the inbox is empty\n", "")
    assert invoke("inbox", "list", empty, "--json") == Result(0, "", "")
    assert invoke("inbox", "retry", empty, "--all").output == "nothing waits for a later attempt\n"


def test_on_a_terminal_list_prints_a_table(store: str, tmp_path: Path) -> None:
    shown = on_a_terminal("inbox", "list", store, here=tmp_path, columns=160)
    assert "\x1b[1m" in shown, "headings are bold"
    line = next(line for line in shown.splitlines() if "evt_waiting" in line)
    assert "\t" not in line
    assert line.split()[-2:] == ["reply:", "away"]


def test_show_prints_an_event_with_its_failed_attempts_and_its_body(store: str) -> None:
    result = invoke("inbox", "show", store, "evt_waiting")
    assert (result.status, result.errors) == (0, "")
    fields, _, body = result.output.partition("\n\n")
    assert json.loads(body)["id"] == "evt_waiting"
    *_, finished, attempt = fields.splitlines()
    assert finished == "finished: ['count']"
    assert attempt.startswith("attempt 1: 20")
    assert attempt.endswith("Z reply: away")
    (record,) = records(invoke("inbox", "show", store, "evt_waiting", "--json"))
    assert [(one["number"], one["error"]) for one in record["history"]] == [(1, "reply: away")]


def test_show_raw_writes_the_bytes_as_they_came(tmp_path: Path) -> None:
    url = prepared(tmp_path, lambda store: put(store, "evt_1", body=HOSTILE_BODY))
    command = [*COMMAND, "inbox", "show", url, "evt_1"]
    shown = subprocess.run([*command, "--raw"], capture_output=True, check=True)
    assert shown.stdout == HOSTILE_BODY
    printed = invoke("inbox", "show", url, "evt_1").output
    assert all(char.isprintable() or char in "\t\n" for char in printed)


def test_show_names_an_event_that_it_does_not_find(store: str) -> None:
    result = invoke("inbox", "show", store, "evt_elsewhere", "--endpoint", "default")
    result.says("there is no event 'evt_elsewhere' at 'default'; there is one at 'social'")
    assert invoke("inbox", "show", store, "evt_elsewhere", "--endpoint", "social").status == 0
    assert invoke("inbox", "show", store, "evt_elsewhere").status == 0, "wherever it is"
    invoke("inbox", "show", store, "evt_nowhere").says("there is no event 'evt_nowhere'", status=1)


def test_retry_makes_waiting_events_due_and_names_the_others(store: str) -> None:
    ids = ["evt_waiting", "evt_flying", "evt_ready", "evt_missing"]
    result = invoke("inbox", "retry", store, *ids)
    assert result == Result(
        1,
        "evt_waiting: due now\nevt_flying: in flight\nevt_ready: due now\nevt_missing: not found\n",
        "",
    )
    assert states(store)["evt_waiting"] == "ready"


def test_retry_of_waiting_events_succeeds(store: str) -> None:
    result = invoke("inbox", "retry", store, "evt_waiting", "evt_flying", "--json")
    assert result.status == 0
    assert records(result) == [
        {"id": "evt_waiting", "endpoint": "default", "result": "due now"},
        {"id": "evt_flying", "endpoint": "default", "result": "in flight"},
    ]


def test_retry_all_makes_every_waiting_event_of_the_endpoint_due(store: str) -> None:
    assert invoke("inbox", "retry", store, "--all", "--endpoint", "social").output == (
        "nothing waits for a later attempt\n"
    )
    assert invoke("inbox", "retry", store, "--all") == Result(0, "evt_waiting: due now\n", "")
    assert states(store)["evt_waiting"] == "ready"


def test_retry_by_type_makes_only_events_of_this_type_due(store: str) -> None:
    nothing = "nothing waits for a later attempt\n"
    assert invoke("inbox", "retry", store, "--type", "comment.received").output == nothing
    result = invoke("inbox", "retry", store, "--type", "message.received")
    assert result == Result(0, "evt_waiting: due now\n", "")


def test_retry_by_filters_makes_only_events_due_that_pass_every_filter(store: str) -> None:
    elsewhere = invoke("inbox", "retry", store, "--all", "--where", "type=comment.received")
    assert elsewhere.output == "nothing waits for a later attempt\n"
    result = invoke("inbox", "retry", store, "--where", "type=message.received", "--since", "1h")
    assert result == Result(0, "evt_waiting: due now\n", "")


@pytest.mark.parametrize("arguments", [[], ["evt_1", "--all"], ["evt_1", "--handler", "a"]])
def test_retry_needs_ids_or_all_or_a_filter(arguments: list[str], store: str) -> None:
    result = invoke("inbox", "retry", store, *arguments)
    result.says(
        "name events by their ids, or select them with --all or with filters such as --type",
        status=2,
    )


def test_prune_says_how_many_records_it_removed(tmp_path: Path) -> None:
    now = system_clock() - 100 * 24 * HOUR

    async def finish_long_ago(_: InboxStore) -> None:
        store = SQLiteStore(tmp_path / "hookonce.db", clock=lambda: now)
        claim = await store.claim(delivery_key("default", "evt_1"), Token("t"), 30)
        await store.complete(claim)  # type: ignore[arg-type]  # nobody else claims the event
        await store.aclose()

    url = prepared(tmp_path, finish_long_ago)
    assert invoke("inbox", "prune", url) == Result(0, "removed 1 record\n", "")
    assert invoke("inbox", "prune", url, "--json").output == '{"removed": 0}\n'


USES = [["stats"], ["list"], ["show", "evt_1"], ["retry", "evt_1"], ["prune"]]


@pytest.mark.parametrize("use", USES, ids=" ".join)
def test_a_store_in_memory_and_a_missing_file_are_refused(use: list[str], tmp_path: Path) -> None:
    command, *rest = use
    path = tmp_path / "hookonse.db"
    invoke("inbox", command, f"sqlite:///{path}", *rest).says(f"there is no file '{path}'")
    assert list(tmp_path.iterdir()) == []
    invoke("inbox", command, "memory://", *rest).says("only its own process can see")


@pytest.mark.parametrize(("group", "command"), [("inbox", "stats"), ("dead", "list")])
def test_a_link_to_an_empty_file_does_not_become_a_store(
    group: str, command: str, tmp_path: Path
) -> None:
    empty, link = tmp_path / "environment", tmp_path / "hooks.db"
    empty.touch()
    link.symlink_to(empty)
    invoke(group, command, f"sqlite:///{link}").says(f"the file '{empty}' is empty", status=2)
    assert empty.read_bytes() == b""


@pytest.mark.parametrize("server", ["lasting_valkey", "postgres"])
def test_inbox_commands_work_with_a_redis_store(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server).url

    async def do() -> None:
        store = open_store(url, clock=system_clock)
        assert isinstance(store, InboxStore)
        await fill(store)
        await store.aclose()

    asyncio.run(do())
    assert states(url) == {
        "evt_flying": "in flight",
        "evt_waiting": "waiting",
        "evt_ready": "ready",
        "evt_elsewhere": "ready",
    }
    assert invoke("inbox", "retry", url, "--all").output == "evt_waiting: due now\n"
    shown = invoke("inbox", "show", url, "evt_waiting").output
    assert "reply: away" in shown
    assert "depth: 4\n" in invoke("inbox", "stats", url).output
    assert invoke("inbox", "prune", url).status == 0
    assert invoke("dead", "list", url).output == "no dead letters\n"


def test_the_list_of_workers_names_the_handlers_that_each_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hookonce.db"

    def report(running: tuple[RunningHandler, ...], *, failed: int) -> bytes:
        return WorkerReport(
            endpoint="default",
            process="",
            uptime_seconds=3600.0,
            concurrency=16,
            running=running,
            running_count=len(running),
            last_minute=AttemptCounts(59, failed),
            last_five_minutes=AttemptCounts(300, failed),
        ).dump()

    async def fill() -> None:
        store = SQLiteStore(tmp_path / "hookonce.db")
        slow = RunningHandler("greet\x1b[31m", "evt_1", "comment.received", 2, 90.0)
        waits = RunningHandler("sync", "evt_2", None, 1, None)
        await store.report_worker("default", "web-2:7:0a1b2c", report((slow, waits), failed=1))
        await store.report_worker("social", "web-1:7:0a1b2c", report((), failed=0))
        await store.report_worker("social", "web-3:7:0a1b2c", b"of a later version")
        await store.aclose()

    asyncio.run(fill())
    first, second = invoke("inbox", "workers", url).output.splitlines()
    assert first.startswith("default\tweb-2:7:0a1b2c\talive\tgreet")
    assert first.endswith("\t60\t1\t301\t1")
    assert re.search(r"evt_1 \(1 min.*\), sync evt_2 \(waits for a thread\)", first)
    assert "\x1b" not in first
    assert second == "social\tweb-1:7:0a1b2c\talive\t\t59\t0\t300\t0"
    assert invoke("inbox", "workers", url, "--endpoint", "social").output == f"{second}\n"
    assert invoke("inbox", "workers", url, "--endpoint", "none").output == "no worker is running\n"
    printed = invoke("inbox", "workers", url, "--json").output.splitlines()
    found = [json.loads(line) for line in printed]
    assert [one["worker"] for one in found] == ["web-2:7:0a1b2c", "web-1:7:0a1b2c"]
    assert found[0]["concurrency"] == 16
    assert found[0]["running"][1] == {
        "handler": "sync",
        "id": "evt_2",
        "type": None,
        "attempt": 1,
        "seconds": None,
    }
