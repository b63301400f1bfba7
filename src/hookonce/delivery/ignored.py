"""Writes down when deliveries were ignored for want of a handler, so that they are no gaps later.

No answer waits for it: what was noted is written by a task of its own, once in a while. A crash
loses what was not written yet; ``reconcile`` then shows gaps where there are none, never the
other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import ceil, floor, isfinite
from typing import TypeAlias

from ..errors import StoreError
from ..stores.reconciling import (
    MOST_SPANS,
    MOST_TYPE_CHARACTERS,
    ReconcilingStore,
    Span,
    joined,
)
from ..verification.clock import Clock
from ..verification.loggers import get_logger
from .time_limit import set_within, within

_log = get_logger("hookonce")

_Spans: TypeAlias = dict[str, list[Span]]

# A store is written to no more often than this. A crash loses so much evidence at the most.
_PAUSE_SECONDS = 15.0


class IgnoredTypes:
    """Notes which event types one receiver ignores, and when, and writes it to the store.

    Args:
        store: where it is written; None where the store cannot remember it.
        endpoint: the name that scopes what is handled once.
        clock: Unix time in seconds.
        store_seconds: how long a call of the store may take.

    """

    def __init__(
        self, store: ReconcilingStore | None, endpoint: str, clock: Clock, store_seconds: float
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._clock = clock
        self._store_seconds = store_seconds
        self._unwritten: _Spans = {}
        self._count = 0
        self._written_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()
        self._has_failed = False

    def note(self, event_type: str, signed_at: float, received_at: float) -> None:
        """Note that a delivery was ignored.

        Args:
            event_type: of its event.
            signed_at: when it was signed, by the sender's clock.
            received_at: when it arrived, by this receiver's clock. The log goes by a clock of the
                sender, which need not be the one it signs by, so both moments count.

        """
        if (
            self._store is None
            or self._count >= MOST_SPANS  # of the sender's choice, while the store does not answer
            or len(event_type) > MOST_TYPE_CHARACTERS
            or not event_type.isprintable()
            or not (isfinite(signed_at) and isfinite(received_at))
        ):
            return
        first, last = sorted((signed_at, received_at))
        self._add({event_type: [Span(max(0, floor(first)), max(0, ceil(last)))]})
        # A clock that jumps, in a test or an emulator, passes the pause as well.
        is_due = abs(received_at - self._written_at) >= _PAUSE_SECONDS
        if self._task is None or self._task.done():
            self._is_due = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._write_on(), name="hookonce-ignored-types")
        if is_due:
            self._is_due.set()

    async def write(self) -> None:
        """Write what was noted now; what the store does not take is kept for later."""
        store, spans = self._store, self._unwritten
        if store is None or not spans:
            return
        self._unwritten, self._count = {}, 0
        self._written_at = self._clock()
        try:
            await within(self._store_seconds, store.note_ignored(self._endpoint, spans))
        except StoreError as error:
            self._add(spans)
            if not self._has_failed:
                _log.info("cannot note yet which event types are ignored: %s", error)
            self._has_failed = True
        except BaseException:
            self._add(spans)
            raise
        else:
            self._has_failed = False

    async def stop(self) -> None:
        """Write what is left; to be called before the store is closed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # a call of the store that it breaks off is repeated below
            await asyncio.wait({task})
        await self.write()

    async def _write_on(self) -> None:
        while self._unwritten:
            await set_within(_PAUSE_SECONDS, self._is_due)
            self._is_due.clear()
            await self.write()

    def _add(self, spans: Mapping[str, Sequence[Span]]) -> None:
        for event_type, some in spans.items():
            known = self._unwritten.get(event_type, [])
            self._count -= len(known)
            for span in some:
                known = joined(known, span)
            self._unwritten[event_type] = known
            self._count += len(known)
