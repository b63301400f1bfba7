"""Handles events with hookonce, and remembers them in SQLite."""

import os

import httpx2
import uvicorn

from hookonce import EnvironmentSecrets, Event, Limits, Receiver

# The default limits are for a sender that waits ten seconds. Scale them to this sender.
patience = float(os.environ.get("PATIENCE_SECONDS", "10"))
receiver = Receiver(
    secrets=EnvironmentSecrets(),
    store=os.environ["HOOKONCE_STORE"],
    limits=Limits(answer_seconds=0.8 * patience, lease_seconds=3 * patience),
)
effects = httpx2.AsyncClient(timeout=None)


@receiver.on("*")
async def handle(event: Event[object]) -> None:
    answer = await effects.post(os.environ["HOOKONCE_EFFECTS_URL"], content=event.id)
    answer.raise_for_status()


uvicorn.run(receiver, port=int(os.environ["PORT"]))
