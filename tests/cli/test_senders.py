"""`hookonce send`, `hookonce serve` and `hookonce verify` work with every sender."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hookonce import sign
from hookonce.senders import openai, publishing, standard, svix

from .running import SECRET, Result, eventually, invoke, run, running

pytestmark = pytest.mark.sample(2, of="file")

APP = """
import json
from typing import Any, Literal

from pydantic import BaseModel

from hookonce import EnvironmentSecrets, Event, Receiver
from hookonce.senders import Envelope, Hints, Sender, openai, publishing, standard, svix


class Booking(BaseModel):
    seats: int


class BookingMade(Event[Booking]):
    type: Literal["booking.made"]
    tenant: str = ""


acme = Sender(
    name="acme",
    headers=("acme",),
    envelope=Envelope(type="meta.kind", created_at="meta.at", data="payload", times="seconds"),
    event_classes=(BookingMade,),
    hints=Hints(event_type="kind", attempt="try"),
)
coded = Sender(name="coded", envelope=Envelope(type=lambda body: body["kind"]))
receiver = Receiver(
    secrets=EnvironmentSecrets(), store="sqlite:///store.db", sender=SENDER
)


@receiver.on("*", name="note")
async def note(event: Event[Any]) -> None:
    seen = {
        "class": type(event).__name__,
        "id": event.id,
        "type": event.type,
        "has_time": event.created_at is not None,
        "data": event.data if isinstance(event.data, dict) else event.data.model_dump(mode="json"),
    }
    with open("seen.jsonl", "a") as file:
        print(json.dumps(seen), file=file)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A sender, and the event that a command sends for it.

    Attributes:
        sender: the value in the application, and its name for commands.
        seen: what the handler of the event sees, but for the id.
    """

    sender: str
    name: str
    event_type: str
    options: tuple[str, ...]
    seen: dict[str, object]
    prefix: str = "webhook"


CASES = [
    Case(
        "publishing",
        "publishing",
        "comment.received",
        ("--set", "data.text=Hello", "--attempt", "2"),
        {"class": "CommentReceived", "has_time": True, "data": {"text": "Hello"}},
    ),
    Case(
        "standard",
        "standard",
        "contact.created",
        ("--set", "data.name=Ada"),
        {"class": "UnknownStandardEvent", "has_time": True, "data": {"name": "Ada"}},
    ),
    Case(
        "svix",
        "svix",
        "invoice.paid",
        ("--set", "data.amount=3"),
        {"class": "UnknownEvent", "has_time": False, "data": {"amount": 3}},
        prefix="svix",
    ),
    Case(
        "openai",
        "openai",
        "response.completed",
        ("--set", "data.id=resp_1", "--set", "body_id=evt_other"),
        {"class": "ResponseCompleted", "has_time": True, "data": {"id": "resp_1"}},
    ),
    Case(
        "acme",
        "senders_app:acme",
        "booking.made",
        ("--set", "payload.seats=4", "--set", "tenant=t_1", "--attempt", "3"),
        {"class": "BookingMade", "has_time": True, "data": {"seats": 4}},
        prefix="acme",
    ),
]


def enter(folder: Path, sender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a folder with the application, whose receiver is for this sender."""
    (folder / "senders_app.py").write_text(APP.replace("SENDER", sender))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "senders_app", raising=False)


@pytest.fixture(params=CASES, ids=lambda case: case.sender)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Enter a folder with the application of a case, and return the case."""
    found: Case = request.param
    enter(tmp_path, found.sender, monkeypatch)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with the module, whose receiver is for Svix."""
    enter(tmp_path, "svix", monkeypatch)
    (tmp_path / "broken_senders.py").write_text("1 / 0")
    return tmp_path


def command(here: Path, *arguments: str) -> Result:
    return run(*arguments, here=here, secrets=[SECRET])


