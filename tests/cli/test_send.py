"""`hookonce send` posts the same request as a genuine sender, and shows the answer."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue
from standardwebhooks import Webhook

from hookonce import Refusal, VerificationError, unwrap, verify
from hookonce.events import EVENT_CLASSES, UnknownEvent

from .recorder import Received, Recorder, closed_port_url, recording
from .running import COMMAND, OLD_SECRET, SECRET, Result, invoke, running

pytestmark = pytest.mark.sample(20, of="file")

NOW = 1_780_000_000


@pytest.fixture
def server() -> Iterator[Recorder]:
    """Run an endpoint that records every request."""
    with recording() as recorder:
        yield recorder


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze the time of signatures at NOW."""
    monkeypatch.setattr("hookonce.testing.system_clock", lambda: float(NOW))


def send(server: Recorder, *arguments: str, stdin: bytes = b"") -> Result:
    """Send with SECRET configured."""
    return invoke("send", *arguments, "--url", server.url, secrets=[SECRET], stdin=stdin)


def sent(server: Recorder, *arguments: str, stdin: bytes = b"") -> Received:
    """Send, and return the only request that arrived."""
    result = send(server, *arguments, stdin=stdin)
    assert (result.status, result.errors) == (0, ""), result
    (received,) = server.requests
    return received


def refusal_of(received: Received, *, now: float | None = None) -> Refusal | None:
    """Return why a request is refused; None if it is genuine."""
    try:
        verify(received.body, received.headers, SECRET, now=now)
    except VerificationError as error:
        return error.reason
    return None


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_a_sample_of_each_type_is_genuine_and_reads_as_its_class(
    event_type: str, server: Recorder
) -> None:
    received = sent(server, event_type)
    event = unwrap(received.body, received.headers, SECRET)
    assert type(event) is EVENT_CLASSES[event_type]
    Webhook(SECRET).verify(
        received.body, {name.decode(): value.decode() for name, value in received.headers.items()}
    )
    assert received.headers[b"example-event-type"].decode() == event_type
    assert received.headers[b"example-delivery-attempt"] == b"1"
    assert received.headers[b"content-type"] == b"application/json"


def test_an_undocumented_type_is_sent_with_empty_data(server: Recorder) -> None:
    received = sent(server, "ad.published", "--unchecked")
    event = unwrap(received.body, received.headers, SECRET)
    assert isinstance(event, UnknownEvent)
    assert (event.type, event.data) == ("ad.published", {})


def test_the_answer_is_shown_in_one_line(server: Recorder) -> None:
    result = send(server, "comment.received", "--id", "evt_1")
    assert re.fullmatch(
        r'comment\.received evt_1: 200 \{"status": "accepted", "reason": "handled"\}'
        r" \(\d+\.\d ms\)\n",
        result.output,
    )


