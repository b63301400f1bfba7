"""Operations on webhook endpoints, for keys of the role admin (interface, Endpoints: Webhooks)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from pydantic import Field, JsonValue

from ..resources import (
    Page,
    Resource,
    WebhookChange,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookInput,
)
from .addresses import segment
from .connection import Connection, Item, Operation
from .errors import ValidationFailedError
from .listing import LARGEST_PAGE, Listing, texts


class _Anything(Resource):
    data: JsonValue = Field(default=None, repr=False)


class Webhooks:
    """Operations on webhook endpoints; each raises ``ClientError``.

    Get it from ``Client.webhooks``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        url: str,
        events: Iterable[str],
        *,
        description: str | None = None,
        keep: Callable[[str, str | None], object] | None = None,
    ) -> WebhookEndpoint:
        """Register an endpoint; only this answer shows its ``secret``.

        Args:
            url: https, at a public address.
            events: the event types to send; the service never adds new types.
            description: a name for people.
            keep: called with the secret, and with the endpoint's id if the answer has one, before
                the answer is parsed: an unreadable answer must not lose the secret.
        """
        body = WebhookInput(url=url, events=texts("events", events), description=description)
        operation = Operation("POST", "/v1/webhooks", body=body)
        return await self._issued(operation, keep)

    async def update(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        description: str | None = None,
        enabled: bool | None = None,
    ) -> WebhookEndpoint:
        """Change an endpoint; None leaves a field as it is.

        Args:
            url: https, at a public address.
            description: a name for people.
            enabled: True enables a disabled endpoint again.

        Raises:
            ValueError: every field is None.
        """
        body = WebhookChange(
            url=url,
            events=None if events is None else texts("events", events),
            description=description,
            enabled=enabled,
        )
        if not body.model_dump():
            raise ValueError("say what to change: url, events, description or enabled")
        operation = Operation("PATCH", _path(webhook_id), body=body, is_repeatable=True)
        return (await self._connection.ask(operation, Item[WebhookEndpoint])).data

    async def read(self, webhook_id: str) -> WebhookEndpoint | None:
        """Return an endpoint, or None if the service refuses to show it.

        The interface has no operation that reads an endpoint. The answer to a change has the whole
        endpoint, so this sends a change without fields, which the service may refuse.
        """
        operation = Operation("PATCH", _path(webhook_id), body=WebhookChange(), is_repeatable=True)
        try:
            return (await self._connection.ask(operation, Item[WebhookEndpoint])).data
        except ValidationFailedError:
            return None

    async def enable(self, webhook_id: str) -> WebhookEndpoint:
        """Enable a disabled endpoint; an active endpoint stays as it is."""
        return await self.update(webhook_id, enabled=True)

    async def disable(self, webhook_id: str) -> WebhookEndpoint:
        """Disable an endpoint."""
        return await self.update(webhook_id, enabled=False)

    async def test(self, webhook_id: str) -> JsonValue:
        """Ask for a test event at once, and return the answer's data.

        The interface does not show its shape, so it may be any JSON.
        """
        operation = Operation("POST", f"{_path(webhook_id)}/test")
        return (await self._connection.ask(operation, _Anything)).data

    def deliveries(
        self, webhook_id: str, *, page_size: int = LARGEST_PAGE
    ) -> Listing[WebhookDelivery]:
        """Return the delivery log of an endpoint for the last 14 days, newest first.

        Args:
            page_size: items in one request, at most 100.
        """
        path, query = f"{_path(webhook_id)}/deliveries", {"limit": page_size}
        return Listing(self._connection, Page[WebhookDelivery], path, query)

    async def rotate_secret(
        self, webhook_id: str, *, keep: Callable[[str, str | None], object] | None = None
    ) -> WebhookEndpoint:
        """Give an endpoint a new secret; only this answer shows it.

        For 24 hours every delivery carries two signatures, one for each secret. The client never
        repeats a rotation that may have arrived: it would replace a secret that nobody has seen.

        Args:
            keep: as for ``create``.
        """
        operation = Operation("POST", f"{_path(webhook_id)}/rotate-secret")
        return await self._issued(operation, keep)

    async def _issued(
        self, operation: Operation, keep: Callable[[str, str | None], object] | None
    ) -> WebhookEndpoint:
        """Send an operation whose answer contains a new secret, and return the endpoint."""

        def keep_secret(content: bytes) -> None:
            if keep is not None and (found := _secret_in(content)) is not None:
                keep(*found)

        return (
            await self._connection.ask(operation, Item[WebhookEndpoint], before_reading=keep_secret)
        ).data


def _secret_in(content: bytes) -> tuple[str, str | None] | None:
    """Return the secret and the endpoint's id from an answer; None if there is no secret."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    data = answer.get("data", answer) if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        return None
    secret, webhook_id = data.get("secret"), data.get("id")
    if not isinstance(secret, str) or not secret.strip():
        return None
    return secret.strip(), webhook_id if isinstance(webhook_id, str) else None


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{segment(webhook_id)}"
