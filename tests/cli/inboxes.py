"""Helpers for tests of inboxes: a receiver's module, and deliveries to its inbox."""

import json
from pathlib import Path

import httpx2

from hookonce.samples.events import event_body
from hookonce.testing import signed_request

from .running import SECRET, Process

__all__ = ["APP", "deliver", "journal", "url_of"]

APP = '''
"""A receiver that writes down what it handles, waits and fails where files tell it to."""
import asyncio
import os
from pathlib import Path

from hookonce import Context, EnvironmentSecrets, Inbox, Limits, Receiver
from hookonce.events import CommentReceived

limits = Limits(
    lease_seconds=float(os.environ.get("LEASE", "30")),
    drain_seconds=float(os.environ.get("DRAIN", "20")),
)
store = os.environ.get("STORE", "sqlite:///hookonce.db")
inbox = Inbox(embedded=bool(os.environ.get("EMBEDDED")), max_attempts=2, backoff=0)
receiver = Receiver(secrets=EnvironmentSecrets(), store=store, inbox=inbox, limits=limits)
inline = Receiver(secrets=EnvironmentSecrets(), store="memory://")


def note(line: str) -> None:
    with open("journal", "a") as journal:
        journal.write(f"{line}\\n")


@receiver.on(CommentReceived, name="handle")
async def handle(event: CommentReceived, context: Context) -> None:
    note(f"started {event.id} {context.attempt}")
    while Path(f"hold {event.id}").exists():
        await asyncio.sleep(0.005)
    note(f"finished {event.id} {context.attempt}")
'''


def url_of(server: Process) -> str:
    """Wait until `hookonce serve` listens, and return its URL."""
    return server.printed(r"running on (http://127\.0\.0\.1:\d+) ")[1]


def deliver(url: str, event_id: str) -> tuple[int, str]:
    """Deliver an event and return status and reason of the answer."""
    body = event_body("comment.received", event_id=event_id)
    request = signed_request(body, SECRET)
    response = httpx2.post(
        f"{url}/webhooks", content=body, headers=dict(request.headers), trust_env=False
    )
    return response.status_code, json.loads(response.content)["reason"]


def journal(here: Path) -> list[str]:
    """Return the lines that handlers have written in this folder."""
    path = here / "journal"
    return path.read_text().splitlines() if path.exists() else []
