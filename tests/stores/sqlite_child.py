"""A child process that uses a SQLite store: a test may kill or fork it, or fill its disk.

``sqlite_child.py COMMAND PATH [NAME]``. The process prints a line for each step that it has done.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Self

import apsw

from hookonce.errors import StoreError
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    delivery_key,
    new_token,
)

LEASE = 600.0
FORKS = 8
NOBODY = 65534


def say(line: str) -> None:
    """Write a line with one system call, so that a kill cannot cut the line."""
    os.write(1, f"{line}\n".encode())


async def hear() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


async def claim(store: SQLiteStore, key: DeliveryKey) -> Claimed:
    """Claim an event that must be free."""
    result = await store.claim(key, new_token(), LEASE)
    if not isinstance(result, Claimed):
        raise TypeError(f"{key} is not free: {result}")
    return result


async def complete(store: SQLiteStore, name: str) -> None:
    await store.complete(await claim(store, delivery_key("default", name)))


async def bury(store: SQLiteStore, name: str, body: bytes) -> None:
    owned = await claim(store, delivery_key("default", name))
    delivery = Delivery("default", name, None, 1.0, body)
    await store.bury(owned, DeadReason.REJECTED, delivery=delivery)


async def close(stores: Iterable[SQLiteStore]) -> None:
    for store in stores:
        await store.aclose()


async def race(path: str, _: str) -> None:
    """For each line of input, compete with other processes for ten events; print the keys won."""
    store = SQLiteStore(path)
    await store.open()
    say("ready")
    while word := await hear():
        keys = [delivery_key("default", f"evt_{int(word) * 10 + n}") for n in range(10)]
        results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
        say(" ".join(result.key for result in results if isinstance(result, Claimed)) or "none")
    await store.aclose()


async def meet(path: str, name: str) -> None:
    """Open and use every file that the test names, while other processes use the same file."""
    say("ready")
    while file := await hear():
        store = SQLiteStore(os.path.join(path, file))
        await complete(store, name)
        say(file)
        await store.aclose()


async def write(path: str, name: str) -> None:
    """Complete and bury events until the process is killed; print each one."""
    store = SQLiteStore(path)
    numbers = itertools.count()

    async def work() -> None:
        for n in numbers:
            event_id = f"{name}_{n}"
            if n % 5 == 0:
                await bury(store, event_id, event_id.encode() * 100)
                say(f"dead {event_id}")
            else:
                await complete(store, event_id)
                say(f"done {event_id}")

    await asyncio.gather(*(work() for _ in range(16)))


async def insist(path: str, name: str) -> None:
    """On each line of input, enqueue an event; print whether it was stored or refused."""
    store = SQLiteStore(path)
    await store.open()
    say("ready")
    while word := await hear():
        event_id = f"{name}_{word}"
        try:
            await store.enqueue(Delivery("default", event_id, None, 1.0, b"body"), new_token())
        except StoreError:
            say(f"refused {event_id}")
        else:
            say(f"stored {event_id}")
    await store.aclose()


async def hold(path: str, name: str) -> None:
    """Claim an event, print `claimed`, and never complete or release the event."""
    store = SQLiteStore(path)
    await claim(store, delivery_key("default", name))
    say("claimed")
    await asyncio.Event().wait()


async def fill(path: str, _: str) -> None:
    """Write until the file has reached its size limit; raise the limit, and write again."""
    store = SQLiteStore(path)
    await store.open()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    for n in range(200):
        try:
            await bury(store, f"evt_{n}", bytes(10_000))
        except StoreError as error:
            say(f"refused: {error}")
            break
        say(f"dead evt_{n}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await bury(store, "late", bytes(10_000))
    say("dead late")
    await store.aclose()


async def trespass(path: str, _: str) -> None:
    """Use a file for which this user has no write permission."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    store = SQLiteStore(path)
    try:
        await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE)
    except StoreError as error:
        say(f"refused: {error}")
    await store.aclose()


