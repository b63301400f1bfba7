"""Whether anything was missed: the sender's delivery log beside what the store knows.

The log names each delivery of the last 14 days and has no payload (interface, Endpoints: Webhooks).
What it says is compared with the store, event by event:

    the store says      the sender says            so the event is
    done                anything                   handled
    dead letter         anything                   dead: it waits for a person here
    in the inbox, or    anything                   waiting
      an attempt runs
    tried, or nothing   more attempts follow       retrying
    tried, or nothing   delivered                  a gap: lost here, or another store's
    tried, or nothing   no more attempts follow    a gap: lost on the way

An event that no handler is for is answered 2xx and not remembered: it is ignored here as well. So
are test events. What is older than the store remembers cannot be judged.

An event whose handler came later was ignored, too. That is believed only where the store has
written down that deliveries of its type were ignored at that moment; a store that has lost its
records has lost this with them, and reports every event. A gap that a person has accepted is told
apart from those that are open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from ..clock import Clock
from ..logs import get_logger
from ..resources import WebhookDelivery, WebhookEndpoint
from ..sender import ANSWER_SECONDS, LOG_SECONDS
from ..stores.contract import Reports
from ..stores.reconciling import ReconcilingStore, Span
from ..stores.values import Known

if TYPE_CHECKING:  # it needs httpx2
    from ..client import Client


_log = get_logger("hookonce")

# An event is backfilled once it is handled, or stored in the inbox, which loses nothing.
_BACKFILLED = {Known.DONE, Known.WAITING}

_PENDING = "pending"
"""The one status of a delivery that the interface shows."""


class Verdict(StrEnum):
    """What an event of the log is."""

    HANDLED = "handled"
    DEAD = "dead"
    WAITING = "waiting"
    RETRYING = "retrying"
    IGNORED = "ignored"
    UNJUDGED = "unjudged"
    """Older than the store remembers."""
    ACCEPTED = "accepted"
    """A gap that a person has accepted: nobody has handled the event."""
    GAP = "gap"


class Why(StrEnum):
    """Why an event is a gap."""

    UNKNOWN_HERE = "unknown_here"
    """The sender was answered 2xx, and the store does not know that it is handled: the store has
    lost it, or another endpoint's store has it."""
    FAILED_AT_SENDER = "failed_at_sender"
    """Every attempt failed, or the endpoint was disabled: the sender has given it up."""


@dataclass(frozen=True, slots=True)
class Gap:
    """An event that nobody has handled, and nobody will bring again.

    Attributes:
        event_id: what it is handled once under.
        event_type: what to look for.
        created_at: when to look for it.
        why: how it got lost.
        delivery: all that the log says.
        unsettled: when the other events of this type were created that are not handled and are no
            gaps, for example because the sender still tries, or because they were ignored before
            there was a handler: what is missing may be theirs.

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
    """What was found.

    Attributes:
        webhook_id: whose log it was.
        since: the log was read back to here.
        counts: how many events there are of each verdict.
        gaps: the events that are still missing, oldest first.
        backfilled: the events that ``on_gap`` functions have backfilled; they are no gaps any more.
        accepted: the gaps that a person has accepted, oldest first.
        endpoint: the endpoint as the service has it; None where it does not tell.
        requests: what it cost of the day's quota, without what ``on_gap`` functions asked.
        failures: what ``on_gap`` functions have raised.

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
        """Whether nothing is missing of what the log has, and no ``on_gap`` function has failed.

        A gap that was accepted does not count as missing.
        What happens while an endpoint is disabled is in no log: ``endpoint`` tells.
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
) -> Reconciliation:
    """Return what the log of an endpoint has that the store does not know as handled.

    It asks once for the endpoint, and once for each 100 deliveries.

    Args:
        client: of the service, with an admin's key.
        webhook_id: which endpoint of the service.
        store: what remembers.
        endpoint: the receiver's name for it.
        has_handler: whether anybody is registered for a type.
        since: how far back to look; see ``Receiver.reconcile``.
        clock: Unix time in seconds.

    Raises:
        ClientError: the service does not give its log.
        StoreError: the store does not say what it knows.
        ValueError: ``since`` has no offset, or does not lie in the past.

    """
    now = datetime.fromtimestamp(clock(), UTC)
    start = beginning(since, now=now)
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
        # After the page was read: what was delivered by then is in the store by now.
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
        excused = await _excused(store, endpoint, open_gaps, known)
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
            break  # newest first, so all that follows is older
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


def beginning(since: datetime | timedelta | None, *, now: datetime) -> datetime:
    """Return when to begin; so long ago reaches no further back than the log.

    Args:
        since: a time with an offset, or so long ago; None for all that the log has.
        now: the present.

    Raises:
        ValueError: ``since`` has no offset, or does not lie in the past: nothing would be looked
            at, and so nothing be missing.

    """
    reach = timedelta(seconds=LOG_SECONDS)
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
    """Call the ``on_gap`` functions, and return the reconciliation without what they backfilled.

    Args:
        found: the gaps.
        client: of the service.
        hooks: the functions.
        store: what remembers.
        endpoint: the receiver's name for the endpoint.

    Raises:
        StoreError: the store does not say what it knows.

    """
    if not (found.gaps and hooks):
        return found
    failures: list[Exception] = []
    for hook in hooks:
        try:
            await hook(found.gaps, client)
        except Exception as error:  # noqa: BLE001 - what was found is told all the same
            _log.exception("a function of on_gap failed")
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
    # While an attempt is under way no next one is planned, and the status says that more may come.
    if delivery.next_attempt_at is not None or delivery.status == _PENDING:
        return Verdict.RETRYING
    return Why.FAILED_AT_SENDER


async def _excused(
    store: Reports, endpoint: str, gaps: Sequence[WebhookDelivery], known: Mapping[str, Known]
) -> dict[str, Verdict]:
    """Return which gaps are none by what the store has written down, and what they are instead."""
    if not gaps or not isinstance(store, ReconcilingStore):
        return {}
    accepted = await store.accepted(endpoint, [gap.event_id for gap in gaps])
    # What was tried here had a handler, whenever that was.
    left = [gap for gap in gaps if gap.event_id not in known and gap.event_id not in accepted]
    spans = await store.ignored(endpoint, {gap.event_type for gap in left}) if left else {}
    return dict.fromkeys(accepted, Verdict.ACCEPTED) | {
        gap.event_id: Verdict.IGNORED
        for gap in left
        if _was_ignored(gap, spans.get(gap.event_type, ()))
    }


def _was_ignored(delivery: WebhookDelivery, spans: Sequence[Span]) -> bool:
    """Return whether an event was delivered while its type was ignored.

    A span ends with an arrival. The sender has the answer some seconds later (interface, Limits).
    """
    if delivery.delivered_at is None:
        return False
    at = delivery.delivered_at.timestamp()
    return any(span.first <= at <= span.last + ANSWER_SECONDS for span in spans)


def with_accepted(found: Reconciliation, event_ids: Collection[str]) -> Reconciliation:
    """Return the same with these gaps accepted."""
    taken = tuple(gap for gap in found.gaps if gap.event_id in event_ids)
    gaps = tuple(gap for gap in found.gaps if gap.event_id not in event_ids)
    accepted = tuple(sorted((*found.accepted, *taken), key=lambda gap: gap.created_at))
    counts = found.counts + Counter({Verdict.ACCEPTED: len(taken)})
    counts[Verdict.GAP] = len(gaps)
    return replace(found, counts=counts, gaps=gaps, accepted=accepted)
