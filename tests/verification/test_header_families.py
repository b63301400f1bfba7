"""All families of signed headers follow the same rules; if a request has two, they must agree."""

import base64
from collections.abc import Callable
from itertools import permutations, product
from random import Random
from typing import Any

import pytest

from hookonce import Receiver, Refusal, VerificationError, Verifier, sign, unwrap, verify
from hookonce.samples.events import event_body
from hookonce.senders import Sender, publishing, svix
from hookonce.verification import DeliveryHeaders
from hookonce.verification.header_names import names_of
from hookonce.verification.headers import read_headers
from hookonce.verification.signature import PartsVerifier

SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
NOW = 1_700_000_000
BODY = event_body("comment.received", event_id="evt_1")
SVIX = sign(SECRET, "evt_1", BODY, sender=svix, timestamp=NOW)
WEBHOOK = sign(SECRET, "evt_1", BODY, timestamp=NOW)
ENDINGS = ("id", "timestamp", "signature")


def pairs(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


SHAPES: list[Callable[[dict[str, str]], Any]] = [
    dict,
    pairs,
    lambda headers: list(headers.items()),
    lambda headers: {name.title(): value for name, value in headers.items()},
    lambda headers: (pair for pair in headers.items()),
]


def refusals(headers: Any, sender: Sender = svix) -> set[Refusal]:
    """Verify in every way, and return the set of reasons; all ways must give the same reason."""
    ways: list[Callable[[], object]] = [
        lambda: verify(BODY, headers, SECRET, sender=sender, now=NOW),
        lambda: Verifier(SECRET, sender=sender).verify(BODY, headers, now=NOW),
        lambda: PartsVerifier(SECRET, sender=sender).verify_parts(
            BODY, read_headers(headers, names_of(sender))[0], now=NOW
        ),
    ]
    reasons = set()
    for way in ways:
        with pytest.raises(VerificationError) as caught:
            way()
        reasons.add(caught.value.reason)
    return reasons


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("headers", [SVIX, WEBHOOK, SVIX | WEBHOOK, WEBHOOK | SVIX])
def test_either_family_or_both_verify(
    headers: dict[str, str], shape: Callable[[dict[str, str]], Any]
) -> None:
    assert set(SVIX) == {"svix-id", "svix-timestamp", "svix-signature"}
    expected = verify(BODY, WEBHOOK, SECRET, now=NOW)
    assert verify(BODY, shape(headers), SECRET, sender=svix, now=NOW) == expected
    verifier = Verifier(SECRET, sender=svix)
    assert verifier.verify(BODY, shape(headers), now=NOW) == expected
    signed, _ = read_headers(shape(headers), names_of(svix))
    assert PartsVerifier(SECRET).verify_parts(BODY, signed, now=NOW) == expected
    assert DeliveryHeaders.parse(shape(headers), svix).message_id == "evt_1"
    assert unwrap(BODY, shape(headers), SECRET, sender=svix, now=NOW).id == "evt_1"


ACME = Sender(name="acme", headers=("acme",))


@pytest.mark.parametrize(
    ("sender", "ending", "value", "text"),
    [
        (publishing, "id", "", "the webhook-id header is missing or empty"),
        (ACME, "id", "", "the acme-id header is missing or empty"),
        (ACME, "id", "a.b", "acme-id must be 1 to 512 characters of UTF-8 without"),
        (ACME, "timestamp", "", "the acme-timestamp header is missing or empty"),
        (ACME, "timestamp", "x", "acme-timestamp must be Unix seconds in plain decimal digits"),
        (ACME, "signature", "", "the acme-signature header is missing or empty"),
        (svix, "id", "", "the svix-id or webhook-id header is missing or empty"),
        (svix, "timestamp", "x", "svix-timestamp or webhook-timestamp must be Unix seconds"),
    ],
)
def test_a_refusal_names_the_headers_of_the_sender(
    sender: Sender, ending: str, value: str, text: str
) -> None:
    prefix = sender.headers[0]
    headers = sign(SECRET, "evt_1", BODY, sender=sender, timestamp=NOW)
    headers[f"{prefix}-{ending}"] = value
    for shape in SHAPES:
        for way in (
            lambda given: verify(BODY, given, SECRET, sender=sender, now=NOW),
            lambda given: read_headers(given, names_of(sender)),
        ):
            with pytest.raises(VerificationError) as caught:
                way(shape(headers))
            assert str(caught.value).startswith(text)
            assert caught.value.headers == sender.headers


def test_a_repeated_or_differing_header_is_named_too() -> None:
    repeated = [*pairs(SVIX), (b"svix-id", b"evt_2")]
    with pytest.raises(VerificationError, match=r"^svix-id or webhook-id is repeated with"):
        verify(BODY, repeated, SECRET, sender=svix, now=NOW)
    with pytest.raises(VerificationError, match=r"values: svix-\* and webhook-\*$"):
        verify(BODY, SVIX | WEBHOOK | {"svix-id": "evt_2"}, SECRET, sender=svix, now=NOW)
    with pytest.raises(ValueError, match=r"^acme-id must be 1 to 512"):
        sign(SECRET, "a.b", BODY, sender=ACME)


def test_a_family_that_the_sender_does_not_declare_is_not_read() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(BODY, SVIX, SECRET, now=NOW)
    assert caught.value.reason is Refusal.MISSING_ID
    only = Sender(name="acme", headers=("svix",))
    assert refusals(WEBHOOK, only) == {Refusal.MISSING_ID}
    forged = {**WEBHOOK, **dict.fromkeys(SVIX, "forged")}
    assert verify(BODY, forged, SECRET, sender=publishing, now=NOW).id == "evt_1"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("family", ["svix", "webhook"])
@pytest.mark.parametrize("order", [(SVIX, WEBHOOK), (WEBHOOK, SVIX)])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_families_that_differ_in_one_header_are_refused_whichever_is_genuine(
    ending: str,
    family: str,
    order: tuple[dict[str, str], dict[str, str]],
    shape: Callable[[dict[str, str]], Any],
) -> None:
    other = {
        "id": "evt_2",
        "timestamp": str(NOW + 1),
        "signature": sign(SECRET, "evt_2", BODY, timestamp=NOW)["webhook-signature"],
    }
    headers = {**order[0], **order[1], f"{family}-{ending}": other[ending]}
    assert refusals(shape(headers)) == {Refusal.CONFLICTING_HEADERS}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("family", ["svix", "webhook"])
def test_a_second_family_that_is_not_whole_differs(ending: str, family: str) -> None:
    headers = SVIX | WEBHOOK
    del headers[f"{family}-{ending}"]
    assert refusals(headers) == refusals(pairs(headers)) == {Refusal.CONFLICTING_HEADERS}
    empty = {**SVIX, **WEBHOOK, f"{family}-{ending}": ""}
    assert refusals(empty) == {Refusal.CONFLICTING_HEADERS}


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("id", Refusal.MISSING_ID),
        ("timestamp", Refusal.MISSING_TIMESTAMP),
        ("signature", Refusal.MISSING_SIGNATURE),
    ],
)
def test_one_family_that_is_not_whole_is_refused_as_ever(ending: str, reason: Refusal) -> None:
    headers = dict(SVIX)
    del headers[f"svix-{ending}"]
    assert refusals(headers) == {reason}
    halves = {name: value for name, value in WEBHOOK.items() if name.endswith(ending)}
    # Half the headers of one family and half of another do not make a delivery.
    assert refusals(headers | halves) == {Refusal.CONFLICTING_HEADERS}


