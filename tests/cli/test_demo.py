"""`hookonce demo` shows the main job, tells right outcomes from wrong ones, and cleans up."""

import json
import re
import shlex
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hookonce.verification.signature
from hookonce import VerifiedDelivery, Verifier
from hookonce.delivery.calls import Calls
from hookonce.events import EVENT_CLASSES
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import ClaimResult, DeliveryKey, Ownership, Token
from hookonce.verification.headers import SignedParts

from .recorder import closed_port_url
from .running import Result, invoke, run, running

pytestmark = pytest.mark.sample(4, of="file")

# "A few seconds" (README), on a machine that has other things to do.
A_FEW_SECONDS = 30.0

EXPECTED = [
    *((event_type, 1, "genuine", "handled", 200) for event_type in EVENT_CLASSES),
    ("comment.received", 1, "genuine", "handled", 200),
    ("comment.received", 1, "genuine", "duplicate", 200),
    ("post.target.failed", 1, "genuine", "handler_failed", 500),
    ("post.target.failed", 2, "genuine", "handled", 200),
    ("message.received", 1, "genuine", "handled", 200),
    ("message.received", 1, "genuine", "duplicate", 200),
    ("comment.received", 1, "refused", "no_matching_signature", 401),
    ("comment.received", 1, "refused", "timestamp_too_old", 401),
    ("channel.unhealthy", 1, "genuine", "handled", 200),
    ("post.target.boosted", 1, "genuine", "unknown_type", 200),
    ("comment.received", 1, "genuine", "quarantined", 202),
]
"""Type, attempt, verdict, outcome and status of each delivery the demo promises."""


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows with the two copies sent at the same time in one order."""
    return [*rows[:11], *sorted(rows[11:13], key=str, reverse=True), *rows[13:]]


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return what the demo printed where there is no terminal."""
    here = tmp_path_factory.mktemp("demo")
    started = time.monotonic()
    result = run("demo", here=here)
    assert time.monotonic() - started < A_FEW_SECONDS
    assert list(here.iterdir()) == [], "it left something in the current folder"
    return result


def test_it_ends_well_and_reads_well_without_a_terminal(plain_run: Result) -> None:
    assert (plain_run.status, plain_run.errors) == (0, "")
    assert "\x1b" not in plain_run.output
    lines = plain_run.output.splitlines()
    assert re.fullmatch(r"receiver +http://127\.0\.0\.1:\d+/webhooks, store SQLite .*", lines[0])
    rows = [line.split() for line in lines if re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line)]
    shown = [
        (event_type, int(attempt), verdict, outcome, int(status))
        for _, event_type, _, attempt, verdict, outcome, status, _ in rows
    ]
    assert ordered(shown) == ordered(EXPECTED)
    assert lines[-1] == (
        "18 deliveries of 15 events: 11 handled in 12 runs (one had failed first), 1 dead letter"
        " kept with its bytes, 0 wrong outcomes"
    )


def test_what_a_line_says_stands_below_its_heading(plain_run: Result) -> None:
    lines = plain_run.output.splitlines()
    heading = next(line for line in lines if line.startswith("time "))
    assert heading.split() == ["time", "type", "id", "try", "verdict", "outcome", "status", "ms"]
    line = next(line for line in lines if "comment.received" in line)
    for word, value in (("type", "comment.received"), ("verdict", "genuine")):
        assert heading.index(word) == line.index(value)
    assert heading.index("status") + len("status") == line.index(" 200") + len(" 200")
    assert len(heading) == len(line)


def test_with_json_each_line_is_a_record_and_the_last_says_that_all_was_right(
    tmp_path: Path,
) -> None:
    result = run("demo", "--json", here=tmp_path)
    assert (result.status, result.errors) == (0, "")
    *deliveries, summary = [json.loads(line) for line in result.output.splitlines()]
    assert all(record["right"] is True for record in deliveries)
    names = ("type", "attempt", "verdict", "outcome", "status")
    shown = [tuple(record[name] for name in names) for record in deliveries]
    assert ordered(shown) == ordered(EXPECTED)
    copies = deliveries[11:13]
    assert {record["id"] for record in copies} == {"evt_demo_slow"}
    # The handler takes 200 ms, and the copy that came meanwhile has waited for it.
    assert all(record["milliseconds"] > 100 for record in copies), copies
    assert summary == {
        "deliveries": 18,
        "events": 15,
        "handled": 11,
        "handler_runs": 12,
        "dead_letters": 1,
        "wrong_outcomes": 0,
        "right": True,
    }


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
    async def pretend(*_: object, **__: object) -> Ownership:
        return Ownership.HELD

    patch.setattr(SQLiteStore, "bury", pretend)


