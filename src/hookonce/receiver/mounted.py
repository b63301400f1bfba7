"""Finds the receivers in an application: in its routes, routers, mounts and middleware."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from ..http.app import ASGIApp, DeliveryApp
from ..http.guard import StatusGuard
from .receiver import Receiver

# The attributes that hold a wrapped application, router or function in frameworks and adapters.
_INSIDE = ("app", "_app", "router", "original_router", "endpoint", "fn", "_handle")

# The objects in a route function's closure that can lead to a receiver; ignore all others.
_IN_CLOSURES = (DeliveryApp, FunctionType, Receiver, StatusGuard)


class Mounted(NamedTuple):
    """A receiver in an application.

    Attributes:
        receiver: the receiver.
        path: the path of its first route in the application.
    """

    receiver: Receiver
    path: str


def receivers_in(app: ASGIApp) -> tuple[Mounted, ...]:
    """Return each receiver in an application once, with the path of its first route.

    It searches the routes of Starlette, FastAPI and Litestar, and the middleware around them.

    Args:
        app: a receiver, or an application that contains receivers.
    """
    if isinstance(app, Receiver):
        return (Mounted(app, "/webhooks"),)
    found: dict[int, Mounted] = {}
    # Begin with the parts of `app`: their routes already contain the path of `app`, which `_search`
    # would add again.
    for inner in _parts_of(app):
        for receiver, path in _search(inner, "", {id(app)}):
            found.setdefault(id(receiver), Mounted(receiver, path or "/"))
    return tuple(found.values())


def _search(thing: Any, prefix: str, seen: set[int]) -> Iterator[tuple[Receiver, str]]:
    if isinstance(thing, Receiver):
        yield thing, prefix
        return
    if thing is None or isinstance(thing, str | type) or id(thing) in seen:
        return
    seen.add(id(thing))
    included = getattr(getattr(thing, "include_context", None), "prefix", "")
    for part in (getattr(thing, "path", ""), included):
        if isinstance(part, str) and part:
            prefix = f"{prefix.rstrip('/')}/{part.lstrip('/')}"
    for inner in _parts_of(thing):
        yield from _search(inner, prefix, seen)


def _parts_of(thing: Any) -> Iterator[Any]:
    """Yield the objects that an application, a route or a route function wraps."""
    if isinstance(thing, MethodType):
        yield thing.__self__
    elif isinstance(thing, FunctionType):
        with suppress(ValueError):  # a variable of the closure has no value yet
            held = inspect.getclosurevars(thing).nonlocals.values()
            yield from (part for part in held if isinstance(part, _IN_CLOSURES))
    else:
        for name in ("routes", "route_handlers"):
            several = getattr(thing, name, None)
            if isinstance(several, Sequence):
                yield from several
        yield from (getattr(thing, name, None) for name in _INSIDE)
