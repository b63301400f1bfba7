"""Marks the event in Redis with SET NX, and then handles it."""

import os

import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from redis.asyncio import Redis
from standardwebhooks import Webhook, WebhookVerificationError

app = FastAPI()
effects = httpx2.AsyncClient(timeout=None)
redis = Redis.from_url(os.environ["REDIS_URL"])


@app.post("/webhooks", status_code=204)
async def receive(request: Request) -> None:
    try:
        Webhook(os.environ["HOOKONCE_SECRETS"]).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        raise HTTPException(400) from None
    event_id = request.headers["webhook-id"]
    if await redis.set(f"seen:{event_id}", 1, nx=True, ex=86_400):
        await handle(event_id)


async def handle(event_id: str) -> None:
    answer = await effects.post(os.environ["HOOKONCE_EFFECTS_URL"], content=event_id)
    answer.raise_for_status()


uvicorn.run(app, port=int(os.environ["PORT"]))
