"""The operations on webhook endpoints (interface, Endpoints: Webhooks)."""

from __future__ import annotations

from ...resources import Page, WebhookDelivery, WebhookEndpoint
from ...verification.secrets import new_secret
from ..addresses import check_url
from ..paging import page_of
from ..records import DeliveryRow, DisabledReason, EndpointRow, EndpointStatus
from ..refusals import refused
from .bodies import EndpointBody, EndpointChange, PageQuery
from .call import ApiCall


async def create(call: ApiCall) -> WebhookEndpoint:
    """``POST /v1/webhooks``: the endpoint including its secret."""
    backend = call.backend
    body: EndpointBody = call.body
    await check_url(body.url, allow_loopback=backend.allow_loopback)
    workspace = backend.workspace
    if len(workspace.endpoints) >= (most := workspace.limits.webhooks):
        raise refused("webhook.limit_reached", most=most)
    row = workspace.add_endpoint(
        body.url, body.events, body.description, new_secret(), backend.now, backend.new_id("wh")
    )
    return row.to_resource(with_secret=True)


async def change(call: ApiCall) -> WebhookEndpoint:
    row: EndpointRow = call.row
    body: EndpointChange = call.body
    sent = body.model_fields_set
    if "url" in sent:
        # Check the URL first, because a refused request must change nothing.
        await check_url(body.url, allow_loopback=call.backend.allow_loopback)
        row.url = body.url
    if "events" in sent:
        row.events = tuple(body.events)
    if "description" in sent:
        row.description = body.description
    if "enabled" in sent and body.enabled:
        row.enable()
    elif "enabled" in sent and row.status is EndpointStatus.ACTIVE:
        call.backend.deliveries.disable(row, DisabledReason.MANUAL)
    return row.to_resource()


async def test(call: ApiCall) -> WebhookDelivery:
    """``POST /v1/webhooks/{webhookId}/test``: "delivers a webhook.test event at once"."""
    row: EndpointRow = call.row
    return await call.backend.deliver_test(row.id)


async def list_deliveries(call: ApiCall) -> Page[WebhookDelivery]:
    """``GET /v1/webhooks/{webhookId}/deliveries``: "Newest first, kept 14 days"."""
    row: EndpointRow = call.row
    query: PageQuery = call.query
    return page_of(
        call.backend.deliveries.rows(row.id),
        DeliveryRow.to_resource,
        prefix="dlv",
        limit=query.limit,
        cursor=query.cursor,
    )


async def rotate_secret(call: ApiCall) -> WebhookEndpoint:
    """``POST /v1/webhooks/{webhookId}/rotate-secret``: the new secret, shown once."""
    row: EndpointRow = call.row
    call.backend.deliveries.replace_secret(row, new_secret())
    return row.to_resource(with_secret=True)
