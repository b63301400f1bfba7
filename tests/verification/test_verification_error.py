"""A refusal is one class of exception: it has a reason and a status, and shows no secret."""

import base64
import copy
import hashlib
import hmac
import pickle
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import WebhookVerificationError

from hookonce import Refusal, VerificationError, Verifier, WebhookError, sign, unwrap, verify
from hookonce.senders import svix

NOW = 1_700_000_000
OWN = "whsec_" + base64.b64encode(bytes(range(24))).decode()
STRANGER = "whsec_" + base64.b64encode(b"of somebody else entirely").decode()


def test_code_that_catches_the_reference_librarys_error_keeps_working() -> None:
    with pytest.raises(WebhookVerificationError):
        verify(b"", {}, OWN)
    assert issubclass(VerificationError, WebhookError)


@pytest.mark.parametrize("reason", Refusal)
def test_a_program_can_branch_on_the_reason_and_log_it_as_text(reason: Refusal) -> None:
    error = VerificationError(reason)
    assert error.reason is reason
    assert f"{error.reason}" == reason.value == reason.name.lower()


def test_every_reason_has_a_sentence_of_its_own() -> None:
    sentences = {str(VerificationError(reason)) for reason in Refusal}
    assert len(sentences) == len(Refusal)
    assert all("webhook-" in text or "signature" in text for text in sentences)


@pytest.mark.parametrize("reason", Refusal)
def test_the_status_is_401_where_it_may_be_forged_or_replayed_and_else_400(reason: Refusal) -> None:
    unauthentic = {"timestamp_too_old", "timestamp_too_new", "no_matching_signature"}
    assert VerificationError(reason).status_hint == (401 if reason in unauthentic else 400)


@pytest.mark.parametrize(
    ("skew", "shown"), [(301.4, "+301 s"), (-4000, "-4000 s"), (float("nan"), "+nan s")]
)
def test_a_refused_timestamp_says_how_far_away_it_was(skew: float, shown: str) -> None:
    assert shown in str(VerificationError(Refusal.TIMESTAMP_TOO_OLD, skew))


@pytest.mark.parametrize("reason", Refusal)
@pytest.mark.parametrize("skew", [None, 301.5])
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_a_refusal_survives_copying_and_pickling(
    again: Callable[[VerificationError], VerificationError], reason: Refusal, skew: float | None
) -> None:
    error = VerificationError(reason, skew)
    twin = again(error)
    assert type(twin) is VerificationError
    assert (twin.reason, twin.skew, str(twin)) == (reason, skew, str(error))


def test_the_fields_of_a_refusal_can_be_given_by_name() -> None:
    error = VerificationError(reason=Refusal.TIMESTAMP_TOO_OLD, skew=301.5)
    assert (error.reason, error.skew) == (Refusal.TIMESTAMP_TOO_OLD, 301.5)
    assert error.args == (Refusal.TIMESTAMP_TOO_OLD, 301.5)


def test_a_forgery_is_refused_with_the_error_that_anybody_can_make() -> None:
    forged = sign(STRANGER, "evt_1", b"", timestamp=NOW)
    with pytest.raises(VerificationError) as caught:
        verify(b"", forged, OWN, now=NOW)
    made = VerificationError(Refusal.NO_MATCHING_SIGNATURE)
    assert caught.value.args == made.args
    assert (str(caught.value), repr(caught.value)) == (str(made), repr(made))


def test_the_frames_of_a_refusal_do_not_hold_the_signature_that_was_expected() -> None:
    """Error trackers send the local variables of every frame."""
    secret = "whsec_" + base64.b64encode(b"of our own, and 24 bytes long").decode()
    forged = sign(STRANGER, "evt_1", b"", timestamp=NOW)
    expected = sign(secret, "evt_1", b"", timestamp=NOW)["webhook-signature"].removeprefix("v1,")
    judges: list[Callable[[], object]] = [
        partial(verify, b"", forged, secret, now=NOW),
        partial(Verifier(secret).verify, b"", forged, now=NOW),
    ]
    for judge in judges:
        with pytest.raises(VerificationError) as caught:
            judge()
        frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
        assert len(frames) > 1
        assert not [frame for frame in frames[1:] if expected in repr(frame.f_locals)]


def in_every_way_refused(headers: dict[str, str], body: bytes) -> dict[Refusal, dict[str, Any]]:
    signature = headers["webhook-signature"]
    return {
        Refusal.MISSING_ID: {**headers, "webhook-id": ""},
        Refusal.MISSING_TIMESTAMP: {**headers, "webhook-timestamp": ""},
        Refusal.MISSING_SIGNATURE: {**headers, "webhook-signature": ""},
        Refusal.MALFORMED_ID: {**headers, "webhook-id": f"{signature}."},
        Refusal.MALFORMED_TIMESTAMP: {**headers, "webhook-timestamp": signature},
        Refusal.MALFORMED_SIGNATURE: {**headers, "webhook-signature": [signature]},
        Refusal.CONFLICTING_ID: {**headers, "Webhook-Id": signature},
        Refusal.CONFLICTING_TIMESTAMP: {**headers, "Webhook-Timestamp": signature},
        Refusal.CONFLICTING_HEADERS: {**headers, "svix-id": signature},
        Refusal.TIMESTAMP_TOO_OLD: {**headers, "webhook-timestamp": "1"},
        Refusal.TIMESTAMP_TOO_NEW: {**headers, "webhook-timestamp": "9" * 11},
        Refusal.NO_MATCHING_SIGNATURE: sign(STRANGER, headers["webhook-id"], body, timestamp=NOW),
    }


@settings(max_examples=25)
@given(key=st.binary(min_size=16, max_size=80), tail=st.binary(min_size=16, max_size=64))
def test_no_refusal_shows_secret_signature_expected_value_or_body(key: bytes, tail: bytes) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    body = base64.b85encode(tail)
    headers = sign(secret, "evt_1", body, timestamp=NOW)
    refused_by_reason = in_every_way_refused(headers, body)
    assert set(refused_by_reason) == set(Refusal)
    for reason, refused in refused_by_reason.items():
        # The expected signature would be genuine for anybody who reads it.
        content = f"{refused['webhook-id']}.{refused['webhook-timestamp']}.".encode() + body
        hidden = [
            secret.removeprefix("whsec_").rstrip("="),
            body.decode(),
            headers["webhook-signature"].removeprefix("v1,"),
            sign(STRANGER, "evt_1", body, timestamp=NOW)["webhook-signature"].removeprefix("v1,"),
            base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode(),
        ]
        ways: list[Callable[[], object]] = [
            partial(verify, body, refused, secret, sender=svix, now=NOW),
            partial(Verifier(secret, sender=svix).verify, body, refused, now=NOW),
            partial(unwrap, body, refused, secret, sender=svix, now=NOW),
        ]
        for judge in ways:
            with pytest.raises(VerificationError) as caught:
                judge()
            error = caught.value
            assert error.reason is reason
            shown = "".join(
                [
                    *(str(error), repr(error), repr(vars(error)), repr(pickle.dumps(error))),
                    *traceback.format_exception(error),
                ]
            )
            assert not [text for text in hidden if text in shown]
