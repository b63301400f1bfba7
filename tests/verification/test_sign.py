"""`sign` makes the headers of a genuine delivery, or says why it cannot."""

import base64
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from freezegun import freeze_time

from hookonce import SecretError, sign

SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, as long.").decode()

NOW = 1_700_000_000
MESSAGE_ID = "evt_1"
BODY = b"{}"
GENUINE = sign(SECRET, MESSAGE_ID, BODY, timestamp=NOW)


def test_sign_makes_the_three_headers_and_no_other() -> None:
    assert list(GENUINE) == ["webhook-id", "webhook-timestamp", "webhook-signature"]
    assert (GENUINE["webhook-id"], GENUINE["webhook-timestamp"]) == (MESSAGE_ID, str(NOW))


def test_sign_makes_one_signature_a_secret_in_their_order() -> None:
    both, first, second = (
        sign(secrets, MESSAGE_ID, BODY, timestamp=NOW)["webhook-signature"]
        for secrets in ([OTHER, SECRET], OTHER, SECRET)
    )
    assert both == f"{first} {second}"


def test_sign_cuts_a_fraction_off_the_timestamp() -> None:
    assert sign(SECRET, MESSAGE_ID, BODY, timestamp=NOW + 0.999) == GENUINE


def test_sign_takes_the_time_from_the_clock_of_the_call() -> None:
    with freeze_time(datetime.fromtimestamp(NOW, tz=UTC)):
        assert sign(SECRET, MESSAGE_ID, BODY) == GENUINE


@pytest.mark.parametrize("message_id", ["", "a.b", "a\nb", "\x7f", "a\x9f", "a" * 513, "\ud800"])
def test_sign_refuses_an_id_that_no_receiver_accepts(message_id: str) -> None:
    with pytest.raises(ValueError, match=r"webhook-id|surrogates"):
        sign(SECRET, message_id, BODY)


@pytest.mark.parametrize(
    "timestamp",
    [
        pytest.param(0, id="zero"),
        pytest.param(0.9, id="below one"),
        pytest.param(-1, id="negative"),
        pytest.param(NOW * 1000, id="milliseconds"),
        pytest.param(10**11, id="one digit too many"),
        pytest.param(math.nan, id="no number"),
        pytest.param(math.inf, id="infinite"),
    ],
)
def test_sign_refuses_a_timestamp_that_no_receiver_accepts(timestamp: float) -> None:
    with pytest.raises(ValueError, match=r"(?i)timestamp|NaN"):
        sign(SECRET, MESSAGE_ID, BODY, timestamp=timestamp)


@pytest.mark.parametrize("secrets", [[], "", [SECRET, "whsec_"], "whpk_AAAA"])
def test_sign_refuses_secrets_that_cannot_be_used(secrets: Any) -> None:
    with pytest.raises(SecretError):
        sign(secrets, MESSAGE_ID, BODY)
