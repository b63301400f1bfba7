"""Writes down when deliveries were ignored for want of a handler, so that they are no gaps later.

No answer waits for it: what was noted is written by a task of its own, once in a while. What a
crash or an outage of the store loses makes gaps where there are none, never the other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import ceil, floor, isfinite
from typing import TypeAlias

from ..errors import StoreError
from ..logs import get_logger
from ..stores.reconciling import (
    MOST_SPANS,
    MOST_TYPE_CHARACTERS,
    ReconcilingStore,
    Span,
    joined,
)
from ..stores.time_limit import within

_log = get_logger("hookonce")

_Spans: TypeAlias = dict[str, list[Span]]

# A type that was written is not written again for so long. It is less than the seconds that
# ``reconcile`` grants after the end of a span, so that what is left unwritten is excused as well.
_PAUSE_SECONDS = 5.0

# So many calls of the store may be under way; more are made only when one of these has ended.
_MOST_CALLS = 16


class IgnoredTypes:
    """Notes which event types one receiver ignores, and when, and writes it to the store.

    It has no timer: whoever closes the store does not find it open again later.

    Args:
        store: where it is written; None where the store cannot remember it.
        endpoint: the name that scopes what is handled once.
        store_seconds: how long a call of the store may take.

    """

    def __init__(self, store: ReconcilingStore | None, endpoint: str, store_seconds: float) -> None:
        self._store = store
        self._endpoint = endpoint
        self._store_seconds = store_seconds
        self._unwritten: _Spans = {}
        self._count = 0
        self._written_at: dict[str, float] = {}
        self._calls: set[asyncio.Task[None]] = set()
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
        written_at = self._written_at.get(event_type, float("-inf"))
        if abs(received_at - written_at) < _PAUSE_SECONDS or len(self._calls) >= _MOST_CALLS:
            return
        if len(self._written_at) >= MOST_SPANS:
            self._written_at.clear()
        self._written_at[event_type] = received_at
        call = asyncio.get_running_loop().create_task(self.write(), name="hookonce-ignored-types")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def write(self) -> None:
        """Write what was noted now; what the store does not take is kept for the next time."""
        store, spans = self._store, self._unwritten
        if store is None or not spans:
            return
        self._unwritten, self._count = {}, 0
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
        if calls := [*self._calls]:
            for call in calls:
                call.cancel()  # what it breaks off is written again below
            await asyncio.wait(calls)
        await self.write()

    def _add(self, spans: Mapping[str, Sequence[Span]]) -> None:
        for event_type, some in spans.items():
            known = self._unwritten.get(event_type, [])
            self._count -= len(known)
            for span in some:
                known = joined(known, span)
            self._unwritten[event_type] = known
            self._count += len(known)
