"""Hidden values, wherever they appear, and bodies that could break a page."""

import json
import re
import string
from collections.abc import Callable
from html import escape
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookonce.events import EventParser
from hookonce.operations.inspector import Redaction
from hookonce.operations.inspector.bodies import ShownBody, shown_body
from hookonce.operations.inspector.models import Model, model_of
from hookonce.operations.inspector.redactor import Redactor
from hookonce.testing import event_body, make_event

pytestmark = pytest.mark.sample(50, of="file")


def read(body: bytes, redaction: Redaction | None = None) -> ShownBody:
    return shown_body(body, Redactor(redaction or Redaction()))


def modelled(body: bytes, event_id: str | None, redaction: Redaction | None = None) -> Model:
    """Return the model of an event as a page shows it; a page redacts the body first."""
    redactor = Redactor(redaction or Redaction())
    shown_body(body, redactor)
    return model_of(body, event_id, EventParser(), redactor)


def scrubbed(text: str, *hidden: str) -> str:
    """Return a text without the values that were hidden elsewhere on the page."""
    redactor = Redactor(Redaction())
    for value in hidden:
        redactor.hide(value)
    return redactor.scrub(text)


def hidden_in_text(text: str, redaction: Redaction | None = None) -> str:
    return Redactor(redaction or Redaction()).text(text)


HIDE_TEXT = Redaction(paths=["data.text", "data.*.name"])


@pytest.mark.parametrize(
    "name", ["Authorization", "cookie", "Set-Cookie", "webhook-signature", "X-Hub-Signature-256"]
)
def test_signatures_and_credentials_are_hidden_whatever_is_configured(name: str) -> None:
    assert Redaction(headers=[], keys=[]).hides_header(name)


def test_headers_are_hidden_by_name_in_any_case() -> None:
    redaction = Redaction(headers=["X-Tenant"])
    assert redaction.hides_header("x-tenant")
    assert not redaction.hides_header("content-type")


@pytest.mark.parametrize("name", ["x-bot-token", "X-Amz-Security-Token", "X-Webhook-Secret"])
def test_headers_are_hidden_by_the_names_of_fields_too(name: str) -> None:
    assert Redaction().hides_header(name)
    assert not Redaction(keys=[]).hides_header(name)


SPELLINGS = [
    "apiKey",
    "api_key",
    "API-KEY",
    "userPassword",
    "user_password",
    "userpassword",
    "authToken",
    "authtoken",
    "bot_token",
    "BOT.TOKEN",
    "password2",
    "password_2",
    "newCVC",
    "user[password]",
    "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44",  # full-width letters
    "pass\u200bword",
    "x" * 5000 + "Token",
]


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_key_is_hidden_at_any_depth_and_in_any_spelling(name: str) -> None:
    body = read(json.dumps({"a": [{name: "hush-hush"}]}).encode())
    assert "hush-hush" not in repr(body.tokens)
    assert "[redacted]" in repr(body.tokens)


def test_a_path_hides_its_field_and_no_other() -> None:
    body = b'{"text": "seen", "data": {"text": "unseen", "author": {"name": "unseen too"}}}'
    shown = repr(read(body, HIDE_TEXT).tokens)
    assert "seen" in shown
    assert "unseen" not in shown


def test_the_raw_text_is_withheld_where_something_in_it_is_hidden() -> None:
    assert read(b'{"password": "hush-hush"}').raw is None
    assert read(b'{"name": "x"}').raw == '{"name": "x"}'


def test_a_name_that_is_given_twice_is_hidden_twice() -> None:
    body = read(b'{"a": {"secret": "hush-hush"}, "a": 1}')
    assert body.raw is None
    assert "hush-hush" not in repr(body.tokens)


