"""The states of the service's resources, as tables (interface, States and transitions).

The interface does not show all transitions. The comments name those that it shows; the others are
the emulator's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType


class PostStep(Enum):
    """A step that a caller asks for; the states of a post allow or refuse it."""

    SAVE_DRAFT = "replace with mode draft"
    SUBMIT = "replace with another mode"
    DELETE = "delete"
    PUBLISH = "publish"
    RESCHEDULE = "reschedule"
    DECIDE = "approve or reject"


POST_CONFLICTS: Mapping[tuple[str, PostStep], str] = MappingProxyType(
    {
        # The interface shows that a post cannot be replaced or deleted while it is being published.
        ("publishing", PostStep.SAVE_DRAFT): "post.publishing",
        ("publishing", PostStep.SUBMIT): "post.publishing",
        ("publishing", PostStep.DELETE): "post.publishing",
        ("publishing", PostStep.PUBLISH): "post.publishing",
        ("publishing", PostStep.RESCHEDULE): "post.publishing",
        # Before the approval, the interface allows a caller only to save the post as a draft.
        ("pending_approval", PostStep.SUBMIT): "post.pending_approval",
        # Before the approval, the interface forbids publishing and rescheduling.
        ("pending_approval", PostStep.PUBLISH): "post.pending_approval",
        ("pending_approval", PostStep.RESCHEDULE): "post.pending_approval",
        # The interface forbids publishing a published post again.
        ("published", PostStep.PUBLISH): "post.published",
        # The interface forbids deleting a published post.
        ("published", PostStep.DELETE): "post.published",
        ("published", PostStep.SAVE_DRAFT): "post.published",
        ("published", PostStep.SUBMIT): "post.published",
        # A channel that has published the post cannot undo or change it.
        ("partial", PostStep.DELETE): "post.published",
        ("partial", PostStep.SAVE_DRAFT): "post.published",
        ("partial", PostStep.SUBMIT): "post.published",
        **{
            (state, PostStep.RESCHEDULE): "post.not_scheduled"
            for state in ("draft", "published", "failed", "partial")
        },
        **{
            (state, PostStep.DECIDE): "post.not_pending_approval"
            for state in ("draft", "scheduled", "publishing", "published", "failed", "partial")
        },
    }
)
"""The error code for a step that the post's status forbids; all other steps are allowed."""


class TargetStep(Enum):
    """A step that changes the status of a target."""

    QUEUE = "publishing starts"
    HOLD = "its channel is not active"
    RELEASE = "its channel is active again before the scheduled time"
    BEGIN = "the service sends it to the platform"
    TRY_AGAIN = "the platform fails, and the service will try again"
    SUCCEED = "the platform accepts it"
    FAIL = "the platform fails for good"


Table = Mapping[tuple[str, Enum], str]

TARGETS: Table = MappingProxyType(
    {
        # In the interface, a publish operation queues every target that is not published yet.
        ("pending", TargetStep.QUEUE): "queued",
        ("held", TargetStep.QUEUE): "queued",
        # In the interface, a failed target can be tried again.
        ("failed", TargetStep.QUEUE): "queued",
        # In the interface, a channel that is not active holds its scheduled targets.
        ("pending", TargetStep.HOLD): "held",
        ("queued", TargetStep.HOLD): "held",
        ("failed", TargetStep.HOLD): "held",
        ("held", TargetStep.RELEASE): "pending",
        ("queued", TargetStep.BEGIN): "publishing",
        ("publishing", TargetStep.TRY_AGAIN): "queued",
        ("publishing", TargetStep.SUCCEED): "published",
        ("publishing", TargetStep.FAIL): "failed",
    }
)
"""The status of a target after each step; no step leads to ``skipped``."""

FINISHED_TARGETS = frozenset({"published", "skipped"})
"""The statuses of targets that publishing again does not change."""


class ChannelStep(Enum):
    """A step that changes the status of a channel."""

    EXPIRE = "its account must be connected again"
    BREAK = "its connection stops working for another reason"
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
        # In the interface, a channel becomes active again when it is reconnected in the app.
        **{
            (state, ChannelStep.RECONNECT): "active"
            for state in ("needs_reconnect", "error", "disconnected")
        },
    }
)


def after(table: Table, state: str, step: Enum) -> str:
    """Return the state that follows a step; LookupError if the state does not allow the step."""
    try:
        return table[state, step]
    except KeyError:
        raise LookupError(f"not possible in the state {state!r}: {step.value}") from None


def status_of(targets: Iterable[str], unsent: str) -> str:
    """Return the status of a post, which follows from the statuses of its targets.

    Args:
        unsent: the status of the post while no target was sent: draft, pending or scheduled.
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
    return unsent
