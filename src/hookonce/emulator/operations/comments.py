"""The operations on comments (interface, Endpoints: Comments)."""

from __future__ import annotations

from ...resources import Comment, Page, RepliedComment
from ..content import CommentRow
from ..paging import page_of
from ..records import CommentReply
from ..refusals import platform_rejected
from .bodies import CommentQuery, ReplyBody
from .call import ApiCall


async def list_comments(call: ApiCall) -> Page[Comment]:
    """``GET /v1/comments``: the comments by other people, newest first."""
    query: CommentQuery = call.query
    wanted, text = query.channel_ids, query.q.casefold()
    rows = [
        row
        for row in call.backend.workspace.comments.values()
        if query.status in {"all", row.resource.status}
        and (not wanted or row.resource.channel_id in wanted)
        and text in row.resource.text.casefold()
        and query.post_id in {None, row.post_id}
    ]
    rows.sort(key=lambda row: (row.created_at, row.number), reverse=True)
    return page_of(
        rows, CommentRow.to_resource, prefix="cmt", limit=query.limit, cursor=query.cursor
    )


async def reply(call: ApiCall) -> RepliedComment:
    """``POST /v1/comments/{commentId}/reply``: "Sends the reply to the platform at once"."""
    backend, row = call.backend, call.row
    channel_id = row.resource.channel_id
    await backend.timeline.sleep(backend.faults.delay(channel_id))
    fault = backend.faults.at_platform(channel_id, backend.random)
    if fault is not None:
        raise platform_rejected(fault.error.code, fault.error.message)
    channel = backend.workspace.channels.get(channel_id)
    if channel is None or not channel.is_active:
        raise platform_rejected("channel.not_active", "The channel is not connected.")
    # An open, assigned or done comment is done after an accepted reply (interface, States).
    row.set_status("done")
    body: ReplyBody = call.body
    backend.workspace.replies.append(CommentReply(row.id, body.text, backend.now))
    return RepliedComment(id=row.id, status=row.resource.status)
