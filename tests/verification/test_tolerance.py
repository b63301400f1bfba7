"""A timestamp may be exactly the tolerance away from the clock, and no further."""

import base64
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from freezegun import freeze_time

from hookonce import Refusal, VerificationError, VerifiedDelivery, Verifier, sign, unwrap, verify

SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
NOW = 1_700_000_000
BODY = b"{}"
GENUINE = sign(SECRET, "evt_1", BODY, timestamp=NOW)

MakeVerdict = Callable[[float], VerifiedDelivery]


def frozen(age: float) -> VerifiedDelivery:
    with freeze_time(datetime.fromtimestamp(NOW + age, tz=UTC)):
        return verify(BODY, GENUINE, SECRET)


def frozen_verifier(age: float) -> VerifiedDelivery:
    # Make the verifier before the clock is frozen: it must not keep the old clock.
    verifier = Verifier(SECRET)
    with freeze_time(datetime.fromtimestamp(NOW + age, tz=UTC)):
        return verifier.verify(BODY, GENUINE)


CLOCKS = [
    pytest.param(lambda age: verify(BODY, GENUINE, SECRET, now=NOW + age), id="now"),
    pytest.param(
        lambda age: Verifier(SECRET, clock=lambda: 0.0).verify(BODY, GENUINE, now=NOW + age),
        id="now over clock",
    ),
    pytest.param(
        lambda age: Verifier(SECRET, clock=lambda: NOW + age).verify(BODY, GENUINE), id="clock"
    ),
    pytest.param(frozen, id="system clock"),
    pytest.param(frozen_verifier, id="system clock of a Verifier"),
]


@pytest.mark.parametrize("at_age", CLOCKS)
@pytest.mark.parametrize("age", [-300, 0, 300])
def test_a_timestamp_exactly_300_seconds_away_is_accepted(at_age: MakeVerdict, age: int) -> None:
    """Interface, Limits: "Signature timestamp tolerance": 5 minutes."""
    assert at_age(age).skew == age


@pytest.mark.parametrize("at_age", CLOCKS)
@pytest.mark.parametrize(
    ("age", "reason"),
    [(301, Refusal.TIMESTAMP_TOO_OLD), (-301, Refusal.TIMESTAMP_TOO_NEW)],
)
def test_a_timestamp_301_seconds_away_is_refused_with_its_skew(
    at_age: MakeVerdict, age: int, reason: Refusal
) -> None:
    """Interface, Limits: "Signature timestamp tolerance"; Events, Signature, rule 5."""
    with pytest.raises(VerificationError) as caught:
        at_age(age)
    assert (caught.value.reason, caught.value.skew) == (reason, age)


def refusal(now: float) -> Refusal:
    with pytest.raises(VerificationError) as caught:
        verify(BODY, GENUINE, SECRET, now=now)
    return caught.value.reason


@pytest.mark.parametrize("age", [300.001, -300.001, 1e9, -1e9, math.inf, -math.inf])
def test_the_clock_is_not_rounded_before_it_is_compared(age: float) -> None:
    expected = Refusal.TIMESTAMP_TOO_OLD if age > 0 else Refusal.TIMESTAMP_TOO_NEW
    assert refusal(NOW + age) is expected


def test_a_clock_that_is_not_a_number_refuses() -> None:
    assert refusal(math.nan) in {
        Refusal.TIMESTAMP_TOO_OLD,
        Refusal.TIMESTAMP_TOO_NEW,
    }
    with pytest.raises(VerificationError):
        Verifier(SECRET, clock=lambda: math.nan).verify(BODY, GENUINE)


@pytest.mark.parametrize(
    ("tolerance", "age", "accepted"),
    [
        (0, 0, True),
        (0, 1, False),
        (0, -1, False),
        (0.5, 0.5, True),
        (0.5, -0.6, False),
        (3600, 3600, True),
        (3600, -3600, True),
        (3600, 3601, False),
    ],
)
def test_a_tolerance_of_ones_own_is_kept_to(tolerance: float, age: float, accepted: bool) -> None:
    def verdict(judge: Callable[[], VerifiedDelivery]) -> bool:
        try:
            judge()
        except VerificationError:
            return False
        return True

    now = NOW + age
    verifier = Verifier(SECRET, tolerance=tolerance)
    assert verdict(lambda: verify(BODY, GENUINE, SECRET, tolerance=tolerance, now=now)) is accepted
    assert verdict(lambda: verifier.verify(BODY, GENUINE, now=now)) is accepted


@pytest.mark.parametrize("tolerance", [-1, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda tolerance: Verifier(SECRET, tolerance=tolerance), id="Verifier"),
        pytest.param(
            lambda tolerance: verify(BODY, GENUINE, SECRET, tolerance=tolerance, now=NOW),
            id="verify",
        ),
        pytest.param(
            lambda tolerance: unwrap(BODY, GENUINE, SECRET, tolerance=tolerance, now=NOW),
            id="unwrap",
        ),
    ],
)
def test_a_tolerance_that_would_accept_all_or_nothing_is_refused(
    use: Callable[[float], object], tolerance: float
) -> None:
    with pytest.raises(ValueError, match="tolerance") as caught:
        use(tolerance)
    assert not isinstance(caught.value, VerificationError)


def test_a_tolerance_that_is_no_number_is_refused() -> None:
    text: Any = "300"
    with pytest.raises(TypeError) as caught:
        Verifier(SECRET, tolerance=text)
    assert str(caught.value) == (
        "tolerance takes seconds or a timedelta, such as 300 or timedelta(minutes=5), not str"
    )


def test_skew_is_our_clock_minus_the_senders() -> None:
    assert verify(BODY, GENUINE, SECRET, now=NOW + 7.5).skew == 7.5
    assert verify(BODY, GENUINE, SECRET, now=NOW - 7.5).skew == -7.5
