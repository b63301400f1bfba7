"""The log of ``serve`` and ``worker`` shows one traceback an hour for each kind of error."""

import io
import json
import logging
import logging.config
from typing import Any

import pytest

from hookonce.cli.logs import Tracebacks, log_settings


def fail(text: str) -> None:
    raise ConnectionError(text)


def fail_elsewhere(text: str) -> None:
    raise ConnectionError(text)


def lines(form: str, *failures: Any, every: bool = False) -> list[str]:
    """Log each failure with its traceback, and return the lines of the log."""
    logging.config.dictConfig(log_settings("info", form, every_traceback=every))
    logger, stream = logging.getLogger("hookonce"), io.StringIO()
    [handler] = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    for number, failure in enumerate(failures):
        try:
            failure(f"text {number}")
        except ConnectionError as error:
            group = ExceptionGroup("1 handler failed", [error])
            logger.error("attempt %d failed", number, exc_info=group)
    return stream.getvalue().splitlines()


def test_the_second_error_of_a_kind_is_one_line_that_says_so() -> None:
    shown = lines("text", fail, fail, fail)
    first = [n for n, line in enumerate(shown) if "attempt 0 failed" in line]
    assert first == [0]
    assert sum("Traceback" in line for line in shown) == 1
    assert [line.partition("hookonce: ")[2] for line in shown[-2:]] == [
        f"attempt {n} failed (this traceback was logged within the last hour;"
        " --log-tracebacks logs all)"
        for n in (1, 2)
    ]


def test_another_line_is_another_kind_of_error() -> None:
    shown = lines("text", fail, fail_elsewhere, fail)
    assert sum("Traceback" in line for line in shown) == 2


def test_all_tracebacks_are_logged_if_they_are_wanted() -> None:
    shown = lines("text", fail, fail, every=True)
    assert sum("Traceback" in line for line in shown) == 2


def test_in_json_an_exception_is_written_once() -> None:
    records = [json.loads(line) for line in lines("json", fail, fail)]
    assert ["exception" in record for record in records] == [True, False]


def test_after_an_hour_the_traceback_is_wanted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.0, 3599.0, 3600.0, 3601.0]
    monkeypatch.setattr("time.monotonic", lambda: times.pop(0))
    tracebacks = Tracebacks(every=False)
    wanted = []
    while times:
        try:
            fail("away")
        except ConnectionError as error:
            wanted.append(tracebacks.is_wanted(error))
    assert wanted == [True, False, True, False]


def test_the_kinds_that_are_remembered_are_bounded() -> None:
    tracebacks = Tracebacks(every=False)
    for number in range(2500):
        assert tracebacks.is_wanted(type(f"Error{number}", (Exception,), {})())
    assert len(tracebacks._printed_at) <= 1000
