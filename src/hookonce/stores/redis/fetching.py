"""Fetches events from several shards, even if some shards do not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...errors import StoreError
from ...logs import get_logger
from ..formats import log_set_aside
from ..values import Batch, Fetched, Token
from .codec import decode, read_fetched, step
from .shard import Shard

_log = get_logger("hookonce.store")

# A fetch leaves out a shard that has not answered within this time.
_LOOK_SECONDS = 1.0
# The shorter time limit for a shard that did not answer the last fetch.
_SILENT_LOOK_SECONDS = 0.05
# Call numbers start from the time, so that a new process which takes over the name of an earlier
# worker has higher numbers. A store that is opened again in this process continues the count.
_numbers = count(time.time_ns() // 1000)


@dataclass(frozen=True, slots=True)
class _Look:
    """A shard's reply to ``peek``: the time until the shard's next event is due.

    Attributes:
        token: the token to use for a fetch from this shard.
        next_due: seconds until the next event is due, 0 if one is due; None if none waits.
        is_repeat: whether the shard has seen a fetch with this token already.
    """

    shard: int
    token: Token
    next_due: float | None
    is_repeat: bool


@dataclass(eq=False, slots=True)
class _Worker:
    """The unanswered calls of one worker, by shard number.

    Attributes:
        fetches: tokens of fetches whose answer did not arrive.
        looks: the token of each unanswered ``peek``, and the future of its answer. An answer may
            arrive after the worker has fetched from the other shards; the next fetch uses it,
            unless it is an error.
    """

    fetches: dict[int, Token] = field(default_factory=dict)
    looks: dict[int, tuple[Token, asyncio.Future[Any]]] = field(default_factory=dict)


class Fetching:
    """Fetches events from all shards; skips a shard that has not answered lately.

    A shard whose answer was lost may have claimed events. So the next fetch repeats the lost fetch,
    by its token: otherwise the events would wait until their leases end, and lose an attempt. The
    same applies if the worker's call was cancelled before every shard had answered. A network may
    deliver a call late, so every call has a number, and a shard ignores a number below one it has
    seen.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._workers: dict[str, _Worker] = {}
        self._silent: frozenset[int] = frozenset()

    def end(self, worker: str) -> int:
        """Forget a worker; return a call number above the numbers of its earlier calls."""
        self._workers.pop(worker, None)
        return next(_numbers)

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``Queue.fetch``.

        Raises:
            StoreError: every shard that may have events failed.
        """
        unheard = self._workers.setdefault(worker, _Worker()).fetches
        if len(self._shards) == 1:
            looks = [_Look(0, unheard.get(0, token), None, is_repeat=True)]
        else:
            looks = await self._look(endpoint, worker, token)
        # A repeated fetch asks only the shards that have seen its token.
        is_repeated = any(look.is_repeat for look in looks)
        fetched: list[Fetched] = []
        due: list[float | None] = []
        answered: dict[int, Token] = {}
        failures: dict[int, StoreError] = {}
        for look in looks:
            # After a failure, return the fetched events at once: more shards may time out.
            room = 0 if failures and fetched else max(0, limit - len(fetched))
            is_asked = look.is_repeat if is_repeated else look.next_due == 0 and room > 0
            if not is_asked:
                due.append(look.next_due)
                continue
            asked = step("fetch", endpoint, worker, look.token, next(_numbers), room, lease)
            try:
                next_due, rows, damaged = await self._shards[look.shard].run(
                    asked, may_be_dropped=True
                )
            except StoreError as error:
                unheard[look.shard] = look.token
                failures[look.shard] = error
                continue
            except asyncio.CancelledError:
                unheard.update({**answered, look.shard: look.token})
                raise
            unheard.pop(look.shard, None)
            answered[look.shard] = look.token
            for key in damaged:
                log_set_aside(decode(key))
            fetched += [read_fetched(row, look.token, lease) for row in rows]
            due.append(float(next_due) if next_due else None)
        if failures and not fetched:
            # A shard may have fetched events although its answer was lost. After this error, the
            # worker repeats the call with the same token, and gets these events.
            raise next(iter(failures.values()))
        if failures:
            self._note(failures)
        return Batch(tuple(fetched), min((wait for wait in due if wait is not None), default=None))

    async def _look(self, endpoint: str, worker: str, token: Token) -> list[_Look]:
        """Ask all shards when their next event is due; return the answers, earliest due time first.

        Raises: StoreError: no shard answers.
        """
        state = self._workers[worker]
        for n, shard in enumerate(self._shards):
            if n not in state.looks or _has_failed(state.looks[n][1]):
                wanted = state.fetches.get(n, token)
                future = shard.run(step("peek", endpoint, worker, wanted, next(_numbers)))
                future.add_done_callback(_is_seen)
                state.looks[n] = wanted, future
        asked = dict(state.looks)
        await self._wait([future for _, (_, future) in sorted(asked.items())])
        looks, failures = [], dict[int, BaseException]()
        for n, (wanted, future) in asked.items():
            if not future.done():
                failures[n] = StoreError("no answer in time")
                continue
            state.looks.pop(n, None)
            if (error := future.exception()) is not None:
                failures[n] = error
                continue
            due, answer = future.result()
            if not (is_repeat := answer == b"1"):
                state.fetches.pop(n, None)
            own = wanted if is_repeat else token
            looks.append(_Look(n, own, float(due) if due else None, is_repeat))
        self._note(failures)
        if not looks:
            raise next(iter(failures.values()))
        return sorted(looks, key=lambda look: look.next_due or 0.0)

    async def _wait(self, answers: Sequence[asyncio.Future[Any]]) -> None:
        """Wait for all shards, but only briefly for those that did not answer the last fetch."""
        await asyncio.wait(answers, timeout=_SILENT_LOOK_SECONDS)
        expected = [answer for n, answer in enumerate(answers) if n not in self._silent]
        await asyncio.wait(expected or answers, timeout=_LOOK_SECONDS)
        pending = set(answers)
        while pending and not any(a.done() and a.exception() is None for a in answers):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    def _note(self, failures: Mapping[int, BaseException]) -> None:
        """Log when the set of failing shards changes."""
        silent = frozenset(failures)
        if silent == self._silent:
            return
        self._silent = silent
        if failures:
            _log.warning(
                "workers do not fetch from these shards, which do not answer: %s (%s)",
                ", ".join(map(str, sorted(silent))),
                next(iter(failures.values())),
            )
        else:
            _log.info("workers fetch from all shards again")


def _has_failed(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and answer.exception() is not None


def _is_seen(answer: asyncio.Future[Any]) -> None:
    """Read an answer's exception, because asyncio logs every exception that nobody has read."""
    if not answer.cancelled():
        answer.exception()
