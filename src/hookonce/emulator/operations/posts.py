"""The operations on posts (interface, Endpoints: Posts)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...resources import (
    DeletedPost,
    Page,
    Post,
    PostListItem,
    PublishedPost,
    SavedPost,
    ValidationResult,
)
from ..checks import Findings, check
from ..content import PostRow, TargetRow
from ..moments import instant
from ..paging import page_of
from ..platforms import FIRST_COMMENTS, NEEDS_MEDIA, content_types, settings_issues
from ..refusals import Issue, conflict, invalid, no_first_comments, no_such_media
from ..states import POST_CONFLICTS, PostStep
from ..workspace import WorkspaceState
from .bodies import PostBody, PostQuery, TargetBody
from .call import ApiCall, Desk

_CONTRIBUTOR = "contributor"


async def list_posts(call: ApiCall) -> Page[PostListItem]:
    """``GET /v1/posts``."""
    query: PostQuery = call.query
    workspace, wanted = call.desk.workspace, query.channel_ids
    rows = [
        row
        for row in reversed(workspace.posts.values())
        if query.status in {"all", row.status}
        and (not wanted or wanted & {target.channel.id for target in row.targets})
    ]
    return page_of(
        rows,
        PostRow.listed,
        prefix="post",
        limit=query.limit,
        cursor=query.cursor,
        removed=_places(rows, workspace),
    )


async def create(call: ApiCall) -> SavedPost:
    """``POST /v1/posts``."""
    desk, body = call.desk, call.body
    post = _read(body, desk)
    findings = _checked(post, body, desk)
    post.number = desk.workspace.next_number()
    desk.workspace.posts[post.id] = post
    return _save(post, findings, call)


async def validate(call: ApiCall) -> ValidationResult:
    """``POST /v1/posts/validate``."""
    body: PostBody = call.body
    post = _read(body, call.desk)
    return check(post, body.mode, call.desk.workspace, call.desk.now).shown()


async def read(call: ApiCall) -> Post:
    """``GET /v1/posts/{postId}``."""
    post: PostRow = call.row
    return post.shown()


async def replace_post(call: ApiCall) -> SavedPost:
    """``PATCH /v1/posts/{postId}``: "The body is the whole post, not a partial change"."""
    desk, body, post = call.desk, call.body, call.row
    refuse(post, PostStep.SAVE_DRAFT if body.mode == "draft" else PostStep.SUBMIT)
    new = _read(body, desk, {target.channel.id: target.id for target in post.targets})
    new = replace(new, id=post.id, number=post.number, created_at=post.created_at)
    findings = _checked(new, body, desk)
    desk.workspace.posts[post.id] = new
    return _save(new, findings, call)


async def delete(call: ApiCall) -> DeletedPost:
    """``DELETE /v1/posts/{postId}``."""
    post: PostRow = call.row
    refuse(post, PostStep.DELETE)
    call.desk.publishing.withdraw(post)
    call.desk.workspace.remove_post(post)
    return DeletedPost(id=post.id, deleted=True)


async def publish(call: ApiCall) -> PublishedPost:
    """``POST /v1/posts/{postId}/publish``: "returns at once"; no platform is waited for."""
    desk, post = call.desk, call.row
    refuse(post, PostStep.PUBLISH)
    # "publishing a draft right away runs the same checks as scheduling" (Versioning 6).
    findings = check(post, "now", desk.workspace, desk.now)
    if (refusal := findings.refusal) is not None:
        raise refusal
    _count(post, findings, desk)
    desk.publishing.send(post)
    return PublishedPost(id=post.id, status=post.status)


def refuse(post: PostRow, step: PostStep) -> None:
    """Raise RefusedError if the status of a post does not allow a step."""
    reason = POST_CONFLICTS.get((post.status, step))
    if reason is not None:
        raise conflict(*reason)


def _checked(post: PostRow, body: PostBody, desk: Desk) -> Findings:
    findings = check(post, body.mode, desk.workspace, desk.now)
    if (refusal := findings.refusal) is not None:
        raise refusal
    return findings


def _save(post: PostRow, findings: Findings, call: ApiCall) -> SavedPost:
    desk = call.desk
    if findings.mode != "draft":
        _count(post, findings, desk)
    desk.publishing.save(
        post,
        findings.mode,
        findings.scheduled_at,
        # "the post waits for approval instead of being refused" (States); so does what a
        # contributor would send now or by the queue, which is not shown.
        needs_approval=call.key.role == _CONTRIBUTOR and findings.mode != "draft",
    )
    return SavedPost(
        id=post.id,
        status=post.status,
        scheduled_at=instant(post.scheduled_at),
        warnings=findings.warnings,
    )


def _count(post: PostRow, findings: Findings, desk: Desk) -> None:
    desk.workspace.posts_this_month(desk.now).add(post.id)
    desk.workspace.usage.x_credits[post.id] = findings.x_credits


def _places(rows: list[PostRow], workspace: WorkspaceState) -> Mapping[str, int]:
    """Return the numbers of posts that a filter or their end keeps from a list.

    A post can change its status, or be deleted, between two pages; the cursor that names it still
    says where to go on.
    """
    shown = {row.id for row in rows}
    hidden = {row.id: row.number for row in workspace.posts.values() if row.id not in shown}
    return workspace.removed | hidden


def _read(body: PostBody, desk: Desk, known: Mapping[str, str] | None = None) -> PostRow:
    """Return a new post as a body describes it; RefusedError if it cannot be read.

    Args:
        body: what was sent.
        desk: what there is.
        known: the ids of targets by their channels, which a target of the same channel keeps.

    """
    workspace = desk.workspace
    if issues := list(_unreadable(body, workspace)):
        raise invalid(issues)
    if issues := list(_first_comments(body, workspace)):
        raise no_first_comments(issues)
    if issues := list(_unknown_media(body, workspace)):
        raise no_such_media(issues)
    return PostRow(
        id=desk.new_id("post"),
        number=0,
        created_at=round(desk.now, 3),
        title=body.title,
        caption=body.caption,
        media_ids=list(body.media_ids),
        targets=[_target(target, body, desk, known or {}) for target in body.targets],
        scheduled_at=body.time,
    )


def _target(target: TargetBody, body: PostBody, desk: Desk, known: Mapping[str, str]) -> TargetRow:
    channel = desk.workspace.channels[target.channel]
    return TargetRow(
        id=known.get(channel.id) or desk.new_id("tgt"),
        channel=channel,
        content_type=target.content_type
        or _usual_type(channel.platform, has_media=bool(target.media_ids or body.media_ids)),
        caption=target.caption,
        media_ids=list(target.media_ids),
        first_comment=target.first_comment,
        settings=target.settings,
    )


def _usual_type(platform: str, *, has_media: bool) -> str:
    """Return the content type of a target that names none."""
    types = content_types(platform)
    if has_media:
        return types[0]
    return next((name for name in types if name not in NEEDS_MEDIA), types[0])


def _unreadable(body: PostBody, workspace: WorkspaceState) -> Iterator[Issue]:
    seen = set()
    for number, target in enumerate(body.targets):
        place = f"targets.{number}"
        channel = workspace.channels.get(target.channel)
        if not {"channel_id", "social_account_id"} & target.model_fields_set:
            yield Issue(f"{place}.channelId", "Field required")
        elif channel is None:
            yield Issue(f"{place}.channelId", "There is no such channel in this workspace")
        elif channel.id in seen:
            yield Issue(f"{place}.channelId", "Each channel can be named once")
        else:
            seen.add(channel.id)
            issues = settings_issues(channel.platform, target.settings)
            for name, message in issues.items():
                yield Issue(f"{place}.settings.{name}", message)


def _first_comments(body: PostBody, workspace: WorkspaceState) -> Iterator[Issue]:
    for number, target in enumerate(body.targets):
        platform = workspace.channels[target.channel].platform
        if target.first_comment and platform not in FIRST_COMMENTS:
            yield Issue(f"targets.{number}.firstComment", f"{platform} has no first comments here")


def _unknown_media(body: PostBody, workspace: WorkspaceState) -> Iterator[Issue]:
    lists = [("mediaIds", body.media_ids)]
    lists += [(f"targets.{n}.mediaIds", target.media_ids) for n, target in enumerate(body.targets)]
    for field, media_ids in lists:
        for number, media_id in enumerate(media_ids):
            row = workspace.media.get(media_id)
            if row is None or row.status != "ready":
                yield Issue(f"{field}.{number}", "There is no such finished media")
