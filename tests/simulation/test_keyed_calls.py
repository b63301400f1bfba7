"""`KeyedCalls` finds stale and overlapping calls of each handler and key."""

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
from hookonce.simulation.calls import CallOutcome, HandlerCall
from hookonce.simulation.keyed_calls import EventKey, KeyedCalls
from hookonce.stores.values import Watermark
from hookonce.verification.secrets import new_secret

LATEST = Keyed(lambda _: "key", is_latest=True, drop_ties=False)
STRICT = Keyed(lambda _: "key", is_latest=True, drop_ties=True)
SERIAL = Keyed(lambda _: "key", is_latest=False, drop_ties=False)


def call(
    event: str,
    start: int,
    end: int,
    outcome: CallOutcome = CallOutcome.SUCCEEDED,
    *,
    handler: str = "sync",
) -> HandlerCall:
    return HandlerCall(event, handler, 1, 0.0, 0.0, outcome, None, False, None, start, end)


def keyed_calls(
    *calls: HandlerCall,
    keyed: Keyed = LATEST,
    keys: dict[str, str] | None = None,
    tied: bool = False,
) -> KeyedCalls:
    """Return the calls for the events old, new and newest."""
    keys, moments = keys or {}, count()
    keys_of = {
        (event, handler): EventKey(
            keys.get(event, "key"), Watermark(7 if tied else next(moments), event), keyed
        )
        for event in ("old", "new", "newest")
        for handler in ("sync", "other")
    }
    return KeyedCalls(keys_of, calls)


def stale(found: KeyedCalls) -> list[tuple[str, str]]:
    return [(call.event_id, other.event_id) for call, other in found.stale()]


def overlapping(found: KeyedCalls) -> list[tuple[str, str]]:
    return [(call.event_id, other.event_id) for call, other in found.overlapping()]


def test_an_older_event_is_stale_after_the_newest_event_has_succeeded() -> None:
    found = keyed_calls(
        call("newest", 0, 1), call("new", 2, 3), call("old", 4, 5, CallOutcome.FAILED)
    )
    assert stale(found) == [("new", "newest"), ("old", "newest")]
    assert overlapping(found) == []


def test_events_in_order_are_not_stale() -> None:
    found = keyed_calls(call("old", 0, 1), call("new", 2, 3), call("newest", 4, 5))
    assert stale(found) == overlapping(found) == []


def test_a_newer_event_that_failed_makes_no_event_stale() -> None:
    found = keyed_calls(
        call("new", 0, 1, CallOutcome.RETRY_REQUESTED), call("old", 2, 3), call("new", 4, 5)
    )
    assert stale(found) == []


@pytest.mark.parametrize(("keyed", "expected"), [(LATEST, 0), (STRICT, 1), (SERIAL, 0)])
def test_a_tie_is_stale_only_if_ties_are_dropped(keyed: Keyed, expected: int) -> None:
    found = keyed_calls(call("new", 0, 1), call("old", 2, 3), keyed=keyed, tied=True)
    assert len(stale(found)) == expected


def test_overlapping_calls_are_found_whatever_their_outcome() -> None:
    longest = call("new", 0, 9, CallOutcome.CANCELLED)
    found = keyed_calls(
        longest, call("newest", 1, 2), call("old", 3, 4), call("new", 10, 11), keyed=SERIAL
    )
    assert overlapping(found) == [("newest", "new"), ("old", "new")]
    assert stale(found) == []


@pytest.mark.parametrize("other", ["key", "handler", "none"])
def test_other_keys_and_handlers_do_not_count(other: str) -> None:
    second = call("old", 1, 4, handler="other" if other == "handler" else "sync")
    if other == "none":
        found = KeyedCalls({}, [call("new", 0, 2), second])
    else:
        found = keyed_calls(
            call("new", 0, 2), second, keys={"old": "its own"} if other == "key" else {}
        )
    assert stale(found) == overlapping(found) == []


def test_an_event_is_superseded_by_a_newer_event_only_after_that_event_has_succeeded() -> None:
    found = keyed_calls(call("new", 0, 1), call("newest", 2, 3, CallOutcome.FAILED))
    assert [
        found.is_superseded(event, "sync") for event in ("old", "new", "newest", "unknown")
    ] == [
        True,
        True,  # the handler has succeeded with this event itself
        False,
        False,
    ]
    assert not found.is_superseded("old", "other")


def test_an_event_that_a_ledger_skipped_is_not_lost(tmp_path: Path) -> None:
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


def test_many_comments_share_a_post_and_calls_of_one_post_do_not_overlap() -> None:
    receiver, posts = Receiver(secrets=new_secret(), store="memory://"), list[str | None]()

    @receiver.on(CommentReceived, serial_by=lambda event: event.data.post_id, name="answer")
    async def answer(event: CommentReceived) -> None:
        posts.append(event.data.post_id)

    report = simulate(receiver, events=60, seed=5, store="memory://")
    assert report.passed, report.findings
    assert len(set(posts)) < len(posts) / 2


def test_an_error_of_a_key_function_is_a_failure_of_the_handler() -> None:
    receiver = Receiver(secrets=new_secret(), store="sqlite:///unused.db")

    @receiver.on(CommentReceived, latest_by=lambda event: event.data.id[999], name="answer")
    async def answer(event: CommentReceived) -> None: ...

    report = simulate(receiver, events=5, seed=5)
    assert {finding.breach for finding in report.findings} == {"given_up"}


def test_the_events_belong_to_the_given_number_of_channels() -> None:
    receiver, channels = Receiver(secrets=new_secret(), store="memory://"), set[str]()

    @receiver.on("channel.*", name="note")
    async def note(event: object) -> None:
        channels.add(event.data.id)  # type: ignore[attr-defined]  # every channel event has an id

    simulate(receiver, events=60, seed=5, store="memory://", channels=3)
    assert len(channels) == 3
    with pytest.raises(ValueError, match="channels takes a number above 0"):
        simulate(receiver, channels=0)
