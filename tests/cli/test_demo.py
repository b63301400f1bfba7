"""`hookonce demo` delivers over HTTP, finds wrong outcomes, and cleans up."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hookonce.verification.signature
from hookonce import VerifiedDelivery
from hookonce.delivery.calls import Calls
from hookonce.delivery.pipeline import Pipeline
from hookonce.events import EVENT_CLASSES
from hookonce.outcome import Outcome, Reason
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import ClaimResult, DeliveryKey, Ownership, Token
from hookonce.verification.headers import SignedParts
from hookonce.verification.signature import PartsVerifier

from .recorder import closed_port_url
from .running import Result, invoke, on_a_terminal, run, running

pytestmark = pytest.mark.sample(2, of="file")

# The README promises a few seconds, but a busy machine may need longer.
A_FEW_SECONDS = 30.0

MODES = pytest.mark.parametrize("mode", [[], ["--inbox"]], ids=["inline", "inbox"])


def deliveries(mode: list[str]) -> list[tuple[object, ...]]:
    """Return the type, attempt, verdict, outcome and status of each delivery in the demo."""
    accepted = ("genuine", "stored", 202) if mode else ("genuine", "handled", 200)
    failing: list[tuple[object, ...]] = [
        ("post.target.failed", 1, "genuine", "handler_failed", 500),
        ("post.target.failed", 2, *accepted),
        ("comment.received", 1, "genuine", "rejected", 202),
    ]
    if mode:
        types = ("post.target.failed", "channel.disconnected", "comment.received")
        failing = [(event_type, 1, *accepted) for event_type in types]
    return [
        *((event_type, 1, *accepted) for event_type in EVENT_CLASSES),
        ("comment.received", 1, *accepted),
        ("comment.received", 1, "genuine", "duplicate", 200),
        ("message.received", 1, *accepted),
        ("message.received", 1, "genuine", "duplicate", 200),
        ("comment.received", 1, "refused", "no_matching_signature", 401),
        ("comment.received", 1, "refused", "timestamp_too_old", 401),
        ("channel.unhealthy", 1, *accepted),
        ("post.target.boosted", 1, "genuine", "unknown_type", 200),
        ("comment.received", 1, "genuine", "quarantined", 202),
        *failing,
        ("comment.received", 2, "genuine", "already_dead", 202),
    ]


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the deliveries in one fixed order: two copies are sent at the same time."""
    return [*rows[:9], *sorted(rows[9:11], key=str, reverse=True), *rows[11:]]


