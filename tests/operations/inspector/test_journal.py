"""The records that the journal keeps, and the records that it drops."""

import gc
import logging
import sys
import weakref

import pytest
from freezegun import freeze_time
from support.waiting import until

from hookonce import Inbox, Limits, Receiver, Reject
from hookonce.errors import Refusal, VerificationError
from hookonce.events import CommentReceived
from hookonce.operations.inspector import Bounds
from hookonce.operations.inspector.journal import Journal
from hookonce.operations.inspector.seen import AnswerKind, Seen
from hookonce.outcome import Outcome
from hookonce.senders import svix
from hookonce.testing import TestSender, make_event, signed_request
from hookonce.verification.secrets import new_secret
from hookonce.watching.records import DeliveryAnswered, DeliveryReceived
from hookonce.watching.steps import What

from .inspecting import SECRET, a_receiver

pytestmark = pytest.mark.anyio


def watched(receiver: Receiver, **bounds: int) -> Journal:
    journal = Journal(Bounds(**bounds))
    receiver.observe(journal, of=journal.followed)
    return journal


def listed(journal: Journal) -> list[Seen]:
    return list(journal.newest_first())


def whats(seen: Seen) -> list[What]:
    assert seen.history is not None
    return [step.what for step in seen.history.steps]


def handling(receiver: Receiver, *errors: Exception | None) -> None:
    remaining = list(errors)

    @receiver.on(CommentReceived, name="handler")
    async def handle(_: CommentReceived) -> None:
        if remaining and (error := remaining.pop(0)) is not None:
            raise error


async def test_a_delivery_is_kept_with_its_verdict_its_claim_its_handlers_and_its_answer() -> None:
    receiver = a_receiver()
    handling(receiver)
    journal = watched(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        await sender.send(event, skew=7)
        await sender.send(event, attempt=2)
    again, first = listed(journal)
    assert first.verified is not None
    assert first.verified.secret_index == 0
    assert 7 <= first.verified.skew < 9
    assert (first.kind, again.kind) == (AnswerKind.ACCEPTED, AnswerKind.DUPLICATE)
    assert again.hints is not None
    assert again.hints.attempt == 2
    assert first.history is again.history
    assert whats(first) == [What.CLAIM, What.FINISHED, What.SETTLED, What.CLAIM]


async def test_a_delivery_is_listed_while_its_handler_still_runs() -> None:
    receiver = a_receiver()
    journal = watched(receiver)
    kinds: list[AnswerKind | None] = []

    @receiver.on(CommentReceived)
    async def look(_: CommentReceived) -> None:
        kinds.append(listed(journal)[0].kind)

    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived))
    assert kinds == [None]
    assert listed(journal)[0].kind is AnswerKind.ACCEPTED


async def test_forged_deliveries_push_out_no_genuine_one() -> None:
    receiver = a_receiver()
    handling(receiver)
    journal = watched(receiver, deliveries=5, refused=3)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived))
        for _ in range(10):
            await sender.send(make_event(CommentReceived), tamper=True)
    kinds = [seen.kind for seen in listed(journal)]
    assert kinds == [AnswerKind.REFUSED] * 3 + [AnswerKind.ACCEPTED]


async def test_other_requests_push_out_no_genuine_delivery() -> None:
    receiver = a_receiver(limits=Limits(body_bytes=2000))
    handling(receiver)
    journal = watched(receiver, deliveries=5, refused=3)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived))
        for _ in range(10):
            await sender.send(b"x" * 3000, message_id="evt_large")
    kinds = [seen.kind for seen in listed(journal)]
    assert kinds == [AnswerKind.REFUSED] * 3 + [AnswerKind.ACCEPTED]


