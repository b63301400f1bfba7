"""Going out: from the mode of a post to the last target of which something is known.

"Publishing is asynchronous" (interface, What the service does: rule 2): every step here is planned
on the timeline. A target is queued, is sent to its platform, and ends published or failed; its
event is sent "as soon as the result is known" (Events: rule 2). How long that takes, how often a
platform is asked again, and what becomes of a target meanwhile is not shown, and ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from random import Random

from pydantic import JsonValue

from ..resources import PostMode
from .content import ChannelRow, PostRow, TargetRow
from .faults import Faults
from .states import GONE_OUT, TARGETS, TargetStep, after
from .timeline import ServiceTime, Timeline

_TURN_SECONDS = (0.2, 2.0)
_PLATFORM_SECONDS = (1.0, 20.0)
# So often a platform is asked that fails, but not for good.
_TRIES = 3
_AGAIN_SECONDS = 60.0

Emit = Callable[[str, Mapping[str, JsonValue]], Awaitable[object]]


class Publishing:
    """Takes posts to their platforms.

    Args:
        posts: the posts of the workspace.
        timeline: where steps are planned.
        time: what time it is.
        faults: what goes wrong.
        emit: sends an event, given its type and data.
        seed: what everything is drawn by.

    """

    def __init__(
        self,
        posts: Mapping[str, PostRow],
        *,
        timeline: Timeline,
        time: ServiceTime,
        faults: Faults,
        emit: Emit,
        seed: int,
    ) -> None:
        self._posts = posts
        self._timeline = timeline
        self._time = time
        self._faults = faults
        self._emit = emit
        self._seed = seed

    def save(
        self, post: PostRow, mode: PostMode, scheduled_at: float | None, *, needs_approval: bool
    ) -> None:
        """Let a post be saved with a mode, after every check of it.

        Args:
            post: the post as it is to go out.
            mode: draft, schedule, now or queue.
            scheduled_at: its time; for mode queue that of its slot.
            needs_approval: whether it has to be approved before.

        """
        self.withdraw(post)
        post.mode, post.scheduled_at, post.has_gone_out = mode, scheduled_at, False
        if mode == "draft":
            post.resting = "draft"
        elif needs_approval:
            post.resting = "pending_approval"
        elif mode == "now" or scheduled_at is None:
            self.send(post)
        else:
            self.schedule(post, scheduled_at)

    def schedule(self, post: PostRow, moment: float) -> None:
        """Let a post go out at a time, or now if that is over."""
        self.withdraw(post)
        post.scheduled_at, post.resting = moment, "scheduled"
        for target in post.targets:
            if target.status == "pending" and not target.channel.is_active:
                _step(target, TargetStep.HOLD)
        self._timeline.at(moment, post.id, partial(self._come_due, post))

    def send(self, post: PostRow, targets: Iterable[TargetRow] | None = None) -> None:
        """Queue every target that has not gone out, or these of them."""
        self.withdraw(post)
        post.resting, post.has_gone_out = "scheduled", True
        for target in post.targets if targets is None else targets:
            if target.status not in GONE_OUT | {"queued", "publishing"}:
                self._queue(post, target)

    def withdraw(self, post: PostRow) -> None:
        """Plan nothing more for a post that has not gone out."""
        self._timeline.forget({post.id})

    def hold(self, channel: ChannelRow) -> None:
        """Hold what is scheduled to a channel that is not active any more."""
        for post, target in self._aimed_at(channel):
            is_scheduled = post.status in {"scheduled", "publishing"}
            if is_scheduled and target.status in {"pending", "queued"}:
                self._timeline.forget({target.id})
                _step(target, TargetStep.HOLD)

    def release(self, channel: ChannelRow) -> None:
        """Let go what was held for a channel that is active again."""
        for post, target in self._aimed_at(channel):
            if target.status != "held":
                continue
            if post.has_gone_out:
                self._queue(post, target)
            else:
                _step(target, TargetStep.RELEASE)

    def _aimed_at(self, channel: ChannelRow) -> list[tuple[PostRow, TargetRow]]:
        return [
            (post, target)
            for post in self._posts.values()
            for target in post.targets
            if target.channel is channel
        ]

    async def _come_due(self, post: PostRow) -> None:
        self.send(post)

    def _queue(self, post: PostRow, target: TargetRow) -> None:
        target.tries_left, target.error = _TRIES, None
        if not target.channel.is_active:
            if target.status != "held":
                _step(target, TargetStep.HOLD)
            return
        _step(target, TargetStep.QUEUE)
        self._plan_turn(post, target, self._draw(post, target, "turn").uniform(*_TURN_SECONDS))

    def _plan_turn(self, post: PostRow, target: TargetRow, seconds: float) -> None:
        self._timeline.at(self._time.now() + seconds, target.id, partial(self._begin, post, target))

    async def _begin(self, post: PostRow, target: TargetRow) -> None:
        _step(target, TargetStep.BEGIN)
        target.tries, target.tries_left = target.tries + 1, target.tries_left - 1
        seconds = self._draw(post, target, "platform").uniform(*_PLATFORM_SECONDS)
        seconds += self._faults.delay(target.channel.id)
        self._timeline.at(self._time.now() + seconds, target.id, partial(self._end, post, target))

    async def _end(self, post: PostRow, target: TargetRow) -> None:
        random = self._draw(post, target, "result")
        fault = self._faults.at_platform(target.channel.id, random)
        if fault is None:
            _step(target, TargetStep.SUCCEED)
            target.external_post_id = f"17{random.randrange(10**15):015d}"
            host = target.channel.platform.replace("_", "-")
            target.permalink = f"https://{host}.example/p/{target.external_post_id}"
            target.published_at = self._time.now()
            await self._tell("post.target.published", target)
        elif fault.for_good or not target.tries_left:
            _step(target, TargetStep.FAIL)
            target.error = fault.error
            await self._tell("post.target.failed", target)
        else:
            # "Attempts that will be retried are not sent" (Events: Event types).
            _step(target, TargetStep.STUMBLE)
            if target.channel.is_active:
                self._plan_turn(post, target, _AGAIN_SECONDS)
            else:
                _step(target, TargetStep.HOLD)

    async def _tell(self, event_type: str, target: TargetRow) -> None:
        await self._emit(event_type, target.shown().model_dump(mode="json"))

    def _draw(self, post: PostRow, target: TargetRow, what: str) -> Random:
        """Return what draws something about a target, the same for the same seed."""
        place = post.targets.index(target)
        key = f"{self._seed}:post {post.number}:{place}:{target.tries}:{what}"
        return Random(key)  # noqa: S311 - what is made up is no secret


def _step(target: TargetRow, step: TargetStep) -> None:
    target.status = after(TARGETS, target.status, step)
