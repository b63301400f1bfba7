"""Any input gives a VerifiedDelivery or the right VerificationError.

The tests implement each rule a second time, in another way than the source, and compare the results
for random inputs.
"""

import base64
import hashlib
import hmac
import random
import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookonce import (
    PayloadError,
    Refusal,
    VerificationError,
    VerifiedDelivery,
    sign,
    unwrap,
    verify,
)
from hookonce.verification.header_names import names_of
from hookonce.verification.headers import DeliveryHints, read_headers
from hookonce.verification.signature import PartsVerifier

pytestmark = pytest.mark.sample(2, of="file")

NOW = 1_700_000_000
BODY = b'{"id":"evt_1"}'
KEY = b"the secret of these tests"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
GENUINE = sign(SECRET, "evt_1", BODY, timestamp=NOW)
GOOD = GENUINE["webhook-signature"]
NAMES = tuple(GENUINE)

thorough = settings(max_examples=300)


def signed_by_hand(message_id: bytes, timestamp: bytes, body: bytes = BODY) -> bytes:
    """Return the signature of header texts that `sign` would refuse."""
    mac = hmac.digest(KEY, b".".join([message_id, timestamp, body]), hashlib.sha256)
    return b"v1," + base64.b64encode(mac)


def verdict_of(judge: Callable[[], object]) -> object:
    try:
        return judge()
    except VerificationError as error:
        return error.reason


def refusal(headers: Any, body: bytes = BODY, tolerance: float = 300) -> Refusal | None:
    verdict = verdict_of(partial(verify, body, headers, SECRET, tolerance=tolerance, now=NOW))
    return verdict if isinstance(verdict, Refusal) else None


# Characters and tokens that confuse parsers, and characters of every other kind.
tokens = st.sampled_from(
    [
        *GENUINE.values(),
        *("v1", "v1,", "v1a,", "v1,,", ",", ".", "=", "+", "-", "_", "0", "\u00e9"),
        *(" ", "\t", "\n", "\0", "\ud800", "\u0661", "\uff11"),
    ]
)
any_text = st.text(st.characters(exclude_categories=())) | st.lists(tokens).map("".join)
any_bytes = st.binary() | any_text.map(lambda text: text.encode("utf-8", "surrogatepass"))
names = (
    st.sampled_from(NAMES).flatmap(
        lambda name: st.sampled_from([name, name.title(), name.upper(), name + " "])
    )
    | any_text
)
values = any_text | any_bytes | st.sampled_from([*GENUINE.values()])
odd_values = values | st.none() | st.integers() | st.floats() | st.lists(any_text, max_size=2)
pairs = st.tuples(names | names.map(lambda n: n.encode("utf-8", "surrogatepass")), odd_values)
arbitrary_headers = st.lists(pairs, max_size=8) | st.dictionaries(names, odd_values, max_size=8)
nearly_genuine_headers = st.builds(
    lambda kept, more, at: [*more[:at], *((n, GENUINE[n]) for n in kept), *more[at:]],
    st.permutations(NAMES) | st.lists(st.sampled_from(NAMES), max_size=4),
    st.lists(pairs, max_size=3),
    st.integers(0, 3),
)
legal_ids = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="."),
    min_size=1,
    max_size=512,
)
keys = st.binary(min_size=16, max_size=130)


@settings(thorough, max_examples=600)
@given(
    body=st.just(BODY) | st.binary(),
    headers=nearly_genuine_headers | arbitrary_headers,
    now=st.just(float(NOW)) | st.floats(),
)
def test_arbitrary_headers_give_a_delivery_or_a_refusal_and_never_another_error(
    body: bytes, headers: Any, now: float
) -> None:
    verdict = verdict_of(partial(verify, body, headers, SECRET, now=now))
    verifier = PartsVerifier(SECRET)
    assert verdict == verdict_of(partial(verifier.verify, body, headers, now=now))
    assert verdict == verdict_of(
        lambda: verifier.verify_parts(body, read_headers(headers, names_of(None))[0], now=now)
    )
    if isinstance(verdict, VerifiedDelivery):
        # Only a signed body is genuine. A genuine body that is no event raises another kind of
        # error.
        assert (verdict.id, verdict.timestamp, verdict.body) == ("evt_1", NOW, BODY)
        assert abs(now - NOW) <= 300
        with pytest.raises(PayloadError):
            unwrap(body, headers, SECRET, now=now)
    else:
        assert isinstance(verdict, Refusal)
        assert verdict == verdict_of(partial(unwrap, body, headers, SECRET, now=now))