def in_fork(work: Callable[[], None]) -> int:
    """Run a function in a forked process, and return the exit status of the process."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the fork must end here after any error
            say(f"failed: {error!r}")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_and_use(path: str) -> None:
    """Use one store in a process and in its fork, in alternation."""
    store = SQLiteStore(path)

    def in_the_fork() -> None:
        asyncio.run(complete(store, "fork"))
        say("done fork")
        asyncio.run(store.aclose())
        asyncio.run(complete(store, "fork again"))
        say("done fork again")

    with asyncio.Runner() as runner:
        runner.run(complete(store, "parent"))
        say("done parent")
        if in_fork(in_the_fork):
            return
        runner.run(complete(store, "parent again"))
        say("done parent again")
        runner.run(store.aclose())


def fork_and_close(path: str) -> None:
    """Close a store while its fork still uses it; then the fork dies without closing it."""
    store = SQLiteStore(path)
    closed, to_close = os.pipe()[::-1], os.pipe()[::-1]
    with asyncio.Runner() as runner:
        runner.run(complete(store, "parent"))
        pid = os.fork()
        if pid == 0:
            os.close(closed[0])  # so that the fork's read ends if its parent is killed
            asyncio.run(complete(store, "before"))
            say("done before")
            os.write(to_close[0], b".")
            os.read(closed[1], 1)
            asyncio.run(complete(store, "after"))
            say("done after")
            os.kill(os.getpid(), signal.SIGKILL)
        os.read(to_close[1], 1)
        runner.run(store.aclose())
        os.write(closed[0], b".")
        os.waitpid(pid, 0)


def fork_and_share(path: str) -> None:
    """Use several stores on one file in a process and in its fork, and close them in turn."""
    stores = [SQLiteStore(path) for _ in range(3)]

    async def use_and_close(name: str) -> None:
        for number, store in enumerate(stores):
            await complete(store, f"{name} {number}")
        for number, store in enumerate(stores):
            await store.aclose()
            for left in range(number + 1, len(stores)):
                await complete(stores[left], f"{name} {left} after {number}")
        threads = [thread.name for thread in threading.enumerate()]
        writers = [one for one in threads if one.startswith("hookonce")]
        say(f"left {writers}" if writers else f"done {name}")

    with asyncio.Runner() as runner:
        runner.run(complete(stores[2], "parent"))
        if not in_fork(lambda: asyncio.run(use_and_close("fork"))):
            runner.run(use_and_close("parent"))


def fork_while_writing(path: str) -> None:
    """Fork again and again while another thread writes; every fork must be able to claim."""
    store = SQLiteStore(path)
    ended = threading.Event()

    async def keep_writing() -> None:
        for n in itertools.count():
            if ended.is_set():
                break
            keys = [delivery_key("default", f"parent_{n}_{m}") for m in range(100)]
            await asyncio.gather(*(claim(store, key) for key in keys))

    async def claim_in_time(name: str) -> None:
        async with asyncio.timeout(10):
            await complete(store, name)

    writing = threading.Thread(target=lambda: asyncio.run(keep_writing()))
    writing.start()
    try:
        for n in range(FORKS):
            name = f"fork_{n}"
            if not in_fork(lambda name=name: asyncio.run(claim_in_time(name))):  # type: ignore[misc] # mypy cannot infer a default's type
                say(f"done {name}")
    finally:
        ended.set()
        writing.join()
        asyncio.run(store.aclose())


def fork_while_others_are_made(path: str) -> None:
    """Fork while another thread makes stores; the existing stores must keep working."""
    stores = [SQLiteStore(f"{path}{n}") for n in range(5)]
    ended = threading.Event()

    def keep_making() -> None:
        made: deque[SQLiteStore] = deque(maxlen=100)
        for n in itertools.count():
            if ended.is_set():
                break
            made.append(SQLiteStore(f"{path}-unused{n}"))

    async def complete_in_time(name: str) -> None:
        async with asyncio.timeout(10):
            await asyncio.gather(*(complete(store, name) for store in stores))

    making = threading.Thread(target=keep_making)
    making.start()
    try:
        for n in range(3 * FORKS):
            asyncio.run(complete_in_time(f"parent_{n}"))
            in_fork(lambda: None)
        asyncio.run(complete_in_time("parent"))
        say("done")
    finally:
        ended.set()
        making.join()
    asyncio.run(close(stores))


class SlowBackup:
    """A backup in a thread, slow enough to fork in the middle of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_copying = threading.Event()
        self._thread = threading.Thread(target=self._make)
        self.result = "made"

    def __enter__(self) -> Self:
        asyncio.run(self._fill())
        apsw.connection_hooks.append(self._slow_down)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for_its_end()
        apsw.connection_hooks.remove(self._slow_down)

    def is_copying(self) -> bool:
        """Wait until the backup is copying; return False if it has ended."""
        self._is_copying.clear()
        while self._thread.is_alive():
            if self._is_copying.wait(0.01):
                return True
        return False

    def wait_for_its_end(self) -> None:
        self._thread.join()

    async def _fill(self) -> None:
        store = SQLiteStore(self._path)
        await asyncio.gather(*(complete(store, f"evt_{n}") for n in range(1_000)))
        await store.aclose()

    def _make(self) -> None:
        try:
            asyncio.run(SQLiteStore(self._path).backup(f"{self._path}.copy"))
        except StoreError as error:
            self.result = str(error)

    def _slow_down(self, connection: apsw.Connection) -> None:
        statements = [""]

        def note(_cursor: apsw.Cursor, statement: str, _values: object) -> bool:
            statements.append(statement)
            return True

        def pause() -> bool:
            if statements[-1].startswith("VACUUM"):
                self._is_copying.set()
                time.sleep(0.002)
            return False

        connection.exec_trace = note
        connection.set_progress_handler(pause, 100)


