"""Verifies with the reference library, and handles every delivery."""

import os

import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from standardwebhooks import Webhook, WebhookVerificationError

app = FastAPI()
effects = httpx2.AsyncClient(timeout=None)


@app.post("/webhooks", status_code=204)
async def receive(request: Request) -> None:
    try:
        Webhook(os.environ["HOOKONCE_SECRETS"]).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        raise HTTPException(400) from None
    await handle(request.headers["webhook-id"])


async def handle(event_id: str) -> None:
    answer = await effects.post(os.environ["HOOKONCE_EFFECTS_URL"], content=event_id)
    answer.raise_for_status()


uvicorn.run(app, port=int(os.environ["PORT"]))