@thorough
@given(
    named=st.dictionaries(names | st.sampled_from(NAMES), odd_values, max_size=6),
    kept=st.sets(st.sampled_from(NAMES)),
    order=st.randoms(use_true_random=False),
)
@example(named={}, kept=set(NAMES), order=random.Random(0))
@example(named={"Webhook-Id": "evt_2"}, kept=set(NAMES), order=random.Random(0))
@example(named={b"webhook-id": "evt_2"}, kept=set(NAMES), order=random.Random(0))
def test_a_dict_and_its_items_come_to_one_verdict_the_first_time_and_the_next(
    named: dict[Any, Any], kept: set[str], order: random.Random
) -> None:
    items = [*{**named, **{name: GENUINE[name] for name in kept}}.items()]
    order.shuffle(items)
    judges = [partial(verify, BODY, dict(items), SECRET, now=NOW)] * 2
    judges.append(partial(verify, BODY, iter(items), SECRET, now=NOW))
    verdicts = [verdict_of(judge) for judge in judges]
    assert verdicts == verdicts[:1] * 3


def test_the_names_of_one_dict_say_nothing_about_the_values_of_the_next() -> None:
    for name in NAMES:
        assert refusal(GENUINE) is None
        assert refusal({**GENUINE, name: None}) is Refusal(name.replace("webhook-", "missing_"))
        assert refusal({**GENUINE, name: "\ud800"}) is not None
        assert refusal({**GENUINE, name: GENUINE[name].encode()}) is None


@thorough
@given(arbitrary_headers)
def test_arbitrary_headers_give_hints_or_none_and_never_an_error(headers: Any) -> None:
    hinting = [*getattr(headers, "items", lambda: headers)()]
    hinting += [("acme-event-type", value) for _, value in hinting]
    hinting += [(b"acme-delivery-attempt", value) for _, value in hinting]
    hints = DeliveryHints.parse(hinting)
    assert hints.attempt is None or 0 <= hints.attempt < 10_000
    assert hints.event_type is None or len(hints.event_type) <= 256


@thorough
@given(text=any_bytes | st.from_regex(rb"[0-9+-]{1,14}", fullmatch=True))
@example(b"1")
@example(b"99999999999")
@example(b"100000000000")
@example(b"01")
@example(b"1\n")
def test_a_signed_timestamp_is_accepted_exactly_when_it_is_one_to_eleven_plain_digits(
    text: bytes,
) -> None:
    headers = [
        (b"webhook-id", b"evt_1"),
        (b"webhook-timestamp", text),
        (b"webhook-signature", signed_by_hand(b"evt_1", text)),
    ]
    plain = re.compile(rb"[1-9][0-9]{0,10}").fullmatch(text)
    verdict = None if plain else Refusal.MALFORMED_TIMESTAMP
    assert refusal(headers, tolerance=1e12) is (verdict if text else Refusal.MISSING_TIMESTAMP)


@thorough
@given(raw=any_bytes | legal_ids.map(str.encode) | st.binary(max_size=3))
@example(b"a" * 512)
@example(b"a" * 513)
@example("\U0001f600".encode() * 512)
@example("\U0001f600".encode() * 513)
@example(b"evt.1")
def test_a_signed_id_is_accepted_exactly_when_it_is_an_id(raw: bytes) -> None:
    def is_id() -> bool:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        printable = all(unicodedata.category(character) != "Cc" for character in text)
        return printable and "." not in text and len(text) <= 512

    timestamp = str(NOW).encode()
    headers = [
        (b"webhook-id", raw),
        (b"webhook-timestamp", timestamp),
        (b"webhook-signature", signed_by_hand(raw, timestamp)),
    ]
    verdict = None if is_id() else Refusal.MALFORMED_ID
    assert refusal(headers) is (verdict if raw else Refusal.MISSING_ID)


junk_entries = (any_text | st.from_regex(r"v1a?,[A-Za-z0-9+/]{43}=", fullmatch=True)).filter(
    lambda entry: GOOD not in entry.split(" ")
)


