"""User code that reads events passes pyright's strict checks.

The checker is basedpyright, which is pyright in a wheel, with pyright's own strict rules.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.type_checkers import need_pyright

import hookonce

SNIPPET = """\
from collections.abc import Iterable
from typing import assert_never

from hookonce import Context, Event, Receiver, unwrap
from hookonce.events import ChannelUnhealthy, CommentReceived, PostTargetFailed, UnknownEvent
from hookonce.resources import Channel, Resource


def told(event: Event[object]) -> str:
    match event:
        case CommentReceived():
            return event.data.text
        case PostTargetFailed(data=target):
            return target.username
        case _:
            return event.type


def all_told(events: Iterable[Event[object]]) -> list[str]:
    return [told(event) for event in events]


def about(event: Event[Resource]) -> str:
    return event.data.model_dump_json()


def either(event: CommentReceived | PostTargetFailed) -> str:
    match event:
        case CommentReceived():
            return event.data.text
        case PostTargetFailed():
            return event.data.username
        case _:
            assert_never(event)


def use(comments: list[CommentReceived], channel: ChannelUnhealthy, other: UnknownEvent) -> None:
    all_told(comments)
    all_told([comments[0], channel, other])
    about(channel)
    wrong: Event[str] = channel  # WRONG
    print(wrong)


receiver = Receiver(secrets="whsec_")


@receiver.on(CommentReceived, PostTargetFailed)
async def several(event: Event[object], context: Context) -> None:
    told(event)


@receiver.on("channel.*")
async def channels(event: Event[Channel]) -> None:
    told(event)


told(unwrap(b"", {}, "whsec_"))
"""


@pytest.mark.full("4 s")
def test_functions_and_matches_over_events_check_under_pyright(tmp_path: Path) -> None:
    need_pyright()
    (tmp_path / "snippet.py").write_text(SNIPPET)
    source = str(Path(hookonce.__file__ or "").parents[1])
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [source]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "."]
    said = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = json.loads(said.stdout)["generalDiagnostics"]
    lines = SNIPPET.splitlines()
    wrong = [one for one in found if "# WRONG" in lines[one["range"]["start"]["line"]]]
    assert len(wrong) == 1, said.stdout
    assert found == wrong