@pytest.mark.parametrize("headers", [SVIX, SVIX | WEBHOOK])
@pytest.mark.parametrize(
    ("ending", "value", "reason"),
    [
        ("id", "evt_2", Refusal.CONFLICTING_ID),
        ("timestamp", str(NOW + 1), Refusal.CONFLICTING_TIMESTAMP),
    ],
)
def test_a_repeated_header_is_refused_in_every_family(
    headers: dict[str, str], ending: str, value: str, reason: Refusal
) -> None:
    assert refusals([*pairs(headers), (f"Svix-{ending}".encode(), value.encode())]) == {reason}
    again = [*pairs(headers), (f"SVIX-{ending}".encode(), SVIX[f"svix-{ending}"].encode())]
    assert verify(BODY, again, SECRET, sender=svix, now=NOW).id == "evt_1"


def test_a_repeated_signature_is_joined_in_its_family_alone() -> None:
    more = (b"svix-signature", b"v1," + base64.b64encode(bytes(32)))
    assert verify(BODY, [*pairs(SVIX), more], SECRET, sender=svix, now=NOW).signature_count == 2
    assert refusals([*pairs(SVIX | WEBHOOK), more]) == {Refusal.CONFLICTING_HEADERS}


@pytest.mark.parametrize(
    ("ending", "value", "reason"),
    [
        ("id", "evt.1", Refusal.MALFORMED_ID),
        ("id", "e\x00", Refusal.MALFORMED_ID),
        ("timestamp", f"+{NOW}", Refusal.MALFORMED_TIMESTAMP),
        ("timestamp", f"{NOW}000", Refusal.MALFORMED_TIMESTAMP),
        ("timestamp", str(NOW - 10_000), Refusal.TIMESTAMP_TOO_OLD),
        ("signature", "v1,AAAA", Refusal.NO_MATCHING_SIGNATURE),
        ("signature", "v2," + "A" * 44, Refusal.NO_MATCHING_SIGNATURE),
    ],
)
def test_a_mangled_value_is_refused_in_every_family(
    ending: str, value: str, reason: Refusal
) -> None:
    assert refusals({**SVIX, f"svix-{ending}": value}) == {reason}
    both = {**SVIX, **WEBHOOK, f"svix-{ending}": value, f"webhook-{ending}": value}
    assert refusals(both) == {reason}


