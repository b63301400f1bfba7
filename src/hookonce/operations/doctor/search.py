"""Finds the receivers in an application, through routes, routers, mounts and middleware."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

from ...http.app import ASGIApp, DeliveryApp
from ...http.guard import StatusGuard
from ...receiver import Receiver
from .subject import Subject

# By what names applications, routers, middleware and this package's adapters hold what is inside.
_INSIDE = ("app", "_app", "router", "original_router", "endpoint", "fn", "_handle")

# What is looked for in the closures of route functions, which hold anything else as well.
_IN_CLOSURES = (DeliveryApp, FunctionType, Receiver, StatusGuard)


def subjects_in(app: ASGIApp) -> tuple[Subject, ...]:
    """Return the receivers in an application, each once, with the path of its first route.

    Routes of Starlette, FastAPI and Litestar are looked through, and middleware around them.

    Args:
        app: a receiver, or an application that one is mounted in.

    """
    if isinstance(app, Receiver):
        return (Subject(app, app, "/webhooks"),)
    found: dict[int, Subject] = {}
    for inner in _parts_of(app):  # its own path, if it has one, its routes have as well
        for receiver, path in _search(inner, "", {id(app)}):
            found.setdefault(id(receiver), Subject(receiver, app, path or "/"))
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
    if isinstance(thing, MethodType):
        yield thing.__self__
    elif isinstance(thing, FunctionType):
        held = inspect.getclosurevars(thing).nonlocals.values()
        yield from (part for part in held if isinstance(part, _IN_CLOSURES))
    else:
        for name in ("routes", "route_handlers"):
            several = getattr(thing, name, None)
            if isinstance(several, Sequence):
                yield from several
        yield from (getattr(thing, name, None) for name in _INSIDE)