def test_with_json_each_answer_is_a_record(server: Recorder) -> None:
    server.statuses = [200, 503]
    result = send(server, "webhook.test", "--id", "evt_1", "--times", "2", "--json")
    records = [json.loads(line) for line in result.output.splitlines()]
    times = [record.pop("milliseconds") for record in records]
    assert all(time > 0 for time in times)
    assert [record.pop("status") for record in records] == [200, 503]
    assert (
        records
        == [{"id": "evt_1", "type": "webhook.test", "attempt": 1, "answer": server.answer.decode()}]
        * 2
    )
    assert result.status == 1


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        (["data.text=Hello there"], ["data", "text"], "Hello there"),
        (["data.text="], ["data", "text"], ""),
        (["data.text=a=b"], ["data", "text"], "a=b"),
        (["data.text=Zoë 🍞"], ["data", "text"], "Zoë 🍞"),
        (["data.isHidden=true"], ["data", "isHidden"], True),
        (["data.parentId=null"], ["data", "parentId"], None),
        (["data.author_username=ann"], ["data", "authorUsername"], "ann"),
        (["workspace_id=ws_1"], ["workspaceId"], "ws_1"),
        (['data.text="12"'], ["data", "text"], "12"),
        (["data={}", "data.text=new"], ["data"], {"text": "new"}),
        (["workspaceId=ws_1"], ["workspaceId"], "ws_1"),
    ],
)
def test_set_changes_a_field_and_leaves_the_rest(
    changes: list[str], path: list[str], value: JsonValue, server: Recorder
) -> None:
    options = [option for change in changes for option in ("--set", change)]
    received = sent(server, "comment.received", *options)
    verify(received.body, received.headers, SECRET)
    found = json.loads(received.body)
    assert found["type"] == "comment.received"
    for name in path:
        found = found[name]
    assert found == value
    if path[:1] == ["data"] and len(path) > 1:
        assert json.loads(received.body)["data"]["authorName"] == "Inês"


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("data.likes=12", ["data", "likes"], 12),
        ('data.tags=["a", {"b": 1}]', ["data", "tags"], ["a", {"b": 1}]),
        ("data.author.name.first=Inês", ["data", "author", "name", "first"], "Inês"),
        ("data.author_name=Ann", ["data", "authorName"], "Ann"),
        ("sent_by=me", ["sent_by"], "me"),
    ],
)
def test_a_field_that_is_new_is_added_on_demand(
    change: str, path: list[str], value: JsonValue, server: Recorder
) -> None:
    found = json.loads(sent(server, "comment.received", "--set", change, "--unchecked").body)
    for name in path:
        found = found[name]
    assert found == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["comment.received", "--set", "data.txt=1"],
            "'data.txt' (did you mean 'text'?); --unchecked",
        ),
        (["comment.received", "--set", "text=Hello"], "'text' (did you mean 'data.text'?)"),
        (["comment.received", "--set", "worksapce_id=1"], "(did you mean 'workspace_id'?)"),
        (["post.target.failed", "--set", "data.error.cod=1"], "'data.error.cod'"),
        (["chanel.unhealthy"], "(did you mean 'channel.unhealthy'?); --unchecked"),
        (["Comment.Received"], "(did you mean 'comment.received'?)"),
        (["zzz"], "'zzz' is no event type known here; --unchecked"),
    ],
)
def test_a_field_or_type_that_is_misspelt_is_not_sent(
    arguments: list[str], words: str, server: Recorder
) -> None:
    send(server, *arguments).says(words, status=2)
    assert server.requests == []


def test_any_field_may_be_set_in_data_without_documented_fields(
    server: Recorder,
) -> None:
    received = sent(server, "message.received", "--set", "data.conversationId=c_1")
    assert json.loads(received.body)["data"]["conversationId"] == "c_1"


def test_a_given_id_is_signed(server: Recorder) -> None:
    received = sent(server, "comment.received", "--set", "id=evt_mine")
    assert received.headers[b"webhook-id"] == b"evt_mine"
    assert unwrap(received.body, received.headers, SECRET).id == "evt_mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.text", "'data.text' is not of the form PATH=VALUE"),
        ("=value", "'=value' is not of the form PATH=VALUE"),
        ("data.text.more=1", "'data.text.more' leads through a value that is no object"),
        ("data.text.more.still=1", "leads through a value that is no object"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(
    change: str, message: str, server: Recorder
) -> None:
    send(server, "comment.received", "--set", change).says(message, status=2)
    assert server.requests == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["comment.received", "--id", "evt.1"],
        ["comment.received", "--id", "evt\n1"],
        ["comment.received", "--id", "e" * 513],
        ["comment.received", "--skew", "999999d"],
        ["comment.received", "--set", r'data.text="\ud83c"'],
        ["comment.received", "--set", "data.text=NaN"],
        ["comment\nreceived", "--unchecked"],
    ],
)
def test_an_event_that_cannot_be_sent_is_refused_in_one_line(
    arguments: list[str], server: Recorder
) -> None:
    send(server, *arguments).says(f"cannot deliver to {server.url}: ", status=1)
    assert server.requests == []


