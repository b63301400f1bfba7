"""A simulation passes correct receivers, and finds the mistakes of wrong receivers."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import pytest

from hookonce import Context, Event, Inbox, Limits, Outcome, Reason, Receiver, Reject, Retry
from hookonce.events import CommentReceived, PostTargetFailed
from hookonce.http.app import Receive, Scope, Send
from hookonce.routing.table import HandlerTable
from hookonce.senders import publishing
from hookonce.simulation import Breach, Mode, SimulationReport, simulate, virtual_loop
from hookonce.simulation.calls import CallLog, CallOutcome, HandlerCall
from hookonce.simulation.report import Emitted, violations
from hookonce.stores.handled import HandledEvent
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import DeadReason
from hookonce.verification.headers import RawHeaders
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.sample(3, of="file")

SECRET = new_secret()


def correct(receiver_class: type[Receiver] = Receiver, *, inbox: Inbox | None = None) -> Receiver:
    """Return a receiver without a mistake."""
    receiver = receiver_class(secrets=SECRET, store="sqlite:///never-opened.db", inbox=inbox)

    @receiver.on(CommentReceived, name="greet")
    async def greet(event: CommentReceived) -> None: ...

    @receiver.on("post.*", name="note")
    def note(event: Event[object], context: Context) -> None: ...

    return receiver


def _fail(event: Event[object]) -> None:
    raise LookupError(event.id)


def simulated(receiver: Receiver, **arguments: object) -> SimulationReport:
    settings: dict[str, object] = {"events": 100, "seed": 7, "store": "memory://", **arguments}
    return simulate(receiver, **settings)  # type: ignore[arg-type] # mypy cannot check keywords from a dictionary


@pytest.mark.parametrize("store", ["memory://", None])
def test_a_correct_receiver_passes(store: str | None) -> None:
    report = simulated(correct(), store=store, events=150)
    assert report.passed, report.findings[:3]
    assert report.events == 150
    assert report.handled + report.ignored == 150
    assert report.ignored < report.handled
    assert report.requests > report.events
    assert report.disturbed
    assert report.injected
    assert report.calls > report.injected
    assert not report.dead_letters


def test_the_receivers_own_store_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulated(correct(), events=10, store=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.INBOX])
def test_a_receiver_keeps_its_handled_events_in_a_simulation_too(
    tmp_path: Path, mode: Mode
) -> None:
    receiver = correct().copy(keep_handled=timedelta(days=3))
    url = f"sqlite:///{tmp_path}/chaos.db"
    report = simulated(receiver, store=url, mode=mode, events=60)
    assert report.passed, report.findings[:3]
    assert report.injected

    async def kept() -> list[HandledEvent]:
        # With this clock, no record has expired.
        async with aclosing(SQLiteStore(tmp_path / "chaos.db", clock=lambda: 0.0)) as store:
            return await store.handled_events()

    found = asyncio.run(kept())
    assert sum(bool(event.finished) for event in found) == report.handled


def test_a_receiver_with_an_inbox_is_simulated_in_every_mode() -> None:
    receiver = correct(inbox=Inbox(embedded=False))
    for mode in (Mode.AS_IT_IS, Mode.INLINE, Mode.INBOX):
        report = simulated(receiver, store=None, mode=mode, events=60)
        assert report.passed, (mode, report.findings[:3])
        assert report.handled


@pytest.mark.costs("5 s")
def test_a_receiver_without_an_inbox_can_be_simulated_with_an_inbox() -> None:
    assert simulated(correct(), store=None, mode=Mode.INBOX, events=60).passed
    # An inbox also accepts events whose handler always fails, so it needs far fewer requests.
    failing = Receiver(secrets=SECRET, store="memory://")
    failing.on("*", name="fail")(_fail)
    modes = (Mode.INLINE, Mode.INBOX)
    inline, inbox = (simulated(failing, store=None, mode=m, events=2, chaos=0) for m in modes)
    assert inbox.requests == 2 < inline.requests


def test_a_seed_repeats_the_faults() -> None:
    def findings(seed: int) -> tuple[object, ...]:
        report = simulated(correct(_Swallowing), seed=seed)
        return tuple((f.breach, f.event_id, f.handler) for f in report.findings)

    assert findings(3) == findings(3)
    assert findings(3) != findings(4)


def test_a_seed_repeats_the_calls_with_a_store_outside_the_process() -> None:
    reports = [simulated(correct(inbox=Inbox()), store=None, seed=3, events=150) for _ in range(3)]
    assert reports[0].passed
    assert reports[0] == reports[1] == reports[2]


def test_without_chaos_nothing_is_disturbed_and_each_handler_is_called_once() -> None:
    report = simulated(correct(), chaos=0)
    assert report.passed
    assert (report.requests, report.disturbed, report.injected) == (100, 0, 0)
    assert report.calls == report.handled


@pytest.mark.parametrize("is_long", [True, False])
def test_slow_handlers_cause_retries_and_a_slow_machine_does_not(
    is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", 0.1 if is_long else 60.0)
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(answer_seconds=0.2))

    @receiver.on("*", name="work")
    def work(_: Event[object]) -> None:
        time.sleep(0.5 if is_long else 0.02)

    report = simulated(receiver, chaos=0, events=4 if is_long else 100)
    assert report.passed
    assert (report.requests > report.events) == is_long


def test_a_receiver_is_restarted_in_every_burst() -> None:
    report = simulated(correct(), events=600, store=None)
    assert report.passed, report.findings[:3]
    assert report.restarts == 3


def test_the_duration_of_handlers_does_not_change_the_events() -> None:
    def emitted(seconds: float) -> set[tuple[str, str]]:
        receiver, seen = Receiver(secrets=SECRET, store="memory://"), set()

        @receiver.on("*", name="note")
        async def note(event: Event[object]) -> None:
            time.sleep(seconds)  # noqa: ASYNC251 - blocks the loop, as a slow machine does
            seen.add((event.id, event.type))

        assert simulated(receiver, events=120, seed=11).passed
        return seen

    assert emitted(0) == emitted(0.01)


def test_the_service_has_the_name_that_the_receiver_expects() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", sender=publishing.with_service("acme"))
    numbers = set()

    @receiver.on("*", name="note")
    async def note(_: Event[object], context: Context) -> None:
        numbers.add(context.delivery_attempt)

    assert simulated(receiver, events=30).passed
    assert 1 in numbers
    assert None not in numbers


@pytest.mark.full("7 s")
def test_an_event_that_waits_in_the_inbox_is_not_lost() -> None:
    receiver = Receiver(secrets=SECRET, store="sqlite:///never-opened.db", inbox=Inbox())

    @receiver.on(CommentReceived, name="later")
    async def later(_: CommentReceived) -> None:
        raise Retry(after=timedelta(days=3))

    report = simulated(receiver, store=None, events=10)
    assert report.passed, report.findings[:3]
    assert report.waiting == 10 - report.ignored > 0


def test_progress_is_reported() -> None:
    reported: list[tuple[int, int]] = []
    simulated(correct(), events=300, progress=lambda done, total: reported.append((done, total)))
    assert reported == [(250, 300), (300, 300)]


def test_a_rejected_event_is_a_dead_letter_and_not_lost() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on(CommentReceived, name="refuse")
    async def refuse(_: CommentReceived) -> None:
        raise Reject("not wanted")

    report = simulated(receiver, store=None, events=40)
    assert report.passed, report.findings[:3]
    assert report.dead_letters[DeadReason.REJECTED] == 40 - report.ignored


def test_hours_of_failures_are_simulated() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on(PostTargetFailed, name="broken")
    async def broken(_: PostTargetFailed) -> None:
        raise ConnectionError("always")

    report = simulated(receiver, store=None, events=8, chaos=0.1)
    assert report.dead_letters[DeadReason.EXHAUSTED] == 8 - report.ignored
    assert report.count(Breach.GIVEN_UP) == len(report.findings) == 8 - report.ignored
    assert report.hours > 5


class _Swallowing(Receiver):
    """Answers 200 even if a handler failed."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        outcome = await super().handle(body, headers, started=started)
        if outcome.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return Outcome(HTTPStatus.OK, Reason.HANDLED)
        return outcome