def attempts(mode: list[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the attempts that the demo shows for events with fixed ids."""
    replay = (2, "succeeded")
    if not mode:
        return {"evt_unwanted": [replay]}
    return {
        "evt_slow": [(1, "succeeded")],
        "evt_flaky": [(1, "failed"), (2, "succeeded")],
        "evt_poison": [(1, "failed"), (2, "failed"), (3, "failed")],
        "evt_unwanted": [(1, "rejected"), replay],
    }


def summary(mode: list[str]) -> dict[str, int]:
    """Return the counts that the demo prints."""
    return {
        "deliveries": 20,
        "events": 17 if mode else 16,
        "handled": 12,
        "handler_calls": 17 if mode else 14,
        "waiting": 0,
        "dead_letters": 2 if mode else 1,
        "wrong_outcomes": 0,
    }


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.output.splitlines()]


def shows_everything(result: Result, mode: list[str]) -> None:
    """Check the records that a demo with --json has printed."""
    assert (result.status, result.errors) == (0, "")
    *rows, last = records(result)
    assert last == {**summary(mode), "right": True}
    assert all(row["right"] is True for row in rows)
    names = ("type", "attempt", "verdict", "outcome", "status")
    sent = [row for row in rows if row["verdict"] != "handler"]
    shown = [tuple(row[name] for name in names) for row in sent]
    assert ordered(shown) == ordered(deliveries(mode))
    assert {row["id"] for row in sent[9:11]} == {"evt_slow"}
    if not mode:  # the copy waits for the handler, which takes 200 ms
        assert all(row["milliseconds"] > 100 for row in sent[9:11]), sent[9:11]
    ran: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        if row["verdict"] == "handler":
            ran.setdefault(row["id"], []).append((row["attempt"], row["outcome"]))
    assert {event_id: ran.pop(event_id) for event_id in attempts(mode)} == attempts(mode)
    others = len(EVENT_CLASSES) + 2 if mode else 0
    assert list(ran.values()) == [[(1, "succeeded")]] * others


@MODES
def test_the_demo_succeeds_and_its_output_is_readable_without_a_terminal(
    mode: list[str], tmp_path: Path
) -> None:
    started = time.monotonic()
    result = run("demo", *mode, here=tmp_path, environment={"PYTHONIOENCODING": "ascii"})
    assert time.monotonic() - started < A_FEW_SECONDS
    assert list(tmp_path.iterdir()) == [], "it left something in the current folder"
    assert (result.status, result.errors) == (0, "")
    assert result.output.isascii()
    assert re.search(r"[^\x20-\x7e\n]|\\u", result.output) is None, "an escape"
    lines = result.output.splitlines()
    assert re.fullmatch(r"receiver +http://127\.0\.0\.1:\d+/webhooks, store SQLite .*", lines[0])
    heading = next(line for line in lines if line.startswith("time "))
    assert heading.split() == ["time", "type", "id", "try", "verdict", "outcome", "status", "ms"]
    rows = [line for line in lines if re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line)]
    assert {len(row) for row in rows} == {len(heading)}
    for word, value in (("type", "comment.received"), ("verdict", "refused"), ("id", "evt_slow")):
        assert heading.index(word) in {row.find(value) for row in rows}
    ends = {row.find(" 401 ") + len(" 401") for row in rows}
    assert heading.index("status") + len("status") in ends
    sent = [row.split() for row in rows if " handler " not in row]
    shown = [
        (name, int(number), *rest, int(status)) for _, name, _, number, *rest, status, _ in sent
    ]
    assert ordered(shown) == ordered(deliveries(mode))
    counts = (f"{name.replace('_', ' ')}: {number}" for name, number in summary(mode).items())
    assert lines[-1] == ", ".join(counts)


@MODES
def test_with_json_each_line_is_a_record_and_the_last_says_that_all_was_right(
    mode: list[str], tmp_path: Path
) -> None:
    shows_everything(run("demo", *mode, "--json", here=tmp_path), mode)


def test_a_narrow_terminal_gets_the_same_lines_in_colour(tmp_path: Path) -> None:
    printed = on_a_terminal("demo", here=tmp_path, columns=40)
    assert "\x1b[33m" in printed, "a failure has a colour of its own"
    rows = re.findall(r"\x1b\[\d+m(\d\d:\d\d:\d\d\.\d{3} .+)\x1b\[0m\n", printed)
    assert len(rows) == summary([])["deliveries"] + 1
    assert len({len(row) for row in rows}) == 1


def forget_what_was_claimed(patch: pytest.MonkeyPatch) -> None:
    number, claim = count(), SQLiteStore.claim

    async def as_if_new(
        self: SQLiteStore, key: DeliveryKey, token: Token, lease: float
    ) -> ClaimResult:
        return await claim(self, DeliveryKey(f"{key}:{next(number)}"), token, lease)

    patch.setattr(SQLiteStore, "claim", as_if_new)


def accept_any_signature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hookonce.verification.signature, "compare_digest", lambda *_: True)


def run_handlers_twice(patch: pytest.MonkeyPatch) -> None:
    once = Calls.call

    async def twice(self: Calls, *arguments: Any) -> Exception | None:
        await once(self, *arguments)
        return await once(self, *arguments)

    patch.setattr(Calls, "call", twice)


def bury_nothing(patch: pytest.MonkeyPatch) -> None:
    async def pretend(self: SQLiteStore, claim: Any, *_: object, **__: object) -> Ownership:
        await self.complete(claim)
        return Ownership.HELD

    patch.setattr(SQLiteStore, "bury", pretend)


def answer_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    handle = Pipeline.handle

    async def pretend(self: Pipeline, body: bytes, *arguments: Any, **options: Any) -> Outcome:
        if b"evt_flaky" in body:
            return Outcome(202, Reason.STORED)
        return await handle(self, body, *arguments, **options)

    patch.setattr(Pipeline, "handle", pretend)


FORGED = "WRONG: expected 401 no_matching_signature"
NO_DEAD_LETTERS = "WRONG: the dead letters: {}, not {'evt_unreadable': 'unreadable'"


@pytest.mark.parametrize(
    ("mode", "plant", "said"),
    [
        ([], forget_what_was_claimed, "WRONG: expected 200 duplicate"),
        ([], accept_any_signature, FORGED),
        ([], run_handlers_twice, "the attempts at evt_slow: ['succeeded', 'succeeded'], not ['suc"),
        ([], bury_nothing, NO_DEAD_LETTERS),
        (["--inbox"], accept_any_signature, FORGED),
        (["--inbox"], bury_nothing, NO_DEAD_LETTERS),
        (["--inbox"], answer_before_it_is_stored, "the attempts at evt_flaky: [], not ['failed',"),
    ],
)
def test_a_fault_fails_the_demo_at_the_delivery_that_shows_it(
    mode: list[str],
    plant: Callable[[pytest.MonkeyPatch], None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    result = invoke("demo", *mode)
    wrong = [line for line in result.output.splitlines() if "WRONG: " in line]
    assert any(said in line for line in wrong), wrong
    assert result.status == 1
    assert result.output.endswith(f", wrong outcomes: {len(wrong)}\n")
    *rows, last = records(invoke("demo", *mode, "--json"))
    assert last["right"] is False
    assert sum(not row["right"] for row in rows) == last["wrong_outcomes"] == len(wrong)


def test_the_demo_sends_the_deliveries_that_it_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, bytes]] = []
    real = PartsVerifier.verify_parts

    def look(
        self: PartsVerifier, body: bytes, parts: SignedParts, *, now: float | None = None
    ) -> VerifiedDelivery:
        message_id, _, _, signatures = parts
        seen.append((message_id, len(signatures), body))
        return real(self, body, parts, now=now)

    monkeypatch.setattr(PartsVerifier, "verify_parts", look)
    assert invoke("demo").status == 0
    ids, signatures, bodies = zip(*seen, strict=True)
    assert signatures == (1,) * 13 + (2,) * 7, "from the rotation on, there are two"
    for first, second in ((7, 8), (9, 10), (16, 17), (18, 19)):
        assert (ids[first], bodies[first]) == (ids[second], bodies[second])
    assert len(set(ids)) == 16
    assert ids[15].encode() not in bodies[15], "the unreadable body is cut off"


def sabotaged(sabotage: str) -> list[str]:
    return [sys.executable, "-c", f"from hookonce.cli import main\n{sabotage}\nmain()"]


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_fails_without_a_message_and_cleans_up(
    way: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    command = sabotaged(
        "import asyncio\nfrom hookonce.emulator.over_http import OverHttp\n"
        "async def go_on(*_):\n    print('going on', flush=True)\n"
        "    await asyncio.Event().wait()\nOverHttp.post = go_on"
    )
    environment = {"TMPDIR": str(temporary)}
    with running("demo", here=tmp_path, environment=environment, command=command) as demo:
        demo.printed("going on")
        demo.signal(way)
        ended = demo.ended()
    assert ended.status == 128 + way
    assert ended.errors == ""
    assert list(temporary.iterdir()) == []


def test_a_proxy_in_the_environment_is_not_used(tmp_path: Path) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), closed_port_url())
    served = run("demo", here=tmp_path, environment=proxies)
    assert (served.status, served.errors) == (0, "")


@pytest.mark.full("3 s each")
@MODES
def test_the_demo_can_be_repeated_with_a_file_and_leaves_no_dead_letters(
    mode: list[str], tmp_path: Path
) -> None:
    store = "sqlite:///mine.db"
    for _ in range(2):
        shows_everything(run("demo", *mode, "--store", store, "--json", here=tmp_path), mode)
    assert run("dead", "list", store, here=tmp_path).output == "no dead letters\n"
    assert "\ndepth: 0\n" in run("inbox", "stats", store, here=tmp_path).output


@pytest.mark.full("4 s")
@pytest.mark.parametrize(
    ("server", "kind"), [("lasting_valkey", "Redis"), ("postgres", "Postgres")]
)
def test_the_demo_can_be_repeated_with_a_server_and_leaves_no_dead_letters(
    tmp_path: Path, request: pytest.FixtureRequest, server: str, kind: str
) -> None:
    url = request.getfixturevalue(server).url
    for _ in range(2):
        shows_everything(
            run("demo", "--inbox", "--store", url, "--json", here=tmp_path), ["--inbox"]
        )
    inline = run("demo", "--store", url, here=tmp_path)
    assert inline.status == 0, inline
    assert f"/webhooks, store {kind}\n" in inline.output
    assert re.search(r"^endpoint  demo-[0-9a-f]{8}$", inline.output, re.MULTILINE)
    assert run("dead", "list", url, here=tmp_path).output == "no dead letters\n"


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("memory://", "only its own process can see what is in memory://"),
        ("mongodb://localhost", "no store has the scheme 'mongodb'"),
        ("sqlite:///no/such/folder/mine.db", "does its folder exist"),
        ("redis://:opensesame@127.0.0.1:1", "the Redis store cannot be opened"),
        ("postgresql://me:opensesame@127.0.0.1:1/x", "the PostgreSQL store failed"),
    ],
)
def test_an_unusable_store_is_reported_in_one_line(
    store: str, message: str, tmp_path: Path
) -> None:
    result = run("demo", "--store", store, here=tmp_path)
    result.says(message)
    assert "opensesame" not in result.errors
