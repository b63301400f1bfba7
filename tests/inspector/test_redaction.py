"""What is hidden, wherever it stands; and bodies that would break a page that shows them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookonce.events import EventParser
from hookonce.inspector import Redaction
from hookonce.inspector.bodies import model_of, shown_body
from hookonce.inspector.redaction import scrubbed
from hookonce.testing import event_body, make_event

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


@pytest.mark.parametrize("name", ["apiKey", "api_key", "API-KEY"])
def test_a_key_is_hidden_at_any_depth_and_in_any_spelling(name: str) -> None:
    body = shown_body(json.dumps({"a": [{name: "hush-hush"}]}).encode(), Redaction())
    assert "hush-hush" not in repr(body.tokens)
    assert "[redacted]" in repr(body.tokens)
    assert body.hidden == {"hush-hush"}


def test_a_path_hides_its_field_and_no_other() -> None:
    body = b'{"text": "seen", "data": {"text": "unseen", "author": {"name": "unseen too"}}}'
    shown = repr(shown_body(body, HIDE_TEXT).tokens)
    assert "seen" in shown
    assert "unseen" not in shown


def test_the_raw_text_is_withheld_where_something_in_it_is_hidden() -> None:
    assert shown_body(b'{"password": "hush-hush"}', Redaction()).raw is None
    assert shown_body(b'{"name": "x"}', Redaction()).raw == '{"name": "x"}'


def test_a_name_that_is_given_twice_is_hidden_twice() -> None:
    body = shown_body(b'{"a": {"secret": "hush-hush"}, "a": 1}', Redaction())
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
    ],
)
def test_what_is_no_json_is_shown_without_what_stands_behind_hidden_names(text: bytes) -> None:
    shown = shown_body(text, Redaction())
    assert shown.tokens == ()
    assert shown.raw is not None
    assert "hush-hush" not in shown.raw


def test_other_names_in_a_text_hide_nothing() -> None:
    text = "reason: closed; tokens: 3; my_password_policy = strict"
    assert Redaction().hide_in_text(text) == text
    assert Redaction(keys=[]).hide_in_text("password=x") == "password=x"


def test_the_model_hides_what_the_body_hides() -> None:
    event = make_event("comment.received", data={"text": "hush-hush", "token": "quiet"})
    model = model_of(event.model_dump_json().encode(), event.id, EventParser(), HIDE_TEXT)
    hidden = {field.path for field in model.fields if field.is_hidden}
    assert hidden == {"data.text", "data.token"}
    assert "hush-hush" not in repr(model)


def test_the_model_marks_what_it_does_not_know() -> None:
    event = make_event("comment.received", data={"mood": {"now": "glad"}})
    model = model_of(event.model_dump_json().encode(), event.id, EventParser(), Redaction())
    assert model.name == "CommentReceived"
    unknown = [(field.path, field.value) for field in model.fields if field.is_unknown]
    assert unknown == [("data.mood.now", "glad")]


def test_what_cannot_be_read_is_said() -> None:
    assert "not JSON" in model_of(b"{", "evt_1", EventParser(), Redaction()).problem
    other = model_of(event_body("comment.received"), "evt_other", EventParser(), Redaction())
    assert "webhook-id" in other.problem


def test_hidden_values_are_taken_out_of_other_texts() -> None:
    assert scrubbed("it was hush-hush, no", ["hush-hush", "no"]) == "it was [redacted], no"


@pytest.mark.parametrize("argument", ["headers", "keys", "paths"])
def test_a_lone_text_is_refused_where_several_names_belong(argument: str) -> None:
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
    ],
)
def test_no_body_breaks_the_page_or_makes_it_endless(body: bytes) -> None:
    shown = shown_body(body, Redaction())
    assert len(repr(shown)) < 1_000_000
    model_of(body, "evt_1", EventParser(), Redaction())


@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.floats(allow_nan=False),
        lambda c: st.lists(c, max_size=4) | st.dictionaries(st.text(max_size=9), c, max_size=4),
        max_leaves=20,
    )
)
def test_what_is_shown_is_the_same_json(value: object) -> None:
    nothing_hidden = Redaction(keys=[])
    shown = shown_body(json.dumps(value).encode("utf-8", "surrogatepass"), nothing_hidden)
    assert json.loads("".join(token.text for token in shown.tokens)) == value
