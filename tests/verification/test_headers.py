"""Headers of any form are read in the same way, and the signature covers their text as received."""

import base64
import hashlib
import hmac
import http.client
import io
from collections.abc import Callable
from email.message import Message
from typing import Any

import pytest
from starlette.datastructures import Headers as StarletteHeaders
from werkzeug.datastructures import Headers as WerkzeugHeaders

from hookonce import Refusal, VerificationError, sign, verify
from hookonce.senders import Sender, publishing
from hookonce.verification.header_names import names_of
from hookonce.verification.headers import DeliveryHeaders, DeliveryHints, read_headers
from hookonce.verification.signature import PartsVerifier

SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
NOW = 1_700_000_000
BODY = b"{}"
GENUINE = sign(SECRET, "evt_1", BODY, timestamp=NOW)


def refusal(headers: Any) -> Refusal:
    with pytest.raises(VerificationError) as caught:
        verify(BODY, headers, SECRET, now=NOW)
    return caught.value.reason


def as_email_message(headers: dict[str, str]) -> Message:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return message


def as_http_message(headers: dict[str, str]) -> http.client.HTTPMessage:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return http.client.parse_headers(io.BytesIO(lines.encode() + b"\r\n"))


def as_bytes(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


SHAPES: dict[str, Callable[[dict[str, str]], Any]] = {
    "dict of str": dict,
    "dict of bytes": lambda headers: dict(as_bytes(headers)),
    "pairs of str": lambda headers: list(headers.items()),
    "pairs of bytes": as_bytes,
    "lists of two, as ASGI servers give them": lambda headers: [list(p) for p in as_bytes(headers)],
    "tuple of pairs": lambda headers: tuple(headers.items()),
    "view of items": lambda headers: headers.items(),
    "generator": lambda headers: (pair for pair in headers.items()),
    "str names, bytes values": lambda headers: {k: v.encode() for k, v in headers.items()},
    "memoryview values": lambda headers: {k: memoryview(v.encode()) for k, v in headers.items()},
    "Starlette Headers": StarletteHeaders,
    "Starlette Headers of a scope": lambda headers: StarletteHeaders(raw=as_bytes(headers)),
    "werkzeug Headers": WerkzeugHeaders,
    "http.client.HTTPMessage": as_http_message,
    "email.message.Message": as_email_message,
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title, str.swapcase])
def test_headers_of_every_shape_and_case_verify(
    shape: Callable[[dict[str, str]], Any], spell: Callable[[str], str]
) -> None:
    headers = {spell(name): value for name, value in GENUINE.items()}
    among_others = {"Host": "example.org", **headers, "X-Webhook-Id": "evt_2", "": ""}
    if shape in (as_http_message, as_email_message):
        del among_others[""]
    for one in (headers, among_others):
        assert verify(BODY, shape(one), SECRET, now=NOW).id == "evt_1"


@pytest.mark.parametrize("name", ["webhook-id ", " webhook-id", "webhook_id", "webhook-id\0", "id"])
def test_a_name_that_is_nearly_one_of_the_three_is_another_header(name: str) -> None:
    assert verify(BODY, {**GENUINE, name: "evt_2"}, SECRET, now=NOW).id == "evt_1"
    rest = {other: value for other, value in GENUINE.items() if other != "webhook-id"}
    assert refusal({**rest, name: "evt_1"}) is Refusal.MISSING_ID


@pytest.mark.parametrize("name", GENUINE)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_header_that_is_missing_or_empty_is_named(
    shape: Callable[[dict[str, str]], Any], name: str
) -> None:
    missing = Refusal(name.replace("webhook-", "missing_"))
    without = {other: value for other, value in GENUINE.items() if other != name}
    assert refusal(shape(without)) is missing
    assert refusal(shape({**without, name: ""})) is missing


@pytest.mark.parametrize("name", GENUINE)
def test_none_stands_for_no_such_header(name: str) -> None:
    missing = Refusal(name.replace("webhook-", "missing_"))
    assert refusal({**GENUINE, name: None}) is missing
    beside: Any = [(name, None), *GENUINE.items()]
    assert verify(BODY, beside, SECRET, now=NOW).id == "evt_1"


