"""Checks of the store: its reachability, settings, inbox workers, dead letters and clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...clock import system_clock
from ...errors import StoreError
from ...http.health import stranded
from ...routing.registration import application_of, warning_of
from ...stores.applications import RegisteringStore, strangers
from ...stores.protocols import InboxStore
from ...stores.sqlite import SQLiteStore
from ...stores.time_limit import within
from ...stores.values import DeadLetter, DeadReason, Entry, StoreStats
from .database_file import DELETED, MOUNTS, file_findings, missing_finding
from .findings import Finding, fault, fine, note, warning
from .settings import clock_finding
from .subjects import Subject


@runtime_checkable
class _OnServers(Protocol):
    """A store whose servers have their own clocks."""

    async def server_times(self) -> list[datetime]:
        """Return the time of each server; raise StoreError if a server does not answer."""
        ...


# Limit the calls of a user's own store, which may have no time limit. The built-in stores give up
# after three seconds.
_STORE_SECONDS = 5.0
# To find problems, read this many events of the inbox, and this many dead letters.
_CHECKED_EVENTS = 1_000


async def store_findings(
    subject: Subject, *, served: bool = False, mounts: Path = MOUNTS
) -> list[Finding]:
    """Check the store of a receiver; this takes a few seconds at most.

    A file that does not exist yet is not created.

    Args:
        served: whether a server is running, which must have opened the store.
    """
    store = subject.receiver.store
    if not store.keeps_bodies:
        return [
            fault(
                "store.durability",
                "the store is memory: a restart loses dead letters and handles events twice, and"
                " each process remembers only its own events",
                "give Receiver(store=…) a file, sqlite:///hookonce.db, or a server,"
                " postgresql://host/database or redis://host",
            )
        ]
    findings = []
    if isinstance(store, SQLiteStore):
        findings += await file_findings(store.path, mounts=mounts)
        missing = await asyncio.to_thread(missing_finding, store.path, served=served)
        if missing is not None:
            is_deleted = any(one.check == DELETED for one in findings)
            return findings if is_deleted else [*findings, missing]
    try:
        async with asyncio.timeout(4 * _STORE_SECONDS), subject.receiver.opened():
            return findings + await _open_findings(subject, served=served)
    except (StoreError, TimeoutError) as error:
        found = str(error) or "the store did not answer in time"
        fix = "make the store reachable from this machine, or correct its URL"
        return [*findings, fault("store.reachable", found, fix)]


def endpoint_findings(subjects: Sequence[Subject]) -> list[Finding]:
    """Return a fault for each pair of receivers with the same store and endpoint.

    Args:
        subjects: the receivers of one application.
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
                    f"the receivers at {other} and {subject.path} share a store and the endpoint"
                    f" {endpoint!r}: an event handled by one is a duplicate to the other",
                    "give each its own endpoint: Receiver(endpoint=…)",
                )
            )
    return findings


async def _open_findings(subject: Subject, *, served: bool) -> list[Finding]:
    store = subject.receiver.store
    warnings = await within(_STORE_SECONDS, store.warnings())
    stats = await within(_STORE_SECONDS, store.stats(endpoint=subject.receiver.endpoint))
    findings = [fine("store.reachable", "the store answers")]
    findings += [_setting_finding(subject, text) for text in warnings]
    if not warnings:
        findings.append(fine("store.settings", "the store's settings are right"))
    findings += _inbox_findings(subject, stats, served=served)
    if stats.dead:
        findings.append(
            warning(
                "dead_letters",
                f"dead letters of {subject.receiver.endpoint}, which wait for a person:"
                f" {stats.dead}",
                f"read their errors with `hookonce dead list {subject.name}`, correct the cause,"
                " and replay them with `hookonce dead replay`",
            )
        )
    findings += await _unreadable_findings(subject)
    findings += await _outstanding_findings(subject)
    findings += await _application_findings(subject)
    times = await store.server_times() if isinstance(store, _OnServers) else []
    skews = [time.timestamp() - system_clock() for time in times]
    if skews:
        skew = max(skews, key=abs)
        findings.append(
            clock_finding(
                "clock.store", "the store server's clock", skew, subject.receiver.tolerance_seconds
            )
        )
    return findings