@pytest.mark.parametrize(
    "text",
    [
        b'{"password": "hush-hush", ',
        b'{"password": "hush-hush',
        b"password=hush-hush&x=1",
        b'{"passWord" : hush-hush',
        b"'password': 'hush-hush'",
        b"'password': 'no hush-hush'",
        b"closed: api_key=hush-hush",
        b"Authorization: Bearer hush-hush",
        b"Access-Token = hush-hush; x",
        b"userPassword=hush-hush",
        b"user=x&bot_token=hush-hush,and,hush-hush;&y=1",
        b"user%5Bpassword%5D=hush%2Dhush&pass%77ord=hush-hush",
        b"payload=%7B%22password%22%3A%22hush-hush%22%7D",
        b"to=%2Fcb%3Ftoken%3Dhush-hush%26x%3D1",
        b"see /cb%3Ftoken%3Dhush-hush%26x%3D1 there",
        b"<a><password>hush-hush</password></a>",
        b"<a><ns:userPassword kind='x'><![CDATA[hush-hush]]> <b>hush-hush</b></ns:userPassword>",
        b"<a><token>hush-hush",
        b"<user password='hush-hush'/><user password=hush-hush>",
        b"{'credentials': {'user': 'hush-hush', 'key': ['hush-hush']}, 'x': 1",
        b'log: "{\\"password\\": \\"no hush-hush\\", \\"x\\": 1}"',
        b"log: '\\n\\tcvc: hush-hush'",
        b'{"pass\\u0077ord": "hush-hush", ',
        "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1a hush-hush".encode(),
        b"Login(password=Text('no hush-hush', 2), user='x')",
        b"password=<hush-hush>, x",
        b"password                    : hush-hush",
        b"password => 'hush-hush'; password == 'hush-hush'",
        b"cannot reach postgres://app:hush-hush@db/hooks",
        "<password>hush-hush</password>".encode("utf-16"),
        "password=hush-hush".encode("utf-16-le"),
    ],
)
def test_text_that_is_not_json_hides_all_that_follows_a_hidden_name(text: bytes) -> None:
    shown = read(text)
    assert shown.tokens == ()
    assert shown.raw is not None
    assert "hush" not in shown.raw.replace("\0", "")
    assert "[redacted]" in shown.raw


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hush-hush", "a": [1]}',
        '"{\\"credentials\\": {\\"a\\": [\\"hush-hush\\"]}}"',
        "user=x&password=hush-hush",
        "<a><password>hush-hush</password></a>",
        "a note: password is: no, token: hush-hush",
    ],
)
def test_a_string_in_json_may_itself_be_json_a_form_or_xml(text: str) -> None:
    body = json.dumps({"type": "x.y", "data": {"payload": text}}).encode()
    shown = read(body)
    assert "hush-hush" not in repr(shown.tokens)
    assert shown.raw is None
    assert "[redacted]" in repr(shown.tokens)
    event = make_event("comment.received", data={"payload": text}, extra=True)
    model = modelled(event.model_dump_json().encode(), event.id)
    assert "hush-hush" not in repr(model)


def test_a_text_hides_all_that_follows_a_hidden_name() -> None:
    """In a traceback, the rest of the line is hidden, but not the next line."""
    text = "user=x&password=hush-hush&y=1\nand so on"
    assert hidden_in_text(text) == "user=x&password=[redacted]"
    redactor = Redactor(Redaction())
    assert redactor.text(text, by_line=True) == "user=x&password=[redacted]\nand so on"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("secrets: whsec_MfKQ9r8GKYqr= and on", "secrets: [redacted] and on"),
        ("signs with whsk_MfKQ9r8GKYqr= and on", "signs with [redacted] and on"),
        ("got v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9N= no", "got [redacted] no"),
        ("sent Bearer abcdefghijklmnop to x", "sent [redacted] to x"),
        ("no postgres://app:hush@db/hooks", "no postgres://[redacted]@db/hooks"),
        ("-----BEGIN PRIVATE KEY-----\nMIIB\nAB==\n-----END", "[redacted]-----END"),
        ("a bearer of news, v1, www://x", "a bearer of news, v1, www://x"),
        ("secrets begin with whsec_ as a rule", "secrets begin with whsec_ as a rule"),
    ],
)
def test_secrets_that_are_known_by_their_form_are_hidden_under_any_name(
    text: str, shown: str
) -> None:
    assert Redactor(Redaction(keys=[])).text(text) == shown
    [name] = [
        token.text for token in read(json.dumps({text: 1}).encode()).tokens if token.kind == "name"
    ]
    assert name == json.dumps(shown)


