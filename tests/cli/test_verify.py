"""`hookonce verify` verifies a saved delivery, and explains a refusal."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hookonce import sign

from .running import OLD_SECRET, SECRET, Result, invoke

NOW = 1_780_000_000
BODY = '{"id":"evt_1","type":"comment.received","data":{"text":"Zoë, 3 🍞"}}\n'.encode()
HEADERS = sign(SECRET, "evt_1", BODY, timestamp=NOW - 12)


@dataclass(frozen=True, slots=True)
class Saved:
    """A delivery, saved in each form that the commands read."""

    folder: Path
    body: bytes = BODY
    headers: tuple[tuple[str, str], ...] = tuple(HEADERS.items())
    line_end: bytes = b"\r\n"

    @property
    def head(self) -> bytes:
        lines = (f"{name}: {value}".encode() for name, value in self.headers)
        return self.line_end.join(lines)

    @property
    def request(self) -> bytes:
        first = self.line_end.join([b"POST /hooks?a=b:c HTTP/1.1", b"Host: 127.0.0.1:8000"])
        return self.line_end.join([first, self.head, b"", self.body])

    def as_request(self) -> list[str]:
        path = self.folder / "saved.http"
        path.write_bytes(self.request)
        return ["--request", str(path), "--now", str(NOW)]

    def as_two_files(self) -> list[str]:
        (self.folder / "headers").write_bytes(self.head + self.line_end)
        (self.folder / "body").write_bytes(self.body)
        paths = ["--headers", str(self.folder / "headers"), "--body", str(self.folder / "body")]
        return [*paths, "--now", str(NOW)]


def look(arguments: list[str], secrets: Sequence[str] = (SECRET,), stdin: bytes = b"") -> Result:
    return invoke("verify", *arguments, secrets=secrets, stdin=stdin)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
@pytest.mark.parametrize(
    "body", [BODY, b"", b"\n", b"a\r\n\r\nb", b"a\n\nb", b"webhook-id: evt_2\r\n", b"\xff\x00"]
)
def test_a_genuine_delivery_is_genuine_however_it_was_saved(
    line_end: bytes, body: bytes, tmp_path: Path
) -> None:
    headers = sign(SECRET, "evt_1", body, timestamp=NOW - 12)
    saved = Saved(tmp_path, body, tuple(headers.items()), line_end)
    for arguments in (saved.as_request(), saved.as_two_files()):
        result = look(arguments)
        assert (result.status, result.errors) == (0, ""), result
        assert result.output.startswith("genuine")
    for given, stdin in (("--request", saved.request), ("--body", saved.body)):
        arguments = saved.as_request() if given == "--request" else saved.as_two_files()
        arguments[arguments.index(given) + 1] = "-"
        assert look(arguments, stdin=stdin).status == 0
        assert look(arguments, stdin=stdin + b"?").status == 1


def test_verify_shows_the_secret_and_the_age_of_a_genuine_delivery(tmp_path: Path) -> None:
    arguments = Saved(tmp_path).as_request()
    result = look(arguments, [OLD_SECRET, SECRET])
    verdict, note, _ = result.output.splitlines()
    assert verdict == "genuine: evt_1, signed 12 s before, with secret 2 of 2"
    assert note == "- Only secret 2 of 2 matches: the sender still signs with an older secret."
    (line,) = look([*arguments, "--json"]).output.splitlines()
    assert json.loads(line) == {
        "genuine": True,
        "id": "evt_1",
        "timestamp": NOW - 12,
        "skew_seconds": 12.0,
        "secret_index": 0,
        "signatures": 1,
        "findings": [],
    }


@pytest.mark.parametrize(
    ("body", "now", "reason", "signed"),
    [
        (BODY[:-1], NOW, "no_matching_signature", "Line ends within the body"),
        (BODY, NOW + 289, "timestamp_too_old", "The delivery was signed 301 s ago"),
        (BODY, NOW - 313, "timestamp_too_new", "The delivery was signed 301 s in"),
    ],
)
def test_a_refusal_has_its_reason(
    body: bytes, now: int, reason: str, signed: str, tmp_path: Path
) -> None:
    arguments = [*Saved(tmp_path, body).as_request()[:-1], str(now)]
    result = look(arguments)
    assert (result.status, result.errors) == (1, "")
    assert result.output.startswith(f"refused: {reason}\n- ")
    (line,) = look([*arguments, "--json"]).output.splitlines()
    record = json.loads(line)
    assert (record["genuine"], record["reason"]) == (False, reason)
    cause = record["findings"][-1]["cause"]
    assert cause.startswith(signed)


def test_the_tolerance_is_the_span_that_its_option_names(tmp_path: Path) -> None:
    arguments = [*Saved(tmp_path).as_request(), "--tolerance"]
    assert look([*arguments, "12"]).status == 0
    assert look([*arguments, "11.5"]).status == 1


@pytest.mark.parametrize("option", ["--now", "--tolerance"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "yesterday"])
def test_an_invalid_number_of_seconds_is_refused(option: str, value: str, tmp_path: Path) -> None:
    result = look([*Saved(tmp_path).as_request(), option, value])
    result.says(option, value, status=2)


def test_a_tolerance_below_nothing_is_refused(tmp_path: Path) -> None:
    arguments = [*Saved(tmp_path).as_request(), "--tolerance", "-1"]
    look(arguments).says("--tolerance", "-1", status=2)


def test_without_now_the_clock_of_this_machine_counts(tmp_path: Path) -> None:
    body = b"{}"
    fresh = Saved(tmp_path, body, tuple(sign(SECRET, "evt_1", body).items()))
    assert look(fresh.as_request()[:2]).status == 0
    assert look(Saved(tmp_path).as_request()[:2]).status == 1


def test_a_refusal_names_cause_and_fix(tmp_path: Path) -> None:
    rewritten = json.dumps(json.loads(BODY)).encode()
    sent = BODY.strip()
    saved = Saved(tmp_path, rewritten, tuple(sign(SECRET, "evt_1", sent, timestamp=NOW).items()))
    result = look(saved.as_request())
    assert (result.status, result.errors) == (1, "")
    verdict, cause, fix = result.output.splitlines()
    assert verdict == "refused: no_matching_signature"
    assert cause == "- The body was parsed and rewritten before it was verified."
    assert fix.startswith("  Verify the raw bytes first")
    (line,) = look([*saved.as_request(), "--json"]).output.splitlines()
    record = json.loads(line)
    assert (record["genuine"], record["reason"]) == (False, "no_matching_signature")
    assert record["findings"] == [{"cause": cause[2:], "fix": fix[2:]}]


def test_verify_recognises_a_secret_in_a_file_of_retired_secrets(tmp_path: Path) -> None:
    arguments = Saved(tmp_path).as_request()
    assert "retired" not in look(arguments, [OLD_SECRET]).output
    (tmp_path / "retired").write_text(f"# until May\n{SECRET}\n")
    arguments += ["--retired-secrets-file", str(tmp_path / "retired")]
    result = look(arguments, [OLD_SECRET])
    assert result.status == 1
    assert "- The delivery is signed with a retired secret.\n" in result.output


@pytest.mark.parametrize(
    "content",
    [
        SECRET.rstrip("=").encode(),
        f'"{SECRET}"'.encode(),
        f"\ufeff{SECRET}".encode(),
        f"v1,{SECRET}".encode(),
    ],
)
def test_a_secret_that_cannot_be_used_is_explained(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "secrets").write_bytes(content)
    arguments = [*Saved(tmp_path).as_request(), "--secrets-file", str(tmp_path / "secrets")]
    result = look(arguments)
    assert (result.status, result.errors) == (2, "")
    assert "- Secret 1 cannot be used: " in result.output
    assert "- Secret 1 is right except for its spelling" in result.output


def test_a_secrets_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    """PowerShell writes UTF-16 by default."""
    (tmp_path / "secrets").write_bytes(f"{SECRET}\n".encode("utf-16"))
    arguments = [*Saved(tmp_path).as_request(), "--secrets-file", str(tmp_path / "secrets")]
    result = look(arguments)
    assert result.status == 2
    assert "- Secret 1 cannot be used: " in result.output


def test_verify_without_a_secret_is_an_error(tmp_path: Path) -> None:
    result = look(Saved(tmp_path).as_request(), [])
    assert result.status == 2
    assert "- No secret is configured.\n" in result.output
    assert "HOOKONCE_SECRETS" in result.output


def test_an_unusable_secret_does_not_hide_the_right_secret(tmp_path: Path) -> None:
    result = look(Saved(tmp_path).as_request(), ["null", SECRET])
    assert result.status == 0
    assert "with secret 2 of 2\n- Secret 1 cannot be used: " in result.output


@pytest.mark.parametrize("missing", list(HEADERS))
def test_a_missing_header_is_named(missing: str, tmp_path: Path) -> None:
    kept = tuple((name, value) for name, value in HEADERS.items() if name != missing)
    arguments = Saved(tmp_path, headers=kept).as_request()
    result = look(arguments)
    assert result.status == 1
    assert f"{missing} header is missing" in result.output
    (line,) = look([*arguments, "--json"]).output.splitlines()
    assert json.loads(line)["reason"] == f"missing_{missing.removeprefix('webhook-')}"


def test_headers_are_found_in_any_case_and_spacing(tmp_path: Path) -> None:
    headers = tuple((name.title(), f"  {value}\t") for name, value in HEADERS.items())
    assert look(Saved(tmp_path, headers=headers).as_request()).status == 0


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--headers", "saved"],
        ["--body", "saved"],
        ["--request", "saved", "--body", "saved"],
        ["--request", "saved", "--headers", "saved"],
        ["--headers", "-", "--body", "-"],
    ],
)
def test_the_delivery_is_given_in_one_of_two_ways(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_bytes(b"\n\n")
    given = [str(path) if option == "saved" else option for option in options]
    look(given).says("either --request, or both --headers and --body", status=2)


def test_a_request_without_a_blank_line_is_no_request(tmp_path: Path) -> None:
    (tmp_path / "saved").write_bytes(b"webhook-id: evt_1\n{}\n")
    result = look(["--request", str(tmp_path / "saved")])
    result.says("no blank line between headers and body", status=2)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    look(["--request", missing]).says(missing, "does not exist", status=2)


def test_control_characters_in_an_id_are_escaped(tmp_path: Path) -> None:
    headers = sign(SECRET, "evt_\u202e1\u2028", BODY, timestamp=NOW)
    result = look(Saved(tmp_path, headers=tuple(headers.items())).as_request())
    assert result.status == 0
    assert result.output.startswith(r"genuine: evt_\u202e1\u2028, ")
