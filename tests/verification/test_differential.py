"""Signing and verification agree with other implementations.

They are OpenSSL's command, the reference library in Python and the reference library in Node.
"""

import base64
import json
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from freezegun import freeze_time
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError
from support.needs import needed
from support.node import installed_modules, node_program

from hookonce import Refusal, VerificationError, sign, verify

pytestmark = pytest.mark.sample(20, of="file")

NOW = 1_700_000_000
SECRET = "whsec_" + base64.b64encode(b"the secret of these tests").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, as long.").decode()


def secret_of(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


def we_accept(
    body: bytes, headers: Any, secret: str | list[str] = SECRET, now: float | None = None
) -> bool:
    try:
        verify(body, headers, secret, now=now)
    except VerificationError:
        return False
    return True


# openssl dgst


@pytest.fixture(scope="module")
def openssl() -> str:
    return needed("openssl", package="openssl")


@pytest.mark.parametrize("length", [16, 24, 32, 63, 64, 65, 200])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param('{"text":"\u00e9\u4e2d\U0001f600"}'.encode(), id="JSON"),
        pytest.param(bytes(range(256)), id="not UTF-8"),
        pytest.param(bytes(range(256)) * 1024, id="256 KB"),
    ],
)
def test_openssl_makes_the_signature_that_we_make_and_accept(
    openssl: str, length: int, body: bytes
) -> None:
    key = random.Random(length).randbytes(length)
    for message_id in ("evt_1", "\u00e9v\u00e9nement 1"):
        digest = subprocess.run(
            [
                openssl,
                "dgst",
                "-sha256",
                "-mac",
                "HMAC",
                "-macopt",
                f"hexkey:{key.hex()}",
                "-binary",
            ],
            input=f"{message_id}.{NOW}.".encode() + body,
            capture_output=True,
            check=True,
        ).stdout
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(NOW),
            "webhook-signature": "v1," + base64.b64encode(digest).decode(),
        }
        assert sign(secret_of(key), message_id, body, timestamp=NOW) == headers
        assert we_accept(body, headers, secret_of(key), NOW)


# standardwebhooks in Python


def reference_verdict(body: bytes, headers: dict[str, str], secret: str = SECRET) -> str:
    """Return the reference library's verdict: "accepted", "refused", or the error it raises."""
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return "refused"
    except json.JSONDecodeError:
        pass  # the library parses the body after it has accepted it
    except Exception as error:  # noqa: BLE001 - the library may raise anything
        return type(error).__name__
    return "accepted"


def reference_signature(message_id: str, timestamp: int, body: bytes, secret: str = SECRET) -> str:
    signed_at = datetime.fromtimestamp(timestamp, tz=UTC)
    return Webhook(secret).sign(message_id, signed_at, body.decode())


texts = st.text(max_size=100).map(str.encode)
ids = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="."), min_size=1, max_size=40
)
keys = st.binary(min_size=16, max_size=100).map(secret_of)
timestamps = st.integers(1, 9_999_999_999)

unhurried = settings(max_examples=200)


@unhurried
@given(secret=keys, message_id=ids, timestamp=timestamps, body=texts)
def test_the_python_library_makes_the_signature_that_we_make(
    secret: str, message_id: str, timestamp: int, body: bytes
) -> None:
    theirs = reference_signature(message_id, timestamp, body, secret)
    assert sign(secret, message_id, body, timestamp=timestamp)["webhook-signature"] == theirs


@unhurried
@given(secret=keys, message_id=ids, body=texts)
def test_what_one_signs_the_other_accepts(secret: str, message_id: str, body: bytes) -> None:
    now = int(datetime.now(UTC).timestamp())
    ours = sign(secret, message_id, body)
    theirs = {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": reference_signature(message_id, now, body, secret),
    }
    assert reference_verdict(body, ours, secret) == "accepted"
    assert we_accept(body, theirs, secret)


