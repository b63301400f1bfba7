"""An unusable secret is refused when it is configured, and no secret is ever shown."""

import base64
import copy
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.secrets import ChangingSecrets

from hookonce import (
    EnvironmentSecrets,
    FileSecrets,
    Receiver,
    SecretError,
    VerifiedDelivery,
    Verifier,
    WebhookError,
    sign,
    unwrap,
    verify,
)
from hookonce.emulator import EmulatedService
from hookonce.events import CommentReceived
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import (
    fingerprint,
    new_secret,
    secret_lines,
    split_secrets,
    verifying_key,
)

KEY = bytes(range(24))
ENCODED = base64.b64encode(KEY).decode()
SECRET = f"whsec_{ENCODED}"
NOW = 1_700_000_000
HEADERS = sign(SECRET, "evt_1", b"{}", timestamp=NOW)


@pytest.mark.parametrize("before", ["", " ", "\n", "\t \r\n"])
@pytest.mark.parametrize("after", ["", " ", "\n", "\r\n", " \t\n\n"])
@pytest.mark.parametrize("prefix", ["whsec_", ""])
def test_white_space_around_and_a_missing_prefix_are_forgiven(
    before: str, after: str, prefix: str
) -> None:
    secret = f"{before}{prefix}{ENCODED}{after}"
    assert verifying_key(secret).raw == KEY
    assert verify(b"{}", HEADERS, secret, now=NOW).id == "evt_1"


@given(st.binary(min_size=16, max_size=200))
@example(b"\xff" * 24)  # encoded as "////", which no other alphabet has
@example(b"\xfb\xef\xbe" * 8)  # encoded as "++++"
def test_the_key_is_the_standard_base64_after_the_prefix(key: bytes) -> None:
    encoded = base64.b64encode(key).decode()
    assert verifying_key(f"whsec_{encoded}").raw == key
    if len(key) >= 24:
        assert verifying_key(encoded).raw == key


UNUSABLE = {
    "empty": ("", "is empty"),
    "white space": (" \n", "is empty"),
    "only the prefix": ("whsec_", "is empty"),
    "the prefix and white space": ("whsec_ \n", "is empty"),
    "only padding": ("whsec_====", "padding|nothing"),
    "one padding character": ("whsec_=", "multiple of four|padding|nothing"),
    "public key": (f"whpk_{ENCODED}", "public key"),
    "private key": (f"whsk_{ENCODED}", "private key"),
    "public key after white space": (f" whpk_{ENCODED}", "public key"),
    "version before": (f"v1,{SECRET}", "remove the 'v1,'"),
    "version before a public key": (f"v1,whpk_{ENCODED}", "base64"),
    "prefix twice": (f"whsec_{SECRET}", "prefix"),
    "prefix in upper case": (f"WHSEC_{ENCODED}", "prefix"),
    "another prefix": (f"sk_live_{ENCODED}", "prefix"),
    "URL-safe alphabet": ("whsec_-_-_", "URL-safe"),
    "padding cut off": ("whsec_QUI", "multiple of four"),
    "one character too many": (f"{SECRET}A", "multiple of four"),
    "too much padding": (f"{SECRET}=", "multiple of four|padding"),
    "four times too much padding": (f"{SECRET}====", "padding"),
    "padding in the midst": ("whsec_QQ==QUJD", "padding"),
    "padding before": ("whsec_=QUJ", "padding"),
    "space in the midst": ("whsec_QUJD QUJD", "characters outside"),
    "line break in the midst": ("whsec_QUJD\nQUJD", "characters outside"),
    "space after the prefix": (f"whsec_ {ENCODED}", "characters outside"),
    "two secrets in one": (f"{SECRET} {SECRET}", "prefix|characters outside"),
    "in quotes": (f'"{SECRET}"', "prefix|characters outside"),
    "not ASCII": ("whsec_QUJ\u00e9", "characters outside"),
    "full-width digits": ("whsec_QUJ\uff11", "characters outside"),
    "lone surrogate": ("whsec_QUJ\ud800", "characters outside"),
    "NUL": ("whsec_QUJD\0", "characters outside"),
    "one byte": ("whsec_QQ==", "its key has 1 bytes, and 16 is the least"),
    "15 bytes": (f"whsec_{base64.b64encode(KEY[:15]).decode()}", "its key has 15 bytes"),
    "23 bytes without the prefix": (base64.b64encode(KEY[:23]).decode(), "does not start with"),
    "a setting that is None": ("None", "does not start with 'whsec_', and is too short"),
    "a setting that is null": ("null", "does not start with 'whsec_', and is too short"),
    "a setting that is true": ("true", "does not start with 'whsec_', and is too short"),
    "a placeholder": ("test", "does not start with 'whsec_', and is too short"),
    "a password": ("password", "does not start with 'whsec_', and is too short"),
    "a word after the prefix": ("whsec_password", "its key has 6 bytes"),
    "template that was not filled in": ("${WEBHOOK_SECRET}", "prefix|characters outside"),
}

