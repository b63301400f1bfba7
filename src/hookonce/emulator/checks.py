"""The checks that a post must pass before the service publishes it.

The validate operation "runs every check creation would run" (interface, Endpoints: Posts), so
create, replace, validate and publish all call ``check``. The interface does not show which checks
block a target. Here a target needs a caption or media, and media if its content type requires it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..resources import (
    Blocker,
    PostMode,
    PublishWarning,
    TargetValidation,
    ValidationIssue,
    ValidationResult,
)
from .content import ChannelRow, PostRow, TargetRow
from .moments import optional_moment
from .platforms import NEEDS_MEDIA, unknown_settings
from .refusals import RefusedError, blocked, refused
from .states import POST_CONFLICTS, PostStep
from .workspace import WorkspaceState

_X = "x"
_CREDITS_EACH = 1
_QUEUE_WEEKS = 8


@dataclass(frozen=True, slots=True)
class PostFindings:
    """The results of the checks of a post.

    Attributes:
        scheduled_at: the time of publishing in Unix seconds; for mode queue the free slot.
        blockers: other errors that would refuse the post.
        warnings: problems that do not refuse the post.
        x_credits: how many credits the post costs.
    """

    mode: PostMode
    scheduled_at: float | None
    targets: list[TargetValidation]
    blockers: list[RefusedError]
    warnings: list[PublishWarning]
    x_credits: int

    @property
    def refusal(self) -> RefusedError | None:
        """The error to answer if a check fails; None for a draft: "Drafts are always accepted"."""
        if self.mode == "draft":
            return None
        failed = [target for target in self.targets if not target.ok]
        if failed:
            return blocked([target.model_dump(mode="json") for target in failed])
        return self.blockers[0] if self.blockers else None

    def to_resource(self) -> ValidationResult:
        return ValidationResult(
            ok=self.refusal is None,
            mode=self.mode,
            scheduled_at=optional_moment(self.scheduled_at),
            x_credits=self.x_credits,
            targets=self.targets,
            blockers=[
                Blocker(code=error.body.code, message=error.body.message, hint=error.body.hint)
                for error in self.blockers
            ],
            warnings=self.warnings,
        )


def require_allowed(post: PostRow, step: PostStep) -> None:
    """Raise RefusedError if the status of a post does not allow a step."""
    code = POST_CONFLICTS.get((post.status, step))
    if code is not None:
        raise refused(code)


def check(post: PostRow, mode: PostMode, workspace: WorkspaceState, now: float) -> PostFindings:
    """Run all checks of a post and return their results.

    Args:
        post: the post as the request describes it; ``scheduled_at`` is the time in the request.
    """
    targets = [target for target in post.targets if target.status != "published"]
    scheduled_at = post.scheduled_at
    if mode == "queue":
        scheduled_at = _free_slot(post, workspace, now)
    credits_taken = _CREDITS_EACH * sum(target.channel.platform == _X for target in targets)
    return PostFindings(
        mode=mode,
        scheduled_at=scheduled_at,
        targets=[_validation(target, post) for target in targets],
        blockers=[]
        if mode == "draft"
        else list(_blockers(post, mode, scheduled_at, credits_taken, workspace, now)),
        warnings=[warning for target in targets for warning in _warnings(target, post, workspace)],
        x_credits=credits_taken,
    )


def _validation(target: TargetRow, post: PostRow) -> TargetValidation:
    media_ids = target.media_ids or post.media_ids
    caption = post.caption if target.caption is None else target.caption
    issues = []
    if target.content_type in NEEDS_MEDIA and not media_ids:
        issues.append(_error("media.required", "mediaIds", f"A {target.content_type} needs media."))
    elif not (media_ids or caption):
        issues.append(_error("content.missing", "caption", "There is nothing to publish."))
    return TargetValidation(
        channel_id=target.channel.id,
        platform=target.channel.platform,
        ok=not issues,
        issues=issues,
    )


def _error(code: str, field: str, message: str) -> ValidationIssue:
    return ValidationIssue(level="error", code=code, field=field, message=message)


def _blockers(
    post: PostRow,
    mode: PostMode,
    scheduled_at: float | None,
    credits_taken: int,
    workspace: WorkspaceState,
    now: float,
) -> Iterable[RefusedError]:
    if mode == "queue" and scheduled_at is None:
        yield refused("queue.no_free_slot")
    if mode == "schedule" and scheduled_at is None:
        yield refused("post.schedule_required")
    elif mode == "schedule" and scheduled_at is not None and scheduled_at <= now:
        yield refused("post.schedule_in_past")
    allowances, counted = workspace.allowances, workspace.posts_this_month(now)
    most = allowances.scheduled_posts_per_month
    if most is not None and post.id not in counted and len(counted) >= most:
        yield refused("post.monthly_limit", most=most)
    spent = sum(taken for one, taken in workspace.x_credits.items() if one != post.id)
    if allowances.x_credits is not None and spent + credits_taken > allowances.x_credits:
        yield refused("post.no_x_credits")


def _warnings(
    target: TargetRow, post: PostRow, workspace: WorkspaceState
) -> Iterable[PublishWarning]:
    for name in unknown_settings(target.channel.platform, target.settings):
        yield _warning(
            target,
            "settings.unknown_key",
            f"settings.{name}",
            "The platform has no such setting.",
            "Check its spelling. The post is accepted, and the setting is ignored.",
        )
    for media_id in target.media_ids or post.media_ids:
        row = workspace.media.get(media_id)
        if row is not None and (row.width is None or row.height is None):
            yield _warning(
                target,
                "media.dimensions_unknown",
                "mediaIds",
                "The aspect ratio of the media cannot be checked ahead of time.",
                "Send width and height when the upload is completed.",
            )
    if not target.channel.is_active:
        yield _warning(
            target,
            "channel.not_active",
            "channelId",
            "The channel is not active. The target is held until it is.",
            "Reconnect it in the app.",
        )


def _warning(target: TargetRow, code: str, field: str, message: str, hint: str) -> PublishWarning:
    return PublishWarning(
        channel_id=target.channel.id,
        platform=target.channel.platform,
        code=code,
        field=field,
        message=message,
        hint=hint,
    )


def _free_slot(post: PostRow, workspace: WorkspaceState, now: float) -> float | None:
    """Return the next free slot in the queue of the first target's channel.

    "Queue takes the next free slot from the channel queue (weekly slots, resolved in the workspace
    timezone)" (interface, Resources: Post input, mode semantics).
    """
    channel = post.targets[0].channel
    taken = {
        other.scheduled_at
        for other in workspace.posts.values()
        if other.id != post.id
        and other.status in {"scheduled", "pending_approval"}
        and any(target.channel is channel for target in other.targets)
    }
    return next((slot for slot in _slots(channel, workspace, now) if slot not in taken), None)


def _slots(channel: ChannelRow, workspace: WorkspaceState, now: float) -> Iterable[float]:
    today = datetime.fromtimestamp(now, workspace.zone).date()
    for day in range(_QUEUE_WEEKS * 7 + 1):
        date = today + timedelta(days=day)
        for slot in sorted(channel.slots):
            if slot.weekday != date.weekday():
                continue
            hour, minute = divmod(slot.minute, 60)
            local = datetime(date.year, date.month, date.day, hour, minute, tzinfo=workspace.zone)
            if (moment := local.timestamp()) > now:
                yield moment
