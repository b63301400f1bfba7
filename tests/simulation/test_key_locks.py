"""Runs that come too late, or meet, are found among those of one handler and key."""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path

import pytest

from hookonce import Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import ChannelUnhealthy, CommentReceived
from hookonce.routing.keyed import Keyed
from hookonce.simulation import simulate
from hookonce.simulation.ledger import HandlerRun, RunOutcome
from hookonce.simulation.turns import Turn, Turns
from hookonce.stores.values import Watermark
from hookonce.verification.secrets import new_secret

LATEST = Keyed(lambda _: "key", is_latest=True, drop_ties=False)
STRICT = Keyed(lambda _: "key", is_latest=True, drop_ties=True)
SERIAL = Keyed(lambda _: "key", is_latest=False, drop_ties=False)


def run(
    event: str,
    began: int,
    ended: int,
    outcome: RunOutcome = RunOutcome.SUCCEEDED,
    *,
    handler: str = "sync",
) -> HandlerRun:
    return HandlerRun(event, handler, 1, 0.0, 0.0, outcome, None, False, None, began, ended)


def turns(
    *runs: HandlerRun, keyed: Keyed = LATEST, keys: dict[str, str] | None = None, tied: bool = False
) -> Turns:
    """Return turns of the events old, new and newest."""
    keys, moments = keys or {}, count()
    of = {
        (event, handler): Turn(
            keys.get(event, "key"), Watermark(7 if tied else next(moments), event), keyed
        )
        for event in ("old", "new", "newest")
        for handler in ("sync", "other")
    }
    return Turns(of, runs)


def stale(found: Turns) -> list[tuple[str, str]]:
    return [(run.event_id, other.event_id) for run, other in found.stale()]


def overlapping(found: Turns) -> list[tuple[str, str]]:
    return [(run.event_id, other.event_id) for run, other in found.overlapping()]


def test_an_older_event_that_is_run_after_the_newest_has_succeeded_is_too_late() -> None:
    found = turns(run("newest", 0, 1), run("new", 2, 3), run("old", 4, 5, RunOutcome.FAILED))
    assert stale(found) == [("new", "newest"), ("old", "newest")]
    assert overlapping(found) == []


def test_in_their_order_none_is() -> None:
    found = turns(run("old", 0, 1), run("new", 2, 3), run("newest", 4, 5))
    assert stale(found) == overlapping(found) == []


def test_a_newer_event_that_has_failed_makes_none_late() -> None:
    found = turns(run("new", 0, 1, RunOutcome.RETRY_ASKED), run("old", 2, 3), run("new", 4, 5))
    assert stale(found) == []


@pytest.mark.parametrize(("keyed", "late"), [(LATEST, 0), (STRICT, 1), (SERIAL, 0)])
def test_of_two_of_one_time_the_second_is_late_if_ties_are_dropped(keyed: Keyed, late: int) -> None:
    found = turns(run("new", 0, 1), run("old", 2, 3), keyed=keyed, tied=True)
    assert len(stale(found)) == late


def test_two_runs_that_meet_are_found_whatever_becomes_of_them() -> None:
    longest = run("new", 0, 9, RunOutcome.CANCELLED)
    found = turns(longest, run("newest", 1, 2), run("old", 3, 4), run("new", 10, 11), keyed=SERIAL)
    assert overlapping(found) == [("newest", "new"), ("old", "new")]
    assert stale(found) == []


@pytest.mark.parametrize("other", ["key", "handler", "none"])
def test_other_keys_and_handlers_are_none_of_its_business(other: str) -> None:
    second = run("old", 1, 4, handler="other" if other == "handler" else "sync")
    if other == "none":
        found = Turns({}, [run("new", 0, 2), second])
    else:
        found = turns(run("new", 0, 2), second, keys={"old": "its own"} if other == "key" else {})
    assert stale(found) == overlapping(found) == []


def test_an_event_is_left_out_for_a_newer_one_that_has_succeeded_and_for_no_other() -> None:
    found = turns(run("new", 0, 1), run("newest", 2, 3, RunOutcome.FAILED))
    assert [found.left_out(event, "sync") for event in ("old", "new", "newest", "unknown")] == [
        True,
        True,  # it is the one that has succeeded
        False,
        False,
    ]
    assert not found.left_out("old", "other")


def test_an_event_that_a_ledger_has_left_out_is_not_lost(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "app.db")
    ledger.create_table()
    receiver = Receiver(secrets=new_secret(), store="memory://")

    @receiver.on(
        ChannelUnhealthy, within=ledger, latest_by=lambda event: event.data.id, name="follow"
    )
    def follow(event: ChannelUnhealthy, connection: sqlite3.Connection) -> None: ...

    report = simulate(receiver, events=40, seed=5, store="memory://", channels=2)
    assert report.passed, report.findings
    assert report.stale


def test_comments_on_the_same_posts_are_told_apart_from_those_that_meet() -> None:
    receiver, posts = Receiver(secrets=new_secret(), store="memory://"), list[str | None]()

    @receiver.on(CommentReceived, serial_by=lambda event: event.data.post_id, name="answer")
    async def answer(event: CommentReceived) -> None:
        posts.append(event.data.post_id)

    report = simulate(receiver, events=60, seed=5, store="memory://")
    assert report.passed, report.findings
    assert len(set(posts)) < len(posts) / 2


def test_a_key_function_that_fails_is_the_handlers_failure() -> None:
    receiver = Receiver(secrets=new_secret(), store="sqlite:///unused.db")

    @receiver.on(CommentReceived, latest_by=lambda event: event.data.id[999], name="answer")
    async def answer(event: CommentReceived) -> None: ...

    report = simulate(receiver, events=5, seed=5)
    assert {finding.breach for finding in report.findings} == {"given_up"}


def test_there_are_as_many_channels_as_are_asked_for() -> None:
    receiver, channels = Receiver(secrets=new_secret(), store="memory://"), set[str]()

    @receiver.on("channel.*", name="note")
    async def note(event: object) -> None:
        channels.add(event.data.id)  # type: ignore[attr-defined]  # of whatever type it is

    simulate(receiver, events=60, seed=5, store="memory://", channels=3)
    assert len(channels) == 3
    with pytest.raises(ValueError, match="channels takes a number above 0"):
        simulate(receiver, channels=0)
