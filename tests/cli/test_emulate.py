"""`hookonce emulate` acts as the service: it delivers over HTTP, retries, and prints a report."""

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from hookonce import verify
from hookonce.cli.attempts import EmulationCounts
from hookonce.cli.emulation import Emulation
from hookonce.cli.output import Output
from hookonce.emulator import EmulatedService
from hookonce.errors import VerificationError
from hookonce.senders import publishing
from hookonce.verification.secrets import new_secret, secret_lines

from .recorder import Recorder, closed_port_url, recording
from .running import (
    COMMAND,
    OLD_SECRET,
    PATIENCE_SECONDS,
    SECRET,
    Result,
    eventually,
    invoke,
    on_a_terminal,
    run,
)
from .running import running as running_command

pytestmark = pytest.mark.sample(2, of="file")

APP = """
from hookonce import FileSecrets, Receiver
from hookonce.events import EVENT_CLASSES

receiver = Receiver(secrets=FileSecrets("secrets"), store="sqlite:///hookonce.db")


@receiver.on(*EVENT_CLASSES, name="journal")
async def handle(event) -> None:
    with open("journal", "a") as journal:
        journal.write(f"{event.id}\\n")
"""

FAST = ["--speed", "100000", "--rate", "500"]
"""Nine attempts take less than a second."""


@pytest.fixture
def server() -> Iterator[Recorder]:
    """Run a server that accepts and records every request."""
    with recording() as recorder:
        yield recorder


@contextmanager
def served(here: Path) -> Iterator[str]:
    """Serve a receiver that reads its secrets from a file; yield its URL."""
    (here / "app.py").write_text(APP)
    (here / "secrets").write_text(f"# of this test\n{SECRET}\n")
    with running_command("serve", "app:receiver", "--port", "0", here=here) as process:
        yield process.printed(r"running on (http://127\.0\.0\.1:\d+) ")[1] + "/webhooks"


def emulate(server: Recorder, *arguments: str) -> Result:
    """Deliver to a recorder, with SECRET configured."""
    return invoke("emulate", "--to", server.url, *FAST, *arguments, secrets=[SECRET])


