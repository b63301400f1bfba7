"""A receiver builds what deliveries need before the first delivery; /readyz reports failures."""

import sqlite3
from pathlib import Path
from typing import Literal

import pytest
from pydantic import PydanticUndefinedAnnotation
from starlette.applications import Starlette
from support.deliveries import SECRET, receiver_on, sqlite_url
from support.servers import delivering

from hookonce import Inbox, Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived, Event

pytestmark = pytest.mark.anyio

TOKEN = "a token for those who may know"


def add_class_that_cannot_be_built(receiver: Receiver) -> None:
    class Unbuilt(Event["NowhereDefined"]):  # type: ignore[name-defined] # the test needs an unknown name
        type: Literal["invoice.paid"]

    receiver.on(Unbuilt, name="note")(lambda _: None)


async def problems_without_lifespan(receiver: Receiver) -> list[str]:
    """Return the problems in /readyz of an application that never opens its receiver."""
    routes = [*receiver.routes("/webhooks"), *receiver.health_routes(token=TOKEN)]
    async with delivering(Starlette(routes=routes), SECRET) as sender:
        authorization = {"authorization": f"Bearer {TOKEN}"}
        answer = await sender.client.get("/readyz", headers=authorization)
    problems: list[str] = answer.json()["problems"]
    assert answer.status_code == (503 if problems else 200)
    return problems


async def test_a_class_that_cannot_be_built_is_reported_without_a_delivery() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    add_class_that_cannot_be_built(receiver)
    [problem] = await problems_without_lifespan(receiver)
    assert problem == (
        "no delivery can be read, because an event class of a handler cannot be built:"
        " PydanticUndefinedAnnotation: name 'NowhereDefined' is not defined"
    )


async def test_a_handler_that_is_registered_late_is_checked_too() -> None:
    async with Receiver(secrets=SECRET, store="memory://") as receiver:
        assert (await receiver.check()).ready
        add_class_that_cannot_be_built(receiver)
        assert "NowhereDefined" in str((await receiver.check()).problems)


async def test_a_class_that_cannot_be_built_keeps_a_worker_from_starting(tmp_path: Path) -> None:
    inbox = Inbox(embedded=False)
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), inbox=inbox)
    add_class_that_cannot_be_built(receiver)
    with pytest.raises(PydanticUndefinedAnnotation, match="NowhereDefined"):
        async with receiver.working():
            pass


async def test_a_ledger_without_tables_is_reported_until_they_exist(tmp_path: Path) -> None:
    def book(_: CommentReceived, __: sqlite3.Connection) -> None: ...

    receiver, ledger = receiver_on(), SQLiteLedger(tmp_path / "app.db")
    receiver.on(CommentReceived, name="book", within=ledger)(book)
    [problem] = await problems_without_lifespan(receiver)
    assert "no such table" in problem
    assert "hookonce ledger sql" in problem
    ledger.create_table()
    assert (await receiver.check()).ready
    ledger.close()


async def test_a_provider_of_secrets_that_fails_is_reported_without_a_delivery() -> None:
    class Vault:
        sealed = False

        def current(self) -> list[str]:
            if self.sealed:
                raise ConnectionError
            return [SECRET]

    vault = Vault()
    receiver = Receiver(secrets=vault, store="memory://")
    vault.sealed = True
    [problem] = await problems_without_lifespan(receiver)
    assert "Vault.current() raised ConnectionError" in problem