def test_an_event_is_lost_if_a_failure_is_answered_200() -> None:
    report = simulated(correct(_Swallowing))
    assert not report.passed
    lost = [finding for finding in report.findings if finding.breach is Breach.LOST]
    assert len(lost) == report.count(Breach.LOST) == len(report.findings)
    story = "\n".join(lost[0].story)
    assert f"{lost[0].handler} call 1: failed" in story
    assert "delivery 1: 200 handled" in story


class _Hasty(Receiver):
    """Answers an event in flight as a duplicate."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        outcome = await super().handle(body, headers, started=started)
        if outcome.reason == Reason.IN_FLIGHT:
            return Outcome(HTTPStatus.OK, Reason.DUPLICATE)
        return outcome


def test_an_event_is_lost_if_it_is_answered_200_in_flight_and_its_handler_fails_later() -> None:
    report = simulated(correct(_Hasty), store=None, events=300, seed=4)
    assert report.count(Breach.LOST) == len(report.findings) > 0
    assert "fails_late" in "\n".join(report.findings[0].story)


class _Forgetful(Receiver):
    """Calls the handlers again for a duplicate."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        outcome = await super().handle(body, headers, started=started)
        if outcome.reason == Reason.DUPLICATE:
            table = HandlerTable(self.handlers)
            event = table.parser.parse(body)
            for handler in table.find(event):
                arguments = (event, None) if handler.takes_context else (event,)
                await handler.function(*arguments)
        return outcome


