"""Records when deliveries were ignored for lack of a handler: `reconcile` does not report them.

No answer waits for a record: a task of its own writes the notes now and then. If a crash or an
outage loses notes, `reconcile` reports false gaps; a lost note never hides a gap.
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

# How long to wait before writing the same type again. `reconcile` reports no delivery of the ten
# seconds after a written span. A pause below ten seconds keeps the unwritten deliveries within that
# time, so that `reconcile` does not report them.
_PAUSE_SECONDS = 5.0

# The number of calls to the store that may run at the same time.
_MOST_CALLS = 16


class IgnoredTypes:
    """Notes which event types one receiver ignores and when; writes the notes to the store.

    It has no timer, because a timer could open the store again after the store was closed.

    Args:
        store: where to write; None if the store has no such calls.
        endpoint: the name of the receiving endpoint.
        store_seconds: the time limit of a call to the store.
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
            event_type: the type of the event.
            signed_at: the signed time of the delivery, in Unix seconds.
            received_at: when it arrived, by this receiver's clock. The sender's delivery log may go
                by another clock than its signatures, so the span covers both moments.
        """
        if (
            self._store is None
            or self._count >= MOST_SPANS  # a limit, because the sender chooses the types
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
        """Write all notes; keep the notes that the store does not accept, for the next write."""
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
        """Write the remaining notes; call this before the store is closed."""
        if calls := [*self._calls]:
            for call in calls:
                call.cancel()  # `write` below repeats the cancelled calls
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
