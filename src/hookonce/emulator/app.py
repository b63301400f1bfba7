"""What people do in the service's app: decisions and changes for which no path is shown.

The interface names approving, rejecting, rescheduling and retrying, and that channels are
reconnected in the app; it shows no operation for any of them (Endpoints: Gaps).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pydantic import JsonValue

from ..resources import Channel, Post
from .content import ChannelRow, PostRow
from .operations.posts import refuse
from .publishing import Publishing
from .refusals import conflict
from .states import CHANNELS, ChannelStep, PostStep, after
from .timeline import ServiceTime
from .workspace import WorkspaceState

Emit = Callable[[str, Mapping[str, JsonValue]], Awaitable[object]]


class App:
    """The app of an emulated service.

    What the state of a post does not allow raises a ``RefusedError`` with the code that the API
    would answer. An unknown id is a LookupError.

    Args:
        workspace: what people work in.
        publishing: takes posts to their platforms.
        time: what time it is.
        emit: sends an event, given its type and data.

    """

    def __init__(
        self, workspace: WorkspaceState, publishing: Publishing, *, time: ServiceTime, emit: Emit
    ) -> None:
        self._workspace = workspace
        self._publishing = publishing
        self._time = time
        self._emit = emit

    def post(self, post_id: str) -> Post:
        """Return a post as it stands."""
        return self._post(post_id).shown()

    def approve(self, post_id: str) -> Post:
        """Approve a post: it goes the way of the mode it was sent with.

        "Editors can approve posts" (interface, Authentication 7). One whose time has passed while
        it waited goes out at once.
        """
        post = self._post(post_id)
        refuse(post, PostStep.DECIDE)
        if post.mode == "now" or post.scheduled_at is None:
            self._publishing.send(post)
        else:
            self._publishing.schedule(post, post.scheduled_at)
        return post.shown()

    def reject(self, post_id: str) -> Post:
        """Reject a post that waits for approval: it is a draft again."""
        post = self._post(post_id)
        refuse(post, PostStep.DECIDE)
        self._publishing.save(post, "draft", post.scheduled_at, needs_approval=False)
        return post.shown()

    def reschedule(self, post_id: str, moment: float) -> Post:
        """Give a scheduled post another time, in Unix seconds."""
        post = self._post(post_id)
        refuse(post, PostStep.RESCHEDULE)
        if moment <= self._time.now():
            raise ValueError("a post is scheduled for a time that lies ahead")
        self._publishing.schedule(post, moment)
        return post.shown()

    def retry(self, post_id: str, channel_id: str) -> Post:
        """Try a failed target again (interface, States: "failed target | retry")."""
        post = self._post(post_id)
        target = next((one for one in post.targets if one.channel.id == channel_id), None)
        if target is None:
            raise LookupError(f"the post is not aimed at a channel {channel_id!r}")
        if target.status != "failed":
            raise conflict("post.target_not_retryable", "The channel of the post did not fail.")
        self._publishing.send(post, [target])
        return post.shown()

    async def break_channel(
        self,
        channel_id: str,
        *,
        status: str = "needs_reconnect",
        reason: str = "The access token has expired.",
    ) -> Channel:
        """Let the connection to a channel stop working: what is scheduled to it is held.

        Args:
            channel_id: which.
            status: ``needs_reconnect`` or ``error``.
            reason: why.

        """
        steps = {"needs_reconnect": ChannelStep.EXPIRE, "error": ChannelStep.BREAK}
        if status not in steps:
            raise ValueError(f"a broken channel is {' or '.join(steps)}, not {status!r}")
        return await self._turn(channel_id, steps[status], reason, "channel.unhealthy")

    async def disconnect(self, channel_id: str) -> Channel:
        """Disconnect a channel from the workspace: what is scheduled to it is held."""
        return await self._turn(channel_id, ChannelStep.DISCONNECT, None, "channel.disconnected")

    def reconnect(self, channel_id: str) -> Channel:
        """Reconnect a channel, which releases what was held for it; no event tells of it."""
        channel = self._channel(channel_id)
        channel.turn(after(CHANNELS, channel.shown.status, ChannelStep.RECONNECT), None)
        self._publishing.release(channel)
        return channel.shown

    async def _turn(
        self, channel_id: str, step: ChannelStep, reason: str | None, event_type: str
    ) -> Channel:
        channel = self._channel(channel_id)
        channel.turn(after(CHANNELS, channel.shown.status, step), reason)
        self._publishing.hold(channel)
        await self._emit(event_type, channel.shown.model_dump(mode="json"))
        return channel.shown

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
