"""How workers take from shards, of which some may not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...errors import StoreError
from ...logs import get_logger
from ..values import Batch, Fetched, Token
from .codec import read_fetched, step
from .shard import Shard

_log = get_logger("hookonce.store")

# A shard that has not answered by then is left out of this take.
_LOOK_SECONDS = 1.0
# And if it did not answer the last time either, nobody waits for it as long as that.
_SILENT_LOOK_SECONDS = 0.05
# They grow from one process to the next, for a worker that has the name of an earlier one; and go
# on where a store is opened again, whatever the clock says by then.
_numbers = count(time.time_ns() // 1000)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a shard answered to a worker who wants to take.

    Attributes:
        shard: its number.
        token: of the take it can be asked for.
        next_due: seconds until something is due there, 0 if it is; None if nothing waits.
        is_repeat: whether that take has been there before.

    """

    shard: int
    token: Token
    next_due: float | None
    is_repeat: bool


@dataclass(eq=False, slots=True)
class _Worker:
    """What shards still have to answer to a worker, by their numbers.

    Attributes:
        takes: the tokens of takes whose answers nobody has heard.
        looks: what was looked for, by its token, and the answer once it comes. It may come after
            the worker has gone on with the others, and counts when it looks again; a failure that
            comes then does not.

    """

    takes: dict[int, Token] = field(default_factory=dict)
    looks: dict[int, tuple[Token, asyncio.Future[Any]]] = field(default_factory=dict)


class Fetching:
    """Takes from shards, and leaves out those that do not answer.

    A shard that was asked in vain may have taken all the same. It is asked for that take again, by
    its token, before any other: else its events would wait for their leases to end, and lose an
    attempt. So it is where it did answer, but the worker's call was cancelled before all had. It
    may also be reached late; so whatever it is asked has a number, and it does nothing for one that
    is lower than another it has seen.

    Args:
        shards: all there are.

    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._workers: dict[str, _Worker] = {}
        self._silent: frozenset[int] = frozenset()

    def end(self, worker: str) -> int:
        """Return a number that is higher than those of all calls of a worker."""
        self._workers.pop(worker, None)
        return next(_numbers)

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``.

        Raises:
            StoreError: no shard answers that has something to take.

        """
        unheard = self._workers.setdefault(worker, _Worker()).takes
        if len(self._shards) == 1:
            looks = [_Look(0, unheard.get(0, token), None, is_repeat=True)]
        else:
            looks = await self._look(endpoint, worker, token)
        # A take that is repeated asks where it has taken something, and nowhere else.
        is_repeated = any(look.is_repeat for look in looks)
        taken: list[Fetched] = []
        due: list[float | None] = []
        answered: dict[int, Token] = {}
        failures: dict[int, StoreError] = {}
        for look in looks:
            # What was taken must not wait for one shard after another to fail.
            room = 0 if failures and taken else max(0, limit - len(taken))
            is_asked = look.is_repeat if is_repeated else look.next_due == 0 and room > 0
            if not is_asked:
                due.append(look.next_due)
                continue
            asked = step("fetch", endpoint, worker, look.token, next(_numbers), room, lease)
            try:
                next_due, rows = await self._shards[look.shard].run(asked, may_be_dropped=True)
            except StoreError as error:
                unheard[look.shard] = look.token
                failures[look.shard] = error
                continue
            except asyncio.CancelledError:
                unheard.update({**answered, look.shard: look.token})
                raise
            unheard.pop(look.shard, None)
            answered[look.shard] = look.token
            taken += [read_fetched(row, look.token, lease) for row in rows]
            due.append(float(next_due) if next_due else None)
        if failures and not taken:
            # Repeated with its token, it finds what a shard has taken and could not say.
            raise next(iter(failures.values()))
        if failures:
            self._note(failures)
        return Batch(tuple(taken), min((one for one in due if one is not None), default=None))

    async def _look(self, endpoint: str, worker: str, token: Token) -> list[_Look]:
        """Return what the shards that answer have; the longest due first.

        Raises:
            StoreError: none of them answers.

        """
        state = self._workers[worker]
        for n, shard in enumerate(self._shards):
            if n not in state.looks or _has_failed(state.looks[n][1]):
                wanted = state.takes.get(n, token)
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
                state.takes.pop(n, None)
            own = wanted if is_repeat else token
            looks.append(_Look(n, own, float(due) if due else None, is_repeat))
        self._note(failures)
        if not looks:
            raise next(iter(failures.values()))
        return sorted(looks, key=lambda look: look.next_due or 0.0)

    async def _wait(self, answers: Sequence[asyncio.Future[Any]]) -> None:
        """Wait for the answers of all shards, or of some if others are silent."""
        await asyncio.wait(answers, timeout=_SILENT_LOOK_SECONDS)
        expected = [answer for n, answer in enumerate(answers) if n not in self._silent]
        await asyncio.wait(expected or answers, timeout=_LOOK_SECONDS)
        pending = set(answers)
        while pending and not any(a.done() and a.exception() is None for a in answers):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    def _note(self, failures: Mapping[int, BaseException]) -> None:
        """Log it when other shards fail than before."""
        silent = frozenset(failures)
        if silent == self._silent:
            return
        self._silent = silent
        if failures:
            _log.warning(
                "workers take from the shards that answer, and these do not: %s (%s)",
                ", ".join(map(str, sorted(silent))),
                next(iter(failures.values())),
            )
        else:
            _log.info("workers take from all shards again")


def _has_failed(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and answer.exception() is not None


def _is_seen(answer: asyncio.Future[Any]) -> None:
    """Look at an answer that nobody may wait for any more: asyncio would log its failure."""
    if not answer.cancelled():
        answer.exception()
