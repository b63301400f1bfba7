"""No forgery is accepted among 30,000 random changes, over both header families and both schemes.

An accepted request has the id, the timestamp and the body of one message that a configured key has
signed, in every family of headers that its sender declares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from hookonce import VerificationError, VerifiedDelivery, sign
from hookonce.senders import Sender, standard, svix
from hookonce.verification.header_names import names_of
from hookonce.verification.headers import read_headers
from hookonce.verification.secrets import new_key_pair, new_secret
from hookonce.verification.signature import PartsVerifier

pytestmark = pytest.mark.sample(3, of="file")

NOW = 1_700_000_000
EACH = 2_500

PAIR, STRANGE_PAIR = new_key_pair(), new_key_pair()
SECRET, STRANGE_SECRET = new_secret(), new_secret()

BOTH = replace(svix, headers=("svix", "webhook"))
SENDERS: dict[str, Sender] = {
    "webhook": standard,
    "svix": replace(svix, headers=("svix",)),
    "both": BOTH,
}
KEYS = {
    "v1": ((SECRET,), (SECRET,)),
    "v1a": ((PAIR.private,), (PAIR.public,)),
    "both": ((PAIR.private, SECRET), (SECRET, PAIR.public)),
    "v1 of two": ((PAIR.private, SECRET), (SECRET,)),
}
PARTS = ("id", "timestamp", "signature")


@dataclass
class Request:
    """The headers, with names as they arrive, and the body."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


def signed(sender: Sender, secrets: tuple[str, ...], number: int) -> Request:
    """Return a genuine request in every family that the sender declares."""
    body = b'{"number":%d}' % number
    headers = sign(secrets, f"evt_{number}", body, timestamp=NOW + number % 9)
    pairs = [
        (f"{family}-{part}".encode(), headers[f"webhook-{part}"].encode())
        for family in sender.headers
        for part in PARTS
    ]
    return Request(pairs, body)


def bytes_changed(value: bytes, random: Random) -> bytes:
    """Return the value with one byte flipped, added, removed, or moved to its end."""
    if not value:
        return random.randbytes(1)
    at = random.randrange(len(value))
    match random.randrange(6):
        case 0:
            return value[:at] + bytes([value[at] ^ 1 << random.randrange(8)]) + value[at + 1 :]
        case 1:
            return value[:at] + random.choice([b" ", b",", b".", b"\0", b"=", b"0"]) + value[at:]
        case 2:
            return value[:at] + value[at + 1 :]
        case 3:
            return value[at:] + value[:at]
        case 4:
            return value[:at]
        case _:
            return value + value[at:]


def signature_changed(value: bytes, random: Random) -> bytes:
    """Return a list of signatures with entries renamed, cut, doubled, mixed or in another order."""
    entries = value.split(b" ")
    at = random.randrange(len(entries))
    version, _, text = entries[at].partition(b",")
    match random.randrange(7):
        case 0:
            versions = [b"v1", b"v1a", b"v1,a", b"v2", b"V1a", b"v1a,", b"", b"a"]
            entries[at] = random.choice(versions) + b"," + text
        case 1:
            entries[at] = version + b"," + bytes_changed(text, random)
        case 2:
            entries *= random.randrange(1, 12)
        case 3:
            random.shuffle(entries)
        case 4:
            del entries[at]
        case 5:
            entries.insert(at, version + b"," + text[::-1])
        case _:
            entries[at] = version + text
    return b" ".join(entries)


def changed(request: Request, other: Request, stranger: Request, random: Random) -> Request:
    """Return the request after one change.

    Args:
        other: a genuine request with another message.
        stranger: a request with this message, signed by keys that are not configured.
    """
    headers, body = list(request.headers), request.body
    at = random.randrange(len(headers)) if headers else 0
    match random.randrange(9) if headers else 0:
        case 0:
            body = bytes_changed(body, random)
        case 1:
            headers[at] = headers[at][0], bytes_changed(headers[at][1], random)
        case 2 | 3:
            name, value = headers[at]
            if name.lower().endswith(b"signature"):
                value = signature_changed(value, random)
            headers[at] = name, value
        case 4:
            headers.insert(at, random.choice([*other.headers, *stranger.headers]))
        case 5:
            source = random.choice([other, stranger])
            headers[at] = random.choice(source.headers)
        case 6:
            del headers[at]
        case 7:
            name, value = headers[at]
            family, _, part = name.partition(b"-")
            names = [name.upper(), name.title(), family + b"_" + part, b"svix-" + part,
                     b"webhook-" + part, b" " + name]  # fmt: skip
            headers[at] = random.choice(names), value
        case _:
            random.shuffle(headers)
            body = random.choice([body, body, other.body])
    return Request(headers, body)


def verified(verifier: PartsVerifier, sender: Sender, request: Request) -> VerifiedDelivery | None:
    """Return the delivery, or None; check that a receiver, which reads headers itself, agrees."""
    ways: list[VerifiedDelivery | str] = []
    for way in ("verify", "receiver"):
        try:
            if way == "verify":
                ways.append(verifier.verify(request.body, request.headers, now=NOW))
            else:
                signed, _ = read_headers(request.headers, names_of(sender))
                ways.append(verifier.verify_parts(request.body, signed, now=NOW))
        except VerificationError as error:
            ways.append(error.reason)
    assert ways[0] == ways[1], request
    return ways[0] if isinstance(ways[0], VerifiedDelivery) else None


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("family", SENDERS)
def test_a_changed_request_is_accepted_only_as_the_message_that_was_signed(
    family: str, keys: str
) -> None:
    sender, (signing, configured) = SENDERS[family], KEYS[keys]
    random = Random(f"{family} {keys}")
    verifier = PartsVerifier(configured, sender=sender)
    accepted = refused = 0
    for number in range(EACH):
        genuine, other = signed(sender, signing, number), signed(sender, signing, number + 7)
        stranger = signed(sender, (STRANGE_PAIR.private, STRANGE_SECRET), number)
        attack = genuine
        for _ in range(random.choice([1, 1, 2, 3])):
            attack = changed(attack, other, stranger, random)
        delivery = verified(verifier, sender, attack)
        if delivery is None:
            refused += 1
            continue
        accepted += 1
        found = delivery.id, delivery.timestamp, delivery.body
        of_whom = {(f"evt_{n}", NOW + n % 9, b'{"number":%d}' % n) for n in (number, number + 7)}
        assert found in of_whom, (attack, found)
        signed_values = {b"id": delivery.id.encode(), b"timestamp": b"%d" % delivery.timestamp}
        for name, value in attack.headers:
            prefix, _, part = name.lower().partition(b"-")
            if prefix.decode() in sender.headers and part in signed_values:
                assert value == signed_values[part], attack
    assert accepted > EACH // 20
    assert refused > EACH // 3
