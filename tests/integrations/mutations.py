"""Genuine deliveries with random mutations, chosen by a seed."""

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from pydantic import JsonValue

from hookonce import sign
from hookonce.senders import Sender, publishing
from hookonce.testing import event_body, signed_request
from hookonce.verification.secrets import new_secret, verifying_key

__all__ = ["MOST_BODY_BYTES", "Headers", "Mutated", "has_valid_signature", "mutated"]

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

MOST_BODY_BYTES = 64 * 1024
_SIGNATURE = re.compile(rb"v1,[A-Za-z0-9+/]{43}=")
_PARTS = (b"id", b"timestamp", b"signature")


@dataclass(frozen=True)
class Mutated:
    """A request to send.

    Attributes:
        changes: the names of its mutations; a request without mutations is genuine.
        ends: whether the client sends the body to its end.
        families: the prefixes of the signed headers that the sender may use.

    """

    method: str
    path: str
    headers: Headers
    body: bytes = field(repr=False)
    changes: tuple[str, ...] = ()
    ends: bool = True
    families: tuple[bytes, ...] = (b"webhook",)

    @property
    def signed(self) -> list[bytes]:
        """The names of the signed headers."""
        return [b"%b-%b" % (family, part) for family in self.families for part in _PARTS]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def without(self, name: bytes) -> Headers:
        return tuple(header for header in self.headers if header[0].lower() != name)

    def with_header(self, name: bytes, value: bytes) -> "Mutated":
        return replace(self, headers=(*self.headers, (name, value)))

    def with_value(self, name: bytes, value: bytes) -> "Mutated":
        return replace(self, headers=self.without(name)).with_header(name, value)


Mutation: TypeAlias = Callable[[Mutated, random.Random], Mutated]