def change_body(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    return headers, body + b" "


def change(name: str, to: Callable[[str], str | None]) -> Any:
    def changed(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
        value = to(headers[name])
        rest = {other: text for other, text in headers.items() if other != name}
        return (rest if value is None else {**headers, name: value}), body

    return changed


STRANGER = "v1," + base64.b64encode(bytes(32)).decode()

# Changes after which our code and the reference library must still give the same verdict.
CHANGES = {
    "nothing": lambda headers, body: (headers, body),
    "body": change_body,
    "id": change("webhook-id", lambda text: text + "x"),
    "id missing": change("webhook-id", lambda _: None),
    "id empty": change("webhook-id", lambda _: ""),
    "another second": change("webhook-timestamp", lambda text: str(int(text) + 1)),
    "timestamp missing": change("webhook-timestamp", lambda _: None),
    "timestamp a word": change("webhook-timestamp", lambda _: "now"),
    "signature missing": change("webhook-signature", lambda _: None),
    "signature empty": change("webhook-signature", lambda _: ""),
    "another signature": change("webhook-signature", lambda _: STRANGER),
    "another before": change("webhook-signature", lambda text: f"{STRANGER} {text}"),
    "another after": change("webhook-signature", lambda text: f"{text} {STRANGER}"),
    "two others": change("webhook-signature", lambda _: f"{STRANGER} {STRANGER}"),
    "unknown version": change("webhook-signature", lambda text: "v2" + text[2:]),
    "unknown version beside": change("webhook-signature", lambda text: f"v2,x {text}"),
}


@unhurried
@given(
    signing=st.sampled_from([SECRET, OTHER]),
    message_id=ids,
    body=texts,
    age=st.sampled_from([-(10**6), -400, -310, -290, -1, 0, 1, 290, 310, 400, 10**6]),
    changed=st.sampled_from(sorted(CHANGES)),
)
def test_the_python_library_comes_to_our_verdict_on_whatever_is_well_formed(
    signing: str, message_id: str, body: bytes, age: int, changed: str
) -> None:
    now = int(datetime.now(UTC).timestamp())
    headers, sent = CHANGES[changed](sign(signing, message_id, body, timestamp=now - age), body)
    verdict = "accepted" if we_accept(sent, headers) else "refused"
    assert reference_verdict(sent, headers) == verdict


def test_the_python_library_draws_the_line_at_the_same_second() -> None:
    for age in (-302, -301, -300, -299, 299, 300, 301, 302):
        headers = sign(SECRET, "evt_1", b"{}", timestamp=NOW - age)
        with freeze_time(datetime.fromtimestamp(NOW, tz=UTC)):
            verdicts = {we_accept(b"{}", headers), reference_verdict(b"{}", headers) == "accepted"}
        assert verdicts == {abs(age) <= 300}, age


GOOD = sign(SECRET, "evt_1", b"{}", timestamp=NOW)["webhook-signature"]
LENIENT = [
    pytest.param("timestamp", f"+{NOW}", Refusal.MALFORMED_TIMESTAMP, id="plus"),
    pytest.param("timestamp", "1_700_000_000", Refusal.MALFORMED_TIMESTAMP, id="underscores"),
    pytest.param("timestamp", "1.7e9", Refusal.MALFORMED_TIMESTAMP, id="exponent"),
    pytest.param("timestamp", f"{NOW}.9", Refusal.MALFORMED_TIMESTAMP, id="fraction"),
    pytest.param("timestamp", f"{NOW}\n", Refusal.MALFORMED_TIMESTAMP, id="line break"),
    pytest.param("timestamp", f" {NOW}", Refusal.MALFORMED_TIMESTAMP, id="space"),
    pytest.param("timestamp", f"0{NOW}", Refusal.MALFORMED_TIMESTAMP, id="leading zero"),
    pytest.param(
        "timestamp",
        "".join(chr(0x660 + int(digit)) for digit in str(NOW)),
        Refusal.MALFORMED_TIMESTAMP,
        id="Arabic digits",
    ),
    pytest.param(
        "signature", f"{GOOD[:9]}!{GOOD[9:]}", Refusal.NO_MATCHING_SIGNATURE, id="junk in base64"
    ),
    pytest.param("signature", f"{GOOD}=", Refusal.NO_MATCHING_SIGNATURE, id="padding"),
]


@pytest.mark.parametrize(("header", "value", "reason"), LENIENT)
def test_where_the_python_library_is_lenient_we_refuse(
    header: str, value: str, reason: Refusal
) -> None:
    headers = {**sign(SECRET, "evt_1", b"{}", timestamp=NOW), f"webhook-{header}": value}
    with freeze_time(datetime.fromtimestamp(NOW, tz=UTC)):
        if reference_verdict(b"{}", headers) != "accepted":
            pytest.skip("this version of the library has become strict")
        with pytest.raises(VerificationError) as caught:
            verify(b"{}", headers, SECRET)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param("", id="double space"),
        pytest.param("v1", id="no comma"),
        pytest.param("v1,a,b", id="two commas"),
        pytest.param("v1a,a,b", id="two commas in an unknown version"),
        pytest.param("v1,a", id="no base64"),
        pytest.param("v1,\u00e9", id="not ASCII"),
    ],
)
def test_where_the_python_library_dies_of_junk_beside_a_good_signature_we_accept(junk: str) -> None:
    headers = sign(SECRET, "evt_1", b"{}", timestamp=NOW)
    headers["webhook-signature"] = f"{junk} {GOOD}"
    with freeze_time(datetime.fromtimestamp(NOW, tz=UTC)):
        if reference_verdict(b"{}", headers) in ("accepted", "refused"):
            pytest.skip("this version of the library copes")
        assert we_accept(b"{}", headers)


# standardwebhooks in Node


@dataclass(frozen=True)
class Case:
    """A request to Node: sign this, and report whether these headers verify."""

    secret: str
    message_id: str
    timestamp: int
    text: str
    headers: dict[str, str]

    @property
    def body(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True)
class Answer:
    signature: str
    verdict: str


