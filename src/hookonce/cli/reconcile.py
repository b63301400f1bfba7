"""``hookonce reconcile``: find missed events by comparing the sender's log with the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from hookonce import Receiver
from hookonce.client import Client, ClientError
from hookonce.clock import system_clock, utc
from hookonce.errors import StoreError
from hookonce.receiver import Gap, Reconciliation, Verdict
from hookonce.receiver.reconcile import beginning
from hookonce.resources import WebhookEndpoint
from hookonce.stores.reconciling import ReconcilingStore

from .loading import load_receiver
from .output import Output
from .service import read_id, service_options, with_advice, with_client
from .statuses import CannotBegin, Status
from .stores import use_existing
from .times import read_since, time_text

_COLUMNS = {
    "created_at": "created",
    "id": "id",
    "type": "type",
    "why": "why",
    "attempts": "attempts",
    "answer": "last answer",
}
_ACTIVE = "active"
"""The only status of an endpoint that the interface shows."""


@click.command()
@click.argument("target", metavar="MODULE:RECEIVER")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--webhook",
    "webhook_id",
    required=True,
    metavar="ID",
    callback=read_id,
    help="The service's id of the receiver's endpoint.",
)
@click.option(
    "--since",
    callback=read_since,
    metavar="TIME",
    help="How far to look back: 90m, 6h, 2d, or to 2026-11-20T10:00Z; by default as far as the log"
    " reaches.",
)
@click.option(
    "--accept",
    "accepts",
    is_flag=True,
    help="Record the gaps named by ID as accepted: nobody will backfill them.",
)
@click.option("--all", "every", is_flag=True, help="With --accept: all gaps.")
@service_options
def reconcile(
    target: str,
    event_ids: tuple[str, ...],
    webhook_id: str,
    since: datetime | timedelta | None,
    api_url: str,
    key_file: Path | None,
    *,
    accepts: bool,
    every: bool,
    as_json: bool,
) -> None:
    """Compare the service's delivery log with what MODULE:RECEIVER has handled.

    A gap is a missed event: the sender got a 2xx for it and the store does not know it, or the
    sender has given it up. The command lists the gaps and gives them to the receiver's on_gap
    functions; an event that these backfill is no gap any more.

    --accept records the gaps named by ID, or --all, as accepted. Later runs do not count them as
    gaps. If such an event is delivered after all, it is still handled.

    Run it as often as you like, for example from cron. It costs one request of the day's quota for
    each 100 deliveries, and one for the endpoint's status.

    Exits 0 if there is no gap that is not accepted; 1 if there is one, an on_gap function fails, or
    the endpoint is disabled; 2 if the service or the store does not answer, or an ID is no gap.
    """
    if accepts != bool(event_ids or every) or (event_ids and every):
        raise click.UsageError("name gaps to accept as --accept ID..., or --accept --all")
    receiver = load_receiver(target)
    try:
        beginning(since, now=utc(system_clock()), rules=receiver.sender.rules)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _check_store(receiver, accepts=accepts)
    output = Output(as_json=as_json)

    async def compare(client: Client) -> bool:
        try:
            async with receiver.opened():
                found = await receiver.reconcile(client, webhook_id, since=since)
                if accepts:
                    found = await _accepted(found, receiver, event_ids or None, output)
        except ClientError as error:  # status 2, because status 1 means gaps
            raise CannotBegin(with_advice(error, api_url)) from None
        except StoreError as error:
            raise CannotBegin(str(error)) from None
        _show(found, client, output)
        for failure in found.failures:
            name = type(failure).__name__
            output.record({"on_gap": name}, f"an on_gap function failed: {name}", "bold red")
        if found.endpoint is not None and found.endpoint.status != _ACTIVE:
            _show_disabled(found.endpoint, output)
            return False
        return found.is_whole

    if not with_client(api_url, key_file, compare):
        raise SystemExit(Status.FOUND)


def _check_store(receiver: Receiver, *, accepts: bool) -> None:
    """Exit if the store is unusable: in an empty store, every event would look like a gap."""
    if accepts and not isinstance(receiver.store, ReconcilingStore):
        kind = type(receiver.store).__name__
        raise CannotBegin(f"the receiver's store, a {kind}, cannot remember accepted gaps")
    if not receiver.store.keeps_bodies:
        raise CannotBegin(
            "only the receiver's own process sees what is in memory://; call receiver.reconcile"
            " there"
        )
    use_existing(receiver.store)


async def _accepted(
    found: Reconciliation, receiver: Receiver, event_ids: Sequence[str] | None, output: Output
) -> Reconciliation:
    """Record gaps as accepted and print each; exit if an id is not a gap."""
    try:
        left = await receiver.accept_gaps(found, event_ids)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for gap in left.accepted:
        if gap in found.gaps:
            record = {**_record(gap), "result": "accepted"}
            output.record(record, f"{gap.event_id}: accepted", "yellow")
    return left


def _show(found: Reconciliation, client: Client, output: Output) -> None:
    if found.gaps:
        output.table([_record(gap) for gap in found.gaps], _COLUMNS, "")
    counts = {str(verdict): found.counts[verdict] for verdict in Verdict}
    quota = client.quota
    summary = {
        "webhook": found.webhook_id,
        "since": found.since.isoformat(),
        **counts,
        "backfilled": len(found.backfilled),
        "requests": found.requests,
        "quota_remaining": None if quota is None else quota.remaining,
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    left = "" if quota is None else f" of {quota.remaining + found.requests} left in the quota"
    line = (
        f"{words or 'no deliveries'} since {time_text(found.since.timestamp())};"
        f" {len(found.backfilled)} backfilled; {found.requests} requests{left}"
    )
    output.record(summary, line, "bold red" if found.gaps else "green")


def _show_disabled(endpoint: WebhookEndpoint, output: Output) -> None:
    why = f" ({endpoint.disabled_reason})" if endpoint.disabled_reason else ""
    record = {
        "webhook": endpoint.id,
        "status": endpoint.status,
        "disabled_reason": endpoint.disabled_reason,
    }
    line = (
        f"the endpoint is {endpoint.status}{why}: the service sends nothing to it, and no log shows"
        f" what it misses; when the receiver works: hookonce endpoints enable {endpoint.id}"
    )
    output.record(record, line, "yellow")


def _record(gap: Gap) -> dict[str, Any]:
    return {
        "created_at": gap.created_at.isoformat(),
        "id": gap.event_id,
        "type": gap.event_type,
        "why": str(gap.why),
        "attempts": gap.delivery.attempts,
        "answer": gap.delivery.response_status or gap.delivery.error_message,
    }
