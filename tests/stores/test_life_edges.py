"""An event's state at the exact moment when a lease ends or a waiting event becomes due.

The tests call the functions of ``hookonce.stores.life``, because no test can call a backend exactly
at the end of a lease.
"""

from __future__ import annotations

import pytest

from hookonce.stores import life
from hookonce.stores.life import NEW, DeadLetterRecord, InboxEntry, Moment, Record
from hookonce.stores.values import (
    INTERRUPTED,
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    InFlight,
    Known,
    Ownership,
    Stored,
    Token,
    Waiting,
)

KEY = DeliveryKey("default:evt_1")
DELIVERY = Delivery("default", "evt_1", None, 1.0, b"")
MINE, OTHER = Token("mine"), Token("another's")
LEASE = 30.0
START = Moment(now=100.0, unix=1_000.0, expires=9_000.0)


def later(seconds: float) -> Moment:
    return Moment(START.now + seconds, START.unix + seconds, START.expires + seconds)


def claimed(record: Record = NEW, token: Token = MINE) -> tuple[Claimed, Record]:
    result, record = life.claim(record, START, KEY, token, LEASE)
    assert isinstance(result, Claimed)
    return result, record


def waiting(token: Token = OTHER) -> Record:
    result, record = life.enqueue(NEW, START, token)
    assert result == Stored()
    return record


def taken(moment: Moment = START) -> tuple[Claimed, Record]:
    claim, record = life.fetch(waiting(), moment, KEY, MINE, LEASE)
    assert claim is not None
    return claim, record


def kept() -> tuple[Claimed, Record]:
    claim, record = claimed()
    held, record = life.keep(record, START, claim)
    assert held is Ownership.HELD
    return claim, record


# Events in the inbox


def test_an_enqueued_event_is_due_at_once() -> None:
    assert waiting().queued == InboxEntry(OTHER, START.now, 0.0)


def test_an_event_enqueued_during_an_attempt_is_due_when_its_lease_ends() -> None:
    _, record = claimed()
    _, record = life.enqueue(record, later(10), OTHER)
    assert record.queued == InboxEntry(OTHER, START.now + LEASE, LEASE - 10)


@pytest.mark.parametrize(("token", "answer"), [(OTHER, Stored()), (MINE, Waiting())])
def test_a_repeated_enqueue_has_the_first_answer(token: Token, answer: object) -> None:
    assert life.enqueue(waiting(), later(1), token)[0] == answer
    _, record = taken()
    assert life.enqueue(record, later(1), token)[0] == answer


def test_a_repeated_fetch_restarts_its_lease() -> None:
    _, record = taken()
    claim, record = life.fetch_again(record, later(10), KEY, MINE, 60.0)
    assert claim == Claimed(KEY, MINE, 1, frozenset(), 60.0, frozenset())
    assert (record.until, record.lease) == (START.now + 10 + 60, 60.0)
    assert record.queued == InboxEntry(OTHER, START.now + 10 + 60, 60.0)


def test_the_claim_of_a_fetch_ends_exactly_with_its_lease() -> None:
    _, record = taken()
    assert life.fetch_again(record, later(LEASE), KEY, MINE, LEASE) == (None, record)


def test_a_claimed_event_is_due_when_its_lease_ends() -> None:
    _, record = claimed(token=OTHER)
    _, record = life.enqueue(record, START, OTHER)
    _, record = life.extend(record, later(20), claimed(token=OTHER)[0])
    record = record._replace(queued=InboxEntry(OTHER, START.now + LEASE, LEASE))
    nothing, record = life.fetch(record, later(LEASE), KEY, MINE, LEASE)
    assert nothing is None
    assert record.queued == InboxEntry(OTHER, START.now + 20 + LEASE, 20.0)


def test_an_attempt_that_extends_its_lease_defers_its_inbox_entry() -> None:
    claim, record = taken()
    _, record = life.extend(record, later(20), claim)
    assert record.queued == InboxEntry(OTHER, START.now + 20 + LEASE, LEASE)