WAYS: dict[str, Callable[[Any], object]] = {
    "Verifier": Verifier,
    "Verifier with a good one beside": lambda secret: Verifier([SECRET, secret]),
    "verify": lambda secret: verify(b"{}", HEADERS, [SECRET, secret], now=NOW),
    "unwrap": lambda secret: unwrap(b"{}", HEADERS, [SECRET, secret], now=NOW),
    "sign": lambda secret: sign([SECRET, secret], "evt_1", b""),
    "Receiver": lambda secret: Receiver(secrets=[SECRET, secret], store="memory://"),
    "a provider": lambda secret: Verifier(ChangingSecrets(SECRET, secret)),
    "a sample delivery": lambda secret: signed_request(make_event(CommentReceived), secret),
    "the emulated service": lambda secret: EmulatedService("http://127.0.0.1:1/", secret=secret),
}


@pytest.mark.sample(90)
@pytest.mark.parametrize("use", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize(("secret", "fault"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_secret_that_cannot_be_used_is_named_where_it_is_configured(
    use: Callable[[Any], object], secret: str, fault: str
) -> None:
    with pytest.raises(SecretError, match=fault):
        use(secret)


@pytest.mark.parametrize("word", ["None", "null", "true", "test", "password", "undefined", "x" * 8])
def test_a_word_in_a_setting_for_secrets_is_no_secret(
    word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Anybody can guess a key of a few bytes."""
    file = tmp_path / "secrets"
    for text in (word, f"{SECRET}\n{word}", f"{word}\n{SECRET}"):
        number = 2 if text.startswith(SECRET) else 1
        monkeypatch.setenv("HOOKONCE_SECRETS", text)
        with pytest.raises(SecretError, match=f"secret {number} in HOOKONCE_SECRETS cannot be"):
            EnvironmentSecrets()
        file.write_text(text)
        with pytest.raises(SecretError, match=f"secret {number} in {file} cannot be"):
            FileSecrets(file)
    with pytest.raises(SecretError, match="whsec_"):
        Verifier(word)


AGAIN = "copy the whole value again"
URL_SAFE = "it has '-' or '_', the URL-safe alphabet, or a prefix that is not 'whsec_'"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("whsec_", "the secret is empty; copy the whole value that starts with 'whsec_'"),
        ("whsec_ab-d", f"the secret is not standard base64: {URL_SAFE}; {AGAIN}"),
        ("whsec_ab_d", f"the secret is not standard base64: {URL_SAFE}; {AGAIN}"),
        (
            "secret-d",
            (
                "the secret does not start with 'whsec_' and is not standard base64:"
                f" {URL_SAFE}; {AGAIN}"
            ),
        ),
        (
            "whsec_abc!",
            (
                "the secret is not standard base64: it has characters outside A-Z a-z 0-9 + / =;"
                f" {AGAIN}"
            ),
        ),
        (
            "whsec_a=bc",
            f"the secret is not standard base64: its '=' padding is in the wrong place; {AGAIN}",
        ),
        (
            "whsec_abcde",
            (
                "the secret is not standard base64: its length is not a multiple of four:"
                " characters are missing, perhaps the '=' at the end;"
                f" {AGAIN}"
            ),
        ),
        (
            "abcd",
            (
                "the secret does not start with 'whsec_', and is too short to be one without; copy"
                " the whole value that was shown when the endpoint was made or its secret rotated"
            ),
        ),
        (
            "whsec_abcd",
            (
                "the secret is too short: its key has 3 bytes, and 16 is the least (24 to 64 are"
                " usual); copy the whole value, or rotate the endpoint's secret"
            ),
        ),
        (
            [1],
            (
                "a secret must be text such as 'whsec_…', not int; is the setting it comes from"
                " missing?"
            ),
        ),
        (None, "no secret is configured; is the setting it comes from missing?"),
        (3, "secrets must be text such as 'whsec_…', not int"),
    ],
)
def test_an_error_says_what_is_wrong_with_a_secret_and_what_to_do(secret: Any, text: str) -> None:
    with pytest.raises(SecretError) as caught:
        verify(b"", {}, secret)
    assert str(caught.value) == text


def test_a_key_shorter_than_usual_is_said_once_and_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    short, usual = (base64.b64encode(token_bytes(n)).decode() for n in (23, 24))
    with caplog.at_level("WARNING", logger="hookonce.secrets"):
        Verifier(f"whsec_{usual}")
        assert not caplog.records
        for _ in range(3):
            Verifier(f"whsec_{short}")
            sign([f"whsec_{usual}", f"whsec_{short}"], "evt_1", b"")
    (record,) = caplog.records
    assert "only 23 bytes (24 to 64 are usual)" in record.getMessage()
    assert not [
        piece for piece in windows(short) if piece in f"{record.getMessage()}{vars(record)}"
    ]


@pytest.mark.parametrize("secret", [None, b"whsec_QUJD", 5, ["whsec_QUJD"]])
@pytest.mark.parametrize("way", ["Verifier with a good one beside", "verify", "sign", "Receiver"])
def test_a_secret_that_is_no_text_is_a_secret_error_that_names_its_type(
    way: str, secret: Any
) -> None:
    with pytest.raises(SecretError, match=f"not {type(secret).__name__}"):
        WAYS[way](secret)


def test_bytes_are_no_secret_either() -> None:
    secret: Any = SECRET.encode()
    with pytest.raises(SecretError, match="not bytes; decode it"):
        Verifier(secret)


@pytest.mark.parametrize("nothing", [None, [], (), iter(()), ChangingSecrets()])
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(Verifier, id="Verifier"),
        pytest.param(lambda secrets: verify(b"{}", HEADERS, secrets, now=NOW), id="verify"),
        pytest.param(lambda secrets: unwrap(b"{}", HEADERS, secrets, now=NOW), id="unwrap"),
        pytest.param(lambda secrets: Receiver(secrets=secrets, store="memory://"), id="Receiver"),
    ],
)
def test_without_a_secret_nothing_starts(use: Callable[[Any], object], nothing: Any) -> None:
    with pytest.raises(SecretError, match=r"no secret|none is configured"):
        use(nothing)


def test_any_iterable_of_secrets_configures_a_verifier() -> None:
    other = new_secret()
    for secrets in (
        SECRET,
        [other, SECRET],
        (SECRET,),
        iter([SECRET]),
        ChangingSecrets(other, SECRET),
    ):
        configured: Any = secrets
        delivery = Verifier(configured).verify(b"{}", HEADERS, now=NOW)
        assert isinstance(delivery, VerifiedDelivery)


def test_a_secret_error_is_a_webhook_error_and_a_value_error() -> None:
    assert issubclass(SecretError, WebhookError)
    assert issubclass(SecretError, ValueError)


def windows(text: str) -> Iterator[str]:
    """Yield every part of a secret that is long enough to help an attacker."""
    return (text[n : n + 8] for n in range(len(text) - 7))


def everything_shown_by(error: SecretError) -> str:
    copies = (copy.copy(error), pickle.loads(pickle.dumps(error)))
    assert [str(twin) for twin in copies] == [str(error)] * 2
    shown = (str(error), repr(error), repr(vars(error)), repr(pickle.dumps(error)))
    return "".join([*shown, *traceback.format_exception(error)])


def spoil(secret: str) -> dict[str, str]:
    core = secret.removeprefix("whsec_")
    return {
        "public key": f"whpk_{core}{core}",  # has more than 32 bytes, so it is never a genuine key
        "private key": f"whsk_{core}",
        "version before": f"v1,{secret}",
        "cut": secret.rstrip("=")[:-1] if len(core.rstrip("=")) % 4 == 0 else secret.rstrip("="),
        "junk inside": f"{secret[:12]}!{secret[12:]}",
        "not ASCII": f"{secret}\u00e9",
        "lone surrogate": f"{secret[:12]}\ud800{secret[12:]}",
        "another prefix": f"sk_{core}",
        "padding inside": f"{core[:8]}==={core[8:]}=",
        "twice": secret + secret,
    }


@given(key=st.binary(min_size=18, max_size=80), good=st.binary(min_size=18, max_size=80))
def test_no_secret_error_shows_any_part_of_a_secret(key: bytes, good: bytes) -> None:
    spoilt = spoil("whsec_" + base64.b64encode(key).decode())
    beside = "whsec_" + base64.b64encode(good).decode()
    for fault, secret in spoilt.items():
        with pytest.raises(SecretError) as caught:
            Verifier([beside, secret])
        shown = everything_shown_by(caught.value)
        hidden = [*windows(base64.b64encode(key).decode()), *windows(beside[6:])]
        assert not [piece for piece in hidden if piece in shown], fault


@settings(max_examples=500)
@given(
    st.text(st.characters(exclude_categories=()))
    | st.text("ABab09+/=_-\n", max_size=12)
    | st.from_regex(r"\s?(whsec_)?[A-Za-z0-9+/]{0,40}={0,3}\s?", fullmatch=True)
)
@example("whsec_")
@example("v1,whsec_")
@example("QQ")
@example("whsec_" + "A" * 20)
@example("whsec_" + "A" * 21 + "=")
@example("A" * 31 + "=")
@example("A" * 32)
def test_a_text_is_a_secret_exactly_when_it_is_enough_standard_base64_and_else_a_secret_error(
    text: str,
) -> None:
    try:
        accepted = verifying_key(text).is_shared
    except SecretError:
        accepted = False
    encoded = text.strip().removeprefix("whsec_")
    digits = r"[A-Za-z0-9+/]"
    standard = re.fullmatch(rf"({digits}{{4}})*({digits}{{2}}==|{digits}{{3}}=)?", encoded)
    least = 22 if text.strip().startswith("whsec_") else 32  # digits for 16 bytes, or for 24
    assert accepted is bool(standard and len(encoded.rstrip("=")) >= least)


def test_the_repr_of_a_verifier_counts_its_secrets_and_shows_none() -> None:
    shown = repr(Verifier([SECRET, new_secret()], tolerance=60))
    assert "2 secrets" in shown
    assert "60" in shown
    assert ENCODED not in shown
    assert not [piece for piece in windows(ENCODED) if piece in shown]


def test_the_environment_is_a_provider_whose_repr_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKONCE_SECRETS", SECRET)
    assert not [piece for piece in windows(ENCODED) if piece in repr(EnvironmentSecrets())]


def test_a_new_secret_is_32_random_bytes_in_the_standard_spelling() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", first)
    assert verify(b"", sign(first, "evt_1", b""), [second, first]).secret_index == 1


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("a", ("a",)),
        ("a b", ("a", "b")),
        ("a,b", ("a", "b")),
        (" a ,\n b\t,", ("a", "b")),
        ("", ()),
        (" , ", ()),
        ("v1,whsec_a= b", ("v1,whsec_a=", "b")),  # the error of decoding names the mistake
    ],
)
def test_a_setting_holds_several_secrets_between_white_space_or_commas(
    text: str, secrets: tuple[str, ...]
) -> None:
    assert split_secrets(text) == secrets


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("a\nb\n", ("a", "b")),
        ("a\r\nb", ("a", "b")),
        ("# new\n a \n\n  # old\nb\n", ("a", "b")),
        ("# nothing\n\n", ()),
        ("", ()),
    ],
)
def test_a_file_holds_a_secret_a_line_but_for_blank_lines_and_comments(
    text: str, secrets: tuple[str, ...]
) -> None:
    assert secret_lines(text) == secrets


def test_a_fingerprint_distinguishes_secrets_and_never_changes() -> None:
    """A receiver compares the fingerprint with the fingerprint that another version has stored."""
    old, new = (
        "whsec_" + base64.b64encode(key).decode()
        for key in (b"the old secret, of 24 B.", b"the new secret, of 24 B.")
    )
    assert fingerprint(old) == fingerprint(old.removeprefix("whsec_")) == "c0cfd2436d35e553"
    assert fingerprint(new) != fingerprint(old)
    with pytest.raises(SecretError):
        fingerprint("whsec_")
