"""Text from outside cannot forge a log line, hide one, or move the cursor of a terminal."""

import asyncio
import io
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

import hookonce
from hookonce import Receiver, sign
from hookonce.events import CommentReceived
from hookonce.http.guard import StatusGuard
from hookonce.logs import LOGGERS, get_logger, printable
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret
from hookonce.watching.records import HandlerFailed, Observer

# Each kind of line break, and control characters that hide or move text in a terminal.
HOSTILE = "a\nFORGED b\rc\x1b[2Jd\x7fe\x85f\x9bg\u2028h\u2029i\u202ej\u2066k\ufeffl\x00m\vn\fo"

SECRET = new_secret()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Return the log lines that a program would write to a stream."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("LINE %(name)s: %(message)s"))
    root = logging.getLogger("hookonce")
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def unprintable(shown: str) -> set[str]:
    return {char for char in shown if not char.isprintable()} - {"\n"}


def forged(shown: str) -> list[str]:
    """Return the lines that are neither log lines nor indented lines of a traceback."""
    return [line for line in shown.splitlines() if re.match(r"LINE | |Traceback", line) is None]


def error_with_frames(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def check(stream: io.StringIO) -> str:
    shown = stream.getvalue()
    assert "FORGED" in shown, "the text was not logged at all"
    assert not unprintable(shown)
    assert not [line for line in shown.splitlines() if line.startswith("FORGED")]
    return shown


def test_every_logger_of_the_package_is_one_that_escapes() -> None:
    source = Path(hookonce.__file__).parent
    named = {
        name
        for file in source.rglob("*.py")
        for name in re.findall(r'get_?[lL]ogger\("(hookonce[^"]*)"\)', file.read_text())
    }
    assert named == set(LOGGERS)


@pytest.mark.parametrize("name", LOGGERS)
def test_no_text_from_outside_breaks_a_line_of_any_logger(name: str, lines: io.StringIO) -> None:
    log = logging.getLogger(name)
    log.error("a text: %s", HOSTILE)
    log.error("an error: %s", ValueError(HOSTILE))
    log.error(HOSTILE)
    shown = check(lines)
    assert shown.count("\n") == shown.count("LINE ") == 3
    assert r"a\nFORGED b\rc\x1b[2Jd\x7fe\x85f\x9bg\u2028h" in shown


@pytest.mark.parametrize("name", LOGGERS)
def test_no_error_of_a_handler_breaks_out_of_its_traceback(name: str, lines: io.StringIO) -> None:
    log = logging.getLogger(name)
    noted = ValueError("noted")
    noted.add_note(HOSTILE)
    cause, context = ValueError("by a cause"), ValueError("in a context")
    cause.__cause__, context.__context__ = ValueError(HOSTILE), ValueError(HOSTILE)
    plain = ValueError(HOSTILE)
    for error in (plain, noted, cause, context, ExceptionGroup(HOSTILE, [ValueError(HOSTILE)])):
        log.error("it failed", exc_info=error_with_frames(error))
        check(lines)
        assert not forged(lines.getvalue())
        assert "Traceback (most recent call last)" in lines.getvalue()
        lines.seek(0)
        lines.truncate()


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("harmless"), MuteError()])
def test_a_traceback_that_can_do_no_harm_is_left_to_the_formatter(
    lines: io.StringIO, error: Exception
) -> None:
    class OneLine(logging.Formatter):
        def formatException(self, _: object) -> str:  # noqa: N802 - logging's own name
            return "on one line"

    [handler] = (
        handler
        for handler in logging.getLogger("hookonce").handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is lines
    )
    handler.setFormatter(OneLine())
    get_logger("hookonce.http").error("it failed", exc_info=error_with_frames(error))
    assert lines.getvalue() == "it failed\non one line\n"


FORGED = "first\nLINE hookonce: forged"


def in_a_note(error: ValueError) -> ValueError:
    error.add_note(FORGED)
    return error


def as_cause(error: Exception) -> Exception:
    error.__cause__, error.__context__ = ValueError(FORGED), ValueError("met before")
    return error


def as_context(error: ValueError) -> ValueError:
    error.__context__ = ValueError(FORGED)
    return error


def as_cause_of_a_context(error: ValueError) -> ValueError:
    error.__context__ = as_cause(ValueError("between"))
    return error


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError(FORGED), id="text"),
        pytest.param(in_a_note(ValueError("noted")), id="note"),
        pytest.param(as_cause(ValueError("caused")), id="cause"),
        pytest.param(as_context(ValueError("met")), id="context"),
        pytest.param(as_cause_of_a_context(ValueError("met")), id="cause of a context"),
        pytest.param(ExceptionGroup("all", [ValueError("a"), ValueError(FORGED)]), id="group"),
        pytest.param(as_cause(ExceptionGroup("all", [ValueError("a")])), id="cause of a group"),
    ],
)
def test_a_line_break_alone_begins_no_line_of_the_log(error: Exception, lines: io.StringIO) -> None:
    get_logger("hookonce.http").error("it failed", exc_info=error)
    shown = lines.getvalue()
    assert "LINE hookonce: forged" in shown, "the text was not logged at all"
    assert [line for line in shown.splitlines() if line.startswith("LINE")] == [
        "LINE hookonce.http: it failed"
    ]
    assert not forged(shown)


