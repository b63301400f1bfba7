"""Publish to two channels, answer a comment, and make up for what an outage of two days has missed.

hookonce emulate --port 8100 --no-events --speed 40000 --data examples/publishing.yaml
HOOKONCE_API_KEY=example_sk_bakery0123456789 python examples/publishing.py http://127.0.0.1:8100
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from hookonce import Receiver
from hookonce.client import Client
from hookonce.events import PostTargetFailed, PostTargetPublished
from hookonce.receiver import Gap
from hookonce.resources import Post, PostInput, PostTarget, PostTargetInput

SPEED = 40_000  # of the emulated service, as above
TWO_DAYS_SECONDS = 2 * 86_400 / SPEED
EVENTS = {"published": PostTargetPublished, "failed": PostTargetFailed}


def receiver_with(secret: str) -> Receiver:
    receiver = Receiver(secrets=secret, store="sqlite:///hookonce.db")
    noted: set[str] = set()

    @receiver.on(PostTargetPublished, PostTargetFailed, name="note")
    async def note(event: PostTargetPublished | PostTargetFailed) -> None:
        noted.add(event.data.id)
        print(f"noted: {event.data.platform} {event.data.status}", flush=True)

    @receiver.on_gap
    async def sweep(gaps: Sequence[Gap], client: Client) -> None:
        """Hand over each target whose end was missed, under the id of an event that was."""
        workspace_id = (await client.me()).workspace.id
        targets: list[PostTarget] = []
        async for item in client.posts.list():
            post = await client.posts.get(item.id)
            targets += [target for target in post.targets if target.id not in noted]
        for status, kind in EVENTS.items():
            ids = [gap for gap in gaps if gap.event_type == f"post.target.{status}"]
            ended = [target for target in targets if target.status == status]
            for gap, target in zip(ids, ended, strict=False):
                event = kind(
                    id=gap.event_id,
                    type=gap.event_type,
                    created_at=gap.created_at,
                    workspace_id=workspace_id,
                    data=target,
                )
                await receiver.make_up(event)

    return receiver


@asynccontextmanager
async def served(receiver: Receiver, port: int) -> AsyncIterator[None]:
    app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await running


async def publish(client: Client, receiver: Receiver, post: PostInput) -> None:
    """Publish, and wait until every target of the post is out."""
    saved = await client.posts.create(post)
    own = {target.id for target in (await client.posts.get(saved.id)).targets}

    async def settled() -> Post | None:
        now = await client.posts.get(saved.id)
        return now if now.status in {"published", "partial", "failed"} else None

    async with receiver.expecting(
        PostTargetPublished,
        PostTargetFailed,
        where=lambda event: event.data.id in own,  # and not of a post that others publish
        within=30,
        poll=settled,
        poll_every=1,
    ) as expected:
        await client.posts.publish(saved.id)
        for _ in post.targets:
            result = await expected.first()
            if isinstance(result, Post):  # the poll was first, and knows all of it
                break
    print(f"published to {len(post.targets)} channels", flush=True)


async def answer(client: Client) -> None:
    async for comment in client.comments.list(status="open"):
        replied = await client.comments.reply(comment.id, "Thank you! It is back on Saturday.")
        print(f"answered {comment.author_username}: {replied.status}", flush=True)


async def main(api_url: str) -> bool:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    async with Client(api_url) as client:
        channels = [channel.id async for channel in client.channels.list()]
        targets = [PostTargetInput(channel_id=channel) for channel in channels[:2]]
        events = [f"post.target.{status}" for status in EVENTS]
        # The service takes public https addresses alone; the emulator takes this one.
        endpoint = await client.webhooks.create(f"http://127.0.0.1:{port}/webhooks", events)
        if endpoint.secret is None:
            raise RuntimeError("the service has shown no secret")
        receiver = receiver_with(endpoint.secret)
        async with served(receiver, port):
            await publish(client, receiver, PostInput(caption="Fresh rye.", targets=targets))
            await answer(client)
        print("the receiver is down for two days", flush=True)
        await client.posts.create(PostInput(caption="Stollen!", targets=targets, mode="now"))
        await asyncio.sleep(TWO_DAYS_SECONDS)
        async with served(receiver, port):
            found = await receiver.reconcile(client, endpoint.id)
        print(f"made up for {len(found.made_up)}, {len(found.gaps)} missing", flush=True)
        return found.is_whole


if __name__ == "__main__":
    sys.exit(not asyncio.run(main(sys.argv[1])))