@pytest.mark.costs("3 s")
@thorough
@given(before=st.lists(junk_entries, max_size=6), after=st.lists(junk_entries, max_size=6))
def test_a_good_signature_is_found_among_any_junk_and_junk_alone_never_verifies(
    before: list[str], after: list[str]
) -> None:
    rest = [*GENUINE.items()][:2]
    in_one_line = " ".join([*before, GOOD, *after])
    lines = [("webhook-signature", line) for line in (*before, GOOD, *after)]
    assert refusal([*rest, ("webhook-signature", in_one_line)]) is None
    assert refusal([*rest, *lines]) is None
    alone = " ".join(before + after)
    verdict = Refusal.NO_MATCHING_SIGNATURE if alone else Refusal.MISSING_SIGNATURE
    assert refusal([*rest, ("webhook-signature", alone)]) is verdict


@thorough
@given(
    message_id=legal_ids,
    body=st.binary(),
    configured=st.lists(keys, min_size=1, max_size=4, unique_by=lambda key: key.rstrip(b"\0")),
    data=st.data(),
)
def test_what_is_signed_verifies_with_any_id_body_and_rotation(
    message_id: str, body: bytes, configured: list[bytes], data: st.DataObject
) -> None:
    secrets = ["whsec_" + base64.b64encode(key).decode() for key in configured]
    signing = data.draw(
        st.lists(st.integers(0, len(secrets) - 1), min_size=1, max_size=3, unique=True)
    )
    headers = sign([secrets[n] for n in signing], message_id, body, timestamp=NOW)
    as_bytes = {name.encode(): value.encode() for name, value in headers.items()}
    assert verify(body, headers, secrets, now=NOW) == VerifiedDelivery(
        message_id, NOW, body, min(signing), len(signing), 0
    )
    assert verify(body, as_bytes, secrets, now=NOW).body == body
    others = [secret for n, secret in enumerate(secrets) if n not in signing]
    if others:
        with pytest.raises(VerificationError):
            verify(body, headers, others, now=NOW)


def flipped(raw: bytes, bit: int) -> bytes:
    return (int.from_bytes(raw) ^ 1 << bit).to_bytes(len(raw))


@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_of_a_header_is_refused(name: str) -> None:
    value = GENUINE[name].encode()
    genuine = {other.encode(): text.encode() for other, text in GENUINE.items()}
    for bit in range(8 * len(value)):
        changed = {**genuine, name.encode(): flipped(value, bit)}
        assert refusal(changed, tolerance=1e12) is not None, flipped(value, bit)


@thorough
@given(body=st.binary(min_size=1), data=st.data())
def test_every_flipped_bit_of_the_body_is_refused(body: bytes, data: st.DataObject) -> None:
    headers = sign(SECRET, "evt_1", body, timestamp=NOW)
    bit = data.draw(st.integers(0, 8 * len(body) - 1))
    assert refusal(headers, body=body) is None
    assert refusal(headers, body=flipped(body, bit)) is Refusal.NO_MATCHING_SIGNATURE


@thorough
@given(
    case=st.integers(0, 2**45 - 1),
    order=st.permutations(range(3)),
    raw=st.booleans(),
)
def test_names_verify_in_any_case_and_order(case: int, order: list[int], raw: bool) -> None:
    upper = iter(f"{case:045b}")
    spelt = [
        ("".join(c.upper() if next(upper) == "1" else c for c in name), value)
        for name, value in GENUINE.items()
    ]
    shuffled = [spelt[n] for n in order]
    assert refusal([(n.encode(), v.encode()) for n, v in shuffled] if raw else shuffled) is None


@thorough
@given(age=st.integers(-10_000, 10_000), tolerance=st.integers(0, 5_000))
@example(300, 300)
@example(-300, 300)
@example(301, 300)
@example(-301, 300)
def test_a_timestamp_is_in_time_exactly_within_the_tolerance(age: int, tolerance: int) -> None:
    headers = sign(SECRET, "evt_1", BODY, timestamp=NOW - age)
    if abs(age) <= tolerance:
        assert refusal(headers, tolerance=tolerance) is None
    else:
        late = Refusal.TIMESTAMP_TOO_OLD if age > 0 else Refusal.TIMESTAMP_TOO_NEW
        assert refusal(headers, tolerance=tolerance) is late


@thorough
@given(first=values, second=values, field=st.sampled_from(NAMES[:2]))
def test_two_values_of_an_id_or_timestamp_never_verify_unless_they_are_one(
    first: str | bytes, second: str | bytes, field: str
) -> None:
    genuine = GENUINE[field]
    rest = [pair for pair in GENUINE.items() if pair[0] != field]
    same = {first, second} <= {genuine, genuine.encode()}
    verdict = refusal([(field, first), *rest, (field.upper(), second)])
    assert (verdict is None) is same
