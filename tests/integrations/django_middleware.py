"""Django middleware that reads bodies before the view."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.http import HttpRequest  # type: ignore[import-untyped]  # Django ships no types
from django.utils.decorators import sync_and_async_middleware  # type: ignore[import-untyped]

__all__ = ["consuming", "parsing", "reading"]


def _before(look: Callable[[HttpRequest], object]) -> Any:
    """Return middleware that calls a function with each request first."""

    def middleware(get_response: Any) -> Any:
        async def asynchronous(request: HttpRequest) -> Any:
            look(request)
            return await get_response(request)

        def synchronous(request: HttpRequest) -> Any:
            look(request)
            return get_response(request)

        return asynchronous if iscoroutinefunction(get_response) else synchronous

    return sync_and_async_middleware(middleware)


reading = _before(lambda request: request.body)
parsing = _before(lambda request: request.POST)
consuming = _before(lambda request: request.read())
