"""Genuine deliveries with random mutations, chosen by a seed."""

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from hookonce.events import CommentReceived
from hookonce.testing import event_body, make_event, signed_request
from hookonce.verification.secrets import decode_secret

__all__ = ["MOST_BODY_BYTES", "Headers", "Mutated", "has_valid_signature", "mutated"]

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

MOST_BODY_BYTES = 64 * 1024
_SIGNATURE = re.compile(rb"v1,[A-Za-z0-9+/]{43}=")
_SIGNED = (b"webhook-id", b"webhook-timestamp", b"webhook-signature")


@dataclass(frozen=True)
class Mutated:
    """A request to send.

    Attributes:
        changes: the names of its mutations; a request without mutations is genuine.
        ends: whether the client sends the body to its end.

    """

    method: str
    path: str
    headers: Headers
    body: bytes = field(repr=False)
    changes: tuple[str, ...] = ()
    ends: bool = True

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def without(self, name: bytes) -> Headers:
        return tuple(header for header in self.headers if header[0].lower() != name)

    def with_header(self, name: bytes, value: bytes) -> "Mutated":
        return replace(self, headers=(*self.headers, (name, value)))

    def with_value(self, name: bytes, value: bytes) -> "Mutated":
        return replace(self, headers=self.without(name)).with_header(name, value)


Mutation: TypeAlias = Callable[[Mutated, random.Random], Mutated]


