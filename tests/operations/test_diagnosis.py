"""A diagnosis names usual mistakes, alone and in pairs, agrees with verify, shows no secret.

The standard library signs here, with the bytes that a mistaken signer would use.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookonce import Refusal, VerificationError, sign, verify
from hookonce.operations.diagnosis import Diagnosis, diagnose
from hookonce.samples.events import event_body
from hookonce.senders import Sender, openai, publishing, svix
from hookonce.verification.headers import RawHeaders
from hookonce.verification.secrets import verifying_key

pytestmark = pytest.mark.sample(60, of="file")

NOW = 1_780_000_000

# A secret with both characters that the URL-safe alphabet replaces, and with one '='.
KEY = bytes.fromhex("fbff") + b"the key of these tests, 32 byt"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ANOTHER = "whsec_" + base64.b64encode(b"another key that signed nothing!").decode()

BODY = (
    '{"id":"evt_1","type":"comment.received","workspaceId":"ws_1",'
    '"data":{"text":"Zoë: 3 🍞","likes":[1,2],"z":null,"a":{"b":true}}}'
).encode()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery as its sender signed it and as it arrived, and the receiver's settings."""

    key: bytes = KEY
    signed_id: str = "evt_1"
    signed_body: bytes = BODY
    message_id: str = "evt_1"
    body: bytes = BODY
    secrets: tuple[str, ...] = (SECRET,)
    retired: tuple[str, ...] = ()
    now: float = NOW + 5

    @property
    def headers(self) -> dict[str, str]:
        content = f"{self.signed_id}.{NOW}.".encode() + self.signed_body
        digest = hmac.digest(self.key, content, hashlib.sha256)
        return {
            "webhook-id": self.message_id,
            "webhook-timestamp": str(NOW),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }

    def diagnosis(self) -> Diagnosis:
        return diagnose(self.body, self.headers, self.secrets, retired=self.retired, now=self.now)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A usual mistake, and the start of each explanation that names it."""

    part: str
    make: Callable[[Delivery], Delivery]
    says: tuple[str, ...]

    def __call__(self, delivery: Delivery) -> Delivery:
        return self.make(delivery)


def configured(secret: str) -> Callable[[Delivery], Delivery]:
    return lambda delivery: replace(delivery, secrets=(secret,))


def arrives(change: Callable[[bytes], bytes]) -> Callable[[Delivery], Delivery]:
    return lambda delivery: replace(delivery, body=change(delivery.body))


def written_again(**style: Any) -> Callable[[Delivery], Delivery]:
    return arrives(lambda body: json.dumps(json.loads(body), **style).encode())


def written_by_sender(**style: Any) -> Callable[[Delivery], Delivery]:
    return lambda delivery: replace(
        delivery, signed_body=json.dumps(json.loads(delivery.signed_body), **style).encode()
    )


UNUSABLE, MISSPELT = "Secret 1 cannot be used: ", "Secret 1 is right except for its spelling"
REWRITTEN = "The body was parsed and rewritten"
LINE_ENDS = "Line ends within the body, or at its end, were changed"

MISTAKES = {
    "secret without its '='": Mistake(
        "secret", configured(SECRET.rstrip("=")), (UNUSABLE, MISSPELT)
    ),
    "secret in quotes": Mistake("secret", configured(f'"{SECRET}"'), (UNUSABLE, MISSPELT)),
    "secret in the URL-safe alphabet": Mistake(
        "secret",
        configured("whsec_" + base64.urlsafe_b64encode(KEY).decode()),
        (UNUSABLE, MISSPELT),
    ),
    "secret with a piece of its prefix cut off": Mistake(
        "secret", configured(SECRET.removeprefix("wh")), (UNUSABLE, MISSPELT)
    ),
    "secret with a version before it": Mistake(
        "secret", configured(f"v1,{SECRET}"), (UNUSABLE, MISSPELT)
    ),
    "secret wrapped onto two lines": Mistake(
        "secret", configured(f"{SECRET[:20]}\n {SECRET[20:]}"), (UNUSABLE, MISSPELT)
    ),
    "signer took the text of the secret": Mistake(
        "secret",
        lambda delivery: replace(delivery, key=SECRET.encode()),
        ("The signer used the text of secret 1 as its key",),
    ),
    "signer took the text without the prefix": Mistake(
        "secret",
        lambda delivery: replace(delivery, key=SECRET.removeprefix("whsec_").encode()),
        ("The signer used secret 1 without its prefix as its key, but did not decode it",),
    ),
    "signed with the old secret": Mistake(
        "secret",
        lambda delivery: replace(delivery, secrets=(ANOTHER,), retired=(ANOTHER, SECRET)),
        ("The delivery is signed with a retired secret",),
    ),
    "another id": Mistake(
        "id",
        lambda delivery: replace(delivery, message_id="req_77"),
        ("webhook-id was replaced: the signature is for the id in the body",),
    ),
    "an id with white space": Mistake(
        "id",
        lambda delivery: replace(delivery, message_id="evt_1 "),
        ("Spaces were added to webhook-id after it was signed",),
    ),
    "too old": Mistake(
        "clock",
        lambda delivery: replace(delivery, now=NOW + 3600),
        ("The delivery was signed 3600 s ago, but the tolerance is 300 s",),
    ),
    "from the future": Mistake(
        "clock",
        lambda delivery: replace(delivery, now=NOW - 301),
        ("The delivery was signed 301 s in the future, but the tolerance is 300 s",),
    ),
    "body as Python writes it": Mistake("body", written_again(), (REWRITTEN,)),
    "body without ASCII escapes": Mistake("body", written_again(ensure_ascii=False), (REWRITTEN,)),
    "body indented": Mistake("body", written_again(indent=2), (REWRITTEN,)),
    "body indented with tabs": Mistake("body", written_again(indent="\t"), (REWRITTEN,)),
    "sender's own spaces lost": Mistake("sent body", written_by_sender(), (REWRITTEN,)),
    "sender's own order lost": Mistake(
        "sent body", written_by_sender(sort_keys=True), (REWRITTEN,)
    ),
    "sender's own indentation lost": Mistake(
        "sent body", written_by_sender(indent=2), (REWRITTEN,)
    ),
    "sender's own lines lost": Mistake("sent body", written_by_sender(indent=4), (REWRITTEN,)),
    "sender's own ASCII escapes lost": Mistake(
        "sent body", written_by_sender(separators=(",", ":")), (REWRITTEN,)
    ),
    "body in base64": Mistake(
        "body", arrives(base64.b64encode), ("The body is still encoded in base64",)
    ),
    "body in lines of base64": Mistake(
        "body", arrives(base64.encodebytes), ("The body is still encoded in base64",)
    ),
    "byte order mark": Mistake(
        "body",
        arrives(lambda body: b"\xef\xbb\xbf" + body),
        ("A byte order mark was added to the body",),
    ),
    "newline at its end": Mistake("body", arrives(lambda body: body + b"\n"), (LINE_ENDS,)),
    "CRLF at its end": Mistake("body", arrives(lambda body: body + b"\r\n"), (LINE_ENDS,)),
    "sender's newline lost": Mistake(
        "sent body",
        lambda delivery: replace(delivery, signed_body=delivery.signed_body + b"\n"),
        (LINE_ENDS,),
    ),
    "line ends changed within and at the end": Mistake(
        "sent body",
        lambda delivery: replace(delivery, signed_body=b"[1,\n2]", body=b"[1,\r\n2]\r\n"),
        (LINE_ENDS,),
    ),
    "CRLF within": Mistake(
        "sent body",
        lambda delivery: replace(delivery, signed_body=b"[1,\n2]", body=b"[1,\r\n2]"),
        (LINE_ENDS,),
    ),
    "line ends changed within": Mistake(
        "sent body",
        lambda delivery: replace(delivery, signed_body=b"[1,\r\n2]", body=b"[1,\n2]"),
        (LINE_ENDS,),
    ),
}


def causes(found: Diagnosis) -> list[str]:
    return [explanation.cause for explanation in found.explanations]


def check_sentences(found: Diagnosis) -> None:
    """Check that each explanation gives its cause and its fix in a sentence."""
    for explanation in found.explanations:
        for text in (explanation.cause, explanation.fix):
            # A header's name does not count as a word.
            assert re.fullmatch(r"(?!XX)[A-Zw].*[^X]\.", text), text
            assert not re.search(r"[A-Z]{3,} [A-Z]{2,}|[a-z ]XX|XX[a-z ]", text), text


def check(found: Diagnosis, *mistakes: Mistake) -> None:
    """Check that the explanations name each mistake, and nothing else."""
    expected = [text for mistake in mistakes for text in mistake.says]
    assert len(found.explanations) == len(expected), causes(found)
    for text in expected:
        assert any(cause.startswith(text) for cause in causes(found)), (text, causes(found))
    check_sentences(found)
    assert not found.genuine
    clock = {mistake.says[0] for mistake in mistakes if mistake.part == "clock"}
    if not clock:
        assert found.refusal is Refusal.NO_MATCHING_SIGNATURE
    elif any("ago" in text for text in clock):
        assert found.refusal is Refusal.TIMESTAMP_TOO_OLD
    else:
        assert found.refusal is Refusal.TIMESTAMP_TOO_NEW


def test_the_delivery_that_these_tests_change_is_genuine() -> None:
    assert Delivery().diagnosis() == Diagnosis(None, ())


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_is_named(mistake: Mistake) -> None:
    check(mistake(Delivery()).diagnosis(), mistake)


WITHOUT_ID = {"CRLF within", "line ends changed within", "line ends changed within and at the end"}
BODY_PARTS = {"body", "sent body"}
PAIRS = [
    pytest.param(MISTAKES[first], MISTAKES[second], id=f"{first}, {second}")
    for first, second in combinations(MISTAKES, 2)
    if MISTAKES[first].part != MISTAKES[second].part
    and {MISTAKES[first].part, MISTAKES[second].part} != BODY_PARTS
    # Without an id in the body, nothing shows which id was signed.
    and not (first == "another id" and second in WITHOUT_ID)
]


@pytest.mark.sample(50)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_mistakes_at_once_are_both_named(first: Mistake, second: Mistake) -> None:
    check(second(first(Delivery())).diagnosis(), first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("byte order mark", "newline at its end"),
        ("byte order mark", "CRLF at its end"),
        ("byte order mark", "body in base64"),
        ("newline at its end", "body in base64"),
        ("body as Python writes it", "body in base64"),
        ("body indented", "body in lines of base64"),
    ],
)
def test_two_changes_of_the_body_are_both_named(first: str, second: str) -> None:
    mistakes = MISTAKES[first], MISTAKES[second]
    # Each change alone would turn the body into its shortest form.
    body = BODY if REWRITTEN in mistakes[0].says else BODY.replace(b",", b" ,")
    delivery = replace(Delivery(), signed_body=body, body=body)
    check(mistakes[1](mistakes[0](delivery)).diagnosis(), *mistakes)


@pytest.mark.parametrize("change", ["byte order mark", "newline at its end", "CRLF at its end"])
def test_a_rewritten_body_hides_changes_that_parsing_skips(change: str) -> None:
    """Both changes have the same fix: verify the raw bytes."""
    delivery = MISTAKES[change](MISTAKES["body as Python writes it"](Delivery()))
    check(delivery.diagnosis(), MISTAKES["body as Python writes it"])


def test_mistakes_with_the_clock_the_secret_the_id_and_the_body_are_all_named() -> None:
    names = ["too old", "secret in quotes", "another id", "body in base64"]
    delivery = Delivery()
    for name in names:
        delivery = MISTAKES[name](delivery)
    check(delivery.diagnosis(), *(MISTAKES[name] for name in names))


def test_a_secret_is_named_by_its_number() -> None:
    quoted = replace(Delivery(), secrets=(ANOTHER, f"'{SECRET}'"))
    assert [cause[:8] for cause in causes(quoted.diagnosis())] == ["Secret 2", "Secret 2"]
    spaced = replace(Delivery(), secrets=(f" {SECRET}\n",), key=SECRET.encode())
    assert causes(spaced.diagnosis()) == [
        "The signer used the text of secret 1 as its key, without decoding it."
    ]
    as_text = replace(Delivery(), secrets=(ANOTHER, SECRET), key=SECRET.encode())
    assert causes(as_text.diagnosis()) == [
        "The signer used the text of secret 2 as its key, without decoding it."
    ]


def test_a_missing_secret_does_not_hide_the_right_one() -> None:
    secrets: Any = (None, SECRET)
    found = replace(Delivery(), secrets=secrets, key=SECRET.encode()).diagnosis()
    assert causes(found)[1:] == [
        "The signer used the text of secret 2 as its key, without decoding it."
    ]


ENDS_IN_X = b"a key whose base64 ends in an X:\x17"


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        (KEY, SECRET + "="),
        (KEY, SECRET.rstrip("=") + "=="),
        (KEY, "sec_" + base64.urlsafe_b64encode(KEY).decode()),
        (ENDS_IN_X, f'"whsec_{base64.b64encode(ENDS_IN_X).decode()}"'),
    ],
    ids=["one = too many", "another =", "cut prefix, other alphabet", "in quotes, an X at its end"],
)
def test_a_misspelt_secret_is_recognised(key: bytes, secret: str) -> None:
    found = replace(Delivery(), key=key, secrets=(secret,)).diagnosis()
    assert causes(found)[-1].startswith(MISSPELT)


@pytest.mark.parametrize("end", [b" ", b"X", b"."])
def test_other_characters_are_not_taken_for_line_ends(end: bytes) -> None:
    found = replace(Delivery(), signed_body=BODY + end, body=BODY + end + b"\r\n").diagnosis()
    assert [cause.startswith(LINE_ENDS) for cause in causes(found)] == [True]


def test_mixed_line_ends_may_have_been_of_one_kind() -> None:
    signed, arrived = b'{\r\n"id":\r\n"evt_1"}', b'{\r\n"id":\n"evt_1"}'
    found = replace(Delivery(), signed_body=signed, body=arrived).diagnosis()
    assert [cause.startswith(LINE_ENDS) for cause in causes(found)] == [True]


def test_a_body_that_is_not_json_was_not_rewritten() -> None:
    forged = replace(Delivery(), key=b"of somebody who does not know it", body=b"no JSON")
    assert causes(forged.diagnosis()) == [
        "None of these secrets signed these bytes, and no usual mistake explains the signature."
    ]


def test_each_explanation_gives_its_cause_and_its_fix_in_a_sentence() -> None:
    signed = event_body("comment.received", event_id="evt_1")
    again = json.dumps(json.loads(signed), sort_keys=True).encode()
    genuine = Delivery().headers
    two = sign([ANOTHER, SECRET], "evt_1", BODY, timestamp=NOW)
    for found in (
        replace(Delivery(), secrets=()).diagnosis(),
        replace(Delivery(), key=b"of somebody who does not know it").diagnosis(),
        replace(Delivery(), secrets=(ANOTHER, SECRET)).diagnosis(),
        Delivery(signed_body=signed, body=again).diagnosis(),
        diagnose(BODY, two, [SECRET], now=NOW),
        diagnose(BODY, {}, [SECRET], now=NOW),
        diagnose(BODY, genuine | {"webhook-id": "evt.1"}, [SECRET], now=NOW),
        diagnose(BODY, genuine | {"webhook-timestamp": "+1"}, [SECRET], now=NOW),
        diagnose(BODY, genuine | {"webhook-signature": "v1,short"}, [SECRET], now=NOW),
        diagnose(BODY, [*genuine.items(), ("webhook-id", "evt_2")], [SECRET], now=NOW),
    ):
        assert found.explanations
        check_sentences(found)


def test_a_forged_delivery_is_called_so() -> None:
    forged = replace(Delivery(), key=b"of somebody who does not know it").diagnosis()
    assert forged.refusal is Refusal.NO_MATCHING_SIGNATURE
    (explanation,) = forged.explanations
    assert explanation.cause.startswith("None of these secrets signed these bytes")
    assert "forged" in explanation.fix
    assert "secretPrefix" in explanation.fix


def test_a_malformed_signature_is_not_called_forged() -> None:
    headers = Delivery().headers | {"webhook-signature": "v1a,AAAA v1,too-short"}
    (explanation,) = diagnose(BODY, headers, [SECRET], now=NOW).explanations
    assert explanation.cause.startswith("webhook-signature has no well-formed entry")


@pytest.mark.parametrize("name", list(Delivery().headers))
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_header_is_named(name: str, value: str | None) -> None:
    headers = {key: text for key, text in Delivery().headers.items() if key != name}
    if value is not None:
        headers[name] = value
    found = diagnose(BODY, headers, [SECRET], now=NOW)
    assert found.refusal == f"missing_{name.removeprefix('webhook-')}"
    (explanation,) = found.explanations
    assert explanation.cause == f"The {name} header is missing or empty."
    assert explanation.fix.startswith("Let proxies pass on every webhook-* header")


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("webhook-id", "evt.1", "Pass the header on unchanged."),
        ("webhook-timestamp", f"{NOW}000", "neither milliseconds nor a date"),
        ("webhook-timestamp", "2026-05-28T20:26:40Z", "neither milliseconds nor a date"),
    ],
)
def test_a_malformed_header_is_named(name: str, value: str, fix: str) -> None:
    found = diagnose(BODY, Delivery().headers | {name: value}, [SECRET], now=NOW)
    assert found.refusal == f"malformed_{name.removeprefix('webhook-')}"
    (explanation,) = found.explanations
    assert explanation.cause.lower().startswith(name)
    assert fix in explanation.fix


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp"])
def test_a_header_that_a_proxy_has_added_is_named(name: str) -> None:
    headers = [*Delivery().headers.items(), (name, "1")]
    found = diagnose(BODY, headers, [SECRET], now=NOW)
    assert found.refusal == f"conflicting_{name.removeprefix('webhook-')}"
    (explanation,) = found.explanations
    assert "repeated with different values" in explanation.cause
    assert "proxy" in explanation.fix


ACME = Sender(name="acme", headers=("acme",))


@pytest.mark.parametrize(
    ("sender", "carried", "cause", "fix"),
    [
        (publishing, svix, "are svix-id, svix-timestamp and svix-signature", "such as svix: in"),
        (ACME, publishing, "but the sender 'acme' has others.", "such as publishing: in the"),
        (openai, ACME, "of the delivery are acme-id, acme-timestamp", "Sender(headers=('acme',),"),
    ],
)
def test_a_delivery_with_the_headers_of_another_sender_is_named(
    sender: Sender, carried: Sender, cause: str, fix: str
) -> None:
    headers = sign(SECRET, "evt_1", BODY, sender=carried, timestamp=NOW)
    found = diagnose(BODY, headers, [SECRET], now=NOW, sender=sender)
    assert found.refusal == "missing_id"
    (explanation,) = found.explanations
    assert cause in explanation.cause
    assert fix in explanation.fix
    assert diagnose(BODY, headers, [SECRET], now=NOW, sender=carried).genuine


def test_the_headers_of_the_sender_are_named() -> None:
    headers = sign(SECRET, "evt_1", BODY, sender=svix, timestamp=NOW)
    del headers["svix-signature"]
    (missing,) = diagnose(BODY, headers, [SECRET], now=NOW, sender=svix).explanations
    assert missing.cause == "The svix-signature or webhook-signature header is missing or empty."
    assert missing.fix.startswith("Let proxies pass on every svix-* and webhook-* header")
    replaced = sign(SECRET, "evt_1", BODY, sender=svix, timestamp=NOW) | {"svix-id": "evt_2"}
    (explanation,) = diagnose(BODY, replaced, [SECRET], now=NOW, sender=svix).explanations
    assert explanation.cause.startswith("svix-id was replaced")


def test_the_tolerance_is_that_of_the_sender() -> None:
    patient = Sender(name="patient", tolerance_seconds=900)
    headers = Delivery().headers
    assert not diagnose(BODY, headers, [SECRET], now=NOW + 800).genuine
    assert diagnose(BODY, headers, [SECRET], now=NOW + 800, sender=patient).genuine


def test_an_unusable_secret_and_a_missing_header_are_both_named() -> None:
    unusable, missing = diagnose(BODY, {}, ["whsec_!"], now=NOW).explanations
    assert unusable.cause.startswith(UNUSABLE)
    assert missing.cause == "The webhook-id header is missing or empty."


def test_a_genuine_delivery_of_a_rotation_comes_with_advice() -> None:
    headers = sign([ANOTHER, SECRET], "evt_1", BODY, timestamp=NOW)
    found = diagnose(BODY, headers, [SECRET], now=NOW)
    assert found.genuine
    assert causes(found) == [
        "The delivery carries 2 signatures, because the sender is rotating the secret."
    ]
    found = diagnose(BODY, sign(SECRET, "evt_1", BODY, timestamp=NOW), [ANOTHER, SECRET], now=NOW)
    assert found.genuine
    assert causes(found) == [
        "Only secret 2 of 2 matches: the sender still signs with an older secret."
    ]


def test_an_unusable_secret_is_named_although_another_matches() -> None:
    """A receiver with these secrets would not start."""
    found = diagnose(BODY, Delivery().headers, ["whpk_AAAA", SECRET], now=NOW)
    assert found.genuine
    assert causes(found) == [
        (
            "Secret 1 cannot be used: the public key cannot be used: it has 3 bytes, and an ed25519"
            " public key has 32; copy the whole value again."
        ),
        "Only secret 2 of 2 matches: the sender still signs with an older secret.",
    ]


@pytest.mark.parametrize("secrets", [[], [None], ["", " "], ["whsec_"]])
@pytest.mark.parametrize("now", [NOW, NOW + 301])
def test_without_a_usable_secret_the_timestamp_is_still_checked(secrets: Any, now: float) -> None:
    found = diagnose(BODY, Delivery().headers, secrets, now=now)
    assert not found.genuine
    first, *others = causes(found)
    assert first.startswith(("No secret is configured", UNUSABLE))
    assert any("301 s ago" in cause for cause in others) is (now != NOW)


def test_one_secret_may_be_a_plain_string() -> None:
    """A string is one secret, as for ``verify``, and not a sequence of one-letter secrets."""
    assert diagnose(BODY, Delivery().headers, SECRET, now=NOW) == Diagnosis(None, ())
    found = diagnose(BODY, Delivery().headers, ANOTHER, retired=SECRET, now=NOW)
    assert causes(found) == ["The delivery is signed with a retired secret."]


@pytest.mark.parametrize(
    "headers",
    [
        Delivery().headers,
        {name.encode(): value.encode() for name, value in Delivery().headers.items()},
        list(Delivery().headers.items()),
        iter(Delivery().headers.items()),
        ((name.upper(), value) for name, value in Delivery().headers.items()),
    ],
    ids=["mapping", "bytes", "pairs", "iterator", "generator in upper case"],
)
def test_headers_come_in_every_shape_that_verify_takes(headers: RawHeaders) -> None:
    assert diagnose(BODY, headers, [SECRET], now=NOW).genuine


def test_the_tolerance_is_the_one_of_the_receiver() -> None:
    headers = Delivery().headers
    assert diagnose(BODY, headers, [SECRET], now=NOW + 400, tolerance=400).genuine
    (cause,) = causes(diagnose(BODY, headers, [SECRET], now=NOW + 11, tolerance=10))
    assert cause == "The delivery was signed 11 s ago, but the tolerance is 10 s."
    found = diagnose(BODY, headers, [SECRET], now=NOW + 1, tolerance=0)
    assert causes(found) == ["The delivery was signed 1 s ago, but the tolerance is 0 s."]
    assert found.refusal is Refusal.TIMESTAMP_TOO_OLD


@pytest.mark.parametrize("depth", [500, 900, 1_200, 3_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_deeply_nested_body_is_diagnosed(depth: int, opening: str, closing: str) -> None:
    body = (opening * depth + "1" + closing * depth).encode()
    found = diagnose(body, Delivery().headers, [SECRET], now=NOW)
    assert found.refusal is Refusal.NO_MATCHING_SIGNATURE


@pytest.mark.parametrize("body", [rb'{"id":"\ud800"}', rb'["\udfff"]', rb'{"\ud83c":1}'])
def test_a_lone_surrogate_is_diagnosed(body: bytes) -> None:
    """JSON allows a lone surrogate, but UTF-8 does not."""
    found = diagnose(body, Delivery().headers, [SECRET], now=NOW)
    assert found.refusal is Refusal.NO_MATCHING_SIGNATURE


SECRETS = st.one_of(
    st.binary(min_size=1, max_size=80).map(lambda key: "whsec_" + base64.b64encode(key).decode()),
    st.text(max_size=50),
    st.text(st.characters(), max_size=20).map(lambda text: f"whsec_{text}"),
    st.just("whsec_\udcff"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps({"id": value}).encode()),
    st.binary(max_size=60).map(base64.b64encode),
    st.sampled_from([b"\xef\xbb\xbf{}", b"\xff\xfe[\x00]\x00", b"\x00[\x00]", b"1" * 5000, b"NaN"]),
)
VALUES = st.one_of(
    st.text(st.characters(), max_size=60),
    st.just(f"{NOW}"),
    st.binary(min_size=32, max_size=32).map(lambda raw: "v1," + base64.b64encode(raw).decode()),
)
NAMES = st.sampled_from([*Delivery().headers, "Webhook-Id", "content-type"]) | st.text(max_size=10)
ANY_HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


def usable(secrets: list[str]) -> list[str]:
    kept = []
    for secret in secrets:
        try:
            verifying_key(secret)
        except ValueError:
            continue
        kept.append(secret)
    return kept


def refusal_by_verify(body: bytes, headers: RawHeaders, secrets: list[str]) -> Refusal | None:
    try:
        verify(body, headers, secrets, now=NOW)
    except VerificationError as error:
        return error.reason
    return None


@given(
    body=BODIES,
    headers=ANY_HEADERS,
    secrets=st.lists(SECRETS, max_size=3),
    retired=st.lists(SECRETS, max_size=2),
)
def test_any_request_has_a_diagnosis_with_the_verdict_of_verify(
    body: bytes, headers: list[tuple[str, str]], secrets: list[str], retired: list[str]
) -> None:
    found = diagnose(body, headers, secrets, retired=retired, now=NOW)
    if usable(secrets):
        assert found.refusal == refusal_by_verify(body, headers, usable(secrets))
    assert found.genuine or found.explanations


@pytest.mark.costs("2 s")
@given(
    body=BODIES,
    arrived=BODIES | st.none(),
    age=st.floats(-400, 400),
    message_id=st.text(min_size=1, max_size=10),
    secrets=st.lists(SECRETS, min_size=1, max_size=3),
    data=st.data(),
)
def test_any_signed_delivery_has_a_diagnosis_with_the_verdict_of_verify(
    body: bytes,
    arrived: bytes | None,
    age: float,
    message_id: str,
    secrets: list[str],
    data: st.DataObject,
) -> None:
    signer = data.draw(st.sampled_from([*usable(secrets), SECRET]))
    headers = sign(signer, "evt_1", body, timestamp=NOW - age)
    if data.draw(st.booleans()):
        headers["webhook-id"] = message_id
    received = body if arrived is None else arrived
    found = diagnose(received, headers, secrets, now=NOW)
    if usable(secrets):
        assert found.refusal == refusal_by_verify(received, headers, usable(secrets))
    assert found.genuine or found.explanations


# Texts that no sentence of an explanation contains by chance.
_PIECE = 8
PRIVATE = st.text("ABCDEFGHJKLMNPQRSTUVWXYZ", min_size=24, max_size=40)


@given(texts=st.lists(PRIVATE, min_size=5, max_size=5), mistake=st.sampled_from(list(MISTAKES)))
def test_no_explanation_shows_a_secret_a_signature_or_a_piece_of_the_body(
    texts: list[str], mistake: str
) -> None:
    *secrets, retired, message_id, content = texts
    body = json.dumps({"id": message_id, "data": {content: content}}).encode()
    key = verifying_key(f"whsec_{secrets[0][:24]}").raw
    delivery = Delivery(
        key=key,
        signed_id=message_id,
        message_id=message_id,
        signed_body=body,
        body=body,
        secrets=(f"whsec_{secrets[0][:24]}", f"whsec_{secrets[1]}!", f"whpk_{secrets[1]}"),
        retired=(f"whsec_{retired[:24]}",),
    )
    changed = MISTAKES[mistake](delivery)
    shown = repr(changed.diagnosis())
    signature = changed.headers["webhook-signature"].removeprefix("v1,")
    for hidden in (*texts, signature, SECRET.removeprefix("whsec_")):
        pieces = {hidden[start : start + _PIECE] for start in range(len(hidden) - _PIECE)}
        assert not any(piece in shown for piece in pieces)


def test_a_body_with_its_keys_in_alphabetical_order_was_rewritten() -> None:
    signed = event_body("comment.received", event_id="evt_1")
    again = json.dumps(json.loads(signed), sort_keys=True).encode()
    [explanation] = Delivery(signed_body=signed, body=again).diagnosis().explanations
    assert "alphabetical order" in explanation.cause
    assert "raw bytes" in explanation.fix


def test_the_age_of_a_saved_request_is_the_last_explanation() -> None:
    found = Delivery(body=BODY + b"\n", now=NOW + 86_400).diagnosis()
    assert len(found.explanations) == 2
    assert "86400 s ago" in found.explanations[-1].cause
