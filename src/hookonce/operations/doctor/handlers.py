"""Checks of handlers: which events they cover, and whether their ledgers can record effects."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from ...errors import LedgerError
from ...receiver import Receiver
from ...receiver.ledgers import OWN_FILE, check_ledger, ledgers_of, shared_file_fault
from ...routing.handler import Handler
from ...routing.patterns import meets_any
from ...routing.router import Router
from .findings import Finding, fault, fine, note, warning

_LIKENESS = 0.6
"""How similar (difflib's ratio) a type must be to another to count as its misspelling."""


def handler_findings(
    handlers: Sequence[Handler], known: Collection[str], test_type: str | None
) -> list[Finding]:
    """Check which event types have a handler.

    Args:
        handlers: every handler of the receiver.
        known: every type that has an event class.
        test_type: the type of the sender's test event; None if there is none.
    """
    if not handlers:
        return [
            fault(
                "handlers",
                "no handler is registered: every event is answered 200 and ignored",
                "register one with @receiver.on(…), and import its module before the receiver is"
                " served",
            )
        ]
    business = [name for name in known if name != test_type]
    if not business:
        return [fine("handlers", f"{len(handlers)}; no event type of the sender is known here")]
    handled = {name for name in business if _is_handled(name, handlers, test_type)}
    if not handled:
        return [
            fault(
                "handlers",
                f"{len(handlers)} registered, but none for a known event type"
                + (
                    " except the test event"
                    if test_type is not None and _is_handled(test_type, handlers, test_type)
                    else ""
                ),
                "register handlers for the types in the endpoint's subscription",
            )
        ]
    ignored = [name for name in business if name not in handled]
    if ignored:
        return [
            note(
                "handlers",
                f"no handler for {', '.join(ignored)}: such events are answered 200 and ignored",
                "remove these types from the endpoint's subscription, or register a handler",
            )
        ]
    return [fine("handlers", f"{len(handlers)}, for every known event type")]


def type_findings(handlers: Sequence[Handler], known: Collection[str]) -> list[Finding]:
    """Find type strings and patterns of handlers that match no known event type.

    Args:
        handlers: every handler of the receiver.
        known: every type that has an event class.
    """
    findings = []
    candidates = [*known, *_patterns_of(known)]
    written = {text for handler in handlers for text in handler.written}
    for text in sorted(text for text in written if not meets_any(text, known)):
        likely = get_close_matches(text.lower(), candidates, n=1, cutoff=_LIKENESS)
        if likely:
            findings.append(
                warning(
                    "event_types",
                    f"{text!r} matches no known event type, so its handler never runs",
                    f"write {likely[0]!r} if this is what you mean",
                )
            )
        else:
            findings.append(
                note(
                    "event_types",
                    f"{text!r} matches no known event type",
                    "compare it with the sender's documentation; if the type is newer than this"
                    " version, write an event class for it",
                )
            )
    return findings or [fine("event_types", "every handler names a known type")]


async def ledger_findings(
    handlers: Sequence[Handler], store_retention: float | None, store_file: Path | None = None
) -> list[Finding]:
    """Check every ledger in a transaction that is rolled back.

    Args:
        store_retention: how many seconds the store remembers a handled event, if it says so.
        store_file: the store's file, if the store is a file.
    """
    findings = []
    for ledger in ledgers_of(handlers):
        if (shared := shared_file_fault(ledger, store_file)) is not None:
            findings.append(fault("ledger", shared, OWN_FILE))
            continue
        name = type(ledger).__name__
        count = sum(handler.ledger is ledger for handler in handlers)
        try:
            await check_ledger(ledger, store_retention)
        except LedgerError as error:
            fix = "correct what the message names; hookonce ledger sql prints the tables"
            findings.append(fault("ledger", str(error), fix))
        else:
            findings.append(fine("ledger", f"{name} records the effects of handlers: {count}"))
    return findings


def router_findings(module: str) -> list[Finding]:
    """Return the routers that have handlers but that no receiver includes.

    Args:
        module: a module; the loaded modules of its package are searched.
    """
    return [
        warning(
            "routers",
            f"the router {name} has handlers, but no receiver includes it: they never run",
            f"call receiver.include({name.rpartition('.')[2]}) where the receiver is made",
        )
        for name, router in _routers_in(module.partition(".")[0])
        if router.handlers and not router.is_included
    ]


def _routers_in(package: str) -> Iterator[tuple[str, Router]]:
    """Yield each router in a package's loaded modules once, but no receivers."""
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != package:
            continue
        for attribute, value in list(vars(module).items()):
            is_router = isinstance(value, Router) and not isinstance(value, Receiver)
            if is_router and id(value) not in seen:
                seen.add(id(value))
                yield f"{name}.{attribute}", value


def _is_handled(event_type: str, handlers: Sequence[Handler], test_type: str | None) -> bool:
    return any(handler.wants(event_type, known=True, test_type=test_type) for handler in handlers)


def _patterns_of(known: Collection[str]) -> set[str]:
    """Return the patterns with a star that match known types, such as ``post.*``."""
    patterns = set()
    for name in known:
        segments = name.split(".")
        patterns |= {".".join([*segments[:end], "*"]) for end in range(1, len(segments))}
    return patterns
