"""Publishes posts: from the mode in the request to the result at each channel.

"Publishing is asynchronous" (interface, What the service does: rule 2): the timeline runs every
step. A target is queued, is sent to its platform, and is then published or failed; its event is
sent "as soon as the result is known" (Events: rule 2). The interface does not show the times, the
number of tries and the statuses in between: those are the emulator's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TypeAlias

from pydantic import JsonValue

from ..resources import PostMode
from .content import ChannelRow, PostRow, TargetRow
from .faults import Faults
from .states import FINISHED_TARGETS, TARGETS, TargetStep, after
from .timeline import Timeline

_QUEUED_SECONDS = (0.2, 2.0)
_PLATFORM_SECONDS = (1.0, 20.0)
_TRIES = 3
_RETRY_SECONDS = 60.0

Emit: TypeAlias = Callable[[str, Mapping[str, JsonValue]], Awaitable[object]]
"""A function that emits an event of a type with these data."""


class Publishing:
    """Publishes posts on their platforms.

    Args:
        seed: determines every random draw.
    """

    def __init__(
        self,
        posts: Mapping[str, PostRow],
        *,
        timeline: Timeline,
        faults: Faults,
        emit: Emit,
        seed: int,
    ) -> None:
        self._posts = posts
        self._timeline = timeline
        self._faults = faults
        self._emit = emit
        self._seed = seed

    def save(
        self, post: PostRow, mode: PostMode, scheduled_at: float | None, *, needs_approval: bool
    ) -> None:
        """Save a post that has passed its checks.

        Args:
            scheduled_at: the time of publishing; for mode queue the time of the slot.
        """
        self.withdraw(post)
        post.mode, post.scheduled_at, post.is_released = mode, scheduled_at, False
        if mode == "draft":
            post.unsent_status = "draft"
        elif needs_approval:
            post.unsent_status = "pending_approval"
        elif mode == "now" or scheduled_at is None:
            self.send(post)
        else:
            self.schedule(post, scheduled_at)

    def schedule(self, post: PostRow, moment: float) -> None:
        """Plan the publishing of a post; publish now if the time has passed."""
        self.withdraw(post)
        post.scheduled_at, post.unsent_status = moment, "scheduled"
        for target in post.targets:
            if target.status == "pending" and not target.channel.is_active:
                _step(target, TargetStep.HOLD)
        self._timeline.at(moment, post.id, partial(self._come_due, post))

    def send(self, post: PostRow, targets: Iterable[TargetRow] | None = None) -> None:
        """Queue these targets, by default all; skip finished, queued and publishing targets."""
        self.withdraw(post)
        post.unsent_status, post.is_released = "scheduled", True
        for target in post.targets if targets is None else targets:
            if target.status not in FINISHED_TARGETS | {"queued", "publishing"}:
                self._queue(post, target)

    def withdraw(self, post: PostRow) -> None:
        """Cancel the scheduled publishing of a post."""
        self._timeline.forget({post.id})

    def hold(self, channel: ChannelRow) -> None:
        """Hold the scheduled targets of a channel that is no longer active."""
        for post, target in self._targets_on(channel):
            is_scheduled = post.status in {"scheduled", "publishing"}
            if is_scheduled and target.status in {"pending", "queued"}:
                self._timeline.forget({target.id})
                _step(target, TargetStep.HOLD)

    def release(self, channel: ChannelRow) -> None:
        """Release the held targets of a channel that is active again."""
        for post, target in self._targets_on(channel):
            if target.status != "held":
                continue
            if post.is_released:
                self._queue(post, target)
            else:
                _step(target, TargetStep.RELEASE)

    def _targets_on(self, channel: ChannelRow) -> list[tuple[PostRow, TargetRow]]:
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
        self._plan_try(post, target, self._draw(post, target, "turn").uniform(*_QUEUED_SECONDS))

    def _plan_try(self, post: PostRow, target: TargetRow, seconds: float) -> None:
        begin_at = self._timeline.now + self._timeline.span(seconds)
        self._timeline.at(begin_at, target.id, partial(self._begin, post, target))

    async def _begin(self, post: PostRow, target: TargetRow) -> None:
        _step(target, TargetStep.BEGIN)
        target.tries, target.tries_left = target.tries + 1, target.tries_left - 1
        seconds = self._draw(post, target, "platform").uniform(*_PLATFORM_SECONDS)
        seconds += self._faults.delay(target.channel.id)
        end_at = self._timeline.now + self._timeline.span(seconds)
        self._timeline.at(end_at, target.id, partial(self._end, post, target))

    async def _end(self, post: PostRow, target: TargetRow) -> None:
        random = self._draw(post, target, "result")
        fault = self._faults.at_platform(target.channel.id, random)
        if fault is None:
            _step(target, TargetStep.SUCCEED)
            target.external_post_id = f"17{random.randrange(10**15):015d}"
            host = target.channel.platform.replace("_", "-")
            target.permalink = f"https://{host}.example/p/{target.external_post_id}"
            target.published_at = self._timeline.now
            await self._emit_result("post.target.published", target)
        elif fault.for_good or not target.tries_left:
            _step(target, TargetStep.FAIL)
            target.error = fault.error
            await self._emit_result("post.target.failed", target)
        else:
            # Emit no event: "Attempts that will be retried are not sent" (Events: Event types).
            _step(target, TargetStep.TRY_AGAIN)
            if target.channel.is_active:
                self._plan_try(post, target, _RETRY_SECONDS)
            else:
                _step(target, TargetStep.HOLD)

    async def _emit_result(self, event_type: str, target: TargetRow) -> None:
        await self._emit(event_type, target.to_resource().model_dump(mode="json"))

    def _draw(self, post: PostRow, target: TargetRow, what: str) -> Random:
        """Return a random generator that is seeded by the target and its number of tries."""
        place = post.targets.index(target)
        key = f"{self._seed}:post {post.number}:{place}:{target.tries}:{what}"
        return Random(key)  # noqa: S311 - generated data is no secret


def _step(target: TargetRow, step: TargetStep) -> None:
    target.status = after(TARGETS, target.status, step)