@pytest.mark.usefixtures("quiet_again")
@pytest.mark.parametrize(
    ("plant", "wrong_outcomes"),
    [
        (forget_what_was_claimed, 2),  # the duplicate and the retry; copies meet in the process
        (accept_any_signature, 1),  # the body changed on its way
        (run_handlers_twice, 0),  # every answer is right, but not what happened
        (bury_nothing, 0),
    ],
)
def test_a_fault_makes_it_fail(
    plant: Callable[[pytest.MonkeyPatch], None],
    wrong_outcomes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    result = invoke("demo", "--json")
    *deliveries, summary = [json.loads(line) for line in result.output.splitlines()]
    assert (result.status, summary["right"]) == (1, False)
    assert summary["wrong_outcomes"] == wrong_outcomes
    assert sum(not record["right"] for record in deliveries) == wrong_outcomes


@pytest.mark.usefixtures("quiet_again")
def test_a_wrong_outcome_is_marked_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_any_signature(monkeypatch)
    result = invoke("demo")
    marked = [line for line in result.output.splitlines() if "WRONG" in line]
    assert len(marked) == 1
    assert marked[0].endswith("WRONG: expected 401 no_matching_signature")
    assert "1 wrong outcomes" in result.output.splitlines()[-1]


@pytest.mark.usefixtures("quiet_again")
def test_it_sends_what_it_says_that_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, bytes]] = []
    real = Verifier.verify_parts

    def look(
        self: Verifier, body: bytes, parts: SignedParts, *, now: float | None = None
    ) -> VerifiedDelivery:
        message_id, _, _, signatures = parts
        seen.append((message_id, len(signatures), body))
        return real(self, body, parts, now=now)

    monkeypatch.setattr(Verifier, "verify_parts", look)
    assert invoke("demo").status == 0
    signatures = [number for _, number, _ in seen]
    assert signatures == [1] * 15 + [2] * 3, "from the rotation on, there are two for a day"
    ids = [event_id for event_id, _, _ in seen]
    for first, second in ((7, 8), (9, 10), (11, 12)):
        assert ids[first] == ids[second]
    assert len(set(ids)) == 15
    assert ids[-1].encode() not in seen[-1][2], "the unreadable body is cut off"


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_kept_it_takes_the_deliveries_it_names_until_it_is_stopped(
    way: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    with running("demo", "--keep", here=tmp_path, environment={"TMPDIR": str(temporary)}) as demo:
        url = demo.printed(r"serving at (http://127\.0\.0\.1:\d+/webhooks) until Ctrl-C")[1]
        name, *arguments = shlex.split(demo.printed(r"\n +(hookonce send .+)\n")[1])
        assert (name, arguments[arguments.index("--url") + 1]) == ("hookonce", url)
        sent = run(*arguments, "--id", "evt_mine", "--times", "2", here=tmp_path)
        assert sent.status == 0, sent
        assert '"handled"' in sent.output.splitlines()[0]
        assert '"duplicate"' in sent.output.splitlines()[1]
        demo.printed(r"comment\.received evt_mine at default: 200 handled \([\d.]+ ms\)\n")
        demo.printed(r"comment\.received evt_mine at default: 200 duplicate \([\d.]+ ms\)\n")
        assert len(list(temporary.iterdir())) == 1
        demo.signal(way)
        ended = demo.ended()
    assert (ended.status, ended.errors) == (0, "")
    assert list(temporary.iterdir()) == [], "the folder with the secret is still there"


def test_kept_with_json_it_names_url_and_secrets_in_a_record_and_goes_on_in_records(
    tmp_path: Path, temporary: Path
) -> None:
    with running(
        "demo", "--keep", "--json", here=tmp_path, environment={"TMPDIR": str(temporary)}
    ) as demo:
        place = json.loads(demo.printed(r'\{"url".+\}\n')[0])
        arguments = ["--url", place["url"], "--secrets-file", place["secrets_file"]]
        assert stat.S_IMODE(Path(place["secrets_file"]).stat().st_mode) == 0o600
        assert run("send", "webhook.test", *arguments, here=tmp_path).status == 0
        demo.printed(r'\{"log": "webhook\.test ')
        demo.signal(signal.SIGINT)
        records = [json.loads(line) for line in demo.ended().output.splitlines()]
    assert records[-2] == place
    assert records[-1]["log"].endswith(" ms)")


SABOTAGED = """
from hookonce.cli import main
from hookonce.cli.demo.sender import Sender
{sabotage}
main()
"""


def sabotaged(sabotage: str) -> list[str]:
    return [sys.executable, "-c", SABOTAGED.format(sabotage=sabotage)]


def test_stopping_it_does_not_turn_wrong_outcomes_into_right_ones(
    tmp_path: Path, temporary: Path
) -> None:
    command = sabotaged(
        "import hookonce.verification.signature as s; s.compare_digest = lambda *_: True"
    )
    environment = {"TMPDIR": str(temporary)}
    with running("demo", "--keep", here=tmp_path, environment=environment, command=command) as demo:
        demo.printed(r"until Ctrl-C")
        demo.signal(signal.SIGINT)
        assert demo.ended().status == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_broken_off_midway_it_fails_quietly_and_cleans_up(
    way: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    command = sabotaged(
        "import asyncio\nasync def go_on(self, *_, **__):\n    print('going on', flush=True)\n"
        "    await asyncio.Event().wait()\nSender.deliver = go_on"
    )
    environment = {"TMPDIR": str(temporary)}
    with running("demo", here=tmp_path, environment=environment, command=command) as demo:
        demo.printed("going on")
        demo.signal(way)
        ended = demo.ended()
    assert ended.status == 128 + way
    assert ended.errors == ""
    assert list(temporary.iterdir()) == []


def test_it_serves_on_the_port_it_is_given_if_that_is_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refused = run("demo", "--port", str(port), here=tmp_path)
    refused.says(f"cannot serve on port {port}: Address already in use")
    # A proxy in the environment is not asked.
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), closed_port_url())
    served = run("demo", "--port", str(port), here=tmp_path, environment=proxies)
    assert (served.status, served.errors) == (0, "")
    assert f"http://127.0.0.1:{port}/webhooks" in served.output
