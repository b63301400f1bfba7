"""A receiver with metrics on a separate port, which only Prometheus on this machine reaches.

HOOKONCE_SECRETS=whsec_… METRICS_PORT=9090 uvicorn examples.metrics_app:app
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import REGISTRY, start_http_server
from starlette.applications import Starlette

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived
from hookonce.operations.prometheus import PrometheusObserver

# The default registry, which also has your own metrics and those of the process. To serve metrics
# in the web application, add `*metrics_routes(receiver, observer)` to its routes instead.
observer = PrometheusObserver(REGISTRY)
receiver = Receiver(
    secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", observers=[observer]
)


@receiver.on(CommentReceived, name="answer")
async def answer(event: CommentReceived) -> None:
    print(f"{event.data.author_username}: {event.data.text}", flush=True)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    server, _ = start_http_server(int(os.environ.get("METRICS_PORT", "9090")), "127.0.0.1")
    async with receiver.lifespan(app), observer.refreshing(receiver, every_seconds=5):
        yield
    server.shutdown()


app = Starlette(routes=receiver.routes("/webhooks"), lifespan=lifespan)
