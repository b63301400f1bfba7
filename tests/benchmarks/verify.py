"""The cost of verification beside its floor and other packages, and the cost of a refusal.

The floor is what cannot be left out: one HMAC-SHA256, base64, one comparison in constant time.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle, islice
from typing import TextIO, TypeAlias

from hookonce import Receiver, VerificationError, Verifier, sign, verify
from hookonce.clock import system_clock
from hookonce.events import CommentReceived
from hookonce.samples.events import event_body
from hookonce.verification.headers import DeliveryHeaders, signed_parts
from hookonce.verification.secrets import new_key_pair, new_secret
from hookonce.verification.signature import matcher

from .measuring import AtMost, Part, Result, Subject, compare
from .peers import verifying

__all__ = ["MESSAGE_ID", "PART", "floor"]

MESSAGE_ID = "evt_0123456789abcdef01234567"

_SIZES = {"0.5 KB": 512, "2 KB": 2_048, "20 KB": 20_480, "256 KB": 262_144}
_TARGET = AtMost(1.5)
_TARGETED = ("0.5 KB", "2 KB")

# Other headers of a request: from a proxy, from the client's library, from the service.
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


_RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

# Sign more deliveries than a run needs, because the receiver handles each delivery only once.
_MOST_HANDLED = 10_000


def floor(secret: str, headers: dict[str, str], body: bytes) -> Subject:
    """Return a function that verifies with the least work: one HMAC and a comparison."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = headers["webhook-signature"].removeprefix("v1,").encode()
    return lambda: hmac.compare_digest(
        base64.b64encode(hmac.digest(key, content, "sha256")), expected
    )


def _raw(headers: dict[str, str]) -> _RawHeaders:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _run(is_quick: bool) -> list[Result]:
    results: list[Result] = []
    for size_name, size in _SIZES.items():
        results += _accepted(size_name, size, is_quick=is_quick)
    for size_name in _TARGETED:
        results += _built_up(size_name, _SIZES[size_name], is_quick=is_quick)
    for part in (_asymmetric, _rotated, _refused, _handled):
        results += part(is_quick=is_quick)
    return results


def _accepted(size_name: str, size: int, *, is_quick: bool) -> list[Result]:
    secret, body = new_secret(), b"x" * size
    headers = sign(secret, MESSAGE_ID, body)
    raw = _raw(headers)
    of_a_server = _OTHER_HEADERS | headers
    raw_of_a_server = _raw(of_a_server)
    prefix = f"{MESSAGE_ID}.{headers['webhook-timestamp']}.".encode()
    signatures = DeliveryHeaders.parse(headers).signatures
    kept = matcher(secret)
    verifier = Verifier(secret)
    subjects: dict[str, Subject] = {
        "floor": floor(secret, headers, body),
        "floor with the hash states kept": lambda: kept(prefix, body, signatures),
        "hookonce Verifier, raw headers": lambda: verifier.verify(body, raw),
        "hookonce Verifier, 11 raw headers": lambda: verifier.verify(body, raw_of_a_server),
        "hookonce Verifier, each of another second": _in_turn(verifier, secret, body),
        "hookonce verify, a dict": lambda: verify(body, headers, secret),
        "hookonce verify, a dict of 11": lambda: verify(body, of_a_server, secret),
        **verifying(secret, headers, body),
    }
    own = ("hookonce Verifier, raw headers", "hookonce verify, a dict")
    targets = dict.fromkeys(own, _TARGET) if size_name in _TARGETED else {}
    return compare(size_name, subjects, targets, is_quick=is_quick)


def _in_turn(verifier: Verifier, secret: str, body: bytes) -> Subject:
    """Return a subject with so many timestamps that remembering them does not help."""
    now = int(time.time())
    deliveries = cycle(
        [_raw(sign(secret, f"evt_{n:024}", body, timestamp=now - n)) for n in range(128)]
    )
    return lambda: verifier.verify(body, next(deliveries))


def _built_up(size_name: str, size: int, *, is_quick: bool) -> list[Result]:
    """Return the time that each step of a verification adds to the steps before it."""
    secret, body = new_secret(), b"x" * size
    headers = sign(secret, MESSAGE_ID, body)
    raw = _raw(headers)
    prefix = f"{MESSAGE_ID}.{headers['webhook-timestamp']}.".encode()
    expected = DeliveryHeaders.parse(headers).signatures
    kept = matcher(secret)
    verifier = Verifier(secret)

    def and_headers() -> bool:
        _, _, signed_prefix, signatures = signed_parts(raw)
        return kept(signed_prefix, body, signatures)

    def and_clock() -> bool:
        _, timestamp, signed_prefix, signatures = signed_parts(raw)
        if not -300 <= system_clock() - timestamp <= 300:
            raise AssertionError("it is not of now")
        return kept(signed_prefix, body, signatures)

    subjects: dict[str, Subject] = {
        "floor": floor(secret, headers, body),
        "the hash states kept instead": lambda: kept(prefix, body, expected),
        "and the headers found and checked": and_headers,
        "and the clock, and the tolerance": and_clock,
        "and the result: all of a Verifier": lambda: verifier.verify(body, raw),
    }
    return compare(f"{size_name}, what it is made of", subjects, is_quick=is_quick)


