"""The asymmetric scheme: keys and signatures that no genuine signer makes are refused.

The points are computed from the curve (RFC 8032, 5.1). "Taming the many EdDSAs" (Chalkias,
Garillot, Nikolaenko, 2020) lists these cases and shows that libraries do not agree on them.
"""

import base64
import hashlib
from collections.abc import Iterator
from itertools import count

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hookonce import Refusal, SecretError, VerificationError, sign, verify
from hookonce.verification import ed25519
from hookonce.verification.secrets import KeyPair, new_key_pair

NOW = 1_700_000_000
PREFIX, BODY = f"evt_1.{NOW}.".encode(), b"{}"

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P

Point = tuple[int, int]
ZERO: Point = (0, 1)


def add(one: Point, other: Point) -> Point:
    """Add two points by the definition of a twisted Edwards curve."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    x3 = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y3 = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x3 % P, y3 % P


def times(factor: int, point: Point) -> Point:
    result = ZERO
    while factor:
        if factor & 1:
            result = add(result, point)
        point = add(point, point)
        factor >>= 1
    return result


def points(y: int) -> Iterator[Point]:
    """Yield the points with this y: the roots of x² = (y² - 1) / (d y² + 1), found by trial."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in (root, root * pow(2, (P - 1) // 4, P) % P):
        if x * x % P == square:
            yield from {(x, y), (-x % P, y)}
            return


def encoded(point: Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = min(points(4 * pow(5, -1, P) % P), key=lambda point: point[0] & 1)


def of_order_8() -> Point:
    """Return a point of order 8: multiplying a point by L leaves only its part of small order."""
    for y in count(2):
        for point in points(y):
            small = times(L, point)
            if times(4, small) != ZERO:
                return small
    raise AssertionError


EIGHTH = of_order_8()
SMALL = [times(n, EIGHTH) for n in range(8)]

# Encodings with y >= p, or with the sign bit of x = 0 set: a decoder that reduces y accepts them.
NOT_CANONICAL = [
    *(((y + P) | sign_bit << 255).to_bytes(32, "little") for y in range(19) for sign_bit in (0, 1)),
    (1 | 1 << 255).to_bytes(32, "little"),
    ((P - 1) | 1 << 255).to_bytes(32, "little"),
]


def public_text(raw: bytes) -> str:
    return "whpk_" + base64.b64encode(raw).decode()


def private_text(raw: bytes) -> str:
    return "whsk_" + base64.b64encode(raw).decode()


def headers_of(signature: bytes) -> dict[str, str]:
    return {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(NOW),
        "webhook-signature": "v1a," + base64.b64encode(signature).decode(),
    }


def refuses(signature: bytes, public: str) -> bool:
    try:
        verify(BODY, headers_of(signature), public, now=NOW)
    except VerificationError as error:
        return error.reason is Refusal.NO_MATCHING_SIGNATURE
    return False


def openssl_accepts(signature: bytes, public: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, PREFIX + BODY)
    except InvalidSignature:
        return False
    return True


SECRET_SCALAR = int.from_bytes(hashlib.sha512(b"a private key").digest(), "little") % L
GENUINE = times(SECRET_SCALAR, BASE)


def signed_by_hand(
    public: bytes, nonce: int = 1234567, *, scalar: int = SECRET_SCALAR, torsion: Point = ZERO
) -> bytes:
    """Sign as in RFC 8032, 5.1.6, but with a given nonce, and with a point added to R."""
    r = encoded(add(times(nonce, BASE), torsion))
    h = int.from_bytes(hashlib.sha512(r + public + PREFIX + BODY).digest(), "little") % L
    return r + ((nonce + h * scalar) % L).to_bytes(32, "little")


# Keys


def test_the_eight_points_of_small_order_are_those_of_the_curve() -> None:
    assert {y for _, y in SMALL} == ed25519._SMALL_ORDER
    assert times(8, EIGHTH) == ZERO
    assert len(set(SMALL)) == 8


@pytest.mark.parametrize("order", range(8))
def test_a_public_key_of_small_order_is_refused(order: int) -> None:
    with pytest.raises(SecretError, match="small order, for which anybody can sign"):
        verify(BODY, headers_of(bytes(64)), public_text(encoded(SMALL[order])), now=NOW)


@pytest.mark.parametrize("raw", NOT_CANONICAL, ids=lambda raw: raw.hex()[:4] + raw.hex()[-2:])
def test_a_public_key_with_another_encoding_of_its_point_is_refused(raw: bytes) -> None:
    with pytest.raises(SecretError, match=r"not canonical|small order"):
        verify(BODY, headers_of(bytes(64)), public_text(raw), now=NOW)


@pytest.mark.parametrize("torsion", range(1, 8))
def test_a_public_key_with_a_part_of_small_order_is_refused(torsion: int) -> None:
    mixed = encoded(add(GENUINE, SMALL[torsion]))
    with pytest.raises(SecretError, match="not a multiple of the base point"):
        verify(BODY, headers_of(bytes(64)), public_text(mixed), now=NOW)


def test_a_public_key_that_is_no_point_is_refused() -> None:
    y = next(y for y in count(2) if not list(points(y)))
    with pytest.raises(SecretError, match="no point of the curve"):
        verify(BODY, headers_of(bytes(64)), public_text(y.to_bytes(32, "little")), now=NOW)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_public_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(SecretError, match="public key"):
        verify(BODY, headers_of(bytes(64)), public_text(bytes(length)), now=NOW)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 63, 65, 96])
def test_a_private_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(SecretError, match="private key"):
        sign(private_text(bytes(length)), "evt_1", BODY)


