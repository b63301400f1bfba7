"""The states of the service's resources, as tables (interface, States and transitions).

A table lists every step there is: a state, a trigger, and the state that follows. Rows that the
interface has carry its words; the others are the emulator's own, since it says of the transitions
of targets and channels that they are "not shown". What is not in a table does not happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple


class PostStep(Enum):
    """What somebody wants to do with a post."""

    SAVE_DRAFT = "replace with mode draft"
    SUBMIT = "replace with another mode"
    DELETE = "delete"
    PUBLISH = "publish"
    RESCHEDULE = "reschedule"
    DECIDE = "approve or reject"


class Conflict(NamedTuple):
    """Why a step is refused with 409."""

    code: str
    message: str


_PUBLISHING = Conflict("post.publishing", "The post is going out.")
_PENDING = Conflict("post.pending_approval", "The post waits for approval.")
_PUBLISHED = Conflict("post.published", "The post is published, at least in part.")
_NOT_PENDING = Conflict("post.not_pending_approval", "The post does not wait for approval.")
_NOT_SCHEDULED = Conflict("post.not_scheduled", "The post has no time that could be changed.")

POST_CONFLICTS: Mapping[tuple[str, PostStep], Conflict] = MappingProxyType(
    {
        # "publishing | replace or delete | always | refused with 409 post.publishing"
        ("publishing", PostStep.SAVE_DRAFT): _PUBLISHING,
        ("publishing", PostStep.SUBMIT): _PUBLISHING,
        ("publishing", PostStep.DELETE): _PUBLISHING,
        ("publishing", PostStep.PUBLISH): _PUBLISHING,
        ("publishing", PostStep.RESCHEDULE): _PUBLISHING,
        # "pending_approval | replace with mode other than draft | refused; only a draft save"
        ("pending_approval", PostStep.SUBMIT): _PENDING,
        # "pending_approval | publish or reschedule | refused with 409 post.pending_approval"
        ("pending_approval", PostStep.PUBLISH): _PENDING,
        ("pending_approval", PostStep.RESCHEDULE): _PENDING,
        # "published | publish operation | already published | 409"
        ("published", PostStep.PUBLISH): _PUBLISHED,
        # "published | delete | always | 409"
        ("published", PostStep.DELETE): _PUBLISHED,
        ("published", PostStep.SAVE_DRAFT): _PUBLISHED,
        ("published", PostStep.SUBMIT): _PUBLISHED,
        # What is out on one channel cannot be taken back or changed there.
        ("partial", PostStep.DELETE): _PUBLISHED,
        ("partial", PostStep.SAVE_DRAFT): _PUBLISHED,
        ("partial", PostStep.SUBMIT): _PUBLISHED,
        **{
            (state, PostStep.RESCHEDULE): _NOT_SCHEDULED
            for state in ("draft", "published", "failed", "partial")
        },
        **{
            (state, PostStep.DECIDE): _NOT_PENDING
            for state in ("draft", "scheduled", "publishing", "published", "failed", "partial")
        },
    }
)
"""The steps that are refused, by the post's status; every other one is allowed."""


class TargetStep(Enum):
    """What happens to a target."""

    QUEUE = "it is to go out now"
    HOLD = "its channel is not active"
    RELEASE = "its channel is active again, and its time has not come"
    BEGIN = "its turn has come"
    STUMBLE = "the platform fails, and it will be tried again"
    SUCCEED = "the platform took it"
    FAIL = "the platform fails for good"


Table = Mapping[tuple[str, Enum], str]

TARGETS: Table = MappingProxyType(
    {
        # "not yet published | publish operation | every target not yet out is queued"
        ("pending", TargetStep.QUEUE): "queued",
        ("held", TargetStep.QUEUE): "queued",
        # "failed target | retry | target is in failed state | re-attempted"
        ("failed", TargetStep.QUEUE): "queued",
        # "A channel whose status is not active holds anything scheduled to it"
        ("pending", TargetStep.HOLD): "held",
        ("queued", TargetStep.HOLD): "held",
        ("failed", TargetStep.HOLD): "held",
        ("held", TargetStep.RELEASE): "pending",
        ("queued", TargetStep.BEGIN): "publishing",
        ("publishing", TargetStep.STUMBLE): "queued",
        ("publishing", TargetStep.SUCCEED): "published",
        ("publishing", TargetStep.FAIL): "failed",
    }
)
"""Targets; nothing becomes ``skipped`` here."""

GONE_OUT = frozenset({"published", "skipped"})
"""The targets that a publish operation leaves alone."""


class ChannelStep(Enum):
    """What happens to a channel."""

    EXPIRE = "the account has to be connected anew"
    BREAK = "its connection stopped working for another reason"
    DISCONNECT = "it is disconnected from the workspace"
    RECONNECT = "it is reconnected in the app"


CHANNELS: Table = MappingProxyType(
    {
        ("active", ChannelStep.EXPIRE): "needs_reconnect",
        ("active", ChannelStep.BREAK): "error",
        **{
            (state, ChannelStep.DISCONNECT): "disconnected"
            for state in ("active", "needs_reconnect", "error")
        },
        # "… until it is reconnected in the app"
        **{
            (state, ChannelStep.RECONNECT): "active"
            for state in ("needs_reconnect", "error", "disconnected")
        },
    }
)


class MediaStep(Enum):
    """What happens to a media item."""

    COMPLETE = "complete"


MEDIA: Table = MappingProxyType(
    {
        # "uploading | complete | media exists in the workspace | ready"
        ("uploading", MediaStep.COMPLETE): "ready",
        ("ready", MediaStep.COMPLETE): "ready",
    }
)
"""Media; nothing becomes ``failed`` here."""


class CommentStep(Enum):
    """What happens to a comment."""

    REPLY = "reply"


COMMENTS: Table = MappingProxyType(
    {
        # "open, assigned or done comment | reply | platform accepts the reply | done"
        ("open", CommentStep.REPLY): "done",
        ("assigned", CommentStep.REPLY): "done",
        ("done", CommentStep.REPLY): "done",
    }
)


def after(table: Table, state: str, step: Enum) -> str:
    """Return the state that follows; LookupError where there is no such step."""
    try:
        return table[state, step]
    except KeyError:
        raise LookupError(f"nothing {state!r} can take this step: {step.value}") from None


def status_of(targets: Iterable[str], resting: str) -> str:
    """Return the status of a post by those of its targets.

    Args:
        targets: the statuses of its targets.
        resting: what it is while none of them has been tried: a draft, scheduled or pending.

    """
    statuses = set(targets) - {"skipped"}
    if statuses & {"queued", "publishing"}:
        return "publishing"
    if statuses <= {"published"}:
        return "published"
    if statuses == {"failed"}:
        return "failed"
    if "published" in statuses:
        return "partial"
    return resting
