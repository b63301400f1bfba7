"""What only shows beside a receiver: routers that nobody includes, receivers on one endpoint."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence

from ...delivery.router import Router
from ...receiver import Receiver
from ...stores.applications import RegisteringStore
from .findings import Finding, fault, warning
from .subject import Subject


def router_findings(module: str) -> list[Finding]:
    """Return which routers have handlers and are included by nobody.

    Args:
        module: the module that was named; those of the same package that are loaded are looked at.

    """
    return [
        warning(
            "routers",
            f"the router {name} has handlers, and no receiver includes it: none of"
            " them is ever called",
            f"receiver.include({name.rpartition('.')[2]}), where the receiver is made",
        )
        for name, router in _routers_in(module.partition(".")[0])
        if router.handlers and not router.is_included
    ]


def endpoint_findings(subjects: Sequence[Subject]) -> list[Finding]:
    """Return which receivers of an application share a store and an endpoint.

    Args:
        subjects: the receivers of the application.

    """
    findings = []
    known: dict[Hashable, str] = {}
    for subject in subjects:
        store, endpoint = subject.receiver.store, subject.receiver.endpoint
        place = store.place if isinstance(store, RegisteringStore) else id(store)
        other = known.setdefault((endpoint, place), subject.path)
        if other != subject.path:
            findings.append(
                fault(
                    "endpoint",
                    f"the receivers at {other} and {subject.path} have the same store and the same"
                    f" endpoint, {endpoint!r}: what one has handled the other never sees",
                    "give each an endpoint of its own: Receiver(endpoint=…)",
                )
            )
    return findings


def _routers_in(package: str) -> Iterator[tuple[str, Router]]:
    """Yield every router of the loaded modules once, by its name; a receiver is none of them."""
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != package:
            continue
        for attribute, value in list(vars(module).items()):
            is_one = isinstance(value, Router) and not isinstance(value, Receiver)
            if is_one and id(value) not in seen:
                seen.add(id(value))
                yield f"{name}.{attribute}", value
