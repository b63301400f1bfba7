"""``hookonce endpoints``: the service's webhook endpoints, and the rotation of their secrets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hookonce.client import Client, UnreadableAnswerError
from hookonce.emulator.rules import SUBSCRIBABLE
from hookonce.resources import WebhookDelivery, WebhookEndpoint
from hookonce.verification.secrets import secret_lines

from .output import Output
from .rotate import asking, changing, rotate
from .secrets_file import SecretsFile
from .service import read_id, service_options, with_client
from .statuses import CannotBegin, Nothing

_COLUMNS = {
    "created_at": "created",
    "event_id": "event",
    "event_type": "type",
    "status": "status",
    "attempts": "attempts",
    "response_status": "answer",
    "error_message": "error",
    "next_attempt_at": "next attempt",
}

_IF_LOST = (
    "If the service has created an endpoint for {}, its secret is lost: remove that endpoint in the"
    " service's app, and run this command again"
)

event_option = click.option(
    "--event",
    "events",
    multiple=True,
    metavar="TYPE",
    help=f"An event type to subscribe to; repeat it for several: {', '.join(SUBSCRIBABLE)}.",
)


@click.group()
def endpoints() -> None:
    """Create, change and test webhook endpoints, and rotate their secrets.

    The API key comes from the environment variable HOOKONCE_API_KEY or from --key-file. It needs
    the role admin.
    """


@endpoints.command()
@click.argument("url")
@event_option
@click.option("--description", help="A name for people.")
@click.option(
    "--secrets-file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A new file for its secret, which the service shows once.",
)
@service_options
def create(
    url: str,
    events: tuple[str, ...],
    description: str | None,
    secrets_file: Path,
    api_url: str,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Register URL as an endpoint, and write its secret into a file.

    Only the file's owner can read it. The command prints nothing before the secret is on the disk.
    """
    if not events:
        raise click.UsageError(f"name one --event at least: {', '.join(SUBSCRIBABLE)}")
    file = SecretsFile(secrets_file)

    async def create_it(client: Client) -> WebhookEndpoint:
        with changing(file):
            if secret_lines(file.read()):
                raise CannotBegin(
                    f"{str(secrets_file)!r} holds a secret already: keep the secret of each"
                    " endpoint in a file of its own"
                )
            return await created(client, file, url, events, description=description)

    made = with_client(api_url, key_file, create_it)
    output = Output(as_json=as_json)
    output.record(_record(made), f"{made.id}: created; its secret is in {secrets_file}", "green")


async def created(
    client: Client,
    file: SecretsFile,
    url: str,
    events: Sequence[str],
    *,
    description: str | None = None,
    comment: Callable[[str], str] = lambda _: "",
) -> WebhookEndpoint:
    """Create an endpoint, and write its secret into a locked file that holds no secret yet.

    Args:
        comment: returns the line above the secret, given the endpoint's id.

    Raises:
        Nothing: the service gave no secret, or its answer cannot be read.
        ClientError: the service refused, or did not answer.
    """
    webhook_id = None
    with asking(file, _IF_LOST.format(url)) as keep:

        def keep_it(secret: str, given_id: str | None) -> None:
            nonlocal webhook_id
            keep(secret, comment(given_id) if given_id else "")
            webhook_id = given_id or "the endpoint"

        try:
            endpoint = await client.webhooks.create(
                url, events, description=description, keep=keep_it
            )
        except UnreadableAnswerError as error:
            if webhook_id is None:
                raise
            raise Nothing(
                f"{webhook_id} was created, and its secret is in {str(file.path)!r}; {error}"
            ) from None
    if webhook_id is None:
        raise Nothing(f"{endpoint.id} was created, and the service gave no secret")
    return endpoint


@endpoints.command("list-deliveries")
@click.argument("webhook_id", metavar="WEBHOOK", callback=read_id)
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to list."
)
@service_options
def list_deliveries(
    webhook_id: str, limit: int, api_url: str, key_file: Path | None, *, as_json: bool
) -> None:
    """List the deliveries to WEBHOOK, newest first; the log covers 14 days."""

    async def newest(client: Client) -> list[WebhookDelivery]:
        found: list[WebhookDelivery] = []
        async for delivery in client.webhooks.deliveries(webhook_id, page_size=min(limit, 100)):
            found.append(delivery)
            if len(found) == limit:
                break
        return found

    found = with_client(api_url, key_file, newest)
    records = [
        dict.fromkeys(_COLUMNS) | one.model_dump(mode="json", by_alias=False) for one in found
    ]
    Output(as_json=as_json).table(records, _COLUMNS, "no deliveries")


@endpoints.command()
@click.argument("webhook_id", metavar="WEBHOOK", callback=read_id)
@service_options
def test(webhook_id: str, api_url: str, key_file: Path | None, *, as_json: bool) -> None:
    """Have a test event delivered to WEBHOOK at once.

    hookonce endpoints list-deliveries shows how the receiver answered.
    """
    answer = with_client(api_url, key_file, lambda client: client.webhooks.test(webhook_id))
    Output(as_json=as_json).record({"id": webhook_id, "answer": answer}, f"{webhook_id}: tested")


@endpoints.command()
@click.argument("webhook_id", metavar="WEBHOOK", callback=read_id)
@service_options
def enable(webhook_id: str, api_url: str, key_file: Path | None, *, as_json: bool) -> None:
    """Enable WEBHOOK again after it was disabled."""
    _changed(webhook_id, {"enabled": True}, api_url, key_file, as_json=as_json)


@endpoints.command()
@click.argument("webhook_id", metavar="WEBHOOK", callback=read_id)
@service_options
def disable(webhook_id: str, api_url: str, key_file: Path | None, *, as_json: bool) -> None:
    """Disable WEBHOOK: the service sends nothing to it."""
    _changed(webhook_id, {"enabled": False}, api_url, key_file, as_json=as_json)


@endpoints.command()
@click.argument("webhook_id", metavar="WEBHOOK", callback=read_id)
@click.option("--url", help="The new URL.")
@event_option
@click.option("--description", help="A name for people.")
@service_options
def update(
    webhook_id: str,
    url: str | None,
    events: tuple[str, ...],
    description: str | None,
    api_url: str,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Change WEBHOOK. Only the named options change; --event replaces all event types."""
    given = {"url": url, "events": events or None, "description": description}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("say what to change: --url, --event or --description")
    _changed(webhook_id, changes, api_url, key_file, as_json=as_json)


def _changed(
    webhook_id: str, changes: dict[str, Any], api_url: str, key_file: Path | None, *, as_json: bool
) -> None:
    changed = with_client(
        api_url, key_file, lambda client: client.webhooks.update(webhook_id, **changes)
    )
    Output(as_json=as_json).record(_record(changed), f"{changed.id}: {changed.status}")


def _record(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return endpoint.model_dump(mode="json", by_alias=False, exclude={"secret"})


endpoints.add_command(rotate)
