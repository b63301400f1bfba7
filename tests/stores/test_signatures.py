"""Each store has the methods of its contracts, and the list of public names shows the contracts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from hookonce.guide.reference import public_names
from hookonce.stores.activity import ActivityStore
from hookonce.stores.applications import RegisteringStore
from hookonce.stores.finishes import FinishingStore
from hookonce.stores.formats import UpgradableStore
from hookonce.stores.handled import HandledStore
from hookonce.stores.memory import MemoryStore
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.record_store import RecordStore, StepStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore

PROMISED: dict[type[Any], tuple[type[Any], ...]] = {
    MemoryStore: (Store, RegisteringStore, HandledStore),
    SQLiteStore: (InboxStore, RegisteringStore, ActivityStore, UpgradableStore, HandledStore),
    PostgresStore: (
        InboxStore,
        RegisteringStore,
        ActivityStore,
        UpgradableStore,
        HandledStore,
        FinishingStore,
    ),
    RedisStore: (InboxStore, RegisteringStore, ActivityStore, UpgradableStore, HandledStore),
}
OWN_CALLS: dict[type[Any], set[str]] = {
    MemoryStore: set(),
    SQLiteStore: {"backup", "restore"},
    PostgresStore: {"server_times"},
    RedisStore: {"server_times"},
}
LISTED = {name.path for name in public_names("hookonce.stores")}


def calls() -> Iterator[Any]:
    for store, promised in PROMISED.items():
        for name in sorted({name for protocol in promised for name in dir(protocol)}):
            protocol = next(one for one in promised if name in dir(one))
            if not name.startswith("_") and callable(getattr(protocol, name)):
                yield pytest.param(store, protocol, name, id=f"{store.__name__}.{name}")


def parameters(owner: type[Any], name: str) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(getattr(owner, name)).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


@pytest.mark.parametrize(("store", "protocol", "name"), list(calls()))
def test_a_call_takes_what_its_contract_says(
    store: type[Any], protocol: type[Any], name: str
) -> None:
    assert parameters(store, name) == parameters(protocol, name)
    assert {f"{base.__name__}.{name}" for base in protocol.__mro__} & LISTED


@pytest.mark.parametrize("store", PROMISED)
def test_the_list_of_public_names_shows_the_contracts_of_a_store_and_not_their_calls(
    store: type[Any],
) -> None:
    module = store.__module__.removesuffix(".store")
    shown, *members = [
        name for name in public_names(module) if name.path.partition(".")[0] == store.__name__
    ]
    promised = {protocol.__name__ for protocol in PROMISED[store]}
    promised |= {base.__name__ for base in store.__bases__ if base in {RecordStore, StepStore}}
    assert promised | {"ReconcilingStore"} == set(shown.contracts)
    assert {member.name for member in members} == OWN_CALLS[store]
