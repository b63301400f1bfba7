"""A receiver's warnings follow the rules of its sender."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hookonce import Receiver
from hookonce.clock import ManualClock, system_clock
from hookonce.senders import Rules, Sender, openai, publishing, standard, svix
from hookonce.testing import TestSender
from hookonce.verification.secrets import new_secret
from hookonce.watching.disabling import FailureStreak
from hookonce.watching.rotation import Rotation

pytestmark = pytest.mark.anyio

HOUR = 3600.0
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("rules", "hours", "attempts"),
    [
        (publishing.rules, 24, 5),
        (svix.rules, 40, 5),
        (Rules(disabling_seconds=6 * HOUR, disabling_failures=2), 2, 1),
        (Rules(), 24, 5),
    ],
)
def test_failures_are_serious_at_a_third_of_the_senders_time_and_half_its_attempts(
    rules: Rules, hours: float, attempts: int
) -> None:
    def is_serious(number: int, after_hours: float) -> bool:
        streak = FailureStreak(NOW, number, 0, "handler_failed", rules)
        return streak.is_serious(NOW + after_hours * HOUR)

    assert is_serious(attempts, hours)
    assert not is_serious(attempts - 1, hours)
    assert not is_serious(attempts, hours - 0.1)


def test_a_rotation_ends_when_the_sender_says_or_at_an_unknown_time() -> None:
    assert svix.rules.two_signatures_seconds == openai.rules.two_signatures_seconds == 24 * HOUR
    since = datetime.now(UTC)
    assert Rotation(since, has_both=True, rules=svix.rules).ends_by == since + timedelta(days=1)
    assert Rotation(since, has_both=True, rules=standard.rules).ends_by is None


async def warnings_after(sender: Sender, days: float, **arguments: Any) -> str:
    """Deliver an event signed with the newer of two secrets; return the warnings days later."""
    clock = ManualClock(NOW)
    new, old = new_secret(), new_secret()
    receiver = Receiver(
        secrets=[new, old], store="memory://", sender=sender, clock=clock, **arguments
    )
    async with receiver:
        clock.advance(days * 24 * HOUR)
        body = b'{"type": "a.b", "timestamp": "2026-01-01T00:00:00Z", "data": {}}'
        sending = TestSender(receiver, secrets=new)
        await sending.send(body, message_id="msg_1", skew=system_clock() - clock())
        return " ".join((await receiver.check()).warnings)


async def test_a_secret_is_no_longer_needed_after_the_senders_own_rotation() -> None:
    quick = replace(standard, rules=Rules(two_signatures_seconds=2 * HOUR))
    assert "a rotation takes 2 h; remove it" in await warnings_after(quick, 0.2)
    assert "a rotation takes" not in await warnings_after(quick, 0.05)
    # This sender's rules do not say how long a rotation takes, so no warning says to remove a
    # secret.
    assert "remove it" not in await warnings_after(standard, 30)