def test_a_second_success_is_found() -> None:
    report = simulated(correct(_Forgetful))
    assert report.count(Breach.TWICE) > 3
    assert report.count(Breach.LOST) == 0


class _Trusting(Receiver):
    """Accepts requests that fail verification."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        outcome = await super().handle(body, headers, started=started)
        if outcome.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.BAD_REQUEST}:
            return Outcome(HTTPStatus.OK, Reason.HANDLED)
        return outcome


def test_a_forgery_that_is_accepted_is_found() -> None:
    report = simulated(correct(_Trusting))
    assert report.count(Breach.FORGED) > 10
    assert report.count(Breach.TWICE) == 0


class _Dawdling(Receiver):
    """Answers duplicates after the sender's time limit."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        outcome = await super().handle(body, headers, started=started)
        if outcome.reason == Reason.DUPLICATE:
            await asyncio.sleep(11)
        return outcome


def test_a_late_answer_is_found_without_waiting_in_real_time() -> None:
    started = time.monotonic()
    report = simulated(correct(_Dawdling))
    assert report.count(Breach.LATE) > 3
    # The sender gives up a handled event, because it never gets an answer in time.
    assert {finding.breach for finding in report.findings} == {Breach.LATE, Breach.PUNISHED}
    assert time.monotonic() - started < 11


class _Redirecting(Receiver):
    """Redirects the second attempt, and bypasses the receiver's own guard."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"example-delivery-attempt", b"2") in scope["headers"]:
            headers = [(b"location", b"/elsewhere")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await super().__call__(scope, receive, send)


def test_an_answer_that_the_sender_punishes_is_found() -> None:
    report = simulated(correct(_Redirecting))
    assert report.count(Breach.PUNISHED) > 3


class _Thankless(Receiver):
    """Handles every event, and answers 500."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        outcome = await super().handle(body, headers, started=started)
        if outcome.status == HTTPStatus.OK:
            return Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, outcome.reason)
        return outcome


def test_a_handled_event_that_is_never_acknowledged_is_found() -> None:
    """The sender disables an endpoint that fails for 72 hours; a simulation may end before that."""
    report = simulated(correct(_Thankless), events=20)
    assert report.count(Breach.PUNISHED) == len(report.findings) == 20
    assert report.handled + report.ignored == 20
    assert all("delivery 9: 500" in "\n".join(finding.story) for finding in report.findings)


def test_a_call_for_a_forged_event_is_found() -> None:
    log = CallLog()
    log.record(HandlerCall("evt_forged", "greet", 1, 0.0, 0.1, CallOutcome.SUCCEEDED, None, False))
    (finding,) = violations([Emitted("evt_1", "comment.received", ())], [], log, {})
    assert (finding.breach, finding.event_id) == (Breach.FORGED, "evt_forged")


def test_an_event_that_could_not_be_read_is_found() -> None:
    event = Emitted("evt_1", "comment.received", ("greet",))
    (finding,) = violations([event], [], CallLog(), {"evt_1": DeadReason.UNREADABLE})
    assert (finding.breach, finding.handler) == (Breach.GIVEN_UP, "greet")
    assert violations([event], [], CallLog(), {"evt_1": DeadReason.REJECTED}) == ()


def test_a_receiver_without_a_handler_for_a_documented_type_is_refused() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on_unknown(name="other")
    async def other(event: Event[object]) -> None: ...

    with pytest.raises(ValueError, match="no handler for any documented event type"):
        simulated(receiver)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"chaos": 1.5}, "probability"),
        ({"events": 0}, "above 0"),
        ({"store": "ftp://x"}, "scheme"),
        ({"mode": Mode.INBOX}, "has no inbox"),  # the store is in memory
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulated(correct(), **wrong)


def test_a_simulation_inside_an_event_loop_is_refused() -> None:
    async def main() -> None:
        simulated(correct())

    with pytest.raises(RuntimeError, match="call it from synchronous code"):
        asyncio.run(main())