def records(result: Result) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records of the attempts, and the report."""
    *attempts, report = [json.loads(line) for line in result.output.splitlines()]
    return attempts, report


def types_of(server: Recorder) -> list[str]:
    return [json.loads(request.body)["type"] for request in server.requests]


# Deliveries to a real receiver


def test_chaos_delivers_everything_and_the_receiver_handles_each_event_once(
    tmp_path: Path,
) -> None:
    arguments = ["--chaos", "0.4", "--seed", "26", "--events", "30", "--speed", "1000"]
    with served(tmp_path) as url:
        result = run(
            *("emulate", "--to", url, *arguments, "--rate", "200", "--json"),
            *("--secrets-file", "secrets"),
            here=tmp_path,
        )
    assert (result.status, result.errors) == (0, ""), result
    attempts, report = records(result)
    handled = Counter((tmp_path / "journal").read_text().split())
    scheduled = {one["id"] for one in attempts if not one["extra"]}
    assert handled == dict.fromkeys(scheduled, 1)
    assert report["sent"] == report["deliveries"] == report["delivered"] == len(scheduled) == 30
    assert (report["given_up"], report["waiting"], report["accepted"]) == (0, 0, 0)
    assert report["retried"] > 0
    assert report["duplicates"] > 0
    assert report["forged"] >= report["refused"] > 0
    assert (report["seed"], report["right"]) == (26, True)
    assert [one["status"] for one in report["endpoints"]] == ["active"]


@pytest.mark.full("2.5 s")
def test_a_rotation_goes_into_the_file_and_the_receiver_follows(tmp_path: Path) -> None:
    arguments = ["--chaos", "0.5", "--seed", "1", "--events", "30", "--rotate"]
    with served(tmp_path) as url:
        before = (tmp_path / "secrets").stat()
        result = run(
            *("emulate", "--to", url, *arguments, "--speed", "1000", "--rate", "200"),
            *("--secrets-file", "secrets"),
            here=tmp_path,
        )
        assert result.status == 0, result
        sent = run(
            *("send", "webhook.test", "--url", url, "--secrets-file", "secrets"), here=tmp_path
        )
        assert '"handled"' in sent.output, "the newest secret is not in force"
    text = (tmp_path / "secrets").read_text()
    new, old = secret_lines(text)
    assert new != old == SECRET
    assert text == f"{new}\n# of this test\n{SECRET}\n"
    after = (tmp_path / "secrets").stat()
    assert after.st_mode == before.st_mode
    assert after.st_ino != before.st_ino, "it was not put in the old one's place as a whole"
    assert new.removeprefix("whsec_").rstrip("=") not in result.output
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")} == set()


def test_the_secrets_file_keeps_the_two_newest_written_secrets(tmp_path: Path) -> None:
    """A file that grew with each rotation would slow down every receiver."""
    real, link = tmp_path / "real", tmp_path / "secrets"
    real.write_text(f"# mine\n{SECRET}\n")
    real.chmod(0o640)
    link.symlink_to(real)
    rotations = Emulation(Output(as_json=True), EmulationCounts(), link)
    written = [new_secret() for _ in range(4)]
    for secret in written:
        rotations.write_secret(secret)
    assert real.read_text().splitlines() == [*written[:-3:-1], "# mine", SECRET]
    assert (link.is_symlink(), real.stat().st_mode & 0o777) == (True, 0o640)


# How attempts are made


def test_a_secret_that_cannot_be_written_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(1, "no")

    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setattr("hookonce.cli.secrets_file.os.rename", fail)
    Emulation(Output(as_json=True), EmulationCounts(), file).write_secret(new_secret())
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == f"{SECRET}\n"


def test_a_failed_attempt_is_repeated_with_the_same_bytes_and_the_next_number(
    server: Recorder,
) -> None:
    server.statuses = [500, 302, 200]
    result = emulate(server, "--events", "1", "--json")
    assert (result.status, result.errors) == (0, "")
    assert [r.headers[b"example-delivery-attempt"] for r in server.requests] == [b"1", b"2", b"3"]
    assert len({(r.headers[b"webhook-id"], r.body) for r in server.requests}) == 1
    for request in server.requests:
        verify(request.body, request.headers, SECRET)  # also checks that the signed time is now
    attempts, report = records(result)
    assert [one["failure"] for one in attempts] == [
        "answered 500",
        "answered 302; redirects are not followed",
        None,
    ]
    assert (report["retried"], report["delivered"], report["right"]) == (2, 1, True)


def test_a_record_has_every_field_of_an_attempt(server: Recorder) -> None:
    attempts, _ = records(emulate(server, "--events", "1", "--type", "comment.received", "--json"))
    (record,) = attempts
    (request,) = server.requests
    assert record.pop("milliseconds") > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", record.pop("time"))
    assert record.pop("endpoint").startswith("wh_")
    assert record.pop("delivery").startswith("dlv_")
    assert record == {
        "type": "comment.received",
        "id": request.headers[b"webhook-id"].decode(),
        "attempt": 1,
        "status": 200,
        "reason": "handled",
        "failure": None,
        "chaos": None,
        "genuine": True,
        "extra": False,
    }


def test_after_nine_attempts_a_delivery_is_given_up(server: Recorder) -> None:
    server.statuses = [503]
    result = emulate(server, "--events", "1", "--json")
    attempts, report = records(result)
    assert len(attempts) == len(server.requests) == publishing.rules.attempts
    assert (result.status, report["given_up"], report["right"]) == (1, 1, False)
    assert report["endpoints"][0]["consecutive_failures"] == publishing.rules.attempts


@pytest.mark.parametrize("reason", ["quarantined", "rejected", "exhausted"])
def test_dead_letters_are_counted(reason: str, server: Recorder) -> None:
    server.answer = json.dumps({"status": "accepted", "reason": reason}).encode()
    done = emulate(server, "--events", "2")
    assert "delivered   2, of which 2 are dead letters" in done.output.splitlines()
    _, report = records(emulate(server, "--events", "2", "--json"))
    assert (report["delivered"], report["dead_letters"]) == (2, 2)


def test_attempts_fail_if_no_server_listens() -> None:
    url = closed_port_url()
    result = invoke("emulate", "--to", url, *FAST, "--events", "2", "--json", secrets=[SECRET])
    attempts, report = records(result)
    assert {one["failure"] for one in attempts} == {"no answer: ConnectError"}
    assert {one["status"] for one in attempts} == {None}
    assert (result.status, report["given_up"], report["delivered"]) == (1, 2, 0)


def test_a_410_disables_the_endpoint_and_ends_the_command(server: Recorder) -> None:
    server.statuses = [200, 410]
    result = emulate(server, "--events", "0", "--rate", "50")
    assert result.status == 1
    assert re.search(
        r"^endpoint +wh_[0-9a-f]+ disabled \(gone\), \d+ consecutive failures, http",
        result.output,
        re.MULTILINE,
    )
    assert re.search(r"^delivered +1$", result.output, re.MULTILINE)
    assert re.search(r"^given up +[1-9]", result.output, re.MULTILINE)


def test_a_receiver_that_accepts_forgeries_fails(server: Recorder) -> None:
    """The recorder verifies nothing, so it accepts forgeries."""
    result = emulate(server, "--events", "10", "--chaos", "1", "--seed", "3", "--json")
    attempts, report = records(result)
    forged = [one for one in attempts if not one["genuine"]]
    assert len(forged) == report["forged"] == report["accepted"] > 0
    assert (result.status, report["right"], report["given_up"]) == (1, False, 0)


def test_the_same_seed_brings_the_same_events_and_chaos_under_new_ids(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine an answer may take ten seconds, which would cause another attempt.
    patient = partial(EmulatedService, answer_seconds=PATIENCE_SECONDS)
    monkeypatch.setattr("hookonce.cli.emulate.EmulatedService", patient)
    arguments = ["--events", "25", "--chaos", "0.3", "--seed", "2", "--json"]
    first, second = (records(emulate(server, *arguments))[0] for _ in range(2))

    def drawn(attempts: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        # Leave out replays: a replay repeats every delivery that was sent before it.
        return Counter(
            (one["type"], one["attempt"], one["chaos"], one["extra"])
            for one in attempts
            if not (one["extra"] and one["chaos"] == "replay")
        )

    assert drawn(first) == drawn(second)
    assert any(one["chaos"] for one in first)
    assert not {one["id"] for one in first} & {one["id"] for one in second}


# the deliveries that are sent


def test_by_default_emulate_sends_a_few_varied_events(server: Recorder) -> None:
    _, report = records(emulate(server, "--seed", "4", "--json"))
    assert report["sent"] == len(server.requests) == 20
    assert len(set(types_of(server))) > 2
    assert len({request.body for request in server.requests}) == 20


def test_only_the_chosen_types_are_sent(server: Recorder) -> None:
    types = ["post.target.failed", "channel.unhealthy"]
    arguments = [word for name in types for word in ("--type", name)]
    assert emulate(server, *arguments).status == 0
    assert set(types_of(server)) == set(types)


@pytest.mark.parametrize(
    ("flow", "types"),
    [
        ("post", {"post.target.published": 5, "post.target.failed": 2}),
        ("comment", {"comment.received": 7}),
        ("story-reply", {"message.received": 7}),
        ("channel", {"channel.unhealthy": 4, "channel.disconnected": 3}),
    ],
)
def test_a_flow_is_repeated_until_there_are_as_many_events_as_asked_for(
    flow: str, types: dict[str, int], server: Recorder
) -> None:
    assert emulate(server, "--flow", flow, "--events", "7").status == 0
    assert Counter(types_of(server)) == types


def test_the_newest_secret_signs(server: Recorder, tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text(f"# newest first\n{OLD_SECRET}\n{SECRET}\n")
    place = str(tmp_path / "secrets")
    assert emulate(server, "--events", "1", "--secrets-file", place).status == 0
    invoke("emulate", "--to", server.url, "--events", "1", secrets=[SECRET, OLD_SECRET])
    first, second = server.requests
    verify(first.body, first.headers, OLD_SECRET)
    verify(second.body, second.headers, SECRET)
    assert len(first.headers[b"webhook-signature"].split()) == 1


def test_without_an_option_chaos_leaves_the_secret_alone(server: Recorder) -> None:
    emulate(server, "--events", "15", "--chaos", "1", "--seed", "1")
    assert {len(r.headers.get(b"webhook-signature", b"-").split()) for r in server.requests} == {1}


# How the command ends


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_emulation_still_prints_its_report(
    way: signal.Signals, server: Recorder, tmp_path: Path
) -> None:
    arguments = ["--to", server.url, "--events", "0", "--rate", "100"]
    with running_command("emulate", *arguments, here=tmp_path, secrets=[SECRET]) as process:
        eventually(lambda: len(server.requests) > 5, what="events without end")
        process.signal(way)
        ended = process.ended()
    assert ended.errors == ""
    sent = re.search(r"^sent +(\d+) events$", ended.output, re.MULTILINE)
    assert sent is not None
    assert int(sent[1]) > 5
    assert re.search(r"^seed +\d+$", ended.output, re.MULTILINE)


def test_an_emulation_that_is_stopped_before_a_retry_fails(
    server: Recorder, tmp_path: Path
) -> None:
    server.statuses = [500]
    arguments = ["--to", server.url, "--events", "1"]
    with running_command("emulate", *arguments, here=tmp_path, secrets=[SECRET]) as process:
        process.printed(r" 500  ")
        process.signal(signal.SIGINT)
        ended = process.ended()
    assert (ended.status, ended.errors) == (1, "")
    assert re.search(r"^waiting +1 for a later attempt$", ended.output, re.MULTILINE)
    assert re.search(r"^given up +0$", ended.output, re.MULTILINE)


def test_the_command_ends_when_its_output_is_closed(server: Recorder, tmp_path: Path) -> None:
    arguments = ["--to", server.url, "--events", "0", "--rate", "200", "--json"]
    with subprocess.Popen(
        [*COMMAND, "emulate", *arguments],
        cwd=tmp_path,
        env={"HOOKONCE_SECRETS": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == b""


# The printed output


def test_each_value_stands_below_its_heading(server: Recorder) -> None:
    result = emulate(server, "--events", "3", "--chaos", "0")
    assert "\x1b" not in result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(f"3 events, 500 a second, to {server.url}; speed 100000, chaos 0")
    heading = next(line for line in lines if line.startswith("time "))
    rows = [line for line in lines if re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line)]
    assert len(rows) == 3
    for row in rows:
        assert heading.index("outcome") == row.index("handled")
        assert heading.index("status") + len("status") == row.index(" 200") + len(" 200")
    assert lines[-1].startswith("seed ")


def test_on_a_terminal_the_output_is_styled(server: Recorder, tmp_path: Path) -> None:
    arguments = ["--to", server.url, "--events", "2", *FAST]
    shown = on_a_terminal("emulate", *arguments, here=tmp_path, columns=120, secrets=[SECRET])
    assert "\x1b[32m" in shown


def test_control_characters_in_an_answer_are_escaped_on_the_terminal(server: Recorder) -> None:
    server.answer = json.dumps({"reason": "\x1b]0;owned\x07\nsecond line\u202e" * 10}).encode()
    result = emulate(server, "--events", "1")
    assert all(char.isprintable() for char in result.output.replace("\n", ""))
    assert "second line" not in [line.strip() for line in result.output.splitlines()]
    (line, _) = emulate(server, "--events", "1", "--json").output.splitlines()
    assert line.isascii()


# Invalid arguments


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1/hooks", "ftp://127.0.0.1/", "http://127.0.0.1:port/", "http://[::1/"]
)
def test_an_invalid_url_is_refused_in_one_line(url: str) -> None:
    invoke("emulate", "--to", url, secrets=[SECRET]).says(f"{url!r} is not a URL to deliver to")


def test_without_secrets_the_error_says_how_to_configure_them(server: Recorder) -> None:
    invoke("emulate", "--to", server.url).says("HOOKONCE_SECRETS")
    assert server.requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chaos", "1.1"], "'--chaos'"),
        (["--chaos", "-0.1"], "'--chaos'"),
        (["--chaos", "nan"], "'--chaos'"),
        (["--speed", "0"], "'--speed'"),
        (["--speed", "inf"], "'--speed'"),
        (["--speed", "nan"], "'--speed'"),
        (["--rate", "0"], "'--rate'"),
        (["--rate", "nan"], "'--rate'"),
        (["--events", "-1"], "'--events'"),
        (["--type", "webhook.test"], "'--type'"),
        (["--flow", "no"], "'--flow'"),
        (["--flow", "post", "--type", "comment.received"], "a flow has its own types"),
        (["--rotate", "--chaos", "0.5"], "--secrets-file"),
        (["--port", "65536"], "'--port'"),
    ],
)
def test_an_impossible_command_is_refused_in_one_line(
    arguments: list[str], message: str, server: Recorder
) -> None:
    emulate(server, *arguments).says(message, status=2)
    assert server.requests == []


def test_without_a_receiver_the_error_says_how_to_name_one() -> None:
    invoke("emulate").says("--to", "--port", status=2)


def test_a_secrets_file_that_cannot_be_written_ends_the_command(
    server: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hookonce.cli.secrets_file.os.rename", fail)
    place = tmp_path / "secrets"
    place.write_text(f"{SECRET}\n")
    arguments = ["--events", "0", "--chaos", "1", "--seed", "1", "--rotate"]
    result = emulate(server, *arguments, "--secrets-file", str(place), "--json")
    assert result.status == 2
    # The recorder logs the connections that chaos breaks.
    assert result.errors.splitlines()[-1] == f"Error: cannot write {place}: Permission denied"
    assert '"seed"' not in result.output, "a report of what was broken off"


# The API of the emulated service


def test_with_a_port_a_receiver_registers_over_the_api_and_is_delivered_to(
    server: Recorder, tmp_path: Path
) -> None:
    with running_command("emulate", "--port", "0", "--rate", "50", here=tmp_path) as process:
        base_url, key = process.printed(r"API at (http://127\.0\.0\.1:\d+), key (\S+)").groups()
        with httpx2.Client(
            base_url=base_url, headers={"authorization": f"Bearer {key}"}, trust_env=False
        ) as client:
            wanted = {"url": server.url, "events": ["comment.received"]}
            created = client.post("/v1/webhooks", json=wanted)
            assert created.status_code == 201, created.text
            endpoint = created.json()["data"]
            eventually(lambda: server.requests, what="what the endpoint subscribed to")
            tested = client.post(f"/v1/webhooks/{endpoint['id']}/test")
            assert tested.status_code == 200, tested.text
            eventually(lambda: "webhook.test" in types_of(server), what="the test event")
        assert process.process.poll() is None, "it does not end by itself"
        process.signal(signal.SIGTERM)
        ended = process.ended()
    assert (ended.status, ended.errors) == (0, "")
    assert set(types_of(server)) == {"comment.received", "webhook.test"}
    for request in server.requests:
        verify(request.body, request.headers, endpoint["secret"])
    with pytest.raises(VerificationError):
        verify(server.requests[0].body, server.requests[0].headers, SECRET)
    assert endpoint["secret"] not in ended.output
    assert re.search(r"^endpoint +wh_[0-9a-f]+ active", ended.output, re.MULTILINE)


def test_a_port_in_use_is_reported_in_one_line(server: Recorder) -> None:
    port = server.url.split(":")[2].partition("/")[0]
    result = invoke("emulate", "--port", port, "--json")
    result.says(f"cannot serve on port {port}: Address already in use")


def test_the_help_says_what_the_real_service_would_refuse() -> None:
    shown = " ".join(invoke("emulate", "--help").output.split())
    assert "The real service delivers only to public https addresses" in shown
    assert "loopback" in shown
