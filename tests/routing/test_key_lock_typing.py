"""Type checkers infer the event class that a key function receives."""

from pathlib import Path

import pytest
from support.type_checkers import (
    lines_marked_wrong,
    lines_mypy_refuses,
    lines_pyright_refuses,
)

SNIPPET = """
from hookonce import Context, Event, Receiver, Router
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import ChannelDisconnected, ChannelUnhealthy, CommentReceived, UnknownEvent
import sqlite3

receiver = Receiver(secrets="whsec_")
router = Router()
file = SQLiteLedger("app.db")


@receiver.on(CommentReceived, serial_by=lambda event: event.data.post_id)
async def one(event: CommentReceived) -> None: ...


@router.on("channel.unhealthy", latest_by=lambda event: event.data.id, ties="drop", name="x")
def by_type(event: ChannelUnhealthy, context: Context) -> None: ...


@receiver.on(ChannelUnhealthy, ChannelDisconnected, latest_by=lambda event: event.data.id)
async def two(event: ChannelUnhealthy | ChannelDisconnected) -> None: ...


@receiver.on("channel.*", latest_by=lambda event: event.data.id)
async def pattern(event: ChannelUnhealthy | ChannelDisconnected) -> None: ...


@receiver.on(CommentReceived, within=file, latest_by=lambda event: event.data.post_id)
def within(event: CommentReceived, connection: sqlite3.Connection) -> None: ...


def number(event: Event[object]) -> int | None:
    return len(event.id) or None


@receiver.on(CommentReceived, serial_by=number)
async def any_event_key(event: CommentReceived) -> None: ...


@receiver.on_unknown(serial_by=lambda event: event.type, name="u")
async def unknown(event: UnknownEvent) -> None: ...


@receiver.on_unknown
async def unknown2(event: Event[object]) -> None: ...


@receiver.on_unknown(within=file, latest_by=number)
def unknown3(event: UnknownEvent, connection: sqlite3.Connection, context: Context) -> None: ...


@receiver.on(CommentReceived, serial_by=lambda event: event.data.post_idd)  # WRONG
async def wrong_field(event: CommentReceived) -> None: ...


@receiver.on(CommentReceived, serial_by=lambda event: event.created_at)  # WRONG
async def wrong_key(event: CommentReceived) -> None: ...


def of_channel(event: ChannelUnhealthy) -> str:
    return event.data.id


@receiver.on(CommentReceived, latest_by=of_channel)  # WRONG
async def wrong_event(event: CommentReceived) -> None: ...


@receiver.on(CommentReceived, latest_by=number, ties="first")  # WRONG
async def wrong_ties(event: CommentReceived) -> None: ...


@receiver.on(CommentReceived, latestby=number)  # WRONG
async def wrong_option(event: CommentReceived) -> None: ...


@receiver.on(CommentReceived, serial_by=number)  # WRONG
async def wrong_handler(event: ChannelUnhealthy) -> None: ...
"""


@pytest.mark.full("mypy: 8 s of processor time")
def test_mypy_finds_the_six_mistakes_and_no_other(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert lines_mypy_refuses(SNIPPET, tmp_path, pytestconfig) == lines_marked_wrong(SNIPPET)


@pytest.mark.full("pyright: 5 s")
def test_pyright_finds_the_six_mistakes_and_no_other(tmp_path: Path) -> None:
    assert lines_pyright_refuses(SNIPPET, tmp_path) == lines_marked_wrong(SNIPPET)
