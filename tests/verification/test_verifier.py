"""A Verifier decides as `verify` does, and follows a change of the secrets."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from support.secrets import ChangingSecrets

from hookonce import VerificationError, Verifier, sign, unwrap, verify
from hookonce.verification.headers import signed_parts
from hookonce.verification.signature import PartsVerifier

SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, as long..").decode()

NOW = 1_700_000_000
MESSAGE_ID = "evt_1"
BODY = (
    b'{"id":"evt_1","type":"new.type","createdAt":"2026-01-01T00:00:00.000Z",'
    b'"workspaceId":"ws_1","data":null}'
)
GENUINE = sign(SECRET, MESSAGE_ID, BODY, timestamp=NOW)


@pytest.mark.parametrize(
    ("headers", "body", "age", "genuine"),
    [
        pytest.param(GENUINE, BODY, 0, True, id="genuine"),
        pytest.param(
            sign([OTHER, SECRET], MESSAGE_ID, BODY, timestamp=NOW), BODY, 9, True, id="second"
        ),
        pytest.param(GENUINE, BODY + b" ", 0, False, id="tampered"),
        pytest.param(GENUINE, BODY, 301, False, id="stale"),
        pytest.param(GENUINE, BODY, -301, False, id="early"),
        pytest.param({**GENUINE, "webhook-signature": ""}, BODY, 0, False, id="unsigned"),
        pytest.param({**GENUINE, "webhook-id": "evt.1"}, BODY, 0, False, id="malformed id"),
        pytest.param(
            {**GENUINE, "webhook-timestamp": "+1"}, BODY, 0, False, id="malformed timestamp"
        ),
        pytest.param({}, BODY, 0, False, id="no headers"),
    ],
)
def test_verify_verifier_and_unwrap_come_to_one_verdict(
    headers: dict[str, str], body: bytes, age: int, genuine: bool
) -> None:
    now = NOW + age
    ways: list[Callable[[], Any]] = [
        lambda: verify(body, headers, SECRET, now=now),
        lambda: verify(body, headers, (SECRET,), now=now),
        lambda: Verifier(SECRET).verify(body, headers, now=now),
        lambda: Verifier([SECRET], clock=lambda: now).verify(body, headers),
        lambda: unwrap(body, headers, SECRET, now=now),
    ]
    verdicts: list[object] = []
    for judge in ways:
        try:
            verdicts.append(judge().id)
        except VerificationError as error:
            verdicts.append((error.reason, error.skew))
    assert len(set(verdicts)) == 1, verdicts
    assert (verdicts[0] == MESSAGE_ID) is genuine


def test_a_verifier_asks_its_provider_at_every_delivery() -> None:
    provider = ChangingSecrets(OTHER)
    verifier = Verifier(provider)
    with pytest.raises(VerificationError):
        verifier.verify(BODY, GENUINE, now=NOW)
    provider.secrets = (OTHER, SECRET)
    assert verifier.verify(BODY, GENUINE, now=NOW).secret_index == 1
    provider.secrets = (SECRET, OTHER)
    assert verifier.verify(BODY, GENUINE, now=NOW).secret_index == 0
    provider.secrets = (OTHER,)
    with pytest.raises(VerificationError):
        verifier.verify(BODY, GENUINE, now=NOW)


def test_a_verifier_asks_its_provider_for_headers_that_are_read_already_too() -> None:
    provider = ChangingSecrets(OTHER)
    verifier = PartsVerifier(provider)
    parts = signed_parts(GENUINE)
    with pytest.raises(VerificationError):
        verifier.verify_parts(BODY, parts, now=NOW)
    provider.secrets = (OTHER, SECRET)
    assert verifier.verify_parts(BODY, parts, now=NOW).secret_index == 1


def test_headers_that_are_read_already_are_judged_by_the_time_that_is_given() -> None:
    verifier = PartsVerifier(SECRET, clock=lambda: NOW + 1_000)
    parts = signed_parts(GENUINE)
    assert verifier.verify_parts(BODY, parts, now=NOW + 1).skew == 1
    with pytest.raises(VerificationError):
        verifier.verify_parts(BODY, parts)


def test_verify_and_unwrap_take_a_provider_too() -> None:
    assert verify(BODY, GENUINE, ChangingSecrets(OTHER, SECRET), now=NOW).secret_index == 1
    with pytest.raises(VerificationError):
        unwrap(BODY, GENUINE, ChangingSecrets(OTHER), now=NOW)


def test_a_list_that_is_changed_afterwards_does_not_change_a_verifier() -> None:
    secrets = [SECRET]
    verifier = Verifier(secrets)
    secrets[0] = OTHER
    assert verifier.verify(BODY, GENUINE, now=NOW).secret_index == 0
