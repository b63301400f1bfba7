"""Finds missed events: compares the sender's delivery log with the store.

The log lists each delivery of the last days, 14 for the publishing service, without payloads
(interface, Endpoints: Webhooks). A sender that does not say how long it keeps its log has no log to
rely on: an event that the log does not list may have been dropped from it.

    the store says      the sender says            the event is
    done                anything                   handled
    dead letter         anything                   dead: a person must decide
    in the inbox, or    anything                   waiting
      an attempt runs
    tried, or nothing   more attempts follow       retrying
    tried, or nothing   delivered                  a gap: lost here, or in another store
    tried, or nothing   no more attempts follow    a gap: lost on the way

An event without a handler is answered 2xx and not stored: the comparison ignores it too, as it
ignores test events. An event older than the store's retention cannot be judged.

If the handler was added after the event, the event was rightly ignored. An event counts as ignored
only if the store has recorded that deliveries of its type were ignored at that moment. A store that
has lost its records has lost these records too, so it hides no loss. A gap that a person has
accepted has a verdict of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from ..clock import Clock, utc
from ..logs import get_logger
from ..resources import WebhookDelivery, WebhookEndpoint
from ..senders import Rules
from ..stores.protocols import Reports, Store
from ..stores.reconciling import ReconcilingStore, Span
from ..stores.values import Known

if TYPE_CHECKING:  # at run time the import would need httpx2, which is optional
    from ..client import Client


_log = get_logger("hookonce")

# The states of an event after its backfill: handled, or stored in the inbox, which loses no event.
_BACKFILLED = {Known.DONE, Known.WAITING}

_PENDING = "pending"
"""The only status of a delivery that the interface shows."""


class Verdict(StrEnum):
    """The result of the comparison for one event."""

    HANDLED = "handled"
    DEAD = "dead"
    WAITING = "waiting"
    RETRYING = "retrying"
    IGNORED = "ignored"
    UNJUDGED = "unjudged"
    """The store does not know the event, which is older than the store's retention."""
    ACCEPTED = "accepted"
    """A gap that a person has accepted; nobody has handled the event."""
    GAP = "gap"


class Why(StrEnum):
    """The reason why an event is a gap."""

    UNKNOWN_HERE = "unknown_here"
    """The receiver answered 2xx, but the store does not know the event as handled: the store has
    lost it, or the store of another receiver has it."""
    FAILED_AT_SENDER = "failed_at_sender"
    """The sender has given the event up: all attempts failed, or the endpoint was disabled."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A missed event: it is not handled, and the sender will not deliver it again.

    Attributes:
        event_id: the id to backfill it under, so that it is handled once.
        event_type: its type.
        created_at: when the sender created it.
        why: how it got lost.
        delivery: the entry in the log.
        unsettled: the creation times of other events of this type that are neither handled nor
            gaps, for example because the sender still tries to deliver them. A resource found in
            the service may belong to one of these events.
    """

    event_id: str
    event_type: str
    created_at: datetime
    why: Why
    delivery: WebhookDelivery
    unsettled: tuple[datetime, ...] = ()