@pytest.mark.costs("2 s")
def test_what_is_sent_reaches_the_handler_of_a_receiver_of_the_same_sender(
    case: Case, tmp_path: Path
) -> None:
    with running(
        "serve", "senders_app:receiver", "--port", "0", here=tmp_path, secrets=[SECRET]
    ) as server:
        port = server.printed(r"running on http://127\.0\.0\.1:(\d+)")[1]
        url = f"http://127.0.0.1:{port}/webhooks"
        sending = ["send", "--sender", case.name, case.event_type, "--url", url, "--json"]
        first = command(tmp_path, *sending, *case.options, "--id", "evt_one", "--times", "2")
        second = command(tmp_path, *sending, *case.options)
        records = [json.loads(line) for line in (first.output + second.output).splitlines()]
    assert (first.status, second.status) == (0, 0), (first, second, server.errors)
    reasons = [json.loads(record["answer"])["reason"] for record in records]
    assert reasons == ["handled", "duplicate", "handled"]
    lines = (tmp_path / "seen.jsonl").read_text().splitlines()
    for line, event_id in zip(lines, ["evt_one", records[2]["id"]], strict=True):
        seen = json.loads(line)
        assert (seen.pop("id"), seen.pop("type")) == (event_id, case.event_type)
        data = seen["data"]
        if case.sender == "publishing":
            seen["data"] = {"text": data["text"]}
        assert seen == case.seen