@pytest.mark.parametrize("name", GENUINE)
@pytest.mark.parametrize("value", [5, 1.7e9, ["evt_1"], ("a",), {}, object(), True])
def test_a_value_that_is_no_text_is_malformed(name: str, value: object) -> None:
    malformed = Refusal(name.replace("webhook-", "malformed_"))
    assert refusal({**GENUINE, name: value}) is malformed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_names_and_values_may_be_of_two_types(count: int) -> None:
    pairs: Any = [
        (name.encode(), value if number < count else value.encode())
        for number, (name, value) in enumerate(GENUINE.items())
    ]
    assert verify(BODY, pairs, SECRET, now=NOW).id == "evt_1"


def test_names_that_are_no_text_are_other_headers() -> None:
    headers: Any = [(None, "x"), (5, "x"), ((), "x"), *GENUINE.items()]
    assert verify(BODY, headers, SECRET, now=NOW).id == "evt_1"


# A header may come twice: from a proxy, or from an attacker who hopes that two parsers differ.


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp"])
@pytest.mark.parametrize("again", [str.lower, str.upper, str.title])
def test_an_id_or_timestamp_repeated_with_its_own_value_verifies(
    name: str, again: Callable[[str], str]
) -> None:
    repeated = (again(name), GENUINE[name])
    pairs = [*GENUINE.items(), repeated]
    assert verify(BODY, pairs, SECRET, now=NOW).id == "evt_1"
    as_other_type: Any = [*GENUINE.items(), (repeated[0].encode(), repeated[1].encode())]
    assert verify(BODY, as_other_type, SECRET, now=NOW).id == "evt_1"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("webhook-id", "evt_2"),
        ("webhook-id", "EVT_1"),
        ("webhook-id", "evt_1 "),
        ("webhook-id", ""),
        ("webhook-timestamp", str(NOW + 1)),
        ("webhook-timestamp", f"+{NOW}"),
        ("webhook-timestamp", f"0{NOW}"),
        ("webhook-timestamp", ""),
    ],
)
def test_an_id_or_timestamp_repeated_with_another_value_is_refused(name: str, other: str) -> None:
    conflicting = Refusal(name.replace("webhook-", "conflicting_"))
    behind = [*GENUINE.items(), (name, other)]
    before = [(name, other), *GENUINE.items()]
    assert refusal(behind) is conflicting
    assert refusal(before) is conflicting
    assert refusal({**GENUINE, name.title(): other}) is conflicting
    for pairs in (behind, before):
        # Headers in the form in which a server passes them.
        usual = [(key.encode(), value.encode()) for key, value in pairs]
        assert refusal(usual) is conflicting
    assert refusal([*as_bytes(GENUINE), (name.upper().encode(), other.encode())]) is conflicting
    assert refusal(WerkzeugHeaders(behind)) is conflicting
    assert refusal(StarletteHeaders(raw=[*as_bytes(GENUINE), *as_bytes({name: other})])) is (
        conflicting
    )


def test_a_repetition_is_seen_behind_other_headers_too() -> None:
    other = [(b"content-type", b"application/json"), (b"webhook-id", b"evt_2")]
    assert refusal([*as_bytes(GENUINE), *other]) is Refusal.CONFLICTING_ID


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("webhook-id", Refusal.MISSING_ID),
        ("webhook-timestamp", Refusal.MISSING_TIMESTAMP),
        ("webhook-signature", Refusal.MISSING_SIGNATURE),
    ],
)
def test_a_header_as_long_as_one_that_is_missing_does_not_stand_in_for_it(
    missing: str, reason: Refusal
) -> None:
    own = {name: value for name, value in GENUINE.items() if name != missing}
    others = [(b"user-agent", b"curl"), (b"x-forwarded-proto", b"https")]
    assert {len(name) for name, _ in others} == {len("webhook-id"), len("webhook-signature")}
    assert refusal([*others, *as_bytes(own)]) is reason