def _setting_finding(subject: Subject, text: str) -> Finding:
    """Return the finding for a warning of the store; the warning has the form "problem; fix"."""
    found, _, fix = text.rpartition("; ")
    if not found:
        found, fix = text, "correct this in the server's configuration"
    # A wrong setting is a fault if it can lose or repeat events. With an inbox, the store has the
    # only copy of an event. If the server evicts records, handlers run again for handled events.
    is_fault = subject.receiver.has_inbox or "maxmemory-policy" in text
    return (fault if is_fault else warning)("store.settings", found, fix)


async def _unreadable_findings(subject: Subject) -> list[Finding]:
    """Return a finding with the last error found if genuine deliveries could not be read.

    Unlike the warning of ``/readyz``, this finding remains after a restart of the server.
    """
    endpoint = subject.receiver.endpoint
    listed = subject.receiver.store.dead_letters(
        endpoint=endpoint, reason=DeadReason.UNREADABLE, limit=_CHECKED_EVENTS
    )
    found = await within(_STORE_SECONDS, listed)
    if not found:
        return []
    least = "at least " if len(found) == _CHECKED_EVENTS else ""
    last = max(found, key=lambda letter: letter.buried_unix)
    return [
        warning(
            "dead_letters.unreadable",
            f"genuine deliveries of {endpoint} that could not be read: {least}{len(found)}. The"
            f" last of these: {last.error}",
            "correct the receiver's sender, its envelope or the event class, then run"
            f" `hookonce dead replay {subject.name} --reason unreadable --all`",
        )
    ]


async def _outstanding_findings(subject: Subject) -> list[Finding]:
    """Return a finding for each handler that is missing, although unfinished events need it."""
    store, endpoint = subject.receiver.store, subject.receiver.endpoint
    known = {handler.name for handler in subject.receiver.handlers}
    waiting: list[Entry | DeadLetter] = [
        *await within(_STORE_SECONDS, store.dead_letters(endpoint=endpoint, limit=_CHECKED_EVENTS))
    ]
    if isinstance(store, InboxStore):
        entries = store.entries(endpoint=endpoint, limit=_CHECKED_EVENTS)
        waiting += await within(_STORE_SECONDS, entries)
    unknown = Counter(name for event in waiting for name in event.outstanding - known)
    return [
        warning(
            "handlers.outstanding",
            f"events of {endpoint} that need the handler {name}, which this receiver does not have:"
            f" {count}. They cannot complete without it",
            "register a handler under this name until they are handled, or discard them with"
            " hookonce dead",
        )
        for name, count in sorted(unknown.items())
    ]


async def _application_findings(subject: Subject) -> list[Finding]:
    """Return a finding for each other application that receives under the same endpoint."""
    receiver = subject.receiver
    if not isinstance(receiver.store, RegisteringStore):
        return []
    try:
        own = application_of(receiver.handlers, receiver.current_secrets(), receiver.endpoint)
    except Exception:  # noqa: BLE001 - the user's provider may raise anything; `examine` reports it
        return []
    if own is None:
        return []
    known = await within(_STORE_SECONDS, receiver.store.register(receiver.endpoint, None))
    findings = []
    for other in strangers(own, known):
        found, _, fix = warning_of(other, receiver.endpoint).rpartition("; ")
        findings.append(warning("applications", found, fix))
    return findings


def _inbox_findings(subject: Subject, stats: StoreStats, *, served: bool) -> list[Finding]:
    """Check that workers handle the events in the inbox."""
    endpoint, depth = subject.receiver.endpoint, stats.depth
    if not subject.receiver.has_inbox:
        if not depth:
            return []
        if stats.workers:
            found = f"a worker of another receiver handles the {depth} events in {endpoint}'s inbox"
            return [note("inbox", found, "wait until it has handled them")]
        found, _, fix = stranded(endpoint, depth).rpartition("; ")
        return [fault("inbox", found, fix)]
    if stats.workers:
        return [fine("inbox", f"workers: {stats.workers}, events waiting: {depth}")]
    found = f"no worker is running for the inbox of {endpoint} (events waiting: {depth})"
    if not subject.receiver.has_embedded_workers:
        return [fault("inbox", found, "start hookonce worker")]
    fix = "start the application with the receiver's lifespan, which runs the workers"
    return [fault("inbox", found, fix) if depth or served else note("inbox", found, fix)]
