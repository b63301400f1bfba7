"""Publish to two channels, answer a comment, and backfill the events missed in a two-day outage.

hookonce emulate --port 8100 --no-events --speed 40000 --data examples/publishing.yaml
HOOKONCE_API_KEY=example_sk_bakery0123456789 python examples/publishing.py http://127.0.0.1:8100
"""

import asyncio
import json
import socket
import sqlite3
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from hookonce import Receiver
from hookonce.client import Client, NotFoundError, PlatformError
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived, PostTargetFailed, PostTargetPublished, PublishingEvent
from hookonce.receiver import Found, Gap, pair_by_time
from hookonce.resources import Post, PostInput, PostTarget, PostTargetInput, ReceivedComment

SPEED = 40_000  # the --speed of the emulator above
TWO_DAYS_SECONDS = 2 * 86_400 / SPEED
KINDS: dict[str, type[PublishingEvent[Any]]] = {
    "post.target.published": PostTargetPublished,
    "post.target.failed": PostTargetFailed,
    "comment.received": CommentReceived,
}
KEPT = Path("endpoint.json")
NOT_OUT = {"draft", "pending_approval", "scheduled"}
LATE = timedelta(hours=1)  # the longest time from a publication or comment to its event
APART = timedelta(minutes=1)  # the largest difference between two clocks

Shown = Found[PostTarget | ReceivedComment]


def receiver_with(secret: str) -> Receiver:
    """Make a receiver that records its events in a file, which outlives the process."""
    receiver = Receiver(secrets=secret, store="sqlite:///hookonce.db")
    ledger = SQLiteLedger("noted.db")
    ledger.create_table()
    with ledger.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS noted (event TEXT, type TEXT, id TEXT)")

    @receiver.on(*KINDS, name="note", within=ledger)
    def note(
        event: PostTargetPublished | PostTargetFailed | CommentReceived,
        connection: sqlite3.Connection,
    ) -> None:
        row = (event.id, event.type, event.data.id)
        connection.execute("INSERT INTO noted VALUES (?, ?, ?)", row)
        print(f"noted: {event.type} {event.data.id}", flush=True)

    @receiver.on_gap
    async def sweep(gaps: Sequence[Gap], client: Client) -> None:
        """Backfill the missed events whose post or comment is certain; the others stay missed."""
        with ledger.transaction() as connection:
            noted = connection.execute("SELECT event, type, id FROM noted").fetchall()
        item_by_event = {event: item for event, _, item in noted}
        reported = {(event_type, item) for _, event_type, item in noted}
        workspace_id = (await client.me()).workspace.id
        shown = await shown_by(client, since=gaps[0].created_at)
        by_id = {one.item.id: one.item for found in shown.values() for one in found}
        # If the store was restored from a backup, it may lack events of `noted`. Backfill them
        # too: the ledger does not repeat their effects.
        again = [gap for gap in gaps if item_by_event.get(gap.event_id) in by_id]
        pairs = [(gap, by_id[item_by_event[gap.event_id]]) for gap in again]
        for event_type, found in shown.items():
            missed = [gap for gap in gaps if gap.event_type == event_type]
            pairs += pair_by_time(
                [gap for gap in missed if gap.event_id not in item_by_event],
                [one for one in found if (event_type, one.item.id) not in reported],
            )
        for gap, item in pairs:
            event = KINDS[gap.event_type](
                id=gap.event_id,
                type=gap.event_type,
                created_at=gap.created_at,
                workspace_id=workspace_id,
                data=item,
            )
            await receiver.backfill(event)

    return receiver


async def shown_by(client: Client, since: datetime) -> dict[str, list[Shown]]:
    """Return the service's posts and comments, grouped by the event type that reports them.

    Each published post costs one request of the quota.
    """
    found: dict[str, list[Shown]] = {event_type: [] for event_type in KINDS}
    async for item in client.posts.list():
        if item.status in NOT_OUT:
            continue
        post = await client.posts.get(item.id)
        for target in post.targets:
            if target.status == "published":
                found["post.target.published"].append(reported_after(target, target.published_at))
            elif target.status == "failed":  # the service does not show the time of the failure
                found["post.target.failed"].append(Found(target, post.created_at, None))
    async for comment in client.comments.list():  # newest first
        if comment.created_at is not None and comment.created_at < since - LATE:
            break
        # The listing does not show the comment's post and parent; an event does.
        received = ReceivedComment(**comment.model_dump(by_alias=False))
        found["comment.received"].append(reported_after(received, comment.created_at))
    return found


