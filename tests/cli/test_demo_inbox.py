"""`hookonce demo --inbox` shows what workers do, and `--store` shows it with another store."""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.redis_servers import RedisServer

from hookonce.delivery.outcome import Outcome, Reason
from hookonce.delivery.pipeline import Pipeline
from hookonce.events import EVENT_CLASSES
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Ownership

from .running import Result, invoke, run, running

pytestmark = pytest.mark.sample(2, of="file")

A_FEW_SECONDS = 30.0

DELIVERIES = [
    *((event_type, "stored", 202) for event_type in EVENT_CLASSES),
    ("comment.received", "stored", 202),
    ("comment.received", "duplicate", 200),
    ("message.received", "stored", 202),
    ("message.received", "duplicate", 200),
    ("comment.received", "no_matching_signature", 401),
    ("comment.received", "quarantined", 202),
    ("post.target.failed", "stored", 202),
    ("channel.disconnected", "stored", 202),
    ("comment.received", "stored", 202),
    ("channel.disconnected", "already_dead", 202),
]

RUNS = {
    "evt_demo_flaky": [(1, "failed"), (2, "succeeded")],
    "evt_demo_slow": [(1, "succeeded")],
    "evt_poison": [(1, "failed"), (2, "failed"), (3, "failed"), (4, "succeeded")],
    "evt_unwanted": [(1, "rejected")],
}

SUMMARY = {
    "deliveries": 17,
    "events": 14,
    "handled": 11,
    "handler_runs": 16,
    "waiting": 0,
    "dead_letters": 2,
    "wrong_outcomes": 0,
    "right": True,
}


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.output.splitlines()]


def shows_everything(result: Result) -> None:
    """Check what a demo with --inbox and --json has printed."""
    assert result.status == 0, result
    *rows, summary = records(result)
    assert summary == SUMMARY
    assert all(row["right"] is True for row in rows)
    deliveries = [row for row in rows if row["verdict"] != "handler"]
    assert [(d["type"], d["outcome"], d["status"]) for d in deliveries] == DELIVERIES
    runs: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        if row["verdict"] == "handler":
            runs.setdefault(row["id"], []).append((row["attempt"], row["outcome"]))
    assert {event_id: runs.pop(event_id) for event_id in RUNS} == RUNS
    assert list(runs.values()) == [[(1, "succeeded")]] * 8


def test_it_ends_well_and_reads_well_without_a_terminal(tmp_path: Path) -> None:
    started = time.monotonic()
    result = run("demo", "--inbox", here=tmp_path)
    assert time.monotonic() - started < A_FEW_SECONDS
    assert (result.status, result.errors) == (0, "")
    assert list(tmp_path.iterdir()) == [], "it left something in the current folder"
    lines = result.output.splitlines()
    rows = [line for line in lines if re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line)]
    assert len(rows) == SUMMARY["deliveries"] + SUMMARY["handler_runs"]
    heading = next(line for line in lines if line.startswith("time "))
    assert {len(row) for row in rows} == {len(heading)}
    assert lines[-1] == (
        "17 deliveries of 14 events: 11 handled in 16 runs (one after a retry, one by a replay),"
        " 2 dead letters kept with their bytes, 0 left in the inbox, 0 wrong outcomes"
    )


def test_with_json_each_line_is_a_record_of_what_it_promises(tmp_path: Path) -> None:
    shows_everything(run("demo", "--inbox", "--json", here=tmp_path))


def bury_nothing(patch: pytest.MonkeyPatch) -> None:
    async def pretend(self: SQLiteStore, claim: Any, *_: object, **__: object) -> Ownership:
        await self.complete(claim)
        return Ownership.HELD

    patch.setattr(SQLiteStore, "bury", pretend)


def answer_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    handle = Pipeline.handle

    async def pretend(self: Pipeline, body: bytes, *arguments: Any, **options: Any) -> Outcome:
        if b"evt_unwanted" in body:
            return Outcome(202, Reason.STORED)
        return await handle(self, body, *arguments, **options)

    patch.setattr(Pipeline, "handle", pretend)


