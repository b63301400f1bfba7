"""Asymmetric signatures: ed25519 (RFC 8032), for keys that begin with ``whpk_`` or ``whsk_``.

cryptography signs and verifies. It accepts some keys and signatures that no signer makes, and its
OpenSSL decides which. So this module first refuses every encoding that is not canonical and every
point of small order. With a key of small order, one signature can match every message.
"""

from __future__ import annotations

import base64
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence

from ..errors import NeedsExtra
from .headers import V1A, V1A_LENGTH

with NeedsExtra("v1a", "a key of the asymmetric scheme (whpk_…, whsk_…)", "cryptography"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

KEY_BYTES = 32

# RFC 8032, 5.1: the prime of the field, the order of the base point, and the curve's constant d.
_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_1 = pow(2, (_P - 1) // 4, _P)

# An encoded point has y in its first 255 bits, and the sign of x in the last bit.
_Y = 2**255 - 1
_Y_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset({0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8})
"""The y of the eight points of small order."""


def public_key_fault(raw: bytes) -> str | None:
    """Return the reason why a public key cannot be used; None if the key is usable.

    This is the full validation of NIST SP 800-186, D.1.3.2: the encoding is canonical, and the
    point is on the curve and in the group of the base point, where every genuine key is.
    """
    if len(raw) != KEY_BYTES:
        return f"it has {len(raw)} bytes, and an ed25519 public key has {KEY_BYTES}"
    y = int.from_bytes(raw, "little") & _Y
    if y >= _P:
        return "its encoding is not canonical"
    if y in _SMALL_ORDER:
        return "it is a point of small order, for which anybody can sign"
    x = _x_of(y)
    if x is None:
        return "it is no point of the curve ed25519"
    if not _is_in_group(x, y):
        return "it is not a multiple of the base point, as every genuine key is"
    return None


def _x_of(y: int) -> int | None:
    """Return one of the two x coordinates for this y; None if there is none (RFC 8032, 5.1.3)."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT_OF_MINUS_1 % _P
    return x if x * x % _P == square else None


def _is_in_group(x: int, y: int) -> bool:
    """Return whether the point is in the base point's group: ``_L`` times the point is zero."""
    result = (0, 1, 1, 0)
    point = (x, y, 1, x * y % _P)
    factor = _L
    while factor:
        if factor & 1:
            result = _sum(result, point)
        point = _sum(point, point)
        factor >>= 1
    return result[0] == 0 and result[1] == result[2]


_Point = tuple[int, int, int, int]


def _sum(one: _Point, other: _Point) -> _Point:
    """Add two points in extended homogeneous coordinates (RFC 8032, 5.1.4)."""
    x1, y1, z1, t1 = one
    x2, y2, z2, t2 = other
    a = (y1 - x1) * (y2 - x2)
    b = (y1 + x1) * (y2 + x2)
    c = 2 * t1 * t2 * _D
    d = 2 * z1 * z2
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def private_key_fault(raw: bytes) -> str | None:
    """Return the reason why a private key cannot be used; None if the key is usable.

    It is the 32 bytes of RFC 8032, alone or with the public key after them, as Svix writes it.
    """
    if len(raw) not in (KEY_BYTES, 2 * KEY_BYTES):
        return (
            f"it has {len(raw)} bytes, and an ed25519 private key has {KEY_BYTES}, or"
            f" {2 * KEY_BYTES} with its public key"
        )
    if raw[KEY_BYTES:] and raw[KEY_BYTES:] != public_bytes(raw[:KEY_BYTES]):
        return "its second half is not the public key of its first half"
    return None


def public_bytes(seed: bytes) -> bytes:
    """Return the public key of a private key."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def matcher(public_key: bytes) -> Callable[[bytes, bytes, Sequence[bytes]], bool]:
    """Return a function that checks whether this key has made one of the signatures.

    Args:
        public_key: a key without a `public_key_fault`.
    """
    verify = Ed25519PublicKey.from_public_bytes(public_key).verify

    def matches(prefix: bytes, body: bytes, signatures: Sequence[bytes]) -> bool:
        content = None
        for signature in _strict(signatures):
            if content is None:
                content = prefix + body
            try:
                verify(signature, content)
            except InvalidSignature:
                continue
            return True
        return False

    return matches


def _strict(signatures: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the decoded ``v1a`` signatures that a signer can have made."""
    for text in signatures:
        if len(text) != V1A_LENGTH:
            continue
        try:
            signature = base64.b64decode(text, validate=True)
        except ValueError:
            continue
        # Skip a text that is not canonical: unused bits at the end of its base64 are set.
        if len(signature) == 2 * KEY_BYTES and b2a_base64(signature, newline=False) == text:
            y = int.from_bytes(signature[:KEY_BYTES], "little") & _Y
            s = int.from_bytes(signature[KEY_BYTES:], "little")
            if s < _L and y < _P and y not in _SMALL_ORDER:
                yield signature


def signer(seed: bytes) -> Callable[[bytes, bytes], bytes]:
    """Return a function that signs ``{webhook-id}.{webhook-timestamp}.`` and a body.

    Args:
        seed: the private key, of 32 bytes.
    """
    sign = Ed25519PrivateKey.from_private_bytes(seed).sign
    return lambda prefix, body: V1A + b2a_base64(sign(prefix + body), newline=False)