@pytest.mark.parametrize("end", ["X", " ", "\n"])
def test_a_traceback_is_shown_whole_each_line_behind_two_blanks(
    end: str, lines: io.StringIO
) -> None:
    error = error_with_frames(ValueError(f"one\ntwo{end}"))
    get_logger("hookonce.http").error("it failed", exc_info=error)
    whole = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    assert lines.getvalue().split("\n") == [
        "LINE hookonce.http: it failed",
        *(f"  {line}" for line in whole),
        "",
    ]


def test_errors_that_lead_to_each_other_end_in_one_traceback(lines: io.StringIO) -> None:
    one, other = ValueError("one"), ValueError(FORGED)
    one.__context__, other.__context__ = other, one
    get_logger("hookonce.http").error("it failed", exc_info=one)
    assert not forged(lines.getvalue())
    assert lines.getvalue().count("forged") == 1


def test_text_keeps_its_letters_and_what_it_is_told_to_keep() -> None:
    assert printable("Zo\xeb\n\t\x1b") == r"Zo\xeb\n\t\x1b".replace(r"\xeb", "\xeb")
    assert printable("Zo\xeb\n\t\x1b", keep="\n\t") == "Zo\xeb\n\t" + r"\x1b"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_an_error_that_cannot_be_shown_does_not_keep_the_line_from_the_log(
    lines: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    log = get_logger("hookonce")
    log.error("it failed: %s", UnspeakableError())
    log.error("it failed", exc_info=UnspeakableError())
    assert lines.getvalue().count("LINE hookonce: it failed") == 2
    assert not capsys.readouterr().err, "logging itself has complained"


def test_printable_text_stays_unchanged(lines: io.StringIO) -> None:
    text = "path/ä/日本 100% 😀 'quoted' \\n"
    assert printable(text) is text
    get_logger("hookonce").error("%s", text)
    get_logger("hookonce").error("%d %s of 100%%", 5, "ä")
    assert lines.getvalue() == f"LINE hookonce: {text}\nLINE hookonce: 5 ä of 100%\n"


# Ways in which text from outside reaches the log


@pytest.mark.anyio
async def test_the_path_of_a_request_is_escaped(lines: io.StringIO) -> None:
    async def gone(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 410, "headers": []})

    async def ignore(_: object) -> None:
        return

    scope = {"type": "http", "path": f"/{HOSTILE}", "method": "POST", "headers": []}
    await StatusGuard(gone)(scope, lambda: asyncio.sleep(0, {}), ignore)
    assert check(lines).count("LINE") == 1


@pytest.mark.anyio
async def test_id_and_type_of_a_delivery_are_escaped_in_lines_and_their_parts(
    lines: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hookonce")
    receiver = Receiver(secrets=SECRET, store="memory://")
    event_id = "evt_\u2028FORGED\u202e"  # without control characters, which an id must not have
    envelope = {**make_event(CommentReceived).model_dump(by_alias=True, mode="json")}
    for event_type in ("comment.received", HOSTILE):
        request = signed_request({**envelope, "id": event_id, "type": event_type}, SECRET)
        assert (await receiver.handle(request.body, request.headers)).status == 200
    shown = check(lines)
    assert shown.count("LINE") == shown.count("\n") == 4
    parts = [vars(record) for record in caplog.records if hasattr(record, "event_id")]
    assert len(parts) == 4
    assert not unprintable("".join(part["event_id"] + part["type"] for part in parts))


@pytest.mark.anyio
async def test_the_id_and_hint_of_a_forged_delivery_are_escaped(lines: io.StringIO) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    headers = sign(new_secret(), "evt_\u2028FORGED\u202e", b"{}")
    assert (await receiver.handle(b"{}", headers)).status == 401
    headers = {**sign(SECRET, "evt_1", b"{"), "example-event-type": HOSTILE}
    assert (await receiver.handle(b"{", headers)).status == 500
    check(lines)


@pytest.mark.anyio
async def test_the_error_of_a_handler_hook_or_observer_is_escaped(lines: io.StringIO) -> None:
    class Bad(Observer):
        def handler_failed(self, record: HandlerFailed) -> None:  # noqa: ARG002
            raise LookupError(HOSTILE)

    receiver = Receiver(secrets=SECRET, store="memory://", observers=[Bad()])

    @receiver.on(CommentReceived)
    async def fail(_: CommentReceived) -> None:
        raise ValueError(HOSTILE)

    @receiver.on_error
    async def fail_again(*_: object) -> None:
        raise KeyError from OSError(HOSTILE)

    request = signed_request(make_event(CommentReceived), SECRET)
    assert (await receiver.handle(request.body, request.headers)).status == 500
    check(lines)
    assert not forged(lines.getvalue())


def test_the_path_of_a_secrets_file_is_escaped(lines: io.StringIO, tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("a file cannot have such a name there")
    file = tmp_path / HOSTILE.replace("\0", "")
    file.write_text(SECRET)
    secrets = hookonce.FileSecrets(file)
    file.unlink()
    assert secrets.current() == (SECRET,)
    check(lines)
