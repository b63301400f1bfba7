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
from .connection import Connection, Operation, segment
from .errors import ValidationFailedError
from .listing import LARGEST_PAGE, Listing, texts


class _Endpoint(Resource):
    data: WebhookEndpoint


class _Anything(Resource):
    data: JsonValue = Field(default=None, repr=False)


class Webhooks:
    """Operations on webhook endpoints; each raises ``ClientError``."""

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
        """Register an endpoint; its ``secret`` is shown in this answer alone.

        Args:
            url: https, at a public address.
            events: the event types it receives; new types are never added by themselves.
            description: what people call it.
            keep: given the secret, and the endpoint's id if it is there, before the rest of the
                answer is read: one that cannot be read loses no secret.

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
        """Change an endpoint; what is left out stays as it is.

        Args:
            webhook_id: which one.
            url: where it receives.
            events: the event types it receives.
            description: what people call it.
            enabled: True turns a disabled endpoint back on.

        Raises:
            ValueError: nothing is to be changed.

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
        return (await self._connection.ask(operation, _Endpoint)).data

    async def read(self, webhook_id: str) -> WebhookEndpoint | None:
        """Return an endpoint as it is, or None where the service does not tell.

        The interface shows no operation that reads one. A change answers with the endpoint, so this
        is a change that names nothing; the service may refuse that.
        """
        operation = Operation("PATCH", _path(webhook_id), body=WebhookChange(), is_repeatable=True)
        try:
            return (await self._connection.ask(operation, _Endpoint)).data
        except ValidationFailedError:
            return None

    async def enable(self, webhook_id: str) -> WebhookEndpoint:
        """Turn a disabled endpoint back on, or leave an active one as it is."""
        return await self.update(webhook_id, enabled=True)

    async def disable(self, webhook_id: str) -> WebhookEndpoint:
        """Turn an endpoint off."""
        return await self.update(webhook_id, enabled=False)

    async def test(self, webhook_id: str) -> JsonValue:
        """Have a test event delivered at once, and return the answer's data.

        Its shape is not shown, so it is whatever JSON arrives.
        """
        operation = Operation("POST", f"{_path(webhook_id)}/test")
        return (await self._connection.ask(operation, _Anything)).data

    def deliveries(
        self, webhook_id: str, *, page_size: int = LARGEST_PAGE
    ) -> Listing[WebhookDelivery]:
        """Return the delivery log of an endpoint, newest first; it reaches back 14 days.

        Args:
            webhook_id: of which endpoint.
            page_size: items a request asks for, 100 at the most.

        """
        path, query = f"{_path(webhook_id)}/deliveries", {"limit": page_size}
        return Listing(self._connection, Page[WebhookDelivery], path, query)

    async def rotate_secret(
        self, webhook_id: str, *, keep: Callable[[str, str | None], object] | None = None
    ) -> WebhookEndpoint:
        """Give an endpoint a new secret, shown in this answer alone.

        For 24 hours every event carries two signatures, one for each secret. It is never repeated
        by itself where it may have arrived: that would replace the secret nobody has seen.

        Args:
            webhook_id: which one.
            keep: given the secret, and the endpoint's id if it is there, before the rest of the
                answer is read: one that cannot be read loses no secret.

        """
        operation = Operation("POST", f"{_path(webhook_id)}/rotate-secret")
        return await self._issued(operation, keep)

    async def _issued(
        self, operation: Operation, keep: Callable[[str, str | None], object] | None
    ) -> WebhookEndpoint:
        """Return an endpoint whose secret this answer alone shows."""

        def take(content: bytes) -> None:
            if keep is not None and (found := _secret_in(content)) is not None:
                keep(*found)

        return (await self._connection.ask(operation, _Endpoint, before_reading=take)).data


def _secret_in(content: bytes) -> tuple[str, str | None] | None:
    """Return the secret of an answer, and the endpoint's id, whatever else is in it."""
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