@pytest.mark.usefixtures("quiet_again")
@pytest.mark.parametrize("plant", [bury_nothing, answer_before_it_is_stored])
def test_a_fault_makes_it_fail(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    result = invoke("demo", "--inbox", "--json")
    *rows, summary = records(result)
    assert (result.status, summary["right"]) == (1, False)
    assert sum(not row["right"] for row in rows) == summary["wrong_outcomes"] > 0


@pytest.mark.usefixtures("quiet_again")
def test_a_fault_is_said_where_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_before_it_is_stored(monkeypatch)
    wrong = [line for line in invoke("demo", "--inbox").output.splitlines() if "WRONG" in line]
    letters = "evt_demo_cut (unreadable), evt_poison (exhausted)"
    assert wrong[0] == f"WRONG: dead letters are {letters}, not {letters}, evt_unwanted (rejected)"
    assert "WRONG: the runs for evt_unwanted were [], not ['rejected']" in wrong


@pytest.mark.full("3 s each")
@pytest.mark.parametrize("mode", [[], ["--inbox"]])
def test_in_a_file_it_can_be_repeated_and_leaves_no_dead_letters(
    mode: list[str], tmp_path: Path
) -> None:
    store = "sqlite:///mine.db"
    for _ in range(2):
        result = run("demo", *mode, "--store", store, "--json", here=tmp_path)
        assert (result.status, result.errors) == (0, "")
    assert run("dead", "list", store, here=tmp_path).output == "no dead letters\n"
    assert "\ndepth: 0\n" in run("inbox", "stats", store, here=tmp_path).output


@pytest.mark.full("4 s")
@pytest.mark.timeout(60)
def test_on_redis_it_can_be_repeated_and_leaves_no_dead_letters(
    tmp_path: Path, lasting_valkey: RedisServer
) -> None:
    for _ in range(2):
        shows_everything(
            run("demo", "--inbox", "--store", lasting_valkey.url, "--json", here=tmp_path)
        )
    inline = run("demo", "--store", lasting_valkey.url, here=tmp_path)
    assert inline.status == 0, inline
    assert "/webhooks, store Redis\n" in inline.output
    assert re.search(r"^endpoint  demo-[0-9a-f]{8}$", inline.output, re.MULTILINE)
    assert run("dead", "list", lasting_valkey.url, here=tmp_path).output == "no dead letters\n"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("memory://", "only its own process can see what is in memory://"),
        ("mongodb://localhost", "no store has the scheme 'mongodb'"),
        ("sqlite:///no/such/folder/mine.db", "does its folder exist"),
        ("redis://:opensesame@127.0.0.1:1", "the Redis store cannot be opened"),
    ],
)
def test_a_store_that_cannot_be_used_is_said_in_one_line(
    store: str, message: str, tmp_path: Path
) -> None:
    result = run("demo", "--store", store, here=tmp_path)
    result.says(message)
    assert "opensesame" not in result.errors


def test_kept_its_worker_handles_the_deliveries_of_others(tmp_path: Path, temporary: Path) -> None:
    environment = {"TMPDIR": str(temporary)}
    with running("demo", "--inbox", "--keep", "--json", here=tmp_path, environment=environment) as (
        demo
    ):
        place = json.loads(demo.printed(r'\{"url".+\}\n')[0])
        arguments = ["--url", place["url"], "--secrets-file", place["secrets_file"]]
        assert (
            run("send", "webhook.test", *arguments, "--id", "evt_mine", here=tmp_path).status == 0
        )
        demo.printed(r'"id": "evt_mine", "attempt": 1, "verdict": "handler"')
        demo.printed(r'\{"log": "webhook\.test evt_mine at default: 202 stored')
        demo.signal(signal.SIGTERM)
        ended = demo.ended()
    assert (ended.status, ended.errors) == (0, "")
    assert list(temporary.iterdir()) == [], "the folder with the secret is still there"
