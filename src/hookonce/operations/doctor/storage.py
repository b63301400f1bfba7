"""The store: whether it can be reached, what it keeps, who works on its inbox, and its clock."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...delivery.registration import application_of, warning_of
from ...delivery.time_limit import within
from ...errors import StoreError
from ...http.health import stranded
from ...stores.applications import RegisteringStore, strangers
from ...stores.contract import InboxStore
from ...stores.sqlite import SQLiteStore
from ...stores.values import DeadLetter, Entry, StoreStats
from ...verification.clock import system_clock
from .clocks import clock_finding
from .file_systems import MOUNTS, file_system_finding, file_system_of
from .findings import Finding, fault, fine, note, warning
from .open_files import deleted_file_findings
from .subject import Subject


@runtime_checkable
class _OnServers(Protocol):
    """A store on servers that have clocks of their own."""

    async def server_times(self) -> list[float]:
        """Return the Unix time of each; raise StoreError if one does not tell."""
        ...


# A store gives up by itself after three seconds; this is for one that does not.
_STORE_SECONDS = 5.0
# Of so many events in the inbox, and so many dead letters, is it looked at which handlers they owe.
_LOOKED_AT = 1_000


async def store_findings(
    subject: Subject, *, served: bool = False, mounts: Path = MOUNTS
) -> list[Finding]:
    """Examine the store of a receiver: at the most for some seconds.

    A file that does not exist yet is not created.

    Args:
        subject: the receiver.
        served: whether a server is said to run, which must have opened the store.
        mounts: the file that says which file systems are mounted.

    """
    store = subject.receiver.store
    database = store.path if isinstance(store, SQLiteStore) else None
    if not store.keeps_bodies:
        return [
            fault(
                "store.durability",
                "the store is memory: a restart loses dead letters and what has been handled, so"
                " that events are handled twice, and each process remembers for itself",
                "give Receiver(store=…) a file, sqlite:///hookonce.db, or a server, redis://host",
            )
        ]
    findings = []
    if database is not None:
        findings.append(file_system_finding(database, await _kind_under(database, mounts)))
        findings += await asyncio.to_thread(deleted_file_findings, database)
        if (
            missing := await asyncio.to_thread(_missing_finding, database, served=served)
        ) is not None:
            return [*findings, missing]
    try:
        async with asyncio.timeout(4 * _STORE_SECONDS), subject.receiver.opened():
            return findings + await _open_findings(subject, served=served)
    except (StoreError, TimeoutError) as error:
        found = str(error) or "the store did not answer in time"
        fix = "make the store reachable from this machine, or correct its URL; then look again"
        return [*findings, fault("store.reachable", found, fix)]


async def _open_findings(subject: Subject, *, served: bool) -> list[Finding]:
    store = subject.receiver.store
    warnings = await within(_STORE_SECONDS, store.warnings())
    stats = await within(_STORE_SECONDS, store.stats(endpoint=subject.receiver.endpoint))
    findings = [fine("store.reachable", "the store answers")]
    # What was answered 202 is nowhere but in the store.
    level = fault if subject.receiver.has_inbox else warning
    for text in warnings:
        found, _, fix = text.rpartition("; ")
        mend = "mend this in the server's configuration"
        # A record that was evicted is an event that runs again, with an inbox and without.
        judge = fault if "maxmemory-policy" in text else level
        findings.append(judge("store.settings", found or text, fix if found else mend))
    if not warnings:
        findings.append(fine("store.settings", "nothing to mend"))
    findings += inbox_findings(subject, stats, served=served)
    if stats.dead:
        findings.append(
            warning(
                "dead letters",
                f"{stats.dead} events of {subject.receiver.endpoint} were given up, and wait for a"
                " person",
                "look at them with hookonce dead list, and replay or discard them",
            )
        )
    findings += await _owed_findings(subject)
    findings += await _application_findings(subject)
    times = await store.server_times() if isinstance(store, _OnServers) else []
    skews = [time - system_clock() for time in times]
    if skews:
        skew = max(skews, key=abs)
        findings.append(
            clock_finding(
                "clock.store", "the Redis server's clock", skew, subject.receiver.tolerance
            )
        )
    return findings


async def _owed_findings(subject: Subject) -> list[Finding]:
    """Return which handlers events wait for that this receiver does not have."""
    store, endpoint = subject.receiver.store, subject.receiver.endpoint
    known = {handler.name for handler in subject.receiver.handlers}
    waiting: list[Entry | DeadLetter] = [
        *await within(_STORE_SECONDS, store.dead_letters(endpoint=endpoint, limit=_LOOKED_AT))
    ]
    if isinstance(store, InboxStore):
        waiting += await within(_STORE_SECONDS, store.entries(endpoint=endpoint, limit=_LOOKED_AT))
    unknown = Counter(name for event in waiting for name in event.owed - known)
    return [
        warning(
            "handlers.owed",
            f"{count} events of {endpoint} still owe the handler {name}, which this receiver does"
            " not have: they are not done without it",
            "register it under that name again until they are handled, or discard them with"
            " hookonce dead",
        )
        for name, count in sorted(unknown.items())
    ]


async def _application_findings(subject: Subject) -> list[Finding]:
    """Return which other applications receive under the same endpoint."""
    receiver = subject.receiver
    if not isinstance(receiver.store, RegisteringStore):
        return []
    try:
        own = application_of(receiver.handlers, receiver.current_secrets(), receiver.endpoint)
    except Exception:  # noqa: BLE001 - a provider raises what it likes, and `examine` says what
        return []
    if own is None:
        return []
    known = await within(_STORE_SECONDS, receiver.store.register(receiver.endpoint, None))
    found = []
    for other in strangers(own, known):
        text, _, fix = warning_of(other, receiver.endpoint).rpartition("; ")
        found.append(warning("applications", text, fix))
    return found


def inbox_findings(subject: Subject, stats: StoreStats, *, served: bool = False) -> list[Finding]:
    """Judge whether somebody works on what waits."""
    endpoint, depth = subject.receiver.endpoint, stats.depth
    if not subject.receiver.has_inbox:
        if not depth:
            return []
        if stats.workers:
            handled = f"a worker of another receiver handles what waits in the inbox of {endpoint}"
            return [note("inbox", f"{handled}: {depth} events", "let it end")]
        found, _, fix = stranded(endpoint, depth).rpartition("; ")
        return [fault("inbox", found, fix)]
    if stats.workers:
        return [fine("inbox", f"{stats.workers} at work, {depth} events waiting")]
    found = f"nobody works on the inbox of {endpoint} ({depth} events waiting)"
    if not subject.receiver.has_embedded_workers:
        return [fault("inbox", found, "start hookonce worker")]
    fix = "start the application, with the receiver's lifespan: its workers run there"
    return [fault("inbox", found, fix) if depth or served else note("inbox", found, fix)]


async def _kind_under(database: Path, mounts: Path) -> str | None:
    try:
        text = await asyncio.to_thread(mounts.read_text, "utf-8", "replace")
    except OSError:
        return None
    return file_system_of(database, text)


def _missing_finding(database: Path, *, served: bool) -> Finding | None:
    """Return what to say of a file that is not there; None where it is."""
    if database.exists():
        return None
    folder = database.parent
    if not folder.is_dir():
        return fault(
            "store.reachable",
            f"there is no folder {folder}, so that no store can be made in it",
            "make the folder, or correct the path in the store's URL",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return fault(
            "store.reachable",
            f"this user may not write to {folder}",
            "give the user that runs the receiver the right to write there",
        )
    level = warning if served else note
    return level(
        "store.reachable",
        f"there is no file {database} yet; the receiver makes it when it starts",
        "if it has run before, correct the path: a relative one is taken from the working folder",
    )
