"""Concurrent calls have the same outcome as the same calls made one after another.

A store combines waiting calls in one transaction, or in one call to the server. A test makes random
calls concurrently on one store, and one by one on a second store of the same kind. The answers must
be equal. All that the stores show must be equal, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
from support.postgres import PostgresServer
from support.redis_servers import RedisServer
from support.sqlite_files import sqlite_connection

from hookonce.errors import StoreError
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.protocols import InboxStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Batch, Claimed, DeadReason, Delivery, Token, delivery_key

TURNS = 12
LEASE = 10.0
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call:
    """A call of a store's method; a test makes the same call on several stores."""

    method: str
    positional: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    async def make(self, store: InboxStore) -> Any:
        """Make the call; return the answer, or the text of its error, for a comparison."""
        try:
            answer = await getattr(store, self.method)(*self.positional, **self.named)
        except StoreError as error:
            return str(error)
        # Sort the events: a fetch may return events that became due together in any order.
        if isinstance(answer, Batch):
            taken = sorted(answer.fetched, key=lambda taken: taken.claim.key)
            return answer._replace(fetched=tuple(taken))
        return answer


@dataclass(frozen=True)
class Turn:
    """Concurrent calls, and the seconds that pass after them."""

    calls: Sequence[Call]
    seconds: float


class Dice:
    """Makes turns of random calls; the same seed makes the same calls."""

    # A turn consists of frequent calls, with some other calls between them.
    FREQUENT = ("claim", "complete", "enqueue")
    OTHER = (
        *("fetch", "fetch", "extend", "release", "retry", "keep", "keep_in_flight", "bury", "bury"),
        *("replay", "discard", "make_due", "entry", "dead_letter", "stats"),
    )

    def __init__(self, seed: int, other: Sequence[str] = OTHER) -> None:
        self._other = other
        self._random = Random(seed)
        self._turns, self._takes = count(), count()

    def turn(self) -> Turn:
        """Return random calls, either about many events or about a few events."""
        random, first = self._random, 4 * next(self._turns)
        known = [("first", f"evt_{n}") for n in range(first, first + 18)]
        known += [("second", f"é{n}\n\0{{x}}") for n in range(first, first + 4)]
        few = random.sample(known, 3)
        events = random.choice([few, known[-4:], random.sample(known, len(known))])
        rare = random.choice([0.0, 0.03, 0.5])
        one_kind = random.choice([None, None, *self.FREQUENT])
        calls = []
        for event in islice(cycle(events), random.randint(1, 40)):
            method = one_kind or random.choice(self.FREQUENT)
            if random.random() < rare:
                method = random.choice(self._other)
            calls.append(self._call(method, event))
        return Turn(calls, random.choice([0.0, 0.0, 5.0, LEASE, 3600.0]))

    def _call(self, method: str, event: tuple[str, str]) -> Call:
        random, key = self._random, delivery_key(*event)
        # With few tokens, some calls have the event's claim, and some calls do not.
        token = Token(random.choice(["mine", "mine", "mine", "theirs"]))
        claim = Claimed(key, token, 1, NONE, LEASE)
        body = random.choice([b"", b"body", b"\0\xff" * 40])
        delivery = Delivery(*event, "comment.received", 1_700_000_000.25, body)
        finished, outstanding = (
            frozenset(random.sample(["a", "é\n"], random.choice([0, 0, 1, 2]))) for _ in range(2)
        )
        how = {"outstanding": outstanding, "began": random.random() < 0.8}
        error = random.choice(["", "it failed\n"])
        match method:
            case "claim" | "replay":
                return Call(method, (key, token, LEASE))
            case "complete":
                return Call(method, (claim,))
            case "enqueue":
                return Call(method, (delivery, token))
            case "fetch":
                worker = random.choice(["one", "two"])
                once = random.choice([token, Token(f"take {next(self._takes)}")])
                return Call(
                    method,
                    (random.choice([0, 100]), LEASE),
                    {"endpoint": event[0], "worker": worker, "token": once},
                )
            case "extend":
                return Call(method, (claim, finished, outstanding))
            case "release":
                return Call(method, (claim, finished, error), how)
            case "retry":
                after = random.choice([0.0, 15.0])
                return Call(method, (claim, after, finished, error), how)
            case "keep":
                return Call(method, (claim, delivery))
            case "keep_in_flight":
                return Call(method, (delivery,))
            case "bury":
                given = random.choice([None, delivery, delivery])
                return Call(
                    method,
                    (claim, DeadReason.REJECTED),
                    {
                        "error": error,
                        "finished": finished,
                        "outstanding": outstanding,
                        "delivery": given,
                    },
                )
            case "stats":
                return Call(method)
            case _:
                return Call(method, (key,))