def fork_while_backing_up(path: str) -> None:
    """Fork in the middle of a backup; the fork uses the store during and after the backup."""
    with SlowBackup(path) as backup:
        ended = os.pipe()
        if not backup.is_copying():
            say("the backup was over too early")
        pid = os.fork()
        if pid == 0:
            os.close(ended[1])  # so that the fork's read ends if its parent is killed
            store = SQLiteStore(path)
            with asyncio.Runner() as runner:
                runner.run(complete(store, "during"))
                say("done during")
                os.read(ended[0], 1)
                runner.run(complete(store, "after"))
                say("done after")
                runner.run(store.aclose())
            os._exit(0)
        backup.wait_for_its_end()
        say(backup.result)
        os.write(ended[1], b".")
        os.waitpid(pid, 0)


def fork_again_and_again_while_backing_up(path: str) -> None:
    """Start a backup, fork again and again until it ends, and print its result."""
    with SlowBackup(path) as backup:
        while backup.is_copying():
            in_fork(lambda: None)
    say(backup.result)


COROUTINES = {
    "race": race,
    "meet": meet,
    "write": write,
    "hold": hold,
    "insist": insist,
    "fill": fill,
    "trespass": trespass,
}
FORKING = {
    "fork-and-use": fork_and_use,
    "fork-and-close": fork_and_close,
    "fork-and-share": fork_and_share,
    "fork-while-writing": fork_while_writing,
    "fork-while-others-are-made": fork_while_others_are_made,
    "fork-while-backing-up": fork_while_backing_up,
    "fork-again-and-again-while-backing-up": fork_again_and_again_while_backing_up,
}

if __name__ == "__main__":
    _, command, path, name = sys.argv
    if command in FORKING:
        FORKING[command](path)
    else:
        asyncio.run(COROUTINES[command](path, name))
