"""One application with several endpoints; each endpoint has its own receiver."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette

from hookonce import Receiver

__all__ = ["application_of"]


def application_of(receivers: Sequence[Receiver]) -> Starlette:
    """Return an application with each receiver at ``/<endpoint>``; its lifespan opens them all."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for receiver in receivers:
                await stack.enter_async_context(receiver.lifespan(app))
            yield

    routes = [route for one in receivers for route in one.routes(f"/{one.endpoint}")]
    return Starlette(routes=routes, lifespan=lifespan)