def test_repeated_signature_lines_are_one_list() -> None:
    name, good = "webhook-signature", GENUINE["webhook-signature"]
    stranger = "v1," + base64.b64encode(bytes(32)).decode()
    rest = list(GENUINE.items())[:2]
    for lines in ([stranger, good], [good, stranger], [f"{stranger} {good}", stranger], [good] * 2):
        pairs = [*rest, *((name, line) for line in lines)]
        delivery = verify(BODY, pairs, SECRET, now=NOW)
        assert delivery.signature_count == " ".join(lines).count("v1,")
        assert verify(BODY, WerkzeugHeaders(pairs), SECRET, now=NOW) == delivery
        assert verify(BODY, [as_bytes(dict([p]))[0] for p in pairs], SECRET, now=NOW) == delivery


def test_a_signature_cut_in_two_lines_is_not_put_together() -> None:
    good = GENUINE["webhook-signature"]
    halves = [("webhook-signature", good[:20]), ("webhook-signature", good[20:])]
    assert refusal([*list(GENUINE.items())[:2], *halves]) is Refusal.NO_MATCHING_SIGNATURE


# The timestamp: `float()` and `int()` accept much more than the decimal digits of a sender.


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("+1700000000", id="plus"),
        pytest.param("-1700000000", id="minus"),
        pytest.param(" 1700000000", id="space before"),
        pytest.param("1700000000 ", id="space after"),
        pytest.param("1700000000\n", id="line break after"),
        pytest.param("1700000000\r", id="carriage return after"),
        pytest.param("\t1700000000", id="tab before"),
        pytest.param("1700000000\x00", id="NUL after"),
        pytest.param("1_700_000_000", id="underscores"),
        pytest.param("1,700,000,000", id="commas"),
        pytest.param("1700000000.0", id="fraction"),
        pytest.param("1700000000.9", id="fraction that rounds"),
        pytest.param("1700000000.", id="full stop after"),
        pytest.param("1.7e9", id="exponent"),
        pytest.param("17e8", id="exponent without a fraction"),
        pytest.param("01700000000", id="leading zero"),
        pytest.param("0", id="zero"),
        pytest.param("00", id="zeros"),
        pytest.param("0x6553f100", id="hexadecimal"),
        pytest.param("6553f100", id="hexadecimal digits"),
        pytest.param("\u0661\u0667\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660", id="Arabic"),
        pytest.param("\uff11\uff17" + "\uff10" * 8, id="full-width"),
        pytest.param("170000000\u0660", id="one Arabic digit"),
        pytest.param("170000000\u00b2", id="superscript digit"),
        pytest.param("\u00a01700000000", id="no-break space"),
        pytest.param("1700000000000", id="milliseconds"),
        pytest.param("170000000000", id="twelve digits"),
        pytest.param("1" * 5000, id="more digits than int() reads"),
        pytest.param("nan", id="nan"),
        pytest.param("inf", id="inf"),
        pytest.param("2023-11-14T22:13:20Z", id="ISO 8601"),
        pytest.param("now", id="word"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param("1700000000, 1700000000", id="joined by a proxy"),
    ],
)
def test_a_timestamp_that_is_not_plain_seconds_is_malformed_though_signed(text: str) -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    raw = text.encode("utf-8", "surrogatepass")
    mac = hmac.digest(key, b"evt_1." + raw + b"." + BODY, hashlib.sha256)
    signature = "v1," + base64.b64encode(mac).decode()
    for value in (text, raw):
        headers: Any = {**GENUINE, "webhook-timestamp": value, "webhook-signature": signature}
        with pytest.raises(VerificationError) as caught:
            verify(BODY, headers, SECRET, tolerance=1e300, now=NOW)
        assert caught.value.reason is Refusal.MALFORMED_TIMESTAMP


@pytest.mark.parametrize("timestamp", [1, 9, 10, 1_700_000_000, 9_999_999_999, 10**11 - 1])
def test_a_timestamp_of_one_to_eleven_digits_is_read(timestamp: int) -> None:
    headers = {**GENUINE, "webhook-timestamp": str(timestamp)}
    assert DeliveryHeaders.parse(headers).timestamp == timestamp


