"""What verification costs, beside its floor and other packages, and what a refusal costs.

The floor is what cannot be left out: one HMAC-SHA256, base64, one comparison in constant time.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable

from hookonce import VerificationError, Verifier, sign, verify
from hookonce.headers import RawHeaders
from hookonce.secrets import new_secret
from hookonce.signature import signer

from .measuring import AtMost, Part, Result, Subject, compare
from .peers import verifying

__all__ = ["MESSAGE_ID", "PART", "floor"]

MESSAGE_ID = "evt_0123456789abcdef01234567"

_SIZES = {"0.5 KB": 512, "2 KB": 2_048, "20 KB": 20_480, "256 KB": 262_144}
_TARGET = AtMost(1.5)
_TARGETED = {"0.5 KB", "2 KB"}

# What else a request brings: from a proxy, from the client's library, from the service.
_OTHER_HEADERS = {
    "host": "example.org",
    "user-agent": "Service-Webhooks/1.0",
    "content-length": "2048",
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "example-event-type": "comment.received",
    "example-delivery-attempt": "1",
}


def floor(secret: str, headers: dict[str, str], body: bytes) -> Subject:
    """Return the least that verifying this delivery can be."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = headers["webhook-signature"].removeprefix("v1,").encode()
    return lambda: hmac.compare_digest(
        base64.b64encode(hmac.digest(key, content, "sha256")), expected
    )


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _run(is_quick: bool) -> list[Result]:
    results: list[Result] = []
    for size_name, size in _SIZES.items():
        results += _accepted(size_name, size, is_quick=is_quick)
    return results + _rotated(is_quick=is_quick) + _refused(is_quick=is_quick)


def _accepted(size_name: str, size: int, *, is_quick: bool) -> list[Result]:
    secret, body = new_secret(), b"x" * size
    headers = sign(secret, MESSAGE_ID, body)
    raw = _raw(headers)
    of_a_server = _raw(_OTHER_HEADERS | headers)
    prefix = f"{MESSAGE_ID}.{headers['webhook-timestamp']}.".encode()
    expected = headers["webhook-signature"].removeprefix("v1,").encode()
    kept = signer(base64.b64decode(secret.removeprefix("whsec_")))
    verifier = Verifier(secret)
    subjects: dict[str, Subject] = {
        "floor": floor(secret, headers, body),
        "floor with the hash states kept": lambda: hmac.compare_digest(
            kept(prefix, body), expected
        ),
        "hookonce Verifier, raw headers": lambda: verifier.verify(body, raw),
        "hookonce Verifier, 11 raw headers": lambda: verifier.verify(body, of_a_server),
        "hookonce verify, a dict": lambda: verify(body, headers, secret),
        **verifying(secret, headers, body),
    }
    own = ("hookonce Verifier, raw headers", "hookonce verify, a dict")
    targets = dict.fromkeys(own, _TARGET) if size_name in _TARGETED else {}
    return compare(size_name, subjects, targets, is_quick=is_quick)


def _rotated(*, is_quick: bool) -> list[Result]:
    new, old, stranger, body = new_secret(), new_secret(), new_secret(), b"x" * 2_048
    both = sign([new, old], MESSAGE_ID, body)
    by_old = sign(old, MESSAGE_ID, body)
    by_strangers = sign([stranger] * 15 + [new], MESSAGE_ID, body)
    verifier, rotating = Verifier(new), Verifier([new, old])
    raw_both, raw_old, raw_strangers = _raw(both), _raw(by_old), _raw(by_strangers)
    return compare(
        "2 KB, several secrets or signatures",
        {
            "floor": floor(old, by_old, body),
            "1 secret, 2 signatures, the first matches": lambda: verifier.verify(body, raw_both),
            "2 secrets, 2 signatures, the first match": lambda: rotating.verify(body, raw_both),
            "2 secrets, 1 signature, of the second": lambda: rotating.verify(body, raw_old),
            "1 secret, 16 signatures, the last matches": lambda: verifier.verify(
                body, raw_strangers
            ),
        },
        is_quick=is_quick,
    )


def _refused(*, is_quick: bool) -> list[Result]:
    secret, body = new_secret(), b"x" * 2_048
    genuine = sign(secret, MESSAGE_ID, body)
    forged = sign(new_secret(), MESSAGE_ID, body)
    stale = sign(secret, MESSAGE_ID, body, timestamp=1_700_000_000)
    unsigned = {name: genuine[name] for name in ("webhook-id", "webhook-timestamp")}
    verifier = Verifier(secret)

    def refusing(headers: dict[str, str]) -> Callable[[], object]:
        raw: RawHeaders = _raw(headers)

        def refused() -> bool:
            try:
                verifier.verify(body, raw)
            except VerificationError:
                return True
            raise AssertionError("it was accepted")

        return refused

    raw = _raw(genuine)
    # "A rejected forgery costs less than an accepted delivery" is meant of all that is done with
    # one; here it is held against verification alone, where raising costs more than returning.
    subjects: dict[str, Subject] = {
        "accepted": lambda: verifier.verify(body, raw),
        "refused: signed by a stranger": refusing(forged),
        "refused: malformed signature": refusing({**genuine, "webhook-signature": "v1,forged"}),
        "refused: stale": refusing(stale),
        "refused: malformed timestamp": refusing({**genuine, "webhook-timestamp": "now"}),
        "refused: no signature": refusing(unsigned),
        "refused: no headers": refusing({}),
    }
    targets = {name: AtMost(1.0) for name in subjects if name != "accepted"}
    return compare("2 KB, refused", subjects, targets, is_quick=is_quick)


PART = Part("verify", "verification, as multiples of its floor", _run)
