"""A social inbox for three tenants: FastAPI stores deliveries, separate workers handle them.

Each tenant has its own workspace, and so its own endpoint, secret and path; all share one store.
Comments, messages and failed posts become items of the tenant's inbox, and the state of each
channel is kept. The example shows:

- one set of handlers for all tenants; ``context.endpoint`` is the tenant of an event;
- each item has the event's id as its key, so a handler that runs again adds nothing;
- deliveries arrive in any order: an older state of a channel never overwrites a newer one;
- spam is rejected and becomes a dead letter, which a person can read.

    export ACME_SECRETS=whsec_… BAKERY_SECRETS=whsec_… CLINIC_SECRETS=whsec_…
    uvicorn examples.social_inbox:app
    hookonce worker examples.social_inbox:receivers --processes 2
    hookonce dead list examples.social_inbox:receivers.bakery

On several machines use STORE_URL=redis://host:6379/0, and a database server instead of the file.
The tests are in test_social_inbox.py.
"""

import os
import sqlite3
from collections.abc import AsyncGenerator, Generator
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
def database() -> Generator[sqlite3.Connection]:
    """Open a connection; commit all changes at the end, as one transaction."""
    with closing(sqlite3.connect(DATABASE, timeout=10.0)) as connection:
        connection.executescript(SCHEMA)
        with connection:
            yield connection


handlers = Router()


def add_item(context: Context, kind: str, author: str | None, text: str, at: str) -> None:
    """Add an item to the tenant's inbox; adding the same event again changes nothing."""
    with database() as connection:
        connection.execute(
            "INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?, ?, ?)",
            (context.endpoint, context.event_id, kind, author, text, at),
        )


# Plain functions run in threads, so sqlite3 does not block the event loop. The store remembers
# handlers by `name`, so you may rename and move the functions.
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
    # The service documents only `kind`. The model keeps all other fields in `model_extra`.
    text = str((message.model_extra or {}).get("text", ""))
    add_item(context, message.kind, None, text, event.created_at.isoformat())


@handlers.on(PostTargetFailed, name="inbox.failure")
def keep_failure(event: PostTargetFailed, context: Context) -> None:
    target = event.data
    why = target.error.message or target.error.code if target.error else "no reason was given"
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
    """Return the receiver of a tenant, with its own secrets and its own endpoint in the store."""
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
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for receiver in receivers.values():
            await stack.enter_async_context(receiver)
        yield


app = FastAPI(title="Social inbox", lifespan=lifespan)
for name, one in receivers.items():
    fastapi.mount(app, one, f"/webhooks/{name}", name=name)


def known(tenant: str) -> str:
    """Return the name of a known tenant, or answer 404."""
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
    """Answer 200 if all tenants can accept deliveries, else 503; strangers see no details."""
    for receiver in receivers.values():
        if not (await receiver.recent_check()).ready:
            raise HTTPException(503, {"ready": False})
    return {"ready": True}