def mutated(chance: random.Random, secret: str, path: str) -> Mutated:
    """Return a delivery with up to three mutations."""
    body: bytes = chance.choice(_BODIES)(chance)
    signed = signed_request(body, secret)
    headers = [(name.encode(), value.encode("utf-8")) for name, value in signed.headers.items()]
    headers += [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    request = Mutated("POST", path, tuple(headers), body)
    for mutation in chance.sample(_MUTATIONS, chance.choice([0, 1, 1, 1, 2, 2, 3])):
        request = mutation(request, chance)
        request = replace(request, changes=(*request.changes, mutation.__name__))
    return request


def has_valid_signature(headers: Headers, body: bytes, secret: str) -> bool:
    """Return whether the body verifies under any interpretation of the headers."""
    ids, timestamps, signatures = (
        [value.strip() for name, value in headers if name.lower() == wanted] for wanted in _SIGNED
    )
    shown = {entry for value in signatures for entry in _SIGNATURE.findall(value)}
    key = decode_secret(secret)
    for message_id, timestamp in product(ids, timestamps):
        mac = hmac.digest(key, b".".join([message_id, timestamp, body]), hashlib.sha256)
        if b"v1," + base64.b64encode(mac) in shown:
            return True
    return False


# bodies


def _event(chance: random.Random) -> bytes:
    return (
        make_event(CommentReceived, data={"text": "ż🍞" * chance.randrange(50)})
        .model_dump_json(exclude_unset=True)
        .encode()
    )


def _of_a_type(chance: random.Random) -> bytes:
    return event_body(chance.choice(["post.target.failed", "webhook.test", "channel.unhealthy"]))


def _no_event(chance: random.Random) -> bytes:
    return chance.choice([b"{}", b"null", b"[]", b"\x00", b"\xff\xfe", b"{" * 2000, b"1" * 5000])


_BODIES: list[Callable[[random.Random], bytes]] = [_event, _event, _event, _of_a_type, _no_event]


# mutations


def _drop_header(request: Mutated, chance: random.Random) -> Mutated:
    return replace(request, headers=request.without(chance.choice(_SIGNED)))


def _repeat_header(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice(_SIGNED)
    values = request.values(name) or [b""]
    return request.with_header(
        name, chance.choice([values[0], b"", b"evt_other", values[0] + b" "])
    )


def _spell_name(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice(_SIGNED)
    spell: Callable[[bytes], bytes] = chance.choice(
        [bytes.upper, bytes.title, lambda n: n.replace(b"-", b"_"), lambda n: b"x-" + n]
    )
    return replace(
        request, headers=tuple((spell(k) if k == name else k, v) for k, v in request.headers)
    )


def _junk_value(request: Mutated, chance: random.Random) -> Mutated:
    junk = [b"", b" ", b"\xff\xfe", "żółć🍞".encode(), b"a.b", b"x" * 100_000, b"\t", b"v1,", b"v1"]
    junk += [b"-1", b"+1", b"1e9", b"1_0", "١٢٣".encode(), b"9" * 5000, b"nan", b"0", b"None"]
    return request.with_value(chance.choice(_SIGNED), chance.choice(junk))


def _change_value(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice(_SIGNED)
    value = bytearray((request.values(name) or [b"x"])[0] or b"x")
    value[chance.randrange(len(value))] = chance.choice(b"aA0+/=, .~")
    return request.with_value(name, bytes(value))


def _more_signatures(request: Mutated, chance: random.Random) -> Mutated:
    value = (request.values(_SIGNED[2]) or [b""])[0]
    other = chance.choice([b"v1,AAAA", b"v2,x", b"v1a,x", b",", b"v1,,", b"v1," + b"A" * 43 + b"="])
    beside = [other] * chance.choice([1, 3, 50])
    beside.insert(chance.randrange(len(beside) + 1), value)
    return request.with_value(_SIGNED[2], chance.choice([b" ", b"  ", b","]).join(beside))


def _move_time(request: Mutated, chance: random.Random) -> Mutated:
    stamp = (request.values(_SIGNED[1]) or [b"0"])[0]
    if not (stamp.isdigit() and len(stamp) < 20):
        return request
    moved = int(stamp) + chance.choice([-400, 400, 10**9, -(10**9), 10**15])
    return request.with_value(_SIGNED[1], b"%d" % moved)


_OTHER_HEADERS = [
    (b"transfer-encoding", b"chunked"),
    (b"transfer-encoding", b"identity"),
    (b"transfer-encoding", b"gzip, chunked"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"multipart/form-data; boundary=x"),
    (b"content-type", b"\xff/\xff; charset=utf-7"),
    (b"expect", b"100-continue"),
    (b"upgrade", b"h2c"),
    (b"connection", b"upgrade, close"),
    (b"host", b"evil.example/?@\xff"),
    (b"x-forwarded-for", b"127.0.0.1"),
    (b"x-forwarded-proto", b"https"),
    (b"x-http-method-override", b"GET"),
    (b"cookie", b"sessionid=\xff; a=b; ;;=" + b"c" * 9000),
    (b"authorization", b"Bearer x"),
    (b"accept", b"\x80*/*;q=\xff"),
    (b"origin", b"null"),
    (b"range", b"bytes=0-0"),
    (b"if-none-match", b"*"),
    (b"example-event-type", b"channel.\xff"),
    (b"example-delivery-attempt", b"9" * 5000),
    (b"example-delivery-attempt", b"-1"),
    (b"other-delivery-attempt", b"9"),
]


def _add_header(request: Mutated, chance: random.Random) -> Mutated:
    return request.with_header(*chance.choice(_OTHER_HEADERS))


def _set_header(request: Mutated, chance: random.Random) -> Mutated:
    return request.with_value(*chance.choice(_OTHER_HEADERS))


def _many_headers(request: Mutated, chance: random.Random) -> Mutated:
    more = tuple((b"x-%d" % number, b"y" * 10) for number in range(chance.choice([50, 500])))
    return replace(request, headers=(*more, *request.headers))


def _announce_otherwise(request: Mutated, chance: random.Random) -> Mutated:
    size = len(request.body)
    lengths = [b"", b"-1", b"+5", b"abc", b"0", b"9" * 30, b"%d" % (size + 7), "٤".encode(), b"0x9"]
    lengths += [b"%d" % max(0, size - 7), b"%d, %d" % (size, size), b"%d" % (MOST_BODY_BYTES + 1)]
    return request.with_value(b"content-length", chance.choice(lengths))


def _in_chunks(request: Mutated, chance: random.Random) -> Mutated:  # noqa: ARG001 - a mutation
    headers = request.without(b"content-length")
    return replace(request, headers=headers).with_value(b"transfer-encoding", b"chunked")


def _with_body(request: Mutated, body: bytes, *, is_announced: bool) -> Mutated:
    changed = replace(request, body=body)
    return changed.with_value(b"content-length", b"%d" % len(body)) if is_announced else changed


def _truncate(request: Mutated, chance: random.Random) -> Mutated:
    body = request.body[: chance.choice([0, 1, len(request.body) // 2, -1])]
    return _with_body(request, body, is_announced=chance.random() < 0.5)


def _extend(request: Mutated, chance: random.Random) -> Mutated:
    more = chance.choice([b" ", b"\x00", b"}", b"\r\n", b"x" * MOST_BODY_BYTES, request.body])
    return _with_body(request, request.body + more, is_announced=chance.random() < 0.5)


def _change_byte(request: Mutated, chance: random.Random) -> Mutated:
    body = bytearray(request.body or b"x")
    body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return _with_body(request, bytes(body), is_announced=True)


def _break_off(request: Mutated, chance: random.Random) -> Mutated:  # noqa: ARG001 - a mutation
    return replace(request, ends=False)


def _other_method(request: Mutated, chance: random.Random) -> Mutated:
    methods = [
        "GET",
        "HEAD",
        "PUT",
        "PATCH",
        "DELETE",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "post",
        "FOO",
    ]
    return replace(request, method=chance.choice(methods))


def _other_path(request: Mutated, chance: random.Random) -> Mutated:
    path = request.path
    ways = [f"{path}/", f"{path}//", f"/{path}", f"{path};a", f"{path}/.", path.upper(), "/", ""]
    ways += [f"{path}/../x", f"{path}é", f"{path}\x00", f"{path}\n", f"{path}/{'a' * 9000}", "*"]
    return replace(request, path=chance.choice(ways))


_MUTATIONS: list[Mutation] = [
    _drop_header,
    _repeat_header,
    _spell_name,
    _junk_value,
    _change_value,
    _more_signatures,
    _move_time,
    _add_header,
    _set_header,
    _many_headers,
    _announce_otherwise,
    _in_chunks,
    _truncate,
    _extend,
    _change_byte,
    _break_off,
    _other_method,
    _other_path,
]