@pytest.mark.parametrize("tamper", [False, True])
async def test_bytes_are_bounded_and_a_large_request_is_kept_without_its_body(
    tamper: bool,
) -> None:
    receiver = a_receiver()
    handling(receiver)
    journal = watched(receiver, deliveries_bytes=5000, refused_bytes=5000)
    async with TestSender(receiver, secrets=SECRET) as sender:
        for _ in range(20):
            await sender.send(make_event(CommentReceived), tamper=tamper)
        small = listed(journal)
        assert 2 <= len(small) < 10
        large = make_event(CommentReceived, data={"text": "x" * 6000})
        await sender.send(large, tamper=tamper)
    newest = listed(journal)[0]
    assert newest.received is None
    assert newest.kind is (AnswerKind.REFUSED if tamper else AnswerKind.ACCEPTED)
    assert [seen.number for seen in listed(journal)[1:]] == [seen.number for seen in small]


@pytest.mark.parametrize("tamper", [False, True])
async def test_the_body_of_a_large_request_is_freed(tamper: bool) -> None:
    receiver = a_receiver()
    handling(receiver)
    journal = watched(receiver, deliveries_bytes=5000, refused_bytes=5000)
    # This body is so large that even `expecting` does not keep it for a minute.
    large = make_event(CommentReceived, data={"text": "x" * 70_000})
    request = signed_request(large, new_secret() if tamper else SECRET)
    held_before = sys.getrefcount(request.body)
    await receiver.handle(request.body, request.headers)
    await receiver.idle(20)  # wait, because the attempt ends after the answer
    (seen,) = listed(journal)
    assert seen.kind is (AnswerKind.REFUSED if tamper else AnswerKind.ACCEPTED)
    held = sys.getrefcount(request.body)
    assert held == held_before


async def test_a_delivery_forgotten_before_its_answer_is_listed_when_it_is_answered() -> None:
    receiver = a_receiver()
    journal = watched(receiver, deliveries=1)

    @receiver.on(CommentReceived)
    async def handle(event: CommentReceived) -> None:
        if event.data.text == "outer":
            await sender.send(make_event(CommentReceived, data={"text": "inner"}))

    async with TestSender(receiver, secrets=SECRET) as sender:
        outer = make_event(CommentReceived, data={"text": "outer"})
        await sender.send(outer)
    (seen,) = listed(journal)
    assert seen.kind is AnswerKind.ACCEPTED
    assert seen.answered is not None
    assert seen.answered.event_id == outer.id


async def test_a_failure_is_kept_as_text_and_keeps_nothing_else_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "hookonce")  # pytest's log capture would keep the error

    class Large:
        pass

    receiver = a_receiver()
    journal = watched(receiver)
    held: list[weakref.ref[Large]] = []

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise RuntimeError("no " * 10_000 + "end")

    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived))
    (seen,) = listed(journal)
    assert seen.history is not None
    (note,) = [step.note for step in seen.history.steps if step.what is What.FAILED]
    assert note.startswith("Traceback")
    assert note.rstrip().endswith("end")
    assert len(note) < 9000
    gc.collect()
    assert held[0]() is None


async def test_the_steps_of_an_event_through_the_inbox_are_one_history() -> None:
    receiver = a_receiver(store="memory://")
    handling(receiver)
    journal = watched(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived))
    assert whats(listed(journal)[0])[-1] is What.SETTLED


