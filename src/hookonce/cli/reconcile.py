"""``hookonce reconcile``: whether anything was missed, by the sender's own log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from hookonce import Receiver
from hookonce.client import Client, ClientError
from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.receiver import Gap, Reconciliation, Verdict
from hookonce.receiver.reconcile import beginning
from hookonce.resources import WebhookEndpoint
from hookonce.stores.reconciling import ReconcilingStore

from .loading import load_receiver
from .output import Output
from .service import read_id, service_options, with_client
from .statuses import CannotBegin, Status
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
"""The one status of an endpoint that the interface shows."""


def _since(
    context: click.Context, option: click.Parameter, text: str | None
) -> datetime | timedelta | None:
    """Read how far to look back, which has to be into the past."""
    since = read_since(context, option, text)
    try:
        beginning(since, now=datetime.fromtimestamp(system_clock(), UTC))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return since


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
    callback=_since,
    metavar="TIME",
    help="How far to look back: 90m, 6h, 2d, or to 2026-11-20T10:00Z; by default as far as the log"
    " reaches, 14 days.",
)
@click.option(
    "--accept",
    "accepts",
    is_flag=True,
    help="Record the gaps named by ID as accepted: nobody will backfill them.",
)
@click.option("--all", "every", is_flag=True, help="With --accept: every gap that is found.")
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

    It names each event that was missed: answered and unknown here, or given up by the sender. They
    go to the receiver's on_gap functions; an event that these backfill is no gap any more.

    With --accept, gaps that are left are recorded as accepted: those of the IDs, or --all. Later
    runs count them as accepted and not as gaps. An event that is delivered after all is handled.

    It may run as often as you like, from cron for example: it costs a request of the day's quota
    for each 100 deliveries, and one for the endpoint's status.

    Exits 0 if nothing is missing, or all of it is accepted; 1 with gaps, if an on_gap function
    fails, or if the endpoint is disabled and stays so; 2 if the service or the store cannot be
    asked, or an ID is no gap.
    """
    if accepts != bool(event_ids or every) or (event_ids and every):
        raise click.UsageError("name gaps to accept as --accept ID..., or --accept --all")
    receiver = load_receiver(target)
    _check_store(receiver, accepts=accepts)
    output = Output(as_json=as_json)

    async def is_well(client: Client) -> bool:
        try:
            async with receiver.opened():
                found = await receiver.reconcile(client, webhook_id, since=since)
                if accepts:
                    found = await _accepted(found, receiver, event_ids or None, output)
        except (ClientError, StoreError) as error:  # 1 is for gaps alone
            raise CannotBegin(str(error)) from None
        _show(found, client, output)
        for failure in found.failures:
            name = type(failure).__name__
            output.record({"on_gap": name}, f"a function of on_gap failed: {name}", "bold red")
        if found.endpoint is not None and found.endpoint.status != _ACTIVE:
            _show_disabled(found.endpoint, output)
            return False
        return found.is_whole

    if not with_client(api_url, key_file, is_well):
        raise SystemExit(Status.FOUND)


def _check_store(receiver: Receiver, *, accepts: bool) -> None:
    """End unless this is the store that deliveries go to: in an empty one everything is a gap."""
    if accepts and not isinstance(receiver.store, ReconcilingStore):
        kind = type(receiver.store).__name__
        raise CannotBegin(f"the receiver's store, a {kind}, cannot remember accepted gaps")
    if not receiver.store.keeps_bodies:
        raise CannotBegin(
            "only its own process can see what is in memory://; call receiver.reconcile there"
        )
    file = getattr(receiver.store, "path", None)
    if isinstance(file, Path) and not file.exists():
        raise CannotBegin(f"there is no file {str(file)!r}; run this where the receiver runs")


async def _accepted(
    found: Reconciliation, receiver: Receiver, event_ids: Sequence[str] | None, output: Output
) -> Reconciliation:
    """Record gaps as accepted, print each, and return what is left; end where one is no gap."""
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
    left = "" if quota is None else f" of the {quota.remaining + found.requests} that were left"
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
