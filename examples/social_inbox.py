"""A social inbox for three tenants: FastAPI takes deliveries, workers of their own handle them.

Each tenant has a workspace, and so an endpoint, a secret and a path of its own; all share one
store. Comments and messages become items of the tenant's inbox, and the state of its channels is
kept. What is here to see:

- one set of handlers for all tenants; ``context.endpoint`` says whose event it is;
- the item and its key are written in one transaction, so that a repeated run adds nothing;
- deliveries come in any order: an older state of a channel never overwrites a newer one;
- spam is rejected and waits as a dead letter; a post that has failed is looked at by a person.

    export ACME_SECRETS=whsec_… BAKERY_SECRETS=whsec_… CLINIC_SECRETS=whsec_…
    uvicorn examples.social_inbox:app
    hookonce worker examples.social_inbox:receivers --processes 2
    hookonce dead list examples.social_inbox:receivers.bakery

On several machines: STORE_URL=redis://host:6379/0, and a database server in place of the file. Its
tests are in test_social_inbox.py.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager

from fastapi import FastAPI, HTTPException

from hookonce import Context, EnvironmentSecrets, Inbox, Receiver, Reject, Router
from hookonce.events import (
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    MessageReceived,
    PostTargetFailed,
)
from hookonce.integrations import fastapi

TENANTS = ("acme", "bakery", "clinic")
STORE_URL = os.environ.get("STORE_URL", "sqlite:///hookonce.db")
DATABASE = os.environ.get("SOCIAL_DATABASE", "social.db")

SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    tenant TEXT, event_id TEXT, kind TEXT, author TEXT, text TEXT, at TEXT,
    PRIMARY KEY (tenant, event_id)
);
CREATE TABLE IF NOT EXISTS channels (
    tenant TEXT, channel_id TEXT, username TEXT, status TEXT, at TEXT,
    PRIMARY KEY (tenant, channel_id)
);
"""


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Give a connection whose changes are one transaction."""
    with closing(sqlite3.connect(DATABASE, timeout=10.0)) as connection:
        connection.executescript(SCHEMA)
        with connection:
            yield connection


handlers = Router()


def add_item(context: Context, kind: str, author: str | None, text: str, at: str) -> None:
    """Add an item to the inbox of the tenant whose event it is; once, however often it is run."""
    with database() as connection:
        connection.execute(
            "INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?, ?, ?)",
            (context.endpoint, context.event_id, kind, author, text, at),
        )


# Plain functions, since sqlite3 blocks: they run in threads. The names are remembered in the store,
# so that functions can be moved and renamed.
@handlers.on(CommentReceived, name="inbox.comment")
def keep_comment(event: CommentReceived, context: Context) -> None:
    comment = event.data
    if "free followers" in comment.text.lower():
        raise Reject("spam")
    author = comment.author_username or comment.author_name
    add_item(context, "comment", author, comment.text, event.created_at.isoformat())


@handlers.on(MessageReceived, name="inbox.message")
def keep_message(event: MessageReceived, context: Context) -> None:
    message = event.data.message
    # Only `kind` is documented; what else a message carries is kept as it came.
    text = str((message.model_extra or {}).get("text", ""))
    add_item(context, message.kind, None, text, event.created_at.isoformat())


@handlers.on(PostTargetFailed, name="inbox.failure")
def keep_failure(event: PostTargetFailed, context: Context) -> None:
    target = event.data
    why = target.error.message or target.error.code if target.error else "for no reason given"
    text = f"The post for {target.username} was not published: {why}"
    add_item(context, "failure", None, text, event.created_at.isoformat())


@handlers.on(ChannelUnhealthy, ChannelDisconnected, name="channels.state")
def keep_state(event: ChannelUnhealthy | ChannelDisconnected, context: Context) -> None:
    channel = event.data
    with database() as connection:
        connection.execute(
            "INSERT INTO channels VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (tenant, channel_id) DO UPDATE"
            " SET username = excluded.username, status = excluded.status, at = excluded.at"
            " WHERE excluded.at >= channels.at",
            (
                context.endpoint,
                channel.id,
                channel.username,
                channel.status,
                event.created_at.isoformat(),
            ),
        )


def receiver_of(tenant: str) -> Receiver:
    """Return the receiver of a tenant: its own secrets, and its own endpoint in the store."""
    receiver = Receiver(
        secrets=EnvironmentSecrets(f"{tenant.upper()}_SECRETS"),
        store=STORE_URL,
        endpoint=tenant,
        inbox=Inbox(embedded=False),  # `hookonce worker` does the work
    )
    receiver.include(handlers)
    return receiver


receivers = {tenant: receiver_of(tenant) for tenant in TENANTS}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for receiver in receivers.values():
            await stack.enter_async_context(receiver)
        yield


app = FastAPI(title="Social inbox", lifespan=lifespan)
for name, one in receivers.items():
    fastapi.mount(app, one, f"/webhooks/{name}", name=name)


def known(tenant: str) -> str:
    """Return the name of a tenant; 404 for one that is none."""
    if tenant not in receivers:
        raise HTTPException(404, "no such tenant")
    return tenant


@app.get("/tenants/{tenant}/items")
def items(tenant: str) -> list[dict[str, str | None]]:
    with database() as connection:
        rows = connection.execute(
            "SELECT kind, author, text, at FROM items WHERE tenant = ? ORDER BY at, event_id",
            (known(tenant),),
        ).fetchall()
    return [dict(zip(("kind", "author", "text", "at"), row, strict=True)) for row in rows]


@app.get("/tenants/{tenant}/channels")
def channels(tenant: str) -> dict[str, str]:
    with database() as connection:
        rows = connection.execute(
            "SELECT username, status FROM channels WHERE tenant = ?", (known(tenant),)
        ).fetchall()
    return dict(rows)


@app.get("/readyz")
async def readyz() -> dict[str, bool]:
    """Say whether every tenant can take deliveries; strangers ask too, and get no details."""
    for receiver in receivers.values():
        if not (await receiver.recent_check()).ready:
            raise HTTPException(503, {"ready": False})
    return {"ready": True}
