"""A delivery is genuine if one v1 signature by one secret matches its exact bytes."""

import base64
import hashlib
import hmac
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from hookonce import Refusal, VerificationError, VerifiedDelivery, Verifier, sign, unwrap, verify

# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret, as long.").decode()

NOW = 1_700_000_000
MESSAGE_ID = "evt_1"
BODY = b'{"id":"evt_1","type":"webhook.test","n":1}'


def headers_by_hmac(secret: str, body: bytes) -> dict[str, str]:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{MESSAGE_ID}.{NOW}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": MESSAGE_ID,
        "webhook-timestamp": str(NOW),
        "webhook-signature": f"v1,{signature}",
    }


GENUINE = headers_by_hmac(SECRET, BODY)


def refusal(body: bytes, headers: dict[str, str], secret: str = SECRET) -> Refusal:
    with pytest.raises(VerificationError) as caught:
        verify(body, headers, secret, now=NOW)
    return caught.value.reason


def test_the_example_of_the_specification_verifies_and_is_what_sign_makes() -> None:
    body = b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert verify(body, headers, SECRET, now=1614265330).id == headers["webhook-id"]
    assert sign(SECRET, headers["webhook-id"], body, timestamp=1614265330) == headers


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(BODY, id="JSON"),
        pytest.param(bytes(range(256)), id="not UTF-8"),
        pytest.param(b"\xef\xbb\xbf{}\r\n\0", id="byte order mark, line break, NUL"),
        pytest.param(bytes(range(256)) * 1024, id="256 KB"),
    ],
)
def test_any_bytes_verify_and_come_back_as_they_were(body: bytes) -> None:
    headers = headers_by_hmac(SECRET, body)
    assert verify(body, headers, SECRET, now=NOW).body == body
    assert sign(SECRET, MESSAGE_ID, body, timestamp=NOW) == headers


@pytest.mark.parametrize(
    "buffer",
    [
        pytest.param(bytearray(BODY), id="bytearray"),
        pytest.param(memoryview(BODY), id="memoryview"),
        pytest.param(
            memoryview(b"".join(bytes([byte, 0]) for byte in BODY))[::2], id="strided memoryview"
        ),
    ],
)
def test_any_buffer_is_a_body_and_comes_back_as_bytes(buffer: Any) -> None:
    delivery = verify(buffer, GENUINE, SECRET, now=NOW)
    assert type(delivery.body) is bytes
    assert delivery.body == BODY
    assert sign(SECRET, MESSAGE_ID, buffer, timestamp=NOW) == GENUINE


def test_a_buffer_that_is_reused_afterwards_does_not_change_what_was_verified() -> None:
    buffer: Any = bytearray(BODY)
    delivery = verify(buffer, GENUINE, SECRET, now=NOW)
    buffer[:] = b"overwritten"
    assert delivery.body == BODY


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda body: verify(body, GENUINE, SECRET, now=NOW), id="verify"),
        pytest.param(lambda body: Verifier(SECRET).verify(body, GENUINE, now=NOW), id="Verifier"),
        pytest.param(lambda body: unwrap(body, GENUINE, SECRET, now=NOW), id="unwrap"),
        pytest.param(lambda body: sign(SECRET, MESSAGE_ID, body), id="sign"),
    ],
)
@pytest.mark.parametrize("body", [BODY.decode(), None, {"id": "evt_1"}])
def test_a_body_that_is_not_bytes_is_a_type_error(use: Callable[[Any], object], body: Any) -> None:
    with pytest.raises(TypeError) as caught:
        use(body)
    assert str(caught.value) == (
        f"body must be the raw bytes of the request, not {type(body).__name__}: decoded or"
        " re-encoded text does not verify"
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(BODY + b"\n", id="line break appended"),
        pytest.param(BODY[:-1], id="cut"),
        pytest.param(b'{"id": "evt_1", "type": "webhook.test", "n": 1}', id="serialised anew"),
        pytest.param(b'{"type":"webhook.test","id":"evt_1","n":1}', id="keys in another order"),
        pytest.param(b"\xef\xbb\xbf" + BODY, id="byte order mark"),
        pytest.param(b"", id="emptied"),
    ],
)
def test_a_body_that_is_not_the_signed_bytes_is_refused(body: bytes) -> None:
    assert refusal(body, GENUINE) is Refusal.NO_MATCHING_SIGNATURE


def test_moving_bytes_between_id_timestamp_and_body_is_refused() -> None:
    moved = {**GENUINE, "webhook-timestamp": str(NOW)[:-1]}
    with pytest.raises(VerificationError) as caught:
        verify(str(NOW)[-1:].encode() + b"." + BODY, moved, SECRET, tolerance=2 * NOW, now=NOW)
    assert caught.value.reason is Refusal.NO_MATCHING_SIGNATURE


@pytest.mark.parametrize("length", [16, 23, 24, 31, 32, 33, 55, 56, 63, 64, 65, 127, 128, 129, 500])
def test_keys_of_every_length_agree_with_the_hmac_module(length: int) -> None:
    key = bytes((7 * n + length) % 256 for n in range(length))
    secret = "whsec_" + base64.b64encode(key).decode()
    headers = headers_by_hmac(secret, BODY)
    assert sign(secret, MESSAGE_ID, BODY, timestamp=NOW) == headers
    assert verify(BODY, headers, [OTHER, secret], now=NOW).secret_index == 1


def test_a_key_that_differs_only_after_the_block_of_64_bytes_is_another_key() -> None:
    long, longer = ("whsec_" + base64.b64encode(b"k" * 64 + tail).decode() for tail in (b"a", b"b"))
    headers = sign(long, MESSAGE_ID, BODY, timestamp=NOW)
    assert refusal(BODY, headers, longer) is Refusal.NO_MATCHING_SIGNATURE


def test_the_verified_delivery_has_the_fields_of_the_request() -> None:
    headers = sign([OTHER, SECRET], MESSAGE_ID, BODY, timestamp=NOW)
    assert verify(BODY, headers, [f"whsec_{'A' * 32}", SECRET], now=NOW + 2.5) == VerifiedDelivery(
        id=MESSAGE_ID, timestamp=NOW, body=BODY, secret_index=1, signature_count=2, skew=2.5
    )


def test_a_delivery_cannot_be_changed() -> None:
    delivery = verify(BODY, GENUINE, SECRET, now=NOW)
    for name in VerifiedDelivery._fields:
        with pytest.raises(AttributeError):
            setattr(delivery, name, None)


def test_the_repr_of_a_delivery_names_it_and_hides_the_body() -> None:
    body = b"the body of a private message"
    shown = repr(verify(body, sign(SECRET, MESSAGE_ID, body), SECRET))
    assert MESSAGE_ID in shown
    assert "private" not in shown


def test_a_delivery_survives_pickling() -> None:
    delivery = verify(BODY, GENUINE, SECRET, now=NOW)
    assert pickle.loads(pickle.dumps(delivery)) == delivery