Together: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.125

    def __call__(self) -> float:
        return self.now


async def shown(store: InboxStore) -> list[Any]:
    """Return everything that a store shows, in a fixed order."""
    entries = sorted(await store.entries(limit=1000), key=lambda entry: entry.delivery.key)
    letters = sorted(await store.dead_letters(limit=1000), key=lambda one: one.delivery.key)
    return [await store.stats(), entries, letters]


async def compare(
    at_once: InboxStore,
    one_by_one: InboxStore,
    clock: Clock,
    seed: int,
    together: Together,
    other: Sequence[str] = Dice.OTHER,
) -> None:
    dice = Dice(seed, other)
    async with aclosing(at_once), aclosing(one_by_one):
        for number in range(TURNS):
            turn = dice.turn()
            async with together():
                answers = asyncio.gather(*(call.make(at_once) for call in turn.calls))
                await asyncio.sleep(0)  # let all calls begin
            expected = [await call.make(one_by_one) for call in turn.calls]
            for call, answer, right in zip(turn.calls, await answers, expected, strict=True):
                assert answer == right, (seed, number, call)
            assert await shown(at_once) == await shown(one_by_one), (seed, number)
            clock.now += turn.seconds


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(20))
def test_calls_that_share_a_transaction_are_answered_as_if_alone(tmp_path: Path, seed: int) -> None:
    clock, path = Clock(), tmp_path / "at once.db"

    @asynccontextmanager
    async def together() -> AsyncIterator[None]:
        """Lock the file until all calls wait for the lock."""
        other = sqlite_connection(path)
        other.execute("BEGIN IMMEDIATE")
        yield
        other.close()

    at_once, one_by_one = (SQLiteStore(one, clock=clock) for one in (path, tmp_path / "one.db"))
    asyncio.run(compare(at_once, one_by_one, clock, seed, together))


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(20))
def test_calls_that_share_a_transaction_are_answered_as_if_alone_by_postgres(
    postgres: PostgresServer, seed: int
) -> None:
    clock = Clock()
    postgres.execute("DROP SCHEMA IF EXISTS one CASCADE")
    at_once, one_by_one = (
        PostgresStore(postgres.url, schema=schema, clock=clock) for schema in ("hookonce", "one")
    )
    # Fetches and listings use connections of their own, so their order among calls is not fixed.
    apart = {"fetch", "entry", "dead_letter", "stats"}
    other = [method for method in Dice.OTHER if method not in apart]
    asyncio.run(compare(at_once, one_by_one, clock, seed, nullcontext, other))


def compare_on(server: RedisServer, seed: int) -> None:
    clock = Clock()
    at_once, one_by_one = (
        RedisStore(server.url, prefix=prefix, clock=clock) for prefix in ("hookonce", "one")
    )
    asyncio.run(compare(at_once, one_by_one, clock, seed, nullcontext))


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(20))
def test_calls_that_share_a_script_call_are_answered_as_if_alone_by_valkey(
    valkey: RedisServer, seed: int
) -> None:
    compare_on(valkey, seed)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(20))
def test_calls_that_share_a_script_call_are_answered_as_if_alone_by_redis(
    redis_7: RedisServer, seed: int
) -> None:
    compare_on(redis_7, seed)
