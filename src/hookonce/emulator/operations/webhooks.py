"""The operations on webhook endpoints (interface, Endpoints: Webhooks)."""

from __future__ import annotations

from ...resources import Page, WebhookDelivery, WebhookEndpoint
from ...verification.secrets import new_secret
from ..addresses import check_url
from ..paging import page_of
from ..records import DeliveryRow, EndpointRow, EndpointStatus
from ..refusals import at_endpoint_limit
from .bodies import EndpointBody, EndpointChange, PageQuery
from .call import ApiCall


async def create(call: ApiCall) -> WebhookEndpoint:
    """``POST /v1/webhooks``: the endpoint including its secret."""
    desk = call.desk
    body: EndpointBody = call.body
    await check_url(body.url, allow_loopback=desk.allow_loopback)
    workspace = desk.workspace
    if len(workspace.endpoints) >= (most := workspace.limits.webhooks):
        raise at_endpoint_limit(most)
    row = workspace.add(
        body.url, body.events, body.description, new_secret(), desk.now, desk.new_id("wh")
    )
    return row.shown(with_secret=True)


async def change(call: ApiCall) -> WebhookEndpoint:
    """``PATCH /v1/webhooks/{webhookId}``."""
    service = call.desk.service
    row: EndpointRow = call.row
    body: EndpointChange = call.body
    sent = body.model_fields_set
    if "url" in sent:
        # Before anything is changed: a request is taken as a whole or not at all.
        await check_url(body.url, allow_loopback=call.desk.allow_loopback)
        row.url = body.url
    if "events" in sent:
        row.events = tuple(body.events)
    if "description" in sent:
        row.description = body.description
    if "enabled" in sent:
        is_active = row.status is EndpointStatus.ACTIVE
        if body.enabled and not is_active:
            service.enable(row.id)
        elif is_active and not body.enabled:
            service.disable(row.id)
    return row.shown()


async def test(call: ApiCall) -> WebhookDelivery:
    """``POST /v1/webhooks/{webhookId}/test``: "delivers a webhook.test event at once"."""
    row: EndpointRow = call.row
    return await call.desk.service.test(row.id)


async def list_deliveries(call: ApiCall) -> Page[WebhookDelivery]:
    """``GET /v1/webhooks/{webhookId}/deliveries``: "Newest first, kept 14 days"."""
    row: EndpointRow = call.row
    query: PageQuery = call.query
    return page_of(
        call.desk.log(row.id),
        DeliveryRow.shown,
        prefix="dlv",
        limit=query.limit,
        cursor=query.cursor,
    )


async def rotate_secret(call: ApiCall) -> WebhookEndpoint:
    """``POST /v1/webhooks/{webhookId}/rotate-secret``: the new secret, shown once."""
    row: EndpointRow = call.row
    call.desk.service.rotate_secret(row.id)
    return row.shown(with_secret=True)
