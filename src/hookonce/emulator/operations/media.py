"""The operations on media (interface, Endpoints: Media)."""

from __future__ import annotations

from ...resources import Media, Page, Upload
from ..content import MediaRow
from ..paging import page_of
from ..refusals import Issue, conflict, invalid, storage_full
from ..states import MEDIA, MediaStep, after
from .bodies import CompletionBody, MediaQuery, UploadBody
from .call import ApiCall


async def list_media(call: ApiCall) -> Page[Media]:
    """``GET /v1/media``: "Lists only finished uploads"."""
    query: MediaQuery = call.query
    rows = [
        row
        for row in reversed(call.desk.workspace.media.values())
        if row.status == "ready" and query.type in {None, row.kind}
    ]
    return page_of(rows, MediaRow.shown, prefix="med", limit=query.limit, cursor=query.cursor)


async def start_upload(call: ApiCall) -> Upload:
    """``POST /v1/media/uploads``."""
    desk, body = call.desk, call.body
    _check_room(body, call)
    row = MediaRow(
        id=desk.new_id("med"),
        number=desk.workspace.next_number(),
        filename=body.filename,
        url="",
        mime=body.mime,
        size=body.size,
        created_at=round(desk.now, 3),
    )
    address, method, headers = desk.storage.reserve(row, call.base_url, desk.now)
    desk.workspace.media[row.id] = row
    return Upload(media_id=row.id, upload_url=address, method=method, headers=headers, url=row.url)


async def complete(call: ApiCall) -> Media:
    """``POST /v1/media/{mediaId}/complete``."""
    row: MediaRow = call.row
    body: CompletionBody = call.body
    sent = body.model_fields_set
    if "duration_ms" in sent and row.kind != "video":
        raise invalid([Issue("durationMs", "is for videos only")])
    if row.status == "failed":
        raise conflict("media.failed", "The upload of this media has failed.")
    if row.status == "uploading" and row.content is None:
        raise conflict("media.not_uploaded", "The bytes of this media have not arrived.")
    row.status = after(MEDIA, row.status, MediaStep.COMPLETE)
    if "width" in sent:
        row.width = body.width
    if "height" in sent:
        row.height = body.height
    if "duration_ms" in sent:
        row.duration_ms = body.duration_ms
    return row.shown()


def _check_room(body: UploadBody, call: ApiCall) -> None:
    workspace, now = call.desk.workspace, call.desk.now
    used = sum(
        row.size
        for row in workspace.media.values()
        if row.status != "uploading" or row.content is not None or now < row.expires_at
    )
    if used + body.size > (most := workspace.allowances.storage_bytes):
        raise storage_full(most)