GapHook: TypeAlias = "Callable[[Sequence[Gap], Client], Awaitable[object]]"
"""Backfills missed events, with the client of the service."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of a comparison.

    Attributes:
        webhook_id: the service's id of the endpoint.
        since: the earliest time that was compared.
        counts: the number of events with each verdict.
        gaps: the events that are still missing, oldest first.
        backfilled: the events that ``on_gap`` functions have backfilled; they are no gaps any more.
        accepted: the gaps that a person has accepted, oldest first.
        endpoint: the endpoint in the service; None if the service does not show it.
        requests: how many requests of the day's quota it cost, without those of ``on_gap``
            functions.
        failures: the exceptions that ``on_gap`` functions raised.
    """

    webhook_id: str
    since: datetime
    counts: Counter[Verdict] = field(default_factory=Counter)
    gaps: tuple[Gap, ...] = ()
    backfilled: tuple[Gap, ...] = ()
    accepted: tuple[Gap, ...] = ()
    endpoint: WebhookEndpoint | None = None
    requests: int = 0
    failures: tuple[Exception, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether there are no open gaps, and no ``on_gap`` function failed.

        The log does not show what an endpoint misses while it is disabled: look at ``endpoint``.
        """
        return not (self.gaps or self.failures)


async def compare(
    client: Client,
    webhook_id: str,
    *,
    store: Reports,
    endpoint: str,
    has_handler: Callable[[str], bool],
    since: datetime | timedelta | None,
    clock: Clock,
    rules: Rules,
) -> Reconciliation:
    """Compare an endpoint's delivery log with the store.

    It sends one request for the endpoint, and one for each 100 deliveries.

    Args:
        client: the client of the service, with an admin's key.
        webhook_id: the service's id of the endpoint.
        store: the receiver's store.
        endpoint: the receiver's name for the endpoint.
        has_handler: returns whether a handler is registered for a type.
        since: how far back to look; see ``Receiver.reconcile``.
        clock: returns Unix time in seconds.
        rules: the rules by which the sender delivers, and how long it keeps its log.

    Raises:
        ClientError: the service does not return its log.
        StoreError: the store cannot be read.
        ValueError: see ``beginning``.
    """
    now = utc(clock())
    start = beginning(since, now=now, rules=rules)
    remembered_since = datetime.min.replace(tzinfo=UTC)
    retention = getattr(store, "retention_seconds", None)
    if retention is not None:
        remembered_since = now - timedelta(seconds=retention)
    seen: set[str] = set()
    counts: Counter[Verdict] = Counter()
    missed: list[Gap] = []
    accepted: list[Gap] = []
    unsettled: defaultdict[str, list[datetime]] = defaultdict(list)
    state = await client.webhooks.read(webhook_id)
    requests = 1
    async for page in client.webhooks.deliveries(webhook_id).pages():
        requests += 1
        recent = [delivery for delivery in page.data if delivery.created_at >= start]
        new = [one for one in recent if not one.is_test and one.event_id not in seen]
        # Ask the store after reading the page, because events may arrive while the page is read.
        known = await store.known(endpoint, [delivery.event_id for delivery in new])
        judged: dict[str, tuple[WebhookDelivery, Verdict | Why]] = {}
        for delivery in new:
            if delivery.event_id in judged:
                continue
            is_known = delivery.event_id in known
            if not is_known and delivery.created_at < remembered_since:
                verdict: Verdict | Why = Verdict.UNJUDGED
            elif not is_known and not has_handler(delivery.event_type):
                verdict = Verdict.IGNORED
            else:
                verdict = _judged(delivery, known.get(delivery.event_id))
            judged[delivery.event_id] = delivery, verdict
        seen.update(judged)
        open_gaps = [one for one, verdict in judged.values() if isinstance(verdict, Why)]
        excused = await _excused(store, endpoint, open_gaps, known, rules.patience_seconds)
        for delivery, verdict in judged.values():
            created_at, event_type = delivery.created_at, delivery.event_type
            counted = excused.get(delivery.event_id, verdict)
            if isinstance(verdict, Why) and counted is not Verdict.IGNORED:
                gap = Gap(delivery.event_id, event_type, created_at, verdict, delivery)
                (accepted if counted is Verdict.ACCEPTED else missed).append(gap)
            if isinstance(counted, Why):
                counts[Verdict.GAP] += 1
                continue
            counts[counted] += 1
            if counted is not Verdict.HANDLED:
                unsettled[event_type].append(created_at)
        if len(recent) < len(page.data):
            break  # the log is newest first, so all following deliveries are older
    gaps, accepted_gaps = (
        tuple(
            replace(gap, unsettled=tuple(unsettled[gap.event_type]))
            for gap in sorted(some, key=lambda gap: gap.created_at)
        )
        for some in (missed, accepted)
    )
    return Reconciliation(
        webhook_id,
        start,
        counts,
        gaps,
        accepted=accepted_gaps,
        endpoint=state,
        requests=requests,
    )


def beginning(since: datetime | timedelta | None, *, now: datetime, rules: Rules) -> datetime:
    """Return the time at which the comparison begins.

    Args:
        since: a time with an offset, or a time span before now; None for the whole log.
        now: the present.
        rules: the rules by which the sender delivers.

    Raises:
        ValueError: ``since`` has no offset, or does not lie in the past. A comparison that begins
            in the future would compare nothing, and so report no gap. Or the rules do not say how
            long the sender keeps its log.
    """
    if rules.log_seconds is None:
        raise ValueError(
            "the sender does not say how long it keeps its log of deliveries, so a comparison could"
            " miss events; if you know it, give the sender's Rules log_seconds=…"
        )
    reach = timedelta(seconds=rules.log_seconds)
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise ValueError("since takes a time with an offset, such as datetime.now(UTC)")
        start = since
    else:
        start = now - (reach if since is None else min(since, reach))
    if start >= now:
        raise ValueError("since has to lie in the past")
    return start


async def after_backfill(
    found: Reconciliation,
    client: Client,
    hooks: Sequence[GapHook],
    *,
    store: Reports,
    endpoint: str,
) -> Reconciliation:
    """Call the ``on_gap`` functions, and return the reconciliation without backfilled gaps.

    Raises:
        StoreError: the store cannot be read.
    """
    if not (found.gaps and hooks):
        return found
    failures: list[Exception] = []
    for hook in hooks:
        try:
            await hook(found.gaps, client)
        except Exception as error:  # noqa: BLE001 - the caller must still get the gaps
            _log.exception("an on_gap function failed")
            failures.append(error)
    known = await store.known(endpoint, [gap.event_id for gap in found.gaps])
    backfilled = tuple(gap for gap in found.gaps if known.get(gap.event_id) in _BACKFILLED)
    gaps = tuple(gap for gap in found.gaps if gap not in backfilled)
    counts = found.counts + Counter({Verdict.HANDLED: len(backfilled)})
    counts[Verdict.GAP] = len(gaps)
    return replace(found, counts=counts, gaps=gaps, backfilled=backfilled, failures=tuple(failures))


def _judged(delivery: WebhookDelivery, known: Known | None) -> Verdict | Why:
    match known:
        case Known.DONE:
            return Verdict.HANDLED
        case Known.DEAD:
            return Verdict.DEAD
        case Known.WAITING | Known.IN_FLIGHT:
            return Verdict.WAITING
    if delivery.delivered_at is not None:
        return Why.UNKNOWN_HERE
    # While an attempt runs, `next_attempt_at` is None: only the status `pending` shows that the
    # sender has not given up.
    if delivery.next_attempt_at is not None or delivery.status == _PENDING:
        return Verdict.RETRYING
    return Why.FAILED_AT_SENDER


async def _excused(
    store: Reports,
    endpoint: str,
    gaps: Sequence[WebhookDelivery],
    known: Mapping[str, Known],
    patience_seconds: float,
) -> dict[str, Verdict]:
    """Return the verdict of each gap that the store's records excuse: accepted or ignored."""
    if not gaps or not isinstance(store, ReconcilingStore):
        return {}
    accepted = await store.accepted(endpoint, [gap.event_id for gap in gaps])
    # A known event was tried, so it had a handler and was not ignored.
    left = [gap for gap in gaps if gap.event_id not in known and gap.event_id not in accepted]
    spans = await store.ignored(endpoint, {gap.event_type for gap in left}) if left else {}
    return dict.fromkeys(accepted, Verdict.ACCEPTED) | {
        gap.event_id: Verdict.IGNORED
        for gap in left
        if _was_ignored(gap, spans.get(gap.event_type, ()), patience_seconds)
    }


def _was_ignored(delivery: WebhookDelivery, spans: Sequence[Span], patience_seconds: float) -> bool:
    """Return whether an event was delivered while its type was ignored.

    A span ends when the last ignored delivery arrives. The sender records the answer later, but no
    later than it waits for an answer.
    """
    if delivery.delivered_at is None:
        return False
    at = delivery.delivered_at.timestamp()
    return any(span.first_unix <= at <= span.last_unix + patience_seconds for span in spans)


async def accept(
    found: Reconciliation, event_ids: Collection[str] | None, *, store: Store, endpoint: str
) -> Reconciliation:
    """Record gaps as accepted; see ``Receiver.accept_gaps``."""
    if isinstance(event_ids, str):
        raise TypeError("event_ids takes a list of ids, such as ['evt_1'], not one text")
    if not isinstance(store, ReconcilingStore):
        raise TypeError(
            f"{type(store).__name__} cannot remember accepted gaps: it lacks the methods of"
            " hookonce.stores.reconciling.ReconcilingStore"
        )
    gaps = [gap.event_id for gap in found.gaps]
    chosen = gaps if event_ids is None else list(dict.fromkeys(event_ids))
    settled = {gap.event_id for gap in (*found.accepted, *found.backfilled)}
    strange = [event_id for event_id in chosen if event_id not in {*gaps, *settled}]
    if strange:
        raise ValueError(f"no gap here, so nothing was accepted: {', '.join(strange)}")
    left = [event_id for event_id in chosen if event_id not in settled]
    if left:
        await store.accept(endpoint, left)
    return _with_accepted(found, left)


def _with_accepted(found: Reconciliation, event_ids: Collection[str]) -> Reconciliation:
    """Return the reconciliation with these gaps accepted."""
    taken = tuple(gap for gap in found.gaps if gap.event_id in event_ids)
    gaps = tuple(gap for gap in found.gaps if gap.event_id not in event_ids)
    accepted = tuple(sorted((*found.accepted, *taken), key=lambda gap: gap.created_at))
    counts = found.counts + Counter({Verdict.ACCEPTED: len(taken)})
    counts[Verdict.GAP] = len(gaps)
    return replace(found, counts=counts, gaps=gaps, accepted=accepted)