async def test_an_event_of_the_inbox_is_followed_to_its_end(tmp_path: object) -> None:
    receiver = a_receiver(
        store=f"sqlite:///{tmp_path}/inbox.db", inbox=Inbox(max_attempts=2, backoff=0.01)
    )
    handling(receiver, ConnectionError("away"), ConnectionError("away"))
    journal = watched(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(202, "stored")
        await until(lambda: What.BURIED in whats(listed(journal)[0]), what="it is a dead letter")
    assert whats(listed(journal)[0]) == [
        What.ENQUEUED,
        What.FETCHED,
        What.FAILED,
        What.RETRIED,
        What.FETCHED,
        What.FAILED,
        What.BURIED,
    ]


async def test_a_history_is_bounded_and_says_that_it_was_cut() -> None:
    receiver = a_receiver()
    handling(receiver)
    journal = watched(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        for _ in range(120):
            await sender.send(event)
    history = journal.history_of(event.id)
    assert history is not None
    assert len(history.steps) == 100
    assert history.is_cut


async def test_tracebacks_are_bounded_together() -> None:
    receiver = a_receiver()
    handling(receiver, *(RuntimeError("x" * 3000) for _ in range(20)))
    journal = watched(receiver, histories_bytes=10_000)
    async with TestSender(receiver, secrets=SECRET) as sender:
        for _ in range(20):
            await sender.send(make_event(CommentReceived))
    notes = [
        step.note
        for seen in listed(journal)
        if seen.history
        for step in seen.history.steps
        if step.what is What.FAILED
    ]
    assert 1 <= len(notes) <= 3
    oldest = listed(journal)[-1].history
    assert oldest is not None
    assert oldest.is_cut


async def test_answers_are_counted_by_kind() -> None:
    receiver = a_receiver()

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        raise Reject("never")

    journal = watched(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived), tamper=True)
        await sender.send(make_event("message.received"))
    current = journal.series._current()
    assert sum(current.counts.values()) <= 2
    assert {seen.kind for seen in listed(journal)} == {AnswerKind.REFUSED, AnswerKind.ACCEPTED}


def test_headers_of_any_accepted_shape_are_measured() -> None:
    journal = Journal(Bounds())
    refused = VerificationError(Refusal.MISSING_ID)
    shapes: list[object] = [{"a": "b"}, {b"a": b"b"}, [("a", "b")], [("a", None)]]
    for headers in shapes:
        received = DeliveryReceived("default", b"", headers, 0.0)  # type: ignore[arg-type]  # some frameworks give such headers
        answered = DeliveryAnswered("default", Outcome(400, "x"), 0, received, refusal=refused)
        journal.delivery_answered(answered)
    assert len(listed(journal)) == len(shapes)


async def test_a_refused_delivery_shows_the_id_in_the_header_of_its_sender() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", sender=svix)
    journal = watched(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(b"{}", message_id="msg_1", tamper=True)
    assert [seen.event_id for seen in listed(journal)] == ["msg_1"]


@pytest.mark.parametrize("bound", ["deliveries", "refused_bytes", "stream_seconds"])
def test_a_bound_of_zero_is_refused(bound: str) -> None:
    with pytest.raises(ValueError, match=bound):
        Bounds(**{bound: 0})


async def test_beyond_the_limit_of_a_second_only_failures_are_kept_and_all_are_counted() -> None:
    receiver = a_receiver()
    handling(receiver, *([None] * 20), ValueError("off"))
    journal = watched(receiver, each_second=2)
    events = [make_event(CommentReceived) for _ in range(21)]
    with freeze_time("2026-01-01", real_asyncio=True):
        async with TestSender(receiver, secrets=SECRET) as sender:
            for event in events:
                await sender.send(event)
    *kept, failed = reversed(listed(journal))
    assert [seen.verified and seen.verified.id for seen in kept] == [e.id for e in events[:2]]
    assert [whats(seen) for seen in kept] == [[What.CLAIM, What.FINISHED, What.SETTLED]] * 2
    assert failed.verified is not None
    assert (failed.verified.id, failed.kind) == (events[20].id, AnswerKind.RETRY)
    assert What.FAILED in whats(failed)
    assert sum(sum(slot.counts.values()) for slot in journal.series._slots) == 21


async def test_a_followed_event_is_kept_however_many_arrive() -> None:
    receiver = a_receiver()
    handling(receiver)
    journal = watched(receiver, each_second=1)
    first, second, third = (make_event(CommentReceived) for _ in range(3))
    journal.follow(third.id)
    with freeze_time("2026-01-01", real_asyncio=True):
        async with TestSender(receiver, secrets=SECRET) as sender:
            for event in (first, second, third):
                await sender.send(event)
    assert [seen.verified and seen.verified.id for seen in listed(journal)] == [third.id, first.id]
    history = journal.history_of(third.id)
    assert history is not None
    assert [step.what for step in history.steps] == [What.CLAIM, What.FINISHED, What.SETTLED]