def test_a_claim_during_an_attempt_learns_when_its_lease_ends() -> None:
    _, record = taken()
    record = record._replace(queued=InboxEntry(OTHER, START.now + 99, 99.0))
    result, _ = life.claim(record, later(1), KEY, OTHER, LEASE)
    assert result == InFlight(START.unix + LEASE)


def test_a_released_event_is_due_at_once_by_default() -> None:
    claim, record = taken()
    _, record = life.release(record, later(5), claim)
    assert record.queued == InboxEntry(OTHER, START.now + 5, 0.0)


def test_an_event_made_due_is_no_longer_deferred() -> None:
    claim, record = taken()
    _, record = life.release(record, later(5), claim, after=600.0)
    hastened, record = life.make_due(record, later(6))
    assert hastened
    assert record.queued == InboxEntry(OTHER, START.now + 6, 0.0)


# Attempts that are over


def test_no_attempt_runs_after_its_end_on_a_machine_that_has_just_started() -> None:
    """The clock of leases may begin at 0 when the machine starts."""
    boot = Moment(now=0.5, unix=1_000.0, expires=9_000.0)
    claim, record = life.claim(NEW, boot, KEY, MINE, LEASE)
    assert isinstance(claim, Claimed)
    _, released = life.release(record, boot, claim)
    assert life.state_of(released, boot) is life.State.FREE
    _, buried = life.bury(record, boot, claim, DeadReason.REJECTED)
    assert life.state_of(buried, boot) is life.State.DEAD


def test_a_failed_attempt_is_remembered_for_its_retention() -> None:
    claim, record = claimed()
    _, record = life.release(record, START, claim, error="failed")
    at_the_end = Moment(START.now, record.expires, record.expires)
    assert life.known_as(record, START) is Known.FAILED
    assert life.known_as(record, at_the_end) is None


def test_an_attempt_was_interrupted_at_the_very_end_of_its_lease() -> None:
    _, record = kept()
    letter = life.dead_letter(record, later(LEASE), DELIVERY)
    assert letter is not None
    assert [failed.error for failed in letter.history] == [INTERRUPTED]


def test_an_attempt_whose_clock_was_reset_is_not_shown() -> None:
    """After a clock reset the lease would last too long, and its worker has most likely ended."""
    _, record = kept()
    back = Moment(now=5.0, unix=START.unix, expires=START.expires)
    letter = life.dead_letter(record, back, DELIVERY)
    assert letter is not None
    assert letter.reason is DeadReason.INTERRUPTED
    assert life.discard(record, back)[0]


# The errors of an event


def test_a_dead_letter_has_no_error_and_no_history_that_nobody_gave() -> None:
    claim, record = kept()
    assert record.dead_letter == DeadLetterRecord(
        DeadReason.INTERRUPTED, "", START.unix, is_kept=True
    )
    _, record = life.bury(record, START, claim, DeadReason.REJECTED)
    assert record.dead_letter == DeadLetterRecord(
        DeadReason.REJECTED, "", START.unix, is_kept=False
    )
    assert record.history == ()


def test_lone_surrogates_in_an_error_are_escaped() -> None:
    assert life.error_text("half \ud83c of a pair") == r"half \ud83c of a pair"
    assert life.error_text("é" * 5_000) == "é" * 4_000


# Forgotten records


def test_a_record_is_forgotten_when_its_retention_and_its_lease_are_over() -> None:
    over = Moment(START.now + LEASE, START.expires, START.expires)
    _, record = claimed()
    assert not life.is_forgotten(record, over._replace(now=START.now + LEASE - 1))
    assert not life.is_forgotten(record, over._replace(unix=START.expires - 1))
    assert life.is_forgotten(record, over)
    done = life.complete(START)
    assert not life.is_forgotten(done, over._replace(unix=START.expires - 1))
    assert life.is_forgotten(done, over)


def test_events_of_the_inbox_and_dead_letters_are_never_forgotten() -> None:
    far = Moment(1e12, 1e12, 1e12)
    assert not life.is_forgotten(waiting(), far)
    assert not life.is_forgotten(kept()[1], far)
