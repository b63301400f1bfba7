"""A store of your own: a folder with a JSON file for each event, for the processes of one machine.

``RecordStore`` decides what each call does. This file only reads, writes and deletes records.

HOOKONCE_SECRETS=whsec_… hookonce serve examples.own_store:receiver
"""

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, TypeAdapter

from hookonce import EnvironmentSecrets, Receiver, StoreError
from hookonce.events import CommentReceived
from hookonce.stores import (
    DEFAULT_RETENTION,
    Delivery,
    DeliveryKey,
    EventStep,
    HeldEvent,
    KeyLock,
    KeyLockRecord,
    KeyLockStep,
    RecordStore,
    key_locks,
    life,
)

T = TypeVar("T")

# JSON has no bytes and no infinity, but a body is bytes, and a time may be infinite.
_AS_JSON = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
)
EVENT = TypeAdapter(HeldEvent, config=_AS_JSON)
KEY_LOCK = TypeAdapter(KeyLockRecord, config=_AS_JSON)


class FolderStore(RecordStore):
    """A store in a folder of a local disk."""

    keeps_bodies = True

    def __init__(
        self,
        folder: str | Path,
        *,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(retention=retention, clock=clock)
        self._folder = Path(folder)
        # With one thread, a call whose caller was cancelled too late still runs before later calls.
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def change_event(
        self, key: DeliveryKey, step: EventStep[T], delivery: Delivery | None = None
    ) -> T:
        def change() -> T:
            event = self._read(key)
            answer, record = step(event.record, self.moment())
            if record is not event.record:
                content = EVENT.dump_json(event.after(record, delivery))
                _replace(self._path("events", key), content)
            return answer

        return await self._alone(change)

    async def change_key_lock(self, key_lock: KeyLock, step: KeyLockStep[T], **_: object) -> T:
        def change() -> T:
            path, moment = self._path("key_locks", key_lock.name), self.moment()
            known = KEY_LOCK.validate_json(path.read_bytes()) if path.exists() else key_locks.FREE
            answer, record = step(known, moment)
            if key_locks.is_forgotten(record, moment):
                path.unlink(missing_ok=True)
            elif record != known:
                _replace(path, KEY_LOCK.dump_json(record))
            return answer

        return await self._alone(change)

    async def held_events(self, keys: Collection[DeliveryKey] | None = None) -> list[HeldEvent]:
        if keys is not None:
            return await self._alone(lambda: [self._read(key) for key in keys])
        return await self._alone(self._read_all)

    async def prune(self) -> int:
        def prune() -> int:
            moment = self.moment()
            old = [one.key for one in self._read_all() if life.is_forgotten(one.record, moment)]
            for key in old:
                self._path("events", key).unlink()
            for path in self._folder.glob("key_locks/*.json"):
                if key_locks.is_forgotten(KEY_LOCK.validate_json(path.read_bytes()), moment):
                    path.unlink()
            return len(old)

        return await self._alone(prune)

    def _read(self, key: DeliveryKey) -> HeldEvent:
        path = self._path("events", key)
        return EVENT.validate_json(path.read_bytes()) if path.exists() else HeldEvent(key)

    def _read_all(self) -> list[HeldEvent]:
        files = self._folder.glob("events/*.json")
        return [EVENT.validate_json(file.read_bytes()) for file in files]

    def _path(self, kind: str, name: str) -> Path:
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / kind / f"{digest}.json"

    async def _alone(self, work: Callable[[], T]) -> T:
        """Do work in the store's thread, while no other process works in this folder."""

        def locked() -> T:
            try:
                for kind in ("events", "key_locks"):
                    (self._folder / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
                with (self._folder / "lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    return work()
            except (OSError, ValueError) as error:  # pydantic's error is a ValueError
                raise StoreError(f"the folder {self._folder} cannot be used") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, locked)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file so that a power cut leaves the old content or the new."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


receiver = Receiver(secrets=EnvironmentSecrets(), store=FolderStore("events"))


@receiver.on(CommentReceived)
async def answer(event: CommentReceived) -> None:
    print(f"{event.data.author_username}: {event.data.text}", flush=True)
