"""The contract's rules accept the store of the example, and find the mistakes of wrong stores."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import run
from types import ModuleType
from typing import Any

import pytest

from hookonce.clock import Clock
from hookonce.stores import Claimed, ClaimResult, DeliveryKey, Ownership, StoreStats, Token
from hookonce.stores.contract import (
    BODY_RULES,
    INBOX_RULES,
    REGISTERING_RULES,
    RULES,
    Bench,
    Rule,
)
from hookonce.stores.memory import MemoryStore
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SLOW = {
    "many_dead_letters_are_read_in_pages",  # this rule makes the store read 5,000 files
    "many_waiting_events_are_returned_in_their_order",
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    monkeypatch.setenv("HOOKONCE_SECRETS", new_secret())
    return import_module("own_store")


def costly(rule: Rule) -> Any:
    """Return the rule as a parameter; a slow rule runs only with ``-m full``."""
    marks = [pytest.mark.full("3 s")] if rule.__name__ in SLOW else []
    return pytest.param(rule, marks=marks)


@pytest.mark.sample(40, full=100)
@pytest.mark.parametrize("rule", [costly(rule) for rule in (*RULES, *BODY_RULES)])
async def test_the_store_of_the_example_keeps_the_rule(
    example: ModuleType, rule: Rule, tmp_path: Path
) -> None:
    await rule(Bench(partial(example.FolderStore, tmp_path / "events")))


class GrantsTwice(MemoryStore):
    """A store that grants every claim."""

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        result = await super().claim(key, token, lease)
        return result if isinstance(result, Claimed) else Claimed(key, token, 1, frozenset(), lease)


class ForgetsFinished(MemoryStore):
    """A store that does not remember the handlers that have succeeded."""

    async def extend(self, claim: Claimed, *_: Any) -> Ownership:
        return await super().extend(claim)


class ForgetsSuccess(MemoryStore):
    """A store that remembers a handled event only until the event's lease ends."""

    async def complete(self, claim: Claimed) -> None:
        await super().extend(claim)


class LeaksKeyLocks(MemoryStore):
    """A store that never releases a key lock."""

    async def release_key_lock(self, *_: Any, **__: Any) -> None:
        return None


class CountsAllEndpoints(MemoryStore):
    """A store that counts the events of all endpoints together."""

    async def stats(self, **_: Any) -> StoreStats:
        return await super().stats()


class TakesAnyRetention(MemoryStore):
    """A store that accepts a retention of zero."""

    def __init__(self, *, clock: Clock, retention: timedelta) -> None:
        super().__init__(clock=clock, retention=max(retention, timedelta(hours=26)))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (GrantsTwice, "one_of_200_concurrent_claims_of_an_event_is_granted"),
        (GrantsTwice, "CLAIMED.claim"),
        (ForgetsFinished, "finished_handlers_of_all_attempts_are_remembered"),
        (ForgetsSuccess, "FREE.complete"),
        (ForgetsSuccess, "a_completed_event_is_done_for_every_caller"),
        (LeaksKeyLocks, "a_released_key_lock_is_free"),
        (CountsAllEndpoints, "stats_count_the_events_of_one_endpoint_or_of_all"),
        (TakesAnyRetention, "a_retention_of_no_time_is_refused"),
    ],
)
async def test_a_rule_fails_a_wrong_store(wrong: type[MemoryStore], rule: str) -> None:
    [broken] = [one for one in RULES if one.__name__ == rule]
    with pytest.raises(AssertionError):
        await broken(Bench(wrong, shares_data=False))


@pytest.mark.parametrize("rules", [INBOX_RULES, REGISTERING_RULES])
async def test_a_rule_names_the_calls_that_a_store_lacks(
    rules: tuple[Rule, ...], example: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=r"FolderStore is no \w+; it lacks \w+"):
        await rules[0](Bench(partial(example.FolderStore, tmp_path / "events")))


def test_the_rules_refuse_to_run_where_asserts_are_left_out() -> None:
    code = "from hookonce.stores.contract import Bench; Bench(lambda **_: None)"
    done = run([sys.executable, "-O", "-c", code], check=False, capture_output=True, text=True)
    assert "run Python without -O" in done.stderr
