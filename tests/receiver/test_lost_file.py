"""A receiver whose SQLite file is deleted answers 2xx only if the event survives a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.waiting import until_async

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.testing import TestSender, make_event
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
HANDLED: dict[bool, tuple[int, str]] = {False: (200, "handled"), True: (202, "stored")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture(params=[False, True], ids=["inline", "inbox"])
def has_inbox(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def handled() -> list[str]:
    return []


@pytest.fixture
def receiver(path: Path, has_inbox: bool, handled: list[str]) -> Receiver:
    receiver = Receiver(
        secrets=SECRET, store=f"sqlite:///{path}", inbox=Inbox() if has_inbox else None
    )

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None:
        handled.append(event.id)

    return receiver


@pytest.fixture
async def sender(receiver: Receiver) -> AsyncIterator[TestSender]:
    async with TestSender(receiver, secrets=SECRET) as sender:
        yield sender


async def test_a_receiver_without_its_file_answers_503_and_is_unready_until_the_file_is_back(
    path: Path,
    receiver: Receiver,
    sender: TestSender,
    has_inbox: bool,
    handled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hookonce.watching.store_failures.RECENT_SECONDS", 0.2)
    before, refused = make_event(CommentReceived), make_event(CommentReceived)
    (await sender.send(before)).expect(*HANDLED[has_inbox])
    away = path.rename(path.with_name("away.db"))  # noqa: ASYNC240 - the call blocks no other task
    for _ in range(3):
        (await sender.send(refused)).expect(503, "store_unavailable")
    assert not (await receiver.check()).ready
    away.rename(path)

    async def is_ready() -> bool:
        return (await receiver.check()).ready

    await until_async(is_ready)
    (await sender.send(before)).expect(200, "duplicate")
    (await sender.send(refused)).expect(*HANDLED[has_inbox])

    async def are_handled() -> bool:
        return sorted(handled) == sorted([before.id, refused.id])

    await until_async(are_handled)
