"""Helpers for tests of dead letters: a receiver's module, and dead letters for its store."""

import asyncio
import json
from pathlib import Path

from hookonce.samples.events import event_body
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, DeadLetter, DeadReason, Delivery, Token

from .running import SECRET, Result, invoke, run

__all__ = [
    "APP",
    "COMMENT",
    "ELSEWHERE",
    "HOSTILE",
    "MESSAGE",
    "UNREADABLE",
    "bury",
    "dead_letter",
    "journal",
    "listed",
    "replay",
]

APP = '''
"""A receiver whose handlers write a journal, and fail while a certain file exists."""
from pathlib import Path

from hookonce import Context, EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived, MessageReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


def note(line: str) -> None:
    with open("journal", "a") as journal:
        journal.write(f"{line}\\n")


@receiver.on(CommentReceived, name="answer")
def answer(event: CommentReceived, context: Context) -> None:
    if Path("shop is closed").exists():
        raise ConnectionError("the shop is closed")
    note(f"answered {event.id} {'again' if context.is_replay else ''}".strip())


@receiver.on(CommentReceived, name="count")
def count(event: CommentReceived) -> None:
    note(f"counted {event.id}")


@receiver.on(MessageReceived, name="reply")
async def reply(event: MessageReceived) -> None:
    note(f"replied {event.id}")
'''

NOW = 1_780_000_000.0  # 2026-05-28T20:26:40Z


def dead_letter(
    event_id: str,
    event_type: str | None = "comment.received",
    *,
    endpoint: str = "default",
    reason: DeadReason = DeadReason.EXHAUSTED,
    error: str = "answer: away",
    body: bytes | None = None,
) -> DeadLetter:
    """Return a dead letter whose handler `count` has succeeded."""
    if body is None:
        body = event_body(event_type or "", event_id=event_id)
    delivery = Delivery(endpoint, event_id, event_type, NOW - 1, body)
    return DeadLetter(delivery, reason, error, 1, frozenset({"count"}), NOW)


COMMENT = dead_letter("evt_comment")
MESSAGE = dead_letter("evt_message", "message.received", reason=DeadReason.REJECTED, error="spam")
UNREADABLE = dead_letter(
    "evt_cut", None, reason=DeadReason.UNREADABLE, error="no JSON", body=b"\xff{"
)
ELSEWHERE = dead_letter("evt_elsewhere", endpoint="social")
HOSTILE = dead_letter(
    "evt_\u202e1",
    "a\x1b[2J.\u009b2Jb",
    error="one\ntwo\t\x1b]0;owned\x07\u2028",
    body=b"first\nsecond\t\x1b[31mred\x7f\xc2\x9b2J\xff\r",
)


def bury(here: Path, *dead_letters: DeadLetter) -> str:
    """Put dead letters into the receiver's store and return its URL."""
    time = NOW

    async def enter() -> None:
        nonlocal time
        store = SQLiteStore(here / "hookonce.db", clock=lambda: time)
        await store.open()
        for dead in dead_letters:
            claim = await store.claim(dead.delivery.key, Token("t"), 30)
            assert isinstance(claim, Claimed)
            await store.bury(
                claim,
                dead.reason,
                error=dead.error,
                finished=dead.finished,
                delivery=dead.delivery,
            )
            time += 1
        await store.aclose()

    asyncio.run(enter())
    return f"sqlite:///{here / 'hookonce.db'}"


def ids(result: Result) -> list[str]:
    """Return the ids in the printed JSON."""
    return [json.loads(line)["id"] for line in result.output.splitlines()]


def listed(store_url: str, *options: str) -> list[str]:
    result = invoke("dead", "list", store_url, "--json", *options)
    assert (result.status, result.errors) == (0, "")
    return ids(result)


def replay(here: Path, *arguments: str) -> Result:
    return run("dead", "replay", "hooks:receiver", *arguments, here=here, secrets=[SECRET])


def journal(here: Path) -> list[str]:
    path = here / "journal"
    return path.read_text().splitlines() if path.exists() else []