def test_a_value_that_is_hidden_already_stays_hidden() -> None:
    assert hidden_in_text("x; token=[redacted]") == "x; token=[redacted]"


def test_a_path_with_a_wildcard_withholds_text_that_is_not_json() -> None:
    redaction = Redaction(paths=["data.*"])
    assert read(b'{"data": {"a": "hush-hush"}, ', redaction).raw is None


def test_a_hidden_value_is_hidden_under_other_names_too() -> None:
    body = b'{"password": "hush-hush", "pin": 1, "log": "logged in by hush-hush", "token": 12345,'
    shown = read(body + b' "hush-hush": 12345, "count": 1}')
    text = "".join(token.text for token in shown.tokens)
    assert "hush-hush" not in text
    assert "12345" not in text
    assert '"count": 1' in text


SECRETS = [
    "hush-hush",
    "737",
    "a'b\"c\\d\ne",
    "gr\u00fc\u00dfe & <co>",
    "x y/z%",
    "\U0001f92b quiet",
]


QUOTINGS: list[Callable[[str], str]] = [
    str,
    repr,
    ascii,
    json.dumps,
    lambda value: json.dumps({"x": value}, ensure_ascii=False),
    lambda value: repr({"x": value}),
    lambda value: repr([f"'{value}\""]),
    lambda value: str(KeyError(value)),
    lambda value: repr(value.encode()),
    lambda value: " ".join(value.split()),
    quote,
    quote_plus,
    escape,
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("quoting", QUOTINGS, ids=range(len(QUOTINGS)))
def test_a_hidden_value_is_found_however_it_is_written(
    secret: str, quoting: Callable[[str], str]
) -> None:
    shown = scrubbed(f"it failed for {quoting(secret)}: no", secret)
    assert shown.startswith("it failed for ")
    assert shown.endswith(": no")
    for part in re.findall(r"\w{2,}", secret):
        assert part not in shown.removeprefix("it failed for ").removesuffix(": no")


@given(
    st.text(string.ascii_letters + "'\"\\ \n\t&<>;%+=#/{}\u00fc\u6f22\U0001f92b", max_size=12),
    st.lists(st.sampled_from(QUOTINGS[:-1]), max_size=3),  # without `escape`: HTML is not nested
)
@example("\u00fc", [ascii, quote])
@example("\u00fc", [lambda value: repr(value.encode()), repr, quote])
def test_a_hidden_value_is_found_in_a_text_within_a_text(
    middle: str, quotings: list[Callable[[str], str]]
) -> None:
    secret = text = f"start{middle}end"
    for quoting in quotings:
        text = quoting(f"see {text}!")
    shown = scrubbed(text, secret)
    assert "start" not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("input_value='a-long-sec...' here", "input_value='[redacted]...' here"),
        ("'a-long...lue-that-is-hidden'", "'a-long...[redacted]'"),
        (
            "before\na-long-secret-\n[…]\nis-hidden, yes",
            "before\n[redacted], yes",
        ),
        ("the error ends with a-long-secret-va", "the error ends with [redacted]"),
        ("before it stands xa-long-secret", "before it stands x[redacted]"),
        ("wait... a long way", "wait... a long way"),
    ],
)
def test_eight_letters_of_a_hidden_value_are_hidden_where_it_was_cut(text: str, shown: str) -> None:
    assert scrubbed(text, "a-long-secret-value-that-is-hidden") == shown


def test_a_value_whose_name_is_in_the_field_beside_it_is_hidden() -> None:
    body = (
        b'{"headers": [{"name": "X-Auth-Token", "value": "hush-hush"}, {"name": "a", "value": 1}]}'
    )
    shown = "".join(token.text for token in read(body).tokens)
    assert "hush-hush" not in shown
    assert '"value": 1' in shown


def test_text_that_is_not_json_hides_a_value_everywhere() -> None:
    shown = read(b"hush-hush logged in with password=hush-hush")
    assert shown.raw == "[redacted] logged in with password=[redacted]"