@pytest.mark.parametrize(
    "body", [b"", b'{"id":"evt_1","type":"a.b"}\r\n', b"\xef\xbb\xbf{}", b"\x00\xff\xfe" * 1000]
)
@pytest.mark.parametrize("source", ["file", "standard input"])
def test_a_body_from_a_file_is_sent_byte_for_byte(
    body: bytes, source: str, server: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(body)
    place = str(tmp_path / "body") if source == "file" else "-"
    received = sent(server, "any.type", "--body", place, stdin=body)
    assert received.body == body
    verify(received.body, received.headers, SECRET)


def test_a_saved_body_is_sent_under_its_own_id(server: Recorder, tmp_path: Path) -> None:
    """A receiver could not read the body under another id."""
    saved = sent(server, "comment.received").body
    (tmp_path / "saved.json").write_bytes(saved)
    send(server, "comment.received", "--body", str(tmp_path / "saved.json"))
    again = server.requests[1]
    assert again.headers[b"webhook-id"].decode() == json.loads(saved)["id"]
    assert unwrap(again.body, again.headers, SECRET).id == json.loads(saved)["id"]


def test_the_id_option_has_precedence_over_the_bodys_id(server: Recorder, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b'{"id":"evt_inside"}')
    received = sent(server, "a.b", "--id", "evt_1", "--body", str(tmp_path / "body"))
    assert received.headers[b"webhook-id"] == b"evt_1"
    assert received.body == b'{"id":"evt_inside"}'


def test_copies_of_a_body_without_an_id_share_one_webhook_id(server: Recorder) -> None:
    send(server, "a.b", "--body", "-", "--times", "3", stdin=b"no JSON")
    ids = {request.headers[b"webhook-id"] for request in server.requests}
    assert (len(server.requests), len(ids)) == (3, 1)


def test_an_id_is_in_the_header_and_in_the_sample(server: Recorder) -> None:
    received = sent(server, "comment.received", "--id", "evt_ü")
    assert received.headers[b"webhook-id"] == "evt_ü".encode()
    assert unwrap(received.body, received.headers, SECRET).id == "evt_ü"


def test_each_event_has_an_id_of_its_own(server: Recorder) -> None:
    for _ in range(2):
        send(server, "comment.received")
    first, second = (request.headers[b"webhook-id"] for request in server.requests)
    assert first != second


def test_the_attempt_option_sets_the_attempt_header(server: Recorder) -> None:
    received = sent(server, "comment.received", "--attempt", "9")
    assert received.headers[b"example-delivery-attempt"] == b"9"


@pytest.mark.usefixtures("frozen")
def test_times_delivers_the_same_event_again(server: Recorder) -> None:
    result = send(server, "comment.received", "--times", "3")
    assert len(result.output.splitlines()) == 3
    assert len(server.requests) == 3
    assert len({(request.body, request.headers[b"webhook-id"]) for request in server.requests}) == 1


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    ("skew", "refusal"),
    [
        ("300", None),
        ("301", Refusal.TIMESTAMP_TOO_OLD),
        ("-300", None),
        ("-301", Refusal.TIMESTAMP_TOO_NEW),
    ],
)
def test_the_skew_option_signs_as_of_another_time(
    skew: str, refusal: Refusal | None, server: Recorder
) -> None:
    received = sent(server, "comment.received", "--skew", skew)
    assert int(received.headers[b"webhook-timestamp"]) == NOW - int(skew)
    assert refusal_of(received, now=NOW) is refusal


@pytest.mark.parametrize("arguments", [["comment.received"], ["a.b", "--body", "-"]])
def test_the_tampered_option_changes_the_body_after_signing(
    arguments: list[str], server: Recorder
) -> None:
    received = sent(server, *arguments, "--tamper")
    assert refusal_of(received) is Refusal.NO_MATCHING_SIGNATURE


def test_the_newest_secret_of_the_environment_signs(server: Recorder) -> None:
    invoke("send", "webhook.test", "--url", server.url, secrets=[SECRET, OLD_SECRET])
    (received,) = server.requests
    verify(received.body, received.headers, SECRET)


def test_a_secrets_file_has_precedence_over_the_environment(
    server: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text(f"# newest first\n\n{OLD_SECRET}\n{SECRET}\n")
    received = sent(server, "webhook.test", "--secrets-file", str(tmp_path / "secrets"))
    verify(received.body, received.headers, OLD_SECRET)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no secret"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (SECRET[:-1].encode(), "secret 1 in "),
    ],
)
def test_a_secrets_file_that_cannot_be_used_is_named_and_not_shown(
    content: bytes, message: str, server: Recorder, tmp_path: Path
) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(content)
    send(server, "webhook.test", "--secrets-file", str(path)).says(message, str(path))
    assert server.requests == []