# The program reads cases from standard input; its clock always returns `now`.
NODE_PROGRAM = """
const { Webhook, WebhookVerificationError } = require("standardwebhooks");
const { now, cases } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
Date.now = () => now * 1000;
const verdict = (webhook, { text, headers }) => {
  try {
    webhook.verify(text, headers);
  } catch (error) {
    if (error instanceof WebhookVerificationError) return "refused";
    if (!(error instanceof SyntaxError)) return error.name; // a body it accepted and cannot read
  }
  return "accepted";
};
process.stdout.write(JSON.stringify(cases.map((one) => {
  const webhook = new Webhook(one.secret);
  return {
    signature: webhook.sign(one.message_id, new Date(one.timestamp * 1000), one.text),
    verdict: verdict(webhook, one),
  };
})));
"""

AskNode = Callable[[list[Case]], list[Answer]]


@pytest.fixture(scope="session")
def ask_node(tmp_path_factory: pytest.TempPathFactory) -> AskNode:
    node = node_program()
    modules = installed_modules(tmp_path_factory.mktemp("node"))

    def ask(cases: list[Case]) -> list[Answer]:
        done = subprocess.run(
            [node, "-e", NODE_PROGRAM],
            input=json.dumps({"now": NOW, "cases": [asdict(case) for case in cases]}).encode(),
            env={**os.environ, "NODE_PATH": modules},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return [Answer(**answer) for answer in json.loads(done.stdout)]

    return ask


def random_case(chance: random.Random) -> Case:
    alphabet = 'abcXYZ019_-:/ \u00e9\u4e2d\U0001f600"\\{}\n\0'
    text = "".join(chance.choices(alphabet, k=chance.choice([0, 1, 50, 3000])))
    message_id = "".join(chance.choices(alphabet[:-2], k=chance.randint(1, 40)))
    secret = secret_of(chance.randbytes(chance.choice([16, 24, 32, 64, 65, 100])))
    headers = sign(secret, message_id, text.encode(), timestamp=NOW)
    return Case(secret, message_id, NOW, text, headers)


def test_node_makes_the_signatures_that_we_make_and_each_accepts_the_others(
    ask_node: AskNode,
) -> None:
    chance = random.Random(2)
    cases = [random_case(chance) for _ in range(300)]
    for case, answer in zip(cases, ask_node(cases), strict=True):
        assert answer.signature == case.headers["webhook-signature"], case
        assert answer.verdict == "accepted", case
        by_node = {**case.headers, "webhook-signature": answer.signature}
        assert we_accept(case.body, by_node, case.secret, NOW)


def test_node_comes_to_our_verdict_on_whatever_is_well_formed(ask_node: AskNode) -> None:
    chance = random.Random(3)
    cases, sent_bodies = [], []
    for changed in CHANGES.values():
        for age in (-301, -300, 0, 300, 301):
            case = random_case(chance)
            signed = sign(case.secret, case.message_id, case.body, timestamp=NOW - age)
            headers, body = changed(signed, case.body)
            cases.append(replace(case, headers=headers, text=body.decode()))
            sent_bodies.append(body)
    verdicts = [
        "accepted" if we_accept(case.body, case.headers, case.secret, NOW) else "refused"
        for case in cases
    ]
    assert {"accepted", "refused"} == {*verdicts}
    for case, answer, ours in zip(cases, ask_node(cases), verdicts, strict=True):
        assert answer.verdict == ours, case


def test_node_accepts_both_signatures_of_our_rotation_with_either_secret(
    ask_node: AskNode,
) -> None:
    headers = sign([OTHER, SECRET], "evt_1", b"{}", timestamp=NOW)
    cases = [Case(secret, "evt_1", NOW, "{}", headers) for secret in (SECRET, OTHER)]
    assert [answer.verdict for answer in ask_node(cases)] == ["accepted"] * 2
    assert (
        " ".join(answer.signature for answer in reversed(ask_node(cases)))
        == (headers["webhook-signature"])
    )


def test_where_node_is_lenient_we_refuse(ask_node: AskNode) -> None:
    """Node reads only a timestamp's leading digits, and only the first two parts of an entry."""
    genuine = sign(SECRET, "evt_1", b"{}", timestamp=NOW)
    timestamps = (f"+{NOW}", f" {NOW}", f"{NOW}x", f"{NOW}.9", f"0{NOW}", f"{NOW}\n")
    spelt_anew = [
        *({**genuine, "webhook-timestamp": value} for value in timestamps),
        {**genuine, "webhook-signature": f"{GOOD},x"},
    ]
    cases = [Case(SECRET, "evt_1", NOW, "{}", headers) for headers in spelt_anew]
    lenient = [
        case
        for case, answer in zip(cases, ask_node(cases), strict=True)
        if answer.verdict == "accepted"
    ]
    if not lenient:
        pytest.skip("this version of the library has become strict")
    assert not [case for case in lenient if we_accept(b"{}", case.headers, SECRET, NOW)]
