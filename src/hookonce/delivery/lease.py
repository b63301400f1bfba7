"""Keeps a claim alive while its handlers run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

from ..errors import StoreError
from ..stores.contract import Store
from ..stores.values import Claimed, Ownership
from .dispatch import Progress
from .time_limit import limited

__all__ = ["LeaseKeeper", "within"]

_log = logging.getLogger("hookonce.lease")

T = TypeVar("T")

# Handlers of one event often finish together; their success is written down in one step.
_CHECKPOINT_DELAY_SECONDS = 0.1
_RETRY_SECONDS = 1.0


async def within(seconds: float, call: Awaitable[T]) -> T:
    """Return what a store's call returns; one that takes longer is an unreachable store."""
    try:
        return await limited(seconds, call)
    except TimeoutError as error:
        raise StoreError(f"the store did not answer within {seconds:g} s") from error


class LeaseKeeper:
    """Extends a claim at a third of its lease, and soon after a handler has finished.

    Most handlers are done long before the first extension, so nothing but a timer is made for them.
    What has finished is recorded with each extension: after a crash only the rest runs again.

    Args:
        store: where the claim is.
        claim: what to keep.
        progress: which handlers have finished.
        store_seconds: how long one extension may take.

    """

    def __init__(
        self, store: Store, claim: Claimed, progress: Progress, store_seconds: float
    ) -> None:
        self._store = store
        self._claim = claim
        self._progress = progress
        self._store_seconds = store_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._extension: asyncio.Task[None] | None = None
        self._asked_meanwhile = False
        self._lost = False
        self.expires_at = self._loop.time() + claim.lease

    @property
    def claim(self) -> Claimed:
        """The claim it keeps: the first, or one adopted since."""
        return self._claim

    def adopt(self, claim: Claimed) -> None:
        """Keep this claim from now on: the event was taken anew after its lease was lost."""
        self._claim, self._lost = claim, False
        self.expires_at = self._loop.time() + claim.lease
        self._checkpoint_soon()

    async def __aenter__(self) -> Self:
        self._progress.changed = self._checkpoint_soon
        self._extend_in(self._claim.lease / 3)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.changed = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        if self._extension is not None and not self._extension.done():
            self._extension.cancel()
            await asyncio.wait({self._extension})

    def _checkpoint_soon(self) -> None:
        self._extend_in(_CHECKPOINT_DELAY_SECONDS)

    def _extend_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._lost:
            self._timer = self._loop.call_later(seconds, self._begin_extension)

    def _begin_extension(self) -> None:
        if self._extension is None or self._extension.done():
            self._asked_meanwhile = False
            self._extension = self._loop.create_task(self._extend())
        else:
            self._asked_meanwhile = True
        self._extend_in(self._claim.lease / 3)

    async def _extend(self) -> None:
        claim, finished = self._claim, frozenset(self._progress.finished)
        asked_at = self._loop.time()
        try:
            ownership = await within(self._store_seconds, self._store.extend(claim, finished))
        except StoreError as error:
            _log.warning("could not extend the lease of %s: %s", claim.key, error)
            self._extend_in(min(_RETRY_SECONDS, claim.lease / 10))
            return
        if claim is not self._claim:
            return  # another has been adopted meanwhile
        if ownership is Ownership.LOST:
            _log.error(
                "the lease of %s was lost while its handlers ran; another attempt may have begun",
                claim.key,
            )
            self._lost = True
            if self._timer is not None:
                self._timer.cancel()
            return
        self.expires_at = asked_at + claim.lease
        if self._asked_meanwhile:
            self._checkpoint_soon()