def mutated(
    chance: random.Random, secret: str, path: str, *, sender: Sender = publishing
) -> Mutated:
    """Return a delivery with up to three mutations.

    A sender with two families of headers uses either of them or both. Then the families may also be
    mixed.
    """
    body: bytes = chance.choice(_BODIES)(chance, sender)
    signed = signed_request(body, secret, sender=sender)
    headers = [(name.encode(), value.encode("utf-8")) for name, value in signed.headers.items()]
    headers += [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    families = tuple(family.encode() for family in sender.headers)
    request = Mutated("POST", path, tuple(headers), body, families=families)
    mutations = _MUTATIONS
    if len(families) > 1:
        request = _in_families(request, chance)
        mutations = [*_MUTATIONS, *_FAMILY_MUTATIONS]
    for mutation in chance.sample(mutations, chance.choice([0, 1, 1, 1, 2, 2, 3])):
        request = mutation(request, chance)
        request = replace(request, changes=(*request.changes, mutation.__name__))
    return request


def has_valid_signature(
    headers: Headers, body: bytes, secret: str, families: Sequence[str] = ("webhook",)
) -> bool:
    """Return whether the body verifies under any interpretation of the headers of any family.

    WSGI servers and older versions of Django read `webhook_id` as `webhook-id`.
    """
    given = [(name.lower().replace(b"_", b"-"), value.strip()) for name, value in headers]
    key = verifying_key(secret).raw
    for family in families:
        ids, timestamps, signatures = (
            [value for name, value in given if name == b"%b-%b" % (family.encode(), part)]
            for part in _PARTS
        )
        shown = {entry for value in signatures for entry in _SIGNATURE.findall(value)}
        for message_id, timestamp in product(ids, timestamps):
            mac = hmac.digest(key, b".".join([message_id, timestamp, body]), hashlib.sha256)
            if b"v1," + base64.b64encode(mac) in shown:
                return True
    return False


# Bodies of the requests


def _event(chance: random.Random, sender: Sender) -> bytes:
    event_type, field = ("comment.received", "text")
    if sender.name == "openai":
        event_type, field = ("response.completed", "id")
    data: dict[str, JsonValue] = {field: "ż🍞" * chance.randrange(50)}
    return event_body(event_type, data=data, sender=sender)


def _of_a_type(chance: random.Random, sender: Sender) -> bytes:
    event_type = chance.choice(["post.target.failed", "webhook.test", "channel.unhealthy"])
    return event_body(event_type, sender=sender)


def _no_event(chance: random.Random, _: Sender) -> bytes:
    return chance.choice([b"{}", b"null", b"[]", b"\x00", b"\xff\xfe", b"{" * 2000, b"1" * 5000])


_BODIES: list[Callable[[random.Random, Sender], bytes]] = [
    *(_event, _event, _event),
    _of_a_type,
    _no_event,
]


# Mutations of a request


def _drop_header(request: Mutated, chance: random.Random) -> Mutated:
    return replace(request, headers=request.without(chance.choice(request.signed)))


def _repeat_header(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice(request.signed)
    values = request.values(name) or [b""]
    return request.with_header(
        name, chance.choice([values[0], b"", b"evt_other", values[0] + b" "])
    )


def _spell_name(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice(request.signed)
    spell: Callable[[bytes], bytes] = chance.choice(
        [bytes.upper, bytes.title, lambda n: n.replace(b"-", b"_"), lambda n: b"x-" + n]
    )
    return replace(
        request, headers=tuple((spell(k) if k == name else k, v) for k, v in request.headers)
    )


def _junk_value(request: Mutated, chance: random.Random) -> Mutated:
    junk = [b"", b" ", b"\xff\xfe", "żółć🍞".encode(), b"a.b", b"x" * 100_000, b"\t", b"v1,", b"v1"]
    junk += [b"-1", b"+1", b"1e9", b"1_0", "١٢٣".encode(), b"9" * 5000, b"nan", b"0", b"None"]
    return request.with_value(chance.choice(request.signed), chance.choice(junk))


def _change_value(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice(request.signed)
    value = bytearray((request.values(name) or [b"x"])[0] or b"x")
    value[chance.randrange(len(value))] = chance.choice(b"aA0+/=, .~")
    return request.with_value(name, bytes(value))


def _more_signatures(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice([name for name in request.signed if name.endswith(b"-signature")])
    value = (request.values(name) or [b""])[0]
    other = chance.choice([b"v1,AAAA", b"v2,x", b"v1a,x", b",", b"v1,,", b"v1," + b"A" * 43 + b"="])
    beside = [other] * chance.choice([1, 3, 50])
    beside.insert(chance.randrange(len(beside) + 1), value)
    return request.with_value(name, chance.choice([b" ", b"  ", b","]).join(beside))


def _move_time(request: Mutated, chance: random.Random) -> Mutated:
    name = chance.choice([name for name in request.signed if name.endswith(b"-timestamp")])
    stamp = (request.values(name) or [b"0"])[0]
    if not (stamp.isdigit() and len(stamp) < 20):
        return request
    moved = int(stamp) + chance.choice([-400, 400, 10**9, -(10**9), 10**15])
    return request.with_value(name, b"%d" % moved)


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


def _in_chunks(request: Mutated, chance: random.Random) -> Mutated:  # noqa: ARG001 - every mutation has these parameters
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


def _break_off(request: Mutated, chance: random.Random) -> Mutated:  # noqa: ARG001 - every mutation has these parameters
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


# Mutations of requests with two families of headers


def _in_families(request: Mutated, chance: random.Random) -> Mutated:
    """Return a genuine request with the headers of some of the families, in any order."""
    chosen = chance.sample(request.families, chance.randint(1, len(request.families)))
    values = [request.values(name)[0] for name in request.signed[: len(_PARTS)]]
    headers = [
        (b"%b-%b" % (family, part), value)
        for family in chosen
        for part, value in zip(_PARTS, values, strict=True)
    ]
    others = [header for header in request.headers if header[0] not in request.signed]
    return replace(request, headers=(*headers, *others))


def _rename_family(request: Mutated, chance: random.Random) -> Mutated:
    """Give headers of a family the names of another family, or of an undeclared family."""
    old, new = chance.choice(request.families), chance.choice([*request.families, b"acme"])
    parts = chance.sample(_PARTS, chance.randint(1, len(_PARTS)))
    names = {b"%b-%b" % (old, part): b"%b-%b" % (new, part) for part in parts}
    headers = tuple((names.get(name, name), value) for name, value in request.headers)
    return replace(request, headers=headers)


def _add_family(request: Mutated, chance: random.Random) -> Mutated:
    """Add a family with some headers of another message, which a stranger has signed."""
    family = chance.choice(request.families)
    forged = sign(_STRANGER, chance.choice(["msg_other", "evt_other"]), request.body)
    parts = chance.sample(_PARTS, chance.randint(1, len(_PARTS)))
    for part in parts:
        value = forged[f"webhook-{part.decode()}"].encode()
        request = request.with_header(b"%b-%b" % (family, part), value)
    return request


def _disagree(request: Mutated, chance: random.Random) -> Mutated:
    """Let all families carry the same values, except in one header."""
    for family, part in product(request.families, _PARTS):
        values = [v for one in request.families for v in request.values(b"%b-%b" % (one, part))]
        if values and not request.values(b"%b-%b" % (family, part)):
            request = request.with_header(b"%b-%b" % (family, part), values[0])
    return _change_value(request, chance)


_STRANGER = new_secret()
_FAMILY_MUTATIONS: list[Mutation] = [_rename_family, _add_family, _disagree, _disagree]
