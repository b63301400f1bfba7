"""A Starlette application that fetches each response that OpenAI has completed in the background.

OpenAI's guide on webhooks: https://platform.openai.com/docs/guides/webhooks

HOOKONCE_SECRETS=whsec_… uvicorn examples.openai_app:app
"""

from starlette.applications import Starlette

from hookonce import Context, EnvironmentSecrets, Receiver
from hookonce.events import UnknownEvent
from hookonce.events.openai import ResponseCancelled, ResponseCompleted, ResponseFailed
from hookonce.senders import openai

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", sender=openai)


@receiver.on(ResponseCompleted)
async def completed(event: ResponseCompleted, context: Context) -> None:
    # The event names the response; fetch its text here, with the client of the openai package:
    # `await client.responses.retrieve(event.data.id)`.
    print(f"completed: {event.data.id} ({context.idempotency_key})", flush=True)


@receiver.on(ResponseFailed, ResponseCancelled)
async def not_completed(event: ResponseFailed | ResponseCancelled) -> None:
    print(f"{event.type}: {event.data.id} at {event.created_at:%H:%M}", flush=True)


@receiver.on_unknown
async def other(event: UnknownEvent) -> None:
    print(f"no class for {event.type}", flush=True)


app = Starlette(
    routes=[*receiver.routes("/webhooks"), *receiver.health_routes()],
    lifespan=receiver.lifespan,
)