def test_a_refused_request_of_each_sender_is_explained(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    with running(
        *("serve", "senders_app:receiver", "--port", "0", "--save-refused", str(folder)),
        here=tmp_path,
        secrets=[SECRET],
    ) as server:
        port = server.printed(r"running on http://127\.0\.0\.1:(\d+)")[1]
        url = f"http://127.0.0.1:{port}/webhooks"
        sending = ["send", "--sender", case.name, case.event_type, "--url", url, "--unchecked"]
        assert invoke(*sending, "--skew", "10m", secrets=[SECRET]).status == 1
        astray = invoke(*sending, "--url", f"{url}/elsewhere", secrets=[SECRET])
        assert "404" in astray.output
        server.printed("a delivery did not reach a receiver: POST '/webhooks/elsewhere'")
        eventually(lambda: folder.is_dir() and [*folder.glob("*.http")], what="it was saved")
    (saved,) = folder.glob("*.http")
    asking = ["verify", "--sender", case.name, "--request", str(saved)]
    refused = invoke(*asking, secrets=[SECRET])
    assert refused.status == 1
    assert refused.output.startswith("refused: timestamp_too_old\n- The delivery was signed 6")
    accepted = invoke(*asking, "--tolerance", "15m", secrets=[SECRET])
    assert (accepted.status, accepted.errors) == (0, "")
    assert accepted.output.startswith("genuine: evt_")
    if case.prefix != "webhook":
        foreign = invoke("verify", "--sender", "openai", "--request", str(saved), secrets=[SECRET])
        assert f"are {case.prefix}-id, {case.prefix}-timestamp" in foreign.output
        assert "--sender" in foreign.output


@pytest.mark.usefixtures("case")
def test_the_doctor_examines_a_receiver_of_each_sender(tmp_path: Path) -> None:
    with running(
        "serve", "senders_app:receiver", "--port", "0", here=tmp_path, secrets=[SECRET]
    ) as server:
        port = server.printed(r"running on http://127\.0\.0\.1:(\d+)")[1]
        url = f"http://127.0.0.1:{port}/webhooks"
        found = command(tmp_path, "doctor", "senders_app:receiver", "--url", url, "--json")
    *findings, counts = [json.loads(line) for line in found.output.splitlines()]
    assert (found.status, counts["faults"]) == (0, 0), (findings, server.errors)
    levels = {one["check"]: one["level"] for one in findings}
    assert levels["application.body"] == levels["url.forgery"] == levels["url.size"] == "ok"
    assert not (tmp_path / "seen.jsonl").exists(), "a test reached a handler of business events"


@pytest.mark.parametrize(
    ("sender", "words"),
    [
        ("opneai", "'opneai' is no sender (did you mean 'openai'?); write publishing, standard,"),
        ("OpenAI", "(did you mean 'openai'?); write publishing, standard, svix, openai, or MODULE"),
        ("", "'' is no sender; write publishing, standard, svix, openai, or MODULE:NAME"),
        (
            "senders_app:",
            "'senders_app:' is no sender; write publishing, standard, svix, openai, or MODULE:NAME",
        ),
        ("absent:acme", "there is no module 'absent' here; built in are publishing, standard,"),
        (
            "senders_app:amce",
            "there is no 'amce' in senders_app; did you mean 'acme'?; built in are publishing,",
        ),
        (
            "senders_app:receiver",
            "is of type Receiver, not a Sender; write senders_app:receiver.sender",
        ),
        (
            "senders_app:Booking",
            "senders_app:Booking is of type ModelMetaclass, not a Sender; built in are publish",
        ),
        ("broken_senders:acme", "broken_senders cannot start: ZeroDivisionError"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_wrong_sender_is_refused_in_one_line(sender: str, words: str) -> None:
    for command in (["send", "any.type", "--url", "http://127.0.0.1:1/"], ["verify"]):
        invoke(*command, "--sender", sender, secrets=[SECRET]).says(words, status=2)


def test_the_sender_of_a_receiver_can_be_named(here: Path) -> None:
    (here / "body").write_bytes(b"{}")
    headers = sign(SECRET, "evt_1", b"{}", sender=svix)
    (here / "headers").write_text("".join(f"{n}: {v}\n" for n, v in headers.items()))
    files = ["--headers", "headers", "--body", "body"]
    found = invoke("verify", "--sender", "senders_app:receiver.sender", *files, secrets=[SECRET])
    assert (found.status, found.errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["response.complete"],
            "'response.complete' is no event type of the sender 'openai' known",
        ),
        (["comment.received"], "'comment.received' is no event type of the sender 'openai'"),
        (["response.completed", "--attempt", "2"], "the sender 'openai' has no header for --att"),
        (["response.completed", "--set", "data.idd=1"], "'data.idd' (did you mean 'id'?)"),
        (["response.completed", "--set", "workspaceId=1"], "there is no field 'workspaceId'"),
    ],
)
def test_types_and_fields_are_those_of_the_sender(arguments: list[str], words: str) -> None:
    url = "http://127.0.0.1:1/"
    invoke("send", "--sender", "openai", *arguments, "--url", url, secrets=[SECRET]).says(
        words, status=2
    )


@pytest.mark.usefixtures("here")
def test_send_asks_for_a_body_if_its_sender_has_no_samples() -> None:
    sending = [
        "send",
        "--sender",
        "senders_app:coded",
        "booking.made",
        "--url",
        "http://127.0.0.1:1/",
    ]
    invoke(*sending, secrets=[SECRET]).says(
        "no sample can be made for the sender 'coded'", "--body", status=2
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "so --set its data: payload.seats: Field required; --unchecked sends it"),
        (
            ["--set", "payload.seats=many"],
            "so --set its data: payload.seats: Input should be a val",
        ),
        (["--set", "payload.seat=1"], "'payload.seat' (did you mean 'seats'?)"),
    ],
)
def test_an_event_that_its_class_cannot_read_is_not_sent(options: list[str], words: str) -> None:
    sending = [
        "send",
        "--sender",
        "senders_app:acme",
        "booking.made",
        "--url",
        "http://127.0.0.1:1/",
    ]
    invoke(*sending, *options, secrets=[SECRET]).says(words, status=2)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--sender openai response.", {"response.completed", "response.failed"}),
        ("comment.", {"comment.received"}),
        ("--sender svix comment.", set()),
        ("--sender ", {one.name for one in (publishing, standard, svix, openai)}),
    ],
)
def test_types_and_senders_are_completed_in_the_shell(
    words: str, found: set[str], tmp_path: Path
) -> None:
    line = f"hookonce send {words}"
    asking = {
        "_HOOKONCE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
    }
    shown = run(here=tmp_path, environment=asking).output
    assert found <= set(re.findall(r"^plain,(.+)$", shown, re.MULTILINE)), shown
    if not found:
        assert "comment" not in shown