def _asymmetric(*, is_quick: bool) -> list[Result]:
    """Return the cost of accepting and refusing `v1a`, beside the cost of `v1`."""
    secret, pair, body = new_secret(), new_key_pair(), b"x" * 2_048
    raw = _raw(sign(secret, MESSAGE_ID, body))
    raw_asymmetric = _raw(sign(pair.private, MESSAGE_ID, body))
    verifier, asymmetric = Verifier(secret), Verifier(pair.public)
    mixed = Verifier([pair.public, secret])
    by_strangers = sign([new_key_pair().private for _ in range(16)], MESSAGE_ID, body)
    return compare(
        "2 KB, the asymmetric scheme",
        {
            "v1": lambda: verifier.verify(body, raw),
            "v1a": lambda: asymmetric.verify(body, raw_asymmetric),
            "v1, with a public key before the secret": lambda: mixed.verify(body, raw),
            "v1a, with a secret after the public key": lambda: mixed.verify(body, raw_asymmetric),
            "refused: 16 v1a signatures, of which 4 are read": _refusing(
                asymmetric, body, by_strangers
            ),
        },
        is_quick=is_quick,
    )


def _rotated(*, is_quick: bool) -> list[Result]:
    new, old, stranger, body = new_secret(), new_secret(), new_secret(), b"x" * 2_048
    both = sign([new, old], MESSAGE_ID, body)
    by_old = sign(old, MESSAGE_ID, body)
    by_strangers = sign([stranger] * 15 + [new], MESSAGE_ID, body)
    verifier, rotating = Verifier(new), Verifier([new, old])
    crowded = Verifier([*(new_secret() for _ in range(7)), old])
    raw_both, raw_old, raw_strangers = _raw(both), _raw(by_old), _raw(by_strangers)
    return compare(
        "2 KB, several secrets or signatures",
        {
            "floor": floor(old, by_old, body),
            "1 secret, 2 signatures, the first matches": lambda: verifier.verify(body, raw_both),
            "2 secrets, 2 signatures, the first match": lambda: rotating.verify(body, raw_both),
            "2 secrets, 1 signature, of the second": lambda: rotating.verify(body, raw_old),
            "8 secrets, 1 signature, of the last": lambda: crowded.verify(body, raw_old),
            "1 secret, 16 signatures, the last matches": lambda: verifier.verify(
                body, raw_strangers
            ),
            "1 secret, 16 signatures, none matches": _refusing(
                verifier, body, sign([stranger] * 16, MESSAGE_ID, body)
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

    def refusing(headers: dict[str, str]) -> Subject:
        return _refusing(verifier, body, headers)

    raw = _raw(genuine)
    # A forgery takes the same steps up to the comparison. Then `verify` raises an exception, which
    # is slower than returning a result, even without a message: see also `_handled`.
    subjects: dict[str, Subject] = {
        "accepted": lambda: verifier.verify(body, raw),
        "an exception raised and caught, no more": _raised_and_caught,
        "refused: signed by a stranger": refusing(forged),
        "refused: malformed signature": refusing({**genuine, "webhook-signature": "v1,forged"}),
        "refused: stale": refusing(stale),
        "refused: malformed id": refusing({**genuine, "webhook-id": "evt.1"}),
        "refused: two ids": refusing({**genuine, "Webhook-Id": "evt_1"}),
        "refused: malformed timestamp": refusing({**genuine, "webhook-timestamp": "now"}),
        "refused: no signature": refusing(unsigned),
        "refused: no headers": refusing({}),
    }
    return compare("2 KB, refused", subjects, is_quick=is_quick)


def _handled(*, is_quick: bool) -> list[Result]:
    """Return the cost for a receiver to handle or refuse a delivery, with the log line.

    A flood of forgeries must cost less than as many deliveries.
    """
    secret = new_secret()
    receiver = Receiver(secrets=secret, store="memory://")
    loop = asyncio.new_event_loop()

    @receiver.on(CommentReceived, name="nothing")
    async def nothing(_: CommentReceived) -> None: ...

    def deliveries(signing: str, skew: int = 0) -> Iterator[tuple[bytes, _RawHeaders]]:
        now = int(time.time()) - skew
        for number in count():
            event_id = f"evt_{number:024x}"
            body = event_body("comment.received", event_id=event_id)
            yield body, _raw(_OTHER_HEADERS | sign(signing, event_id, body, timestamp=now))

    def handling(made: Iterator[tuple[bytes, _RawHeaders]], status: int) -> Subject:
        ready = list(islice(made, _MOST_HANDLED))  # sign before the measurement

        def handle() -> None:
            outcome = loop.run_until_complete(receiver.handle(*ready.pop()))
            assert outcome.status == status, outcome

        return handle

    with open(os.devnull, "w", encoding="utf-8") as nowhere, _logged(nowhere):
        subjects = {
            "accepted": handling(deliveries(secret), 200),
            "refused: signed by a stranger": handling(deliveries(new_secret()), 401),
            "refused: stale": handling(deliveries(secret, skew=600), 401),
        }
        targets = {name: AtMost(1.0) for name in subjects if name.startswith("refused")}
        results = compare("a receiver's whole way", subjects, targets, is_quick=is_quick)
    loop.close()
    return results


@contextmanager
def _logged(stream: TextIO) -> Iterator[None]:
    """Write the receiver's log to this file."""
    log, handler = logging.getLogger("hookonce"), logging.StreamHandler(stream)
    level, propagated = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagated


def _refusing(verifier: Verifier, body: bytes, headers: dict[str, str]) -> Subject:
    raw = _raw(headers)

    def refused() -> bool:
        try:
            verifier.verify(body, raw)
        except VerificationError:
            return True
        raise AssertionError("it was accepted")

    return refused


def _raise() -> None:
    raise ValueError


def _raised_and_caught() -> bool:
    try:
        _raise()
    except ValueError:
        return True
    return False


PART = Part("verify", "verification, as multiples of its floor", _run)
