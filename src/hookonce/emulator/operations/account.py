"""The operations on the account and its channels (interface, Endpoints: Account, Channels)."""

from __future__ import annotations

from ...resources import Channel, Me, Page, RequestLimits
from .bodies import ChannelQuery
from .call import ApiCall


async def me(call: ApiCall) -> Me:
    """``GET /v1/me``; ``features`` is empty, because the interface does not show its shape."""
    workspace = call.backend.workspace
    return Me(
        workspace=workspace.to_resource(),
        key=call.key,
        limits=RequestLimits(requests_per_day=workspace.limits.requests_per_day),
        features={},
    )


async def list_channels(call: ApiCall) -> Page[Channel]:
    """``GET /v1/channels``: "disconnected channels are excluded by default"."""
    query: ChannelQuery = call.query
    channels = [
        row.resource
        for row in call.backend.workspace.channels.values()
        if query.include_disconnected == "true" or row.resource.status != "disconnected"
    ]
    # Send nextCursor although this list has one page: "a collection is returned as data (array)
    # plus nextCursor".
    return Page(data=channels, next_cursor=None)
