"""A web process that stores webhooks and answers at once; separate workers handle them.

HOOKONCE_SECRETS=whsec_… uvicorn examples.inbox_app:app
HOOKONCE_SECRETS=whsec_… hookonce worker examples.inbox_app:receiver
"""

import os

from starlette.applications import Starlette

from hookonce import Backoff, Context, EnvironmentSecrets, Inbox, Receiver
from hookonce.events import CommentReceived, PostTargetFailed

receiver = Receiver(
    secrets=EnvironmentSecrets(),
    store=os.environ.get("STORE_URL", "sqlite:///hookonce.db"),  # the same for all processes
    # With embedded workers, the default, the web process would handle events too.
    inbox=Inbox(embedded=False, concurrency=32, backoff=Backoff(first_seconds=0.1)),
)


@receiver.on(CommentReceived)
async def answer(event: CommentReceived, context: Context) -> None:
    if context.attempt == 1:
        raise ConnectionError(
            "the language model is busy"
        )  # the event is retried after the backoff
    print(f"attempt {context.attempt}: {event.data.text}", flush=True)


@receiver.on(PostTargetFailed)
def alert(event: PostTargetFailed) -> None:
    reason = event.data.error.code if event.data.error else "unknown"
    print(f"{event.data.platform}: {reason}", flush=True)


app = Starlette(
    routes=[*receiver.routes("/webhooks"), *receiver.health_routes()],
    lifespan=receiver.lifespan,
)
