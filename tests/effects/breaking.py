"""Ways to break a transaction on the driver's own connection, without the ledger's knowledge."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from io import BytesIO
from typing import Any, TypeAlias

import asyncpg  # type: ignore[import-untyped] # asyncpg has no annotations that a checker could read

from hookonce.effects.ledger import is_async_ledger

from .benches import driver_connection, driver_connection_in_thread

__all__ = [
    "BROKEN_IN_POSTGRES",
    "COMMITTED",
    "ROLLED_BACK",
    "SAVEPOINTS",
    "Way",
    "handler_of",
]

Way: TypeAlias = Callable[["Driver"], Awaitable[None]]


class Driver:
    """The driver's own connection within a handler; the ledger does not see its statements."""

    def __init__(self, connection: Any, write: Callable[[str], Any]) -> None:
        self.connection = connection
        self._write = write

    async def run(self, *statements: str) -> None:
        for statement in statements:
            await _result(self.connection.execute(statement))

    async def write(self, key: str) -> None:
        await _result(self._write(key))


async def _result(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def a_failed_statement(driver: Driver) -> None:
    await driver.write("lost")
    with suppress(Exception):
        await driver.run("INSERT INTO there_is_no_such_table VALUES (1)")


async def a_failed_copy(driver: Driver) -> None:
    await driver.write("lost")
    connection = driver.connection
    with suppress(Exception):
        if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            await connection.copy_to_table("done", source=BytesIO(b"a\tb\tc\n"))
        elif inspect.iscoroutinefunction(connection.execute):
            async with connection.cursor() as cursor, cursor.copy("COPY done FROM STDIN") as copy:
                await copy.write_row(("a",) * 3)
        else:
            with connection.cursor() as cursor, cursor.copy("COPY done FROM STDIN") as copy:
                copy.write_row(("a",) * 3)


async def a_rollback_and_another_transaction(driver: Driver) -> None:
    await driver.write("lost")
    await driver.run("ROLLBACK", "BEGIN")


async def a_rollback_and_no_other(driver: Driver) -> None:
    await driver.write("lost")
    await driver.run("ROLLBACK")


async def a_rollback_and_work_after_it(driver: Driver) -> None:
    await driver.run("ROLLBACK", "BEGIN")
    await driver.write("lost")


async def a_commit_and_another_transaction(driver: Driver) -> None:
    await driver.write("half")
    await driver.run("COMMIT", "BEGIN")
    await driver.write("lost")


async def a_commit_and_what_is_rolled_back(driver: Driver) -> None:
    await driver.write("half")
    await driver.run("COMMIT", "BEGIN")
    await driver.write("lost")
    await driver.run("ROLLBACK", "BEGIN")


async def a_commit_and_a_failure(driver: Driver) -> None:
    await driver.write("half")
    await driver.run("COMMIT", "BEGIN")
    raise ValueError("the other half was not done")


async def a_commit_and_no_other(driver: Driver) -> None:
    await driver.write("half")
    await driver.run("COMMIT")


async def a_savepoint_that_catches_a_failure(driver: Driver) -> None:
    await driver.run("SAVEPOINT mine")
    with suppress(Exception):
        await driver.run("INSERT INTO there_is_no_such_table VALUES (1)")
    await driver.run("ROLLBACK TO SAVEPOINT mine")
    await driver.write("whole")


async def a_savepoint_that_is_left_open(driver: Driver) -> None:
    await driver.run("SAVEPOINT mine")
    await driver.write("whole")


async def a_connection_that_is_cut(driver: Driver) -> None:
    await driver.write("lost")
    with suppress(Exception):
        await driver.run("SELECT pg_terminate_backend(pg_backend_pid())")


async def a_connection_that_is_closed(driver: Driver) -> None:
    await driver.write("lost")
    await _result(driver.connection.close())


SAVEPOINTS = [a_savepoint_that_catches_a_failure, a_savepoint_that_is_left_open]
ROLLED_BACK = [
    a_rollback_and_another_transaction,
    a_rollback_and_no_other,
    a_rollback_and_work_after_it,
]
COMMITTED = [
    a_commit_and_another_transaction,
    a_commit_and_what_is_rolled_back,
    a_commit_and_a_failure,
    a_commit_and_no_other,
]


BROKEN_IN_POSTGRES = [
    *ROLLED_BACK,
    a_failed_statement,
    a_failed_copy,
    a_connection_that_is_cut,
    a_connection_that_is_closed,
]


def handler_of(
    parts: dict[str, Any], choose: Callable[[Any], Way | None], key_of: Callable[[Any], str]
) -> Callable[..., Any]:
    """Return a handler for use within a ledger.

    Args:
        parts: the ledger and its functions to write, from ``benches``.
        choose: returns how to break the transaction of an event, or None to do the work.
        key_of: returns the key that the handler writes if it does the work.

    """

    async def work(event: Any, transaction: Any) -> None:
        def write(key: str) -> Any:
            return parts["write"](transaction, key)

        way = choose(event)
        if way is None:
            await _result(write(key_of(event)))
        elif is_async_ledger(parts["ledger"]):
            await way(Driver(await driver_connection(transaction), write))
        else:
            await way(Driver(driver_connection_in_thread(transaction), write))

    def work_in_a_thread(event: Any, transaction: Any) -> None:
        with suppress(StopIteration):  # `work` never waits here, so one `send` completes it
            work(event, transaction).send(None)

    return work if is_async_ledger(parts["ledger"]) else work_in_a_thread