def test_a_private_key_with_the_public_key_of_another_is_refused() -> None:
    """Signing with such a pair could reveal the private key."""
    one, other = (base64.b64decode(new_key_pair().private[5:]) for _ in range(2))
    with pytest.raises(SecretError, match="second half is not the public key"):
        sign(private_text(one[:32] + other[32:]), "evt_1", BODY)


def test_a_private_key_may_stand_without_its_public_key() -> None:
    pair = new_key_pair()
    short = private_text(base64.b64decode(pair.private[5:])[:32])
    assert KeyPair.of(short) == pair
    assert verify(BODY, sign(short, "evt_1", BODY), pair.public).id == "evt_1"


def test_a_key_is_refused_if_unused_bits_of_its_base64_are_set() -> None:
    public = new_key_pair().public
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    changed = public[:-2] + alphabet[alphabet.index(public[-2]) ^ 1] + "="
    assert base64.b64decode(changed[5:]) == base64.b64decode(public[5:])
    with pytest.raises(SecretError, match="not canonical base64"):
        verify(BODY, headers_of(bytes(64)), changed, now=NOW)


def test_genuine_keys_pass_the_validation() -> None:
    for _ in range(50):
        pair = new_key_pair()
        assert ed25519.public_key_fault(base64.b64decode(pair.public[5:])) is None


# Signatures


def test_a_signature_made_by_hand_verifies() -> None:
    public = encoded(GENUINE)
    assert not refuses(signed_by_hand(public), public_text(public))


@pytest.mark.parametrize("times_l", [1, 2, 7, 15])
def test_a_signature_with_s_not_below_l_is_refused(times_l: int) -> None:
    """Without this check, anybody could make a second signature from a genuine signature."""
    public = encoded(GENUINE)
    genuine = signed_by_hand(public)
    s = int.from_bytes(genuine[32:], "little") + times_l * L
    assert refuses(genuine[:32] + s.to_bytes(32, "little"), public_text(public))


@pytest.mark.parametrize("order", range(8))
def test_an_r_of_small_order_is_refused(order: int) -> None:
    public = encoded(GENUINE)
    forged = signed_by_hand(public, 0, torsion=SMALL[order])
    assert refuses(forged, public_text(public))


def test_openssl_would_accept_a_signature_whose_r_is_the_neutral_element() -> None:
    """Our own check refuses it, because such a signature reveals the private key."""
    public = encoded(GENUINE)
    assert openssl_accepts(signed_by_hand(public, 0), public)


@pytest.mark.parametrize("order", range(1, 8))
def test_an_r_with_a_part_of_small_order_is_refused(order: int) -> None:
    public = encoded(GENUINE)
    assert refuses(signed_by_hand(public, torsion=SMALL[order]), public_text(public))


@pytest.mark.parametrize("raw", NOT_CANONICAL, ids=lambda raw: raw.hex()[:4] + raw.hex()[-2:])
def test_an_r_with_another_encoding_is_refused(raw: bytes) -> None:
    public = encoded(GENUINE)
    h = int.from_bytes(hashlib.sha512(raw + public + PREFIX + BODY).digest(), "little") % L
    forged = raw + (h * SECRET_SCALAR % L).to_bytes(32, "little")
    assert refuses(forged, public_text(public))


def test_a_key_of_small_order_would_let_one_signature_match_many_messages() -> None:
    """OpenSSL accepts such a key, because both sides of the equation are the neutral element."""
    public = encoded(ZERO)
    assert openssl_accepts(encoded(ZERO) + bytes(32), public)
    with pytest.raises(SecretError):
        verify(BODY, headers_of(encoded(ZERO) + bytes(32)), public_text(public), now=NOW)


def test_a_signature_is_refused_if_unused_bits_of_its_base64_are_set() -> None:
    pair = new_key_pair()
    headers = sign(pair.private, "evt_1", BODY, timestamp=NOW)
    entry = headers["webhook-signature"]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for bits in range(1, 16):
        changed = entry[:-3] + alphabet[alphabet.index(entry[-3]) ^ bits] + "=="
        assert base64.b64decode(changed[4:]) == base64.b64decode(entry[4:])
        with pytest.raises(VerificationError):
            verify(BODY, {**headers, "webhook-signature": changed}, pair.public, now=NOW)


@pytest.mark.parametrize("bit", range(0, 512, 7))
def test_a_changed_bit_is_refused(bit: int) -> None:
    public = encoded(GENUINE)
    changed = int.from_bytes(signed_by_hand(public), "little") ^ 1 << bit
    assert refuses(changed.to_bytes(64, "little"), public_text(public))


# Published vectors


def test_the_example_of_the_standard_verifies_and_is_what_we_sign() -> None:
    """The signature is in the standard; Svix's server publishes the keys and the message."""
    private = (
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6K"
        "vg=="
    )
    public = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
    signature = (
        "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TB"
        "Ag=="
    )
    message_id, timestamp = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
    body = b'{"test": 2432232314}'
    headers = sign(private, message_id, body, timestamp=timestamp)
    assert headers["webhook-signature"] == signature
    assert verify(body, headers, public, now=timestamp).id == message_id
    assert KeyPair.of(private) == KeyPair(private, public)


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            (
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
                "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
            ),
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            (
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
                "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
            ),
        ),
    ],
)
def test_the_vectors_of_rfc_8032(seed: str, public: str, message: str, signature: str) -> None:
    raw_seed, raw_public, content = map(bytes.fromhex, (seed, public, message))
    assert ed25519.public_bytes(raw_seed) == raw_public
    text = base64.b64encode(bytes.fromhex(signature))
    assert ed25519.signer(raw_seed)(b"", content) == b"v1a," + text
    assert ed25519.matcher(raw_public)(b"", content, [text])
    assert not ed25519.matcher(raw_public)(b"", content + b"x", [text])