# The id.


@pytest.mark.parametrize(
    "message_id",
    [
        pytest.param("evt_1.1700000000", id="full stop"),
        pytest.param(".", id="only a full stop"),
        pytest.param("a" * 513, id="513 characters"),
        pytest.param("\U0001f600" * 513, id="513 characters of four bytes"),
        pytest.param("a" * 1_000_000, id="a million characters"),
        *(
            pytest.param(f"evt{chr(code)}1", id=f"control character {code:#04x}")
            for code in (*range(0x20), *range(0x7F, 0xA0))
        ),
        pytest.param("evt_1\n", id="line break at the end"),
    ],
)
def test_an_id_that_is_no_id_is_malformed_as_text_and_as_bytes(message_id: str) -> None:
    assert refusal({**GENUINE, "webhook-id": message_id}) is Refusal.MALFORMED_ID
    pairs = [*as_bytes(GENUINE)[1:], (b"webhook-id", message_id.encode())]
    assert refusal(pairs) is Refusal.MALFORMED_ID


@pytest.mark.parametrize("raw", [b"\xff", b"evt_\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_an_id_that_is_not_utf_8_is_malformed(raw: bytes) -> None:
    assert refusal([*as_bytes(GENUINE)[1:], (b"webhook-id", raw)]) is Refusal.MALFORMED_ID


def test_an_id_with_a_lone_surrogate_is_malformed() -> None:
    assert refusal({**GENUINE, "webhook-id": "evt_\ud800"}) is Refusal.MALFORMED_ID


@pytest.mark.parametrize(
    "message_id",
    [
        pytest.param("e", id="one character"),
        pytest.param("a" * 512, id="512 characters"),
        pytest.param("\U0001f600" * 512, id="512 characters of four bytes"),
        pytest.param("evt_1:2/3 x", id="punctuation and a space"),
        pytest.param(" evt_1 ", id="spaces around"),
        pytest.param("EVT_1", id="upper case"),
        pytest.param("évt_\u0661", id="not ASCII"),
        pytest.param("e\u0301", id="combining character, not normalised"),
        pytest.param("\xa0", id="first character after the control characters"),
    ],
)
def test_the_id_is_signed_as_received_whatever_it_looks_like(message_id: str) -> None:
    headers = sign(SECRET, message_id, BODY, timestamp=NOW)
    for received in (headers, as_bytes(headers)):
        assert verify(BODY, received, SECRET, now=NOW).id == message_id
        assert DeliveryHeaders.parse(received).signed_prefix == f"{message_id}.{NOW}.".encode()


@pytest.mark.parametrize(
    "respelled", ["EVT_1", "evt_1 ", " evt_1", "evt_\uff11", "evt%5F1", '"evt_1"', "evt_1,evt_1"]
)
def test_another_spelling_of_the_id_is_another_id(respelled: str) -> None:
    assert refusal({**GENUINE, "webhook-id": respelled}) is Refusal.NO_MATCHING_SIGNATURE


# The hints, which the signature does not cover.


def named(service: str | None) -> Sender:
    return publishing if service is None else publishing.with_service(service)


@pytest.mark.parametrize(
    ("headers", "service", "hints"),
    [
        ({"acme-event-type": "a.b", "acme-delivery-attempt": "3"}, None, ("a.b", 3)),
        ({"ACME-Event-Type": "a.b", "Acme-Delivery-Attempt": "3"}, None, ("a.b", 3)),
        ([(b"acme-event-type", b"a.b"), (b"Acme-delivery-attempt", b"9")], None, ("a.b", 9)),
        ({"acme-event-type": "a.b", "acme-delivery-attempt": "3"}, "ACME", ("a.b", 3)),
        ({"acme-event-type": "a.b", "other-delivery-attempt": "3"}, "acme", ("a.b", None)),
        ({"my-acme-event-type": "a.b"}, "acme", (None, None)),
        ({"my-acme-event-type": "a.b"}, "my-acme", ("a.b", None)),
        ({"event-type": "a.b", "delivery-attempt": "3"}, None, (None, None)),
        ({"acme-event-type": None, "acme-delivery-attempt": None}, None, (None, None)),
        ([(b"acme-event-type", b"\xff")], None, ("\xff", None)),
        ({"acme-event-type": "x" * 257}, None, ("x" * 256, None)),
        ({"acme-delivery-attempt": "9999"}, None, (None, 9999)),
        ({}, None, (None, None)),
    ],
)
def test_hints_are_found_by_their_endings_or_the_services_name(
    headers: Any, service: str | None, hints: tuple[str | None, int | None]
) -> None:
    assert DeliveryHints.parse(headers, named(service)) == hints


@pytest.mark.parametrize(
    "attempt",
    ["", "three", "-1", "+1", " 1", "1 ", "1.0", "1e0", "\u0661", "10000", "1" * 5000, "\ud800"],
)
def test_an_attempt_that_is_no_count_is_no_hint(attempt: str) -> None:
    assert DeliveryHints.parse({"acme-delivery-attempt": attempt}).attempt is None


# All headers of a delivery together.


REARRANGED: dict[str, Callable[[dict[str, str]], Any]] = {
    "other names": lambda headers: {name.title(): value for name, value in headers.items()},
    "among others": lambda headers: [
        (b"user-agent", b"acme/1"),  # the name is as long as webhook-id
        *reversed(as_bytes(headers)),
        (b"user-agent", b"acme/2"),
    ],
    "an id twice": lambda headers: [*as_bytes(headers), as_bytes(headers)[0]],
    "None as well": lambda headers: [*as_bytes(headers), ("Webhook-Signature", None)],
}


@pytest.mark.parametrize("shape", [*SHAPES.values(), *REARRANGED.values()])
@pytest.mark.parametrize("service", [None, "acme", "other"])
def test_headers_in_any_shape_are_read_at_once_for_what_is_signed_and_what_is_hinted(
    shape: Callable[[dict[str, str]], Any], service: str | None
) -> None:
    said = {"acme-event-type": "comment.received", "acme-delivery-attempt": "3"}
    headers = {**GENUINE, **said}
    signed, hints = read_headers(shape(headers), names_of(named(service)))
    assert signed == DeliveryHeaders.parse(shape(headers))
    assert hints == DeliveryHints.parse(shape(headers), named(service))
    assert (hints.attempt == 3) is (service != "other")
    delivery = PartsVerifier(SECRET).verify_parts(BODY, signed, now=NOW)
    assert delivery == verify(BODY, shape(headers), SECRET, now=NOW)


@pytest.mark.parametrize("name", GENUINE)
@pytest.mark.parametrize("value", ["", "a.b", "\ud800", None])
def test_headers_that_cannot_be_read_are_refused_as_they_are_by_verify(
    name: str, value: Any
) -> None:
    headers: Any = {**GENUINE, name: value}
    with pytest.raises(VerificationError) as caught:
        PartsVerifier(SECRET).verify_parts(BODY, read_headers(headers, names_of(None))[0], now=NOW)
    assert caught.value.reason is refusal(headers)


def test_a_name_that_has_no_hash_is_no_obstacle() -> None:
    headers: Any = [([], b"1"), *as_bytes({**GENUINE, "acme-delivery-attempt": "3"})]
    signed, hints = read_headers(headers, names_of(None))
    assert signed == DeliveryHeaders.parse(headers)
    assert hints == DeliveryHints.parse(headers)


def test_an_entry_as_long_as_a_signature_of_another_version_is_none() -> None:
    other = GENUINE["webhook-signature"].replace("v1,", "v2,")
    headers = {**GENUINE, "webhook-signature": other}
    assert DeliveryHeaders.parse(headers).signatures == ()


def test_the_headers_of_a_delivery_show_no_signature() -> None:
    headers = DeliveryHeaders.parse(as_bytes(GENUINE))
    assert GENUINE["webhook-signature"].removeprefix("v1,") not in repr(headers)