def test_without_secrets_the_error_says_how_to_configure_them(server: Recorder) -> None:
    invoke("send", "webhook.test", "--url", server.url).says("HOOKONCE_SECRETS")


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([200], 0),
        ([202], 0),
        ([204], 0),
        ([302], 1),
        ([401], 1),
        ([500], 1),
        ([200, 500, 200], 1),
        ([500, 200, 200], 1),
    ],
)
def test_the_command_succeeds_only_if_every_answer_is_a_2xx(
    statuses: list[int], status: int, server: Recorder
) -> None:
    server.statuses, server.answer = list(statuses), b""
    result = send(server, "webhook.test", "--times", str(len(statuses)))
    assert result.status == status
    assert [int(line.split()[2]) for line in result.output.splitlines()] == statuses


def test_a_url_without_a_server_is_reported_in_one_line() -> None:
    url = closed_port_url()
    result = invoke("send", "webhook.test", "--url", url, "--wait", "0", secrets=[SECRET])
    result.says(f"cannot deliver to {url}: ", "refused", status=1)


def test_a_server_that_still_starts_is_waited_for(tmp_path: Path) -> None:
    url = closed_port_url()
    with running("send", "webhook.test", "--url", url, here=tmp_path, secrets=[SECRET]) as sending:
        sending.printed(f"waiting for a server at {url}")
        with recording(int(url.split(":")[2].split("/")[0])) as server:
            assert sending.ended().status == 0
    assert len(server.requests) == 1


def test_the_command_waits_only_as_long_as_its_option_allows(server: Recorder) -> None:
    url = closed_port_url()
    started = time.monotonic()
    result = invoke("send", "webhook.test", "--url", url, "--wait", "0.3", secrets=[SECRET])
    assert result.status == 1
    assert time.monotonic() - started >= 0.3
    server.statuses = [503]
    assert send(server, "webhook.test").errors == "", "an answer is no reason to wait"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1/hooks", "ftp://127.0.0.1/", "http://127.0.0.1:port/"]
)
def test_an_invalid_url_is_refused_in_one_line(url: str) -> None:
    invoke("send", "webhook.test", "--url", url, secrets=[SECRET]).says(
        f"cannot deliver to {url}: "
    )


def test_control_characters_in_an_answer_are_escaped_on_the_terminal(server: Recorder) -> None:
    server.answer = "\x1b]0;owned\x07\x9b2Jtext\rmore\u202e".encode()
    shown = send(server, "webhook.test").output
    assert r"\x1b]0;owned\x07\x9b2Jtext\rmore\u202e" in shown
    assert all(char.isprintable() for char in shown.rstrip("\n"))
    (line,) = send(server, "webhook.test", "--json").output.splitlines()
    assert line.isprintable()
    assert json.loads(line)["answer"] == server.answer.decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_delivery_to_this_machine_uses_no_proxy(host: str, server: Recorder) -> None:
    url = server.url.replace("127.0.0.1", host)
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), closed_port_url())
    result = invoke("send", "webhook.test", "--url", url, secrets=[SECRET], environment=proxies)
    assert result.status == 0, result


def test_a_delivery_to_another_machine_uses_the_proxy_of_the_environment(server: Recorder) -> None:
    proxies = {"http_proxy": server.url}
    result = invoke(
        "send",
        "webhook.test",
        "--url",
        "http://far.example/",
        secrets=[SECRET],
        environment=proxies,
    )
    assert result.status == 0, result
    assert [request.path for request in server.requests] == ["http://far.example/"]


def test_body_and_set_exclude_each_other(server: Recorder) -> None:
    arguments = ["a.b", "--body", "-", "--set", "data.text=x"]
    send(server, *arguments, stdin=b"{}").says("--set changes the sample", status=2)
    assert server.requests == []


def test_a_shell_completes_event_types() -> None:
    words = {"COMP_WORDS": "hookonce send chan", "COMP_CWORD": "2"}
    done = subprocess.run(
        COMMAND,
        env={**os.environ, **words, "_HOOKONCE_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plain,channel.unhealthy", "plain,channel.disconnected"]
