"""webhook-signature is a list: well-formed v1 entries are compared, and others are skipped."""

import base64
import hmac
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from hookonce import Refusal, VerificationError, sign, verify

SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, as long.").decode()
THIRD = "whsec_" + base64.b64encode(b"a third one, as long too").decode()

NOW = 1_700_000_000
MESSAGE_ID = "evt_6"  # its signature has '+' and '/', which URL-safe base64 lacks
BODY = b"{}"
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def signature(secret: str, message_id: str = MESSAGE_ID, timestamp: int = NOW) -> str:
    return sign(secret, message_id, BODY, timestamp=timestamp)["webhook-signature"]


def headers_of(*entries: str) -> dict[str, str]:
    return {
        "webhook-id": MESSAGE_ID,
        "webhook-timestamp": str(NOW),
        "webhook-signature": " ".join(entries),
    }


def refusal(headers: Any, secrets: str | Sequence[str] = SECRET) -> Refusal:
    with pytest.raises(VerificationError) as caught:
        verify(BODY, headers, secrets, now=NOW)
    return caught.value.reason


GOOD = signature(SECRET)
CORE = GOOD.removeprefix("v1,")
GENUINE = headers_of(GOOD)

# The last of the 43 base64 characters has two bits that the 32 bytes do not use.
NOT_CANONICAL = CORE[:-2] + ALPHABET[ALPHABET.index(CORE[-2]) ^ 1] + "="


BROKEN_ENTRIES = {
    "version of the asymmetric scheme": f"v1a,{CORE}",
    "version 2": f"v2,{CORE}",
    "version 11": f"v11,{CORE}",
    "upper-case version": f"V1,{CORE}",
    "full-width version": f"v\uff11,{CORE}",
    "empty version": f",{CORE}",
    "no version": CORE,
    "no comma": f"v1{CORE}",
    "colon for comma": f"v1:{CORE}",
    "equals for comma": f"v1={CORE}",
    "two commas": f"v1,,{CORE}",
    "comma at the end": f"{GOOD},",
    "two values": f"{GOOD},{CORE}",
    "comma-separated list": f"{GOOD},{GOOD}",
    "version and no value": "v1,",
    "only a comma": ",",
    "only a version": "v1",
    "cut": GOOD[:-2],
    "no padding": GOOD.rstrip("="),
    "too much padding": f"{GOOD}=",
    "junk among the base64": f"{GOOD[:20]}!{GOOD[20:]}",
    "junk for one character": f"{GOOD[:20]}!{GOOD[21:]}",
    "line break among the base64": f"{GOOD[:20]}\n{GOOD[20:]}",
    "base64 that is not canonical": f"v1,{NOT_CANONICAL}",
    "URL-safe base64": "v1," + CORE.replace("+", "-").replace("/", "_"),
    "other case": "v1," + CORE.swapcase(),
    "hexadecimal": "v1," + base64.b64decode(CORE).hex(),
    "in quotes": f'"{GOOD}"',
    "NUL at the end": f"{GOOD}\0",
    "tab before": f"\t{GOOD}",
    "line break after": f"{GOOD}\n",
    "no-break space before": f"\xa0{GOOD}",
    "not ASCII": "v1,é" + CORE[1:],
    "not ASCII and of the right length in bytes": "v1,é" + CORE[2:],
    "lone surrogate": f"v1,{CORE[:-1]}\ud800",
    "lone surrogate at the end": f"{GOOD}\udfff",
    "of another secret": signature(OTHER),
    "of another id": signature(SECRET, "evt_19"),
    "of another second": signature(SECRET, timestamp=NOW + 1),
}


def test_the_broken_entries_are_broken_where_they_say() -> None:
    assert "+" in CORE
    assert "/" in CORE
    assert base64.b64decode(NOT_CANONICAL) == base64.b64decode(CORE)
    assert all(entry != GOOD for entry in BROKEN_ENTRIES.values())


@pytest.mark.parametrize("broken", BROKEN_ENTRIES.values(), ids=BROKEN_ENTRIES.keys())
def test_an_entry_that_is_not_the_signature_does_not_verify(broken: str) -> None:
    as_bytes = [
        (k.encode(), v.encode("utf-8", "surrogatepass")) for k, v in headers_of(broken).items()
    ]
    assert refusal(headers_of(broken)) is Refusal.NO_MATCHING_SIGNATURE
    assert refusal(as_bytes) is Refusal.NO_MATCHING_SIGNATURE
    assert refusal(headers_of(broken, broken)) is Refusal.NO_MATCHING_SIGNATURE


@pytest.mark.parametrize(
    "broken",
    [*BROKEN_ENTRIES.values(), "", " ", "  ", "\x80\xff"],
    ids=[*BROKEN_ENTRIES.keys(), "empty", "double space", "triple space", "C1 and Latin-1"],
)
def test_an_entry_that_is_not_the_signature_is_skipped_beside_a_good_one(broken: str) -> None:
    one_line = (f"{broken} {GOOD}", f"{GOOD} {broken}", f"{broken} {GOOD} {broken}")
    for text in one_line:
        for value in (text, text.encode("utf-8", "surrogatepass")):
            headers: Any = {**GENUINE, "webhook-signature": value}
            assert verify(BODY, headers, SECRET, now=NOW).secret_index == 0
    for lines in ((broken, GOOD), (GOOD, broken)):
        pairs = [*GENUINE.items()][:2] + [("webhook-signature", line) for line in lines]
        assert verify(BODY, pairs, SECRET, now=NOW).secret_index == 0


