"""Answers to deliveries that are not genuine."""

import re

import pytest
from support.deliveries import SECRET, comment
from support.handlers import Handler
from support.servers import RawConnection, delivering, request_bytes, serving

from hookonce import Receiver
from hookonce.testing import SignedRequest, new_event_id, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


# The signature headers are missing or malformed: answer 400


async def test_missing_or_malformed_headers_are_answered_400() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    genuine = signed_request(comment(), SECRET)
    async with delivering(receiver, SECRET) as sender:
        for name, value, reason in (
            ("webhook-id", None, "missing_id"),
            ("webhook-timestamp", None, "missing_timestamp"),
            ("webhook-signature", None, "missing_signature"),
            ("webhook-id", "evt.with.stops", "malformed_id"),
            ("webhook-id", "x" * 513, "malformed_id"),
            ("webhook-timestamp", "soon", "malformed_timestamp"),
            ("webhook-timestamp", "+1763700000", "malformed_timestamp"),
        ):
            headers = {**genuine.headers, name: value}
            kept = {n: v for n, v in headers.items() if v is not None}
            (await sender.post(SignedRequest(genuine.body, kept))).expect(400, reason)
    assert handler.runs == 0


async def test_a_repeated_id_with_another_value_is_answered_400() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    request = signed_request(comment(), SECRET)
    async with serving(receiver) as site, await RawConnection.to(site) as connection:
        head = request_bytes(request, headers={"Webhook-Id": new_event_id()})
        length = f"content-length: {len(request.body)}\r\n\r\n".encode()
        await connection.write(head[:-2] + length + request.body)
        (await connection.answer()).expect(400, "conflicting_id")


# No signature matches, or the timestamp is outside the tolerance: answer 401


async def test_a_tampered_body_is_answered_401() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event, tamper=True)).expect(401, "no_matching_signature")
        (await sender.send(event, secrets=new_secret())).expect(401, "no_matching_signature")
        assert handler.runs == 0
        (await sender.send(event, secrets=[new_secret(), SECRET])).expect(200, "handled")


@pytest.mark.parametrize(
    ("skew", "reason"), [(4_000.0, "timestamp_too_old"), (-4_000.0, "timestamp_too_new")]
)
async def test_a_timestamp_outside_the_tolerance_is_answered_401_and_its_skew_is_recorded(
    caplog: pytest.LogCaptureFixture, skew: float, reason: str
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        answer = (await sender.send(comment(), skew=skew)).expect(401, reason)
        assert not re.search(rb"[0-9]", answer.body)
    assert handler.runs == 0
    recorded = re.search(r"our clock minus it: ([-+][0-9]+) s", caplog.text)
    assert recorded is not None
    assert int(recorded[1]) == pytest.approx(skew, abs=5)