def test_null_and_true_are_not_hidden_elsewhere() -> None:
    redactor = Redactor(Redaction())
    shown_body(b'{"password": null, "token": true, "secret": ""}', redactor)
    assert redactor.scrub("None, null, True") == "None, null, True"


def test_texts_are_withheld_if_there_are_too_many_hidden_values() -> None:
    redactor = Redactor(Redaction())
    many = json.dumps([{"token": f"hush-{number}"} for number in range(4000)]).encode()
    body = shown_body(many, redactor)
    assert "hush" not in repr(body.tokens)
    shown = redactor.scrub("it was hush-999")
    assert "hush" not in shown
    assert "not shown" in shown


def test_other_names_in_a_text_hide_nothing() -> None:
    text = "reason: closed; tokens: 3; my_password_policy = strict"
    assert hidden_in_text(text) == text
    assert hidden_in_text("password=x", Redaction(keys=[])) == "password=x"


def test_the_model_hides_what_the_body_hides() -> None:
    event = make_event("comment.received", data={"text": "hush-hush", "token": "quiet"}, extra=True)
    model = modelled(event.model_dump_json().encode(), event.id, HIDE_TEXT)
    hidden = {field.path for field in model.fields if field.is_hidden}
    assert hidden == {"data.text", "data.token"}
    assert "hush-hush" not in repr(model)


def test_the_model_marks_unknown_fields() -> None:
    event = make_event("comment.received", data={"mood": {"now": "glad"}}, extra=True)
    model = modelled(event.model_dump_json().encode(), event.id)
    assert model.name == "CommentReceived"
    unknown = [(field.path, field.value) for field in model.fields if field.is_unknown]
    assert unknown == [("data.mood.now", "glad")]


def test_an_unreadable_body_is_shown_with_the_reason() -> None:
    assert "not JSON" in modelled(b"{", "evt_1").problem
    other = modelled(event_body("comment.received"), "evt_other")
    assert "is not the id that was signed" in other.problem


def test_hidden_values_are_removed_from_other_texts() -> None:
    assert scrubbed("hush-hush, no, not", "hush-hush", "no") == "[redacted], [redacted], not"


@pytest.mark.parametrize("argument", ["headers", "keys", "paths"])
def test_a_single_string_is_refused_as_names(argument: str) -> None:
    with pytest.raises(TypeError, match=argument):
        Redaction(**{argument: "password"})


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 500 + b"]" * 500,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"9" * 10_000,
        b"[" + b"1," * 100_000 + b"1]",
        b"1e999999",
        b"NaN",
        b'"\\ud83d"',
        b"\xff\xfe",
        b"",
        b"a" * 2_000_000,
        b'"a":' * 100_000,
        b'{"type": "x.y", "data": {"'
        + b"k" * 200_000
        + b'": {'
        + b'"a":1,"b":2,' * 200
        + b'"c":3}}}',
        b'{"a": "' + b"a" * 250_000 + b'"}',
        b"password=" * 20_000,
        b"<token>" * 20_000,
        b"password={" * 20_000,
        b"://a:b@" * 20_000,
    ],
)
def test_no_body_breaks_the_page_or_makes_it_endless(body: bytes) -> None:
    shown = read(body)
    assert len(repr(shown)) < 1_000_000
    model = modelled(body, "evt_1")
    assert len(repr(model)) < 1_000_000


# The alphabet lacks characters of recognizable secrets: `whsec_…`, `v1,…`, `://a@`.
HARMLESS = st.characters(codec="utf-8", exclude_characters="_,@")


@given(
    st.recursive(
        st.none() | st.text(HARMLESS) | st.integers() | st.floats(allow_nan=False),
        lambda c: (
            st.lists(c, max_size=4) | st.dictionaries(st.text(HARMLESS, max_size=9), c, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_the_shown_json_equals_the_body(value: object) -> None:
    nothing_hidden = Redaction(keys=[])
    shown = read(json.dumps(value).encode("utf-8", "surrogatepass"), nothing_hidden)
    assert json.loads("".join(token.text for token in shown.tokens)) == value
