"""A Starlette application that receives webhooks.

HOOKONCE_SECRETS=whsec_… uvicorn examples.starlette_app:app
"""

from starlette.applications import Starlette

from hookonce import Context, EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived, Event, PostTargetFailed

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived)
async def answer(event: CommentReceived) -> None:
    print(f"{event.data.author_username}: {event.data.text}", flush=True)


@receiver.on(PostTargetFailed, name="alert")
def alert(event: PostTargetFailed, context: Context) -> None:
    # A plain function runs in a thread. Pass the idempotency key to every service that you call: it
    # is the same when this handler runs again.
    reason = event.data.error.code if event.data.error else "unknown"
    print(f"{event.data.platform}: {reason} ({context.idempotency_key})", flush=True)


@receiver.on_error
async def report(error: ExceptionGroup[Exception], event: Event[object]) -> None:
    print(f"{event.type} {event.id}: {error}", flush=True)


app = Starlette(
    routes=[*receiver.routes("/webhooks"), *receiver.health_routes()],
    lifespan=receiver.lifespan,
)
