"""The actions of people in the service's app, for which the API documents no operation.

The interface names approving, rejecting, rescheduling and retrying posts, and reconnecting channels
in the app; it shows no operation for these (Endpoints: Gaps).
"""

from __future__ import annotations

from datetime import datetime

from ..clock import unix_seconds
from ..resources import Channel, Post
from .checks import require_allowed
from .content import ChannelRow, PostRow
from .publishing import Emit, Publishing
from .refusals import refused
from .states import CHANNELS, ChannelStep, PostStep, after
from .timeline import Timeline
from .workspace import WorkspaceState


class App:
    """The app of an emulated service: each method is an action of a person in the app.

    Get it from ``EmulatedService.app``.

    An action that the state of a post does not allow raises a ``RefusedError`` with the code of the
    API's answer. An unknown id raises LookupError.
    """

    def __init__(
        self, workspace: WorkspaceState, publishing: Publishing, *, timeline: Timeline, emit: Emit
    ) -> None:
        self._workspace = workspace
        self._publishing = publishing
        self._timeline = timeline
        self._emit = emit

    def post(self, post_id: str) -> Post:
        """Return a post."""
        return self._post(post_id).to_resource()

    def approve(self, post_id: str) -> Post:
        """Approve a post: the service publishes it now or later, according to its mode.

        "Editors can approve posts" (interface, Authentication 7). If the scheduled time has already
        passed, publishing starts at once.
        """
        post = self._post(post_id)
        require_allowed(post, PostStep.DECIDE)
        if post.mode == "now" or post.scheduled_at is None:
            self._publishing.send(post)
        else:
            self._publishing.schedule(post, post.scheduled_at)
        return post.to_resource()

    def reject(self, post_id: str) -> Post:
        """Reject a post that waits for approval; it becomes a draft again."""
        post = self._post(post_id)
        require_allowed(post, PostStep.DECIDE)
        self._publishing.save(post, "draft", post.scheduled_at, needs_approval=False)
        return post.to_resource()

    def reschedule(self, post_id: str, moment: float | datetime) -> Post:
        """Move a scheduled post to another time: an aware ``datetime`` or Unix seconds."""
        post = self._post(post_id)
        require_allowed(post, PostStep.RESCHEDULE)
        scheduled_at = unix_seconds("moment", moment)
        if scheduled_at <= self._timeline.now:
            raise ValueError("the time of a scheduled post must lie ahead")
        self._publishing.schedule(post, scheduled_at)
        return post.to_resource()

    def retry(self, post_id: str, channel_id: str) -> Post:
        """Try a failed target again (interface, States)."""
        post = self._post(post_id)
        target = next((one for one in post.targets if one.channel.id == channel_id), None)
        if target is None:
            raise LookupError(f"the post has no target on a channel {channel_id!r}")
        if target.status != "failed":
            raise refused("post.target_not_retryable")
        self._publishing.send(post, [target])
        return post.to_resource()

    async def break_channel(
        self,
        channel_id: str,
        *,
        status: str = "needs_reconnect",
        reason: str = "The access token has expired.",
    ) -> Channel:
        """Break the connection to a channel; its scheduled targets are held.

        Args:
            status: ``needs_reconnect`` or ``error``.
            reason: the channel's ``statusReason``.
        """
        steps = {"needs_reconnect": ChannelStep.EXPIRE, "error": ChannelStep.BREAK}
        if status not in steps:
            raise ValueError(f"status must be {' or '.join(steps)}, not {status!r}")
        return await self._lose(channel_id, steps[status], reason, "channel.unhealthy")

    async def disconnect(self, channel_id: str) -> Channel:
        """Disconnect a channel from the workspace; its scheduled targets are held."""
        return await self._lose(channel_id, ChannelStep.DISCONNECT, None, "channel.disconnected")

    def reconnect(self, channel_id: str) -> Channel:
        """Reconnect a channel and release its held targets; this sends no event."""
        channel = self._channel(channel_id)
        channel.set_status(after(CHANNELS, channel.resource.status, ChannelStep.RECONNECT), None)
        self._publishing.release(channel)
        return channel.resource

    async def _lose(
        self, channel_id: str, step: ChannelStep, reason: str | None, event_type: str
    ) -> Channel:
        channel = self._channel(channel_id)
        channel.set_status(after(CHANNELS, channel.resource.status, step), reason)
        self._publishing.hold(channel)
        await self._emit(event_type, channel.resource.model_dump(mode="json"))
        return channel.resource

    def _post(self, post_id: str) -> PostRow:
        try:
            return self._workspace.posts[post_id]
        except KeyError:
            raise LookupError(f"there is no post {post_id!r}") from None

    def _channel(self, channel_id: str) -> ChannelRow:
        try:
            return self._workspace.channels[channel_id]
        except KeyError:
            raise LookupError(f"there is no channel {channel_id!r}") from None
