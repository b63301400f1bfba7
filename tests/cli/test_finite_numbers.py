"""No option of a command accepts ``nan`` or ``inf``, although click's ranges accept both."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from hookonce.cli.commands import cli
from hookonce.cli.durations import Duration
from hookonce.cli.numbers import FiniteRange

from .running import SECRET, invoke


def _options(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _options(inner, f"{path} {name}")
    for parameter in command.params:
        yield path, parameter


def test_every_option_with_a_fraction_accepts_only_finite_numbers() -> None:
    taken = {
        f"{path} {parameter.name}": parameter.type
        for path, parameter in _options(cli, "hookonce")
        if isinstance(parameter.type, click.types.FloatParamType)
    }
    assert len(taken) >= 8
    assert {
        name for name, kind in taken.items() if not isinstance(kind, FiniteRange | Duration)
    } == set()


@pytest.mark.parametrize("bad", ["nan", "NaN", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("option", ["--speed", "--rate", "--chaos"])
def test_emulate_refuses_nan_and_infinity(option: str, bad: str) -> None:
    result = invoke("emulate", f"{option}={bad}", "--to", "http://127.0.0.1:9/webhooks")
    assert (result.status, result.output) == (2, "")
    assert f"Invalid value for '{option}'" in result.errors


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("option", ["--skew", "--wait"])
def test_send_refuses_nan_and_infinity(option: str, bad: str) -> None:
    result = invoke(
        *("send", "comment.received", "--url", "http://127.0.0.1:9/webhooks", f"{option}={bad}"),
        environment={"HOOKONCE_SECRETS": SECRET},
    )
    assert (result.status, result.output) == (2, "")
    assert f"Invalid value for '{option}'" in result.errors
