"""Looks the event up in a table, handles it, and then inserts it into the table."""

import os
import sqlite3

import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from standardwebhooks import Webhook, WebhookVerificationError

app = FastAPI()
effects = httpx2.AsyncClient(timeout=None)
database = sqlite3.connect(os.environ["DATABASE"], isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)")


@app.post("/webhooks", status_code=204)
async def receive(request: Request) -> None:
    try:
        Webhook(os.environ["HOOKONCE_SECRETS"]).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        raise HTTPException(400) from None
    event_id = request.headers["webhook-id"]
    if database.execute("SELECT 1 FROM handled WHERE id = ?", [event_id]).fetchone() is None:
        await handle(event_id)
        database.execute("INSERT OR IGNORE INTO handled VALUES (?)", [event_id])


async def handle(event_id: str) -> None:
    answer = await effects.post(os.environ["HOOKONCE_EFFECTS_URL"], content=event_id)
    answer.raise_for_status()


uvicorn.run(app, port=int(os.environ["PORT"]))