def test_bytes_that_are_no_text_are_skipped_beside_a_good_entry_and_refused_alone() -> None:
    junk = b"\xff\xfe\x00 v1,\xc3 v1," + b"\xff" * 44
    good = {k.encode(): v.encode() for k, v in GENUINE.items()}
    beside = {**good, b"webhook-signature": junk + b" " + GOOD.encode()}
    assert verify(BODY, beside, SECRET, now=NOW).id == MESSAGE_ID
    assert refusal({**good, b"webhook-signature": junk}) is Refusal.NO_MATCHING_SIGNATURE


@pytest.mark.parametrize("signer", [0, 1, 2])
@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_every_entry_is_tried_against_every_secret(signer: int, position: int) -> None:
    secrets = [SECRET, OTHER, THIRD]
    entries = [signature(SECRET, f"evt_{n}") for n in range(3)]
    entries.insert(position, signature(secrets[signer]))
    delivery = verify(BODY, headers_of(*entries), secrets, now=NOW)
    assert (delivery.secret_index, delivery.signature_count) == (signer, 4)


@pytest.mark.parametrize("order", [(SECRET, OTHER), (OTHER, SECRET)])
def test_where_several_secrets_match_the_first_configured_is_named(order: tuple[str, str]) -> None:
    headers = sign(order, MESSAGE_ID, BODY, timestamp=NOW)
    assert verify(BODY, headers, [SECRET, OTHER], now=NOW).secret_index == 0
    assert verify(BODY, headers, [OTHER, SECRET], now=NOW).secret_index == 0
    assert verify(BODY, headers, [THIRD, OTHER], now=NOW).secret_index == 1


@pytest.mark.parametrize(
    ("entries", "count"),
    [
        ([GOOD], 1),
        ([GOOD, BROKEN_ENTRIES["of another secret"]], 2),
        ([f"v1a,{CORE}", GOOD, "", "v1,", "junk"], 1),
        ([GOOD, GOOD], 2),
    ],
)
def test_signature_count_is_how_many_v1_signatures_came(entries: list[str], count: int) -> None:
    assert verify(BODY, headers_of(*entries), SECRET, now=NOW).signature_count == count


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, object]]:
    pairs: list[tuple[object, object]] = []

    def spy(left: bytes, right: bytes) -> bool:
        pairs.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr("hookonce.verification.signature.compare_digest", spy)
    return pairs


def test_each_entry_meets_each_secret_in_compare_digest_as_bytes(
    compared: list[tuple[object, object]],
) -> None:
    secrets = [SECRET, OTHER, THIRD]
    strangers = [signature(SECRET, f"evt_{n}") for n in range(4)]
    assert refusal(headers_of(*strangers), secrets) is Refusal.NO_MATCHING_SIGNATURE
    assert all(type(side) is bytes for pair in compared for side in pair)
    assert {frozenset(pair) for pair in compared} == {
        frozenset(one.removeprefix("v1,").encode() for one in (stranger, signature(secret)))
        for stranger in strangers
        for secret in secrets
    }


def test_compare_digest_is_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookonce.verification.signature.compare_digest", lambda *_: False)
    assert refusal(GENUINE) is Refusal.NO_MATCHING_SIGNATURE


FLOOD = 10_000
STRANGER = "v1," + base64.b64encode(bytes(32)).decode()


def flood_in_one_line(count: int) -> Any:
    return headers_of(*[STRANGER] * count)


def flood_of_lines(count: int) -> Any:
    return [*headers_of(STRANGER).items()] + [("webhook-signature", STRANGER)] * (count - 1)


@pytest.mark.parametrize("flood", [flood_in_one_line, flood_of_lines])
def test_a_flood_of_entries_is_compared_no_more_often_than_a_handful(
    flood: Callable[[int], Any], compared: list[tuple[object, object]]
) -> None:
    secrets = [SECRET, OTHER]
    assert refusal(flood(100), secrets) is Refusal.NO_MATCHING_SIGNATURE
    of_a_hundred = len(compared)
    compared.clear()
    assert refusal(flood(FLOOD), secrets) is Refusal.NO_MATCHING_SIGNATURE
    assert len(compared) == of_a_hundred < 100


def test_a_flood_of_signature_lines_is_copied_no_more_often_than_reading_it_takes() -> None:
    """Joining 2,000 lines (94 KB) line by line would allocate 190 MB."""
    count, allocated = 2_000, 0

    def lines() -> Iterator[tuple[bytes, bytes]]:
        nonlocal allocated
        for name, value in headers_of(STRANGER).items():
            yield name.encode(), value.encode()
        for _ in range(count - 1):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            yield b"webhook-signature", STRANGER.encode()
            allocated += tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        assert refusal(lines()) is Refusal.NO_MATCHING_SIGNATURE
    finally:
        tracemalloc.stop()
    assert allocated < 10 * count * len(STRANGER)


def test_a_good_entry_at_the_end_of_a_flood_is_not_looked_for() -> None:
    assert refusal(headers_of(*[STRANGER] * FLOOD, GOOD)) is Refusal.NO_MATCHING_SIGNATURE


def test_a_good_entry_before_a_flood_is_found() -> None:
    assert verify(BODY, headers_of(GOOD, *[STRANGER] * FLOOD), SECRET, now=NOW).id == MESSAGE_ID


def test_a_good_entry_is_found_behind_those_of_a_few_other_secrets() -> None:
    assert verify(BODY, headers_of(*[STRANGER] * 9, GOOD), SECRET, now=NOW).id == MESSAGE_ID


@pytest.mark.parametrize("other", [f"v1a,{CORE}", "v1,broken", "", "v2,"])
def test_entries_that_cannot_match_take_no_room_from_those_that_can(other: str) -> None:
    assert verify(BODY, headers_of(*[other] * FLOOD, GOOD), SECRET, now=NOW).id == MESSAGE_ID
