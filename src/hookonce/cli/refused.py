"""Saves refused requests in a folder, so that ``hookonce verify`` can explain them.

A thread writes the files, so that a slow disk delays no answer. Strangers decide how many requests
are refused. So three things are limited: the files and bytes in the folder (a new request replaces
the oldest), the requests that a process saves per second, and the memory for waiting requests.
Processes that share the folder lock it while they change it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from hookonce.http.app import ASGIApp, Receive, Scope, Send
from hookonce.logs import get_logger
from hookonce.operations import DeliveryAnswered, Observer

from .output import system_fault
from .saved import Refused, SavedRequest
from .statuses import CannotBegin

_log = get_logger("hookonce.requests")

MOST_FILES = 100
MOST_BYTES = 20 * 1024 * 1024
_LARGEST_BODY = MOST_BYTES // 2  # if the body is larger, save only the headers

# Limits of the requests that wait to be written: their number, and the bytes of all their bodies.
_MOST_WAITING = 16
_MOST_WAITING_BYTES = 8 * 1024 * 1024
# The pause after each file limits the load of the disk and the processor in a flood of requests.
_PAUSE_SECONDS = 0.05
# How long a shutdown waits until the last requests are saved.
_END_SECONDS = 2.0

# The names of the files begin with the time, so they sort by time. A ``.part`` file is not
# complete.
_NAME = re.compile(r"\d{8}T\d{12}Z-\w+-[0-9a-f]{8}\.http(\.part)?")
_PART = ".part"

_current_scope: ContextVar[Scope] = ContextVar("hookonce_request_scope")


class RefusedRequests(Observer):
    """Saves the POST requests that receivers answer with a 4xx; a context manager.

    Args:
        folder: where to save them. It is created with mode 0700 if it does not exist.

    Raises:
        CannotBegin: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._waiting: deque[SavedRequest] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(
            target=self._save_all, name="hookonce.requests", daemon=True
        )
        self._has_dropped = self._has_failed = False
        try:
            with _opened(folder):
                pass
        except OSError as error:
            raise CannotBegin(
                f"cannot save refused requests in {str(folder)!r}: {system_fault(error)}"
            ) from None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        """Save the requests that still wait, but stop after a few seconds."""
        with self._changed:
            self._has_ended.set()
            self._changed.notify()
        self._thread.join(_END_SECONDS)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application, so that ``delivery_answered`` knows the request of the answer."""

        async def with_scope(scope: Scope, receive: Receive, send: Send) -> None:
            _current_scope.set(scope)  # needs no reset: each request has its own context
            await app(scope, receive, send)

        return with_scope

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Hand a refused request to the writing thread; drop it if too many requests wait."""
        outcome, received = record.outcome, record.received
        if not 400 <= outcome.status < 500:
            return
        scope = _current_scope.get(None)
        if scope is None or scope["type"] != "http" or scope["method"] != "POST":
            return
        body = None if received is None else received.body
        if body is not None and len(body) > _LARGEST_BODY:
            body = None
        refused = Refused(
            record.endpoint,
            int(outcome.status),
            str(outcome.reason),
            time.time() if received is None else received.at_unix,
            has_body=body is not None,
        )
        headers = list(scope["headers"])
        self._add(SavedRequest(body or b"", headers, refused, _request_line(scope)))

    def _add(self, request: SavedRequest) -> None:
        with self._changed:
            size = len(request.body)
            if not self._waiting or (
                len(self._waiting) < _MOST_WAITING
                and self._waiting_bytes + size <= _MOST_WAITING_BYTES
            ):
                self._waiting.append(request)
                self._waiting_bytes += size
                self._changed.notify()
                return
            is_first, self._has_dropped = not self._has_dropped, True
        if is_first:
            _log.warning(
                "requests are refused faster than they are saved in %s, so some are not saved",
                self._path,
            )

    def _save_all(self) -> None:
        while (request := self._next()) is not None:
            try:
                self._save(request)
            except OSError as error:
                if not self._has_failed:
                    fault = system_fault(error)
                    _log.warning("cannot save refused requests in %s: %s", self._path, fault)
                self._has_failed = True
            else:
                self._has_failed = False
            del request  # free the body, which may be large, before the next wait
            self._has_ended.wait(_PAUSE_SECONDS)

    def _next(self) -> SavedRequest | None:
        """Wait for a request to save; return None if the context has ended and none is left."""
        with self._changed:
            while not self._waiting:
                if self._has_ended.is_set():
                    return None
                self._changed.wait()
            request = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            return request

    def _save(self, request: SavedRequest) -> None:
        content = request.to_bytes()
        reason = "" if request.refused is None else request.refused.reason
        with _opened(self._path) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            _make_room(folder, len(content))
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}Z-{reason}-{secrets.token_hex(4)}.http"
            part = f"{name}{_PART}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a folder during the block; create it if it does not exist.

    Raises:
        OSError: it cannot be opened, or another user may read it.
    """
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise OSError(
                0,
                "other users may open it. Name a folder that does not exist yet, or one of this"
                " user with mode 0700",
            )
        yield folder
    finally:
        os.close(folder)


def _make_room(folder: int, size: int) -> None:
    """Delete the oldest files of a locked folder, and unfinished files of killed processes."""
    sizes = {}
    for name in sorted(os.listdir(folder)):
        if not _NAME.fullmatch(name):
            continue
        if name.endswith(_PART):
            _delete(name, folder)
            continue
        try:
            sizes[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        except FileNotFoundError:  # another process has deleted the file
            continue
    total = sum(sizes.values()) + size
    count = len(sizes) + 1
    for name, each in sizes.items():
        if count <= MOST_FILES and total <= MOST_BYTES:
            return
        _delete(name, folder)
        total -= each
        count -= 1


def _delete(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:  # another process has deleted the file
        return


def _request_line(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    target = b"%b?%b" % (path, query) if query else path
    version = scope.get("http_version", "1.1").encode()
    return b"%b %b HTTP/%b" % (scope["method"].encode(), target, version)