def test_the_values_of_frameworks_for_a_missing_header_are_no_second_family() -> None:
    headers: Any = {**SVIX, **dict.fromkeys(WEBHOOK)}
    assert verify(BODY, headers, SECRET, sender=svix, now=NOW).id == "evt_1"


def test_a_sender_with_hints_of_its_own_has_them_read() -> None:
    both = Sender(name="acme", headers=("webhook", "svix"), hints=publishing.hints)
    hinted = {**SVIX, "acme-event-type": "a.b", "acme-delivery-attempt": "3"}
    assert read_headers(pairs(hinted), names_of(both))[1] == ("a.b", 3)
    assert read_headers(pairs(hinted), names_of(svix))[1] == (None, None)


@pytest.mark.anyio
async def test_a_receiver_answers_two_families_that_differ() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", sender=svix, clock=lambda: float(NOW))
    async with receiver:
        assert (await receiver.handle(BODY, SVIX)).status == 200
        outcome = await receiver.handle(BODY, {**SVIX, **WEBHOOK, "webhook-id": "evt_2"})
    assert (outcome.status, outcome.reason) == (400, "conflicting_headers")


def test_the_tolerance_is_the_senders_unless_it_is_given() -> None:
    strict = Sender(name="acme", tolerance_seconds=10)
    late = NOW + 20
    with pytest.raises(VerificationError, match="too far in the past"):
        verify(BODY, WEBHOOK, SECRET, sender=strict, now=late)
    with pytest.raises(VerificationError, match="too far in the past"):
        Verifier(SECRET, sender=strict).verify(BODY, WEBHOOK, now=late)
    assert verify(BODY, WEBHOOK, SECRET, sender=strict, tolerance=30, now=late).skew == 20


def test_no_mixture_of_genuine_and_forged_families_is_accepted_as_something_else() -> None:
    """Every accepted delivery has the id, the time and a signature that the secret made."""
    random = Random(20)
    forged = sign(SECRET, "evt_forged", b"{}", timestamp=NOW)["webhook-signature"]
    values = {
        "id": ["evt_1", "evt_2", "", " evt_1"],
        "timestamp": [str(NOW), str(NOW + 1), f"0{NOW}", ""],
        "signature": [WEBHOOK["webhook-signature"], forged, f"{forged} {forged}", ""],
    }
    names = [f"{family}-{ending}" for family, ending in product(("svix", "webhook"), ENDINGS)]
    orders = [*permutations(names, 3), tuple(names)]
    accepted = 0
    for _ in range(20_000):
        chosen = list(random.choice(orders)) + random.choices(names, k=random.randrange(3))
        headers = [
            (
                random.choice((str.title, str.upper, str.lower))(name).encode(),
                random.choice(values[name.partition("-")[2]]).encode(),
            )
            for name in chosen
        ]
        if random.random() < 0.3:
            headers += pairs(SVIX)
        try:
            delivery = verify(BODY, headers, SECRET, sender=svix, now=NOW)
        except VerificationError:
            continue
        accepted += 1
        assert (delivery.id, delivery.timestamp) == ("evt_1", NOW)
        for name, value in headers:  # no header contradicts the delivery
            if value and name.lower().endswith((b"-id", b"-timestamp")):
                assert value in {b"evt_1", str(NOW).encode()}
    assert accepted > 10
