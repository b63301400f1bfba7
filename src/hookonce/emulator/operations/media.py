"""The operations on media (interface, Endpoints: Media)."""

from __future__ import annotations

from ...resources import Media, Page, Upload
from ..content import MediaRow
from ..paging import page_of
from ..refusals import Issue, invalid, refused
from ..storage import ADDRESS_SECONDS
from .bodies import CompletionBody, MediaQuery, UploadBody
from .call import ApiCall


async def list_media(call: ApiCall) -> Page[Media]:
    """``GET /v1/media``: "Lists only finished uploads"."""
    query: MediaQuery = call.query
    rows = [
        row
        for row in reversed(call.backend.workspace.media.values())
        if row.status == "ready" and query.type in {None, row.kind}
    ]
    return page_of(rows, MediaRow.to_resource, prefix="med", limit=query.limit, cursor=query.cursor)


async def start_upload(call: ApiCall) -> Upload:
    backend, body = call.backend, call.body
    _check_storage_quota(body, call)
    row = MediaRow(
        id=backend.new_id("med"),
        number=backend.workspace.next_number(),
        filename=body.filename,
        url="",
        mime=body.mime,
        size=body.size,
        created_at=round(backend.now, 3),
    )
    expires_at = backend.now + backend.timeline.span(ADDRESS_SECONDS)
    address, method, headers = backend.storage.reserve(row, call.base_url, expires_at)
    backend.workspace.media[row.id] = row
    return Upload(media_id=row.id, upload_url=address, method=method, headers=headers, url=row.url)


async def complete(call: ApiCall) -> Media:
    row: MediaRow = call.row
    body: CompletionBody = call.body
    sent = body.model_fields_set
    if "duration_ms" in sent and row.kind != "video":
        raise invalid([Issue("durationMs", "is for videos only")])
    if row.status == "failed":
        raise refused("media.failed")
    if row.status == "uploading" and row.content is None:
        raise refused("media.not_uploaded")
    # A completed upload is ready (interface, States).
    row.status = "ready"
    if "width" in sent:
        row.width = body.width
    if "height" in sent:
        row.height = body.height
    if "duration_ms" in sent:
        row.duration_ms = body.duration_ms
    return row.to_resource()


def _check_storage_quota(body: UploadBody, call: ApiCall) -> None:
    workspace, now = call.backend.workspace, call.backend.now
    used = sum(
        row.size
        for row in workspace.media.values()
        if row.status != "uploading" or row.content is not None or now < row.expires_at
    )
    if used + body.size > (most := workspace.allowances.storage_bytes):
        raise refused("media.storage_quota_exceeded", most=most)
