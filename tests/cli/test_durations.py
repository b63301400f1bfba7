"""Time spans on the command line have the same form in every option."""

from __future__ import annotations

import click
import pytest

from hookonce.cli.durations import Duration, seconds_of

from .running import SECRET, invoke


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("7d", 604_800.0),
        ("1.5h", 5400.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("-30s", -30.0),
        ("0", 0.0),
    ],
)
def test_a_span_is_a_number_and_a_unit_or_a_number_of_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5 m", "5min", "5M", "1h30m", "1e3", "nan", "inf", "٣s", "5s\n", "five"]
)
def test_a_text_that_is_not_a_span_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time span; write a number and a unit, such as"):
        seconds_of(text)


@pytest.mark.parametrize("text", ["1000001d", "9" * 400, "-1000001d"])
def test_a_span_that_leaves_the_range_of_dates_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the longest time span is 1000000d"):
        seconds_of(text)


def test_an_option_gives_seconds_and_shows_its_default_with_the_unit() -> None:
    taken = []

    @click.command()
    @click.option("--wait", default="2m", show_default=True, type=Duration(0))
    def command(wait: float) -> None:
        taken.append(wait)

    command(["--wait", "250ms"], standalone_mode=False)
    command([], standalone_mode=False)
    assert taken == [0.25, 120.0]
    help_text = command.get_help(click.Context(command))
    assert "--wait DURATION" in help_text
    assert "default: 2m" in help_text


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "hooks:receiver", "--idle-timeout", "0s"),
        ("serve", "hooks:receiver", "--idle-timeout", "-1s"),
        ("serve", "hooks:receiver", "--idle-timeout", "soon"),
        ("send", "comment.received", "--url", "http://127.0.0.1:9/", "--wait", "-1s"),
        ("verify", "--tolerance", "5min"),
    ],
)
def test_a_span_that_an_option_cannot_use_ends_with_the_usage(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, environment={"HOOKONCE_SECRETS": SECRET})
    assert (result.status, result.output) == (2, "")
    assert f"Invalid value for '{arguments[-2]}'" in result.errors