def reported_after(item: PostTarget | ReceivedComment, at: datetime | None) -> Shown:
    return Found(item, None, None) if at is None else Found(item, at - APART, at + LATE)


@asynccontextmanager
async def served(receiver: Receiver, port: int) -> AsyncGenerator[None]:
    app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event to wait for
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await running


async def registered(client: Client, url: str) -> tuple[str, str]:
    """Return the id and secret of the endpoint that the last run registered, or of a new endpoint.

    The service allows few endpoints, lists none, and shows a secret once: so a file keeps the id
    and the secret.
    """
    with suppress(
        FileNotFoundError, NotFoundError
    ):  # there is no file yet, or this service does not know the endpoint
        webhook_id, secret = kept()
        await client.webhooks.update(webhook_id, url=url, enabled=True)
        return webhook_id, secret
    made = await client.webhooks.create(url, list(KINDS))
    if made.secret is None:
        raise RuntimeError("the service has not shown the secret")
    keep(made.id, made.secret)
    return made.id, made.secret


def kept() -> tuple[str, str]:
    webhook_id, secret = json.loads(KEPT.read_text())
    return webhook_id, secret


def keep(webhook_id: str, secret: str) -> None:
    KEPT.touch(mode=0o600)
    KEPT.write_text(json.dumps([webhook_id, secret]))


async def publish(client: Client, receiver: Receiver, post: PostInput) -> None:
    """Publish a post, wait until each target is published or has failed, and print the results."""
    saved = await client.posts.create(post)
    own = {target.id for target in (await client.posts.get(saved.id)).targets}

    async def settled() -> Post | None:
        now = await client.posts.get(saved.id)
        return now if now.status in {"published", "partial", "failed"} else None

    async with receiver.expecting(
        PostTargetPublished,
        PostTargetFailed,
        where=lambda event: event.data.id in own,  # not the events of other posts
        within=30,
        poll=settled,
        poll_every=1,
    ) as expected:
        await client.posts.publish(saved.id)
        ended: dict[str, PostTarget] = {}
        while ended.keys() != own:
            result = await expected.first()
            targets = result.targets if isinstance(result, Post) else [result.data]
            ended.update((target.id, target) for target in targets)
    for target in ended.values():
        why = "" if target.error is None else f": {target.error.code}"
        print(f"{target.status} on {target.platform}{why}", flush=True)


async def answer(client: Client) -> None:
    async for comment in client.comments.list(status="open"):
        try:
            replied = await client.comments.reply(comment.id, "Thank you! It is back on Saturday.")
        except PlatformError as error:  # the comment stays open
            print(f"not answered {comment.author_username}: {error.code}", flush=True)
            continue
        print(f"answered {comment.author_username}: {replied.status}", flush=True)


async def main(api_url: str) -> bool:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    async with Client(api_url) as client:
        channels = [channel.id async for channel in client.channels.list()]
        targets = [PostTargetInput(channel_id=channel) for channel in channels[:2]]
        # The service accepts only public https addresses; the emulator accepts this one too.
        webhook_id, secret = await registered(client, f"http://127.0.0.1:{port}/webhooks")
        receiver = receiver_with(secret)
        async with served(receiver, port):
            await publish(client, receiver, PostInput(caption="Fresh rye.", targets=targets))
            await answer(client)
        print("the receiver is down for two days", flush=True)
        await client.posts.create(PostInput(caption="Stollen!", targets=targets, mode="now"))
        await asyncio.sleep(TWO_DAYS_SECONDS)
        receiver = receiver_with(secret)  # as after a restart: it knows only what is in the files
        async with served(receiver, port):
            found = await receiver.reconcile(client, webhook_id)
        print(f"backfilled {len(found.backfilled)}, {len(found.gaps)} missing", flush=True)
        return found.is_whole


if __name__ == "__main__":
    sys.exit(not asyncio.run(main(sys.argv[1])))
