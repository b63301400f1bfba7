"""Whether a receiver lives, and whether it can take deliveries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

__all__ = [
    "Readiness",
    "health_routes",
]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a receiver can take deliveries.

    Attributes:
        problems: why it cannot.
        warnings: what an operator should mend, though it can.

    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def health_routes(check: Callable[[], Awaitable[Readiness]]) -> list[Route]:
    """Return ``/livez`` (the process answers) and ``/readyz`` (it can take deliveries)."""

    async def livez(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
        return JSONResponse({"alive": True})

    async def readyz(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
        readiness = await check()
        return JSONResponse(
            {
                "ready": readiness.ready,
                "problems": list(readiness.problems),
                "warnings": list(readiness.warnings),
            },
            HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE,
        )

    return [Route("/livez", livez), Route("/readyz", readyz)]
