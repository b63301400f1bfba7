"""A file of secrets, one per line, newest first; commands replace the whole file.

A command may be killed at any moment: the file then holds either the old text or the new text.
The new text is on the disk, in a temporary file of the same folder, before it takes the file's
name. A link is not followed: root may work in a folder where another user could plant one.

While a rotation is open, the first line is a comment, ``# rotating wh_1 since …``. Because of it a
later command continues the rotation and does not ask for a third secret.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from hookonce.errors import SecretError
from hookonce.verification.secrets import fault_among, secret_lines

_ROTATING = re.compile(
    r"# rotating (\S+) since ([0-9T:-]{19}Z), by hookonce: new below, old after it\n"
)


class OpenRotation(NamedTuple):
    """A rotation that is not finished: the file still contains the old secret.

    Attributes:
        at: when the service gave the new secret.
    """

    webhook_id: str
    at: datetime

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Return the open rotation that a file's first line describes; None if there is none."""
        found = _ROTATING.match(text)
        return None if found is None else cls(found[1], datetime.fromisoformat(found[2]))

    def __str__(self) -> str:
        since = f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return f"# rotating {self.webhook_id} since {since}, by hookonce: new below, old after it\n"


def without_old_secret(text: str) -> str:
    """Return the text of the file after the rotation, without the comment and the old secret.

    Raises:
        SecretError: there are three secrets or more, so that nobody knows which is the old secret.
    """
    _, *old = secret_lines(text)
    if len(old) > 1:
        raise SecretError(
            f"the file holds {len(old) + 1} secrets, and a rotation leaves two: remove those that"
            " are not used any more, and run this again"
        )
    lines = _ROTATING.sub("", text, count=1).splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() not in old)


class SecretsFile:
    """A file of secrets; lock it before you change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder during the block, so that no other command changes its files.

        Raises:
            BlockingIOError: another command holds the lock.
            OSError: the folder cannot be opened.
        """
        # Lock the folder: a lock on the file would not stop another command, because commands
        # replace the file.
        self._folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(self._folder)

    def read(self) -> str:
        """Return the text of the file; empty if the file does not exist.

        Raises:
            SecretError: the file is not UTF-8 text, or holds a secret that cannot be used.
            OSError: the file cannot be read.
        """
        try:
            if self.path.is_symlink():
                raise OSError(errno.ELOOP, "it is a symbolic link; name the file itself")
            with open(self.path, "rb", opener=_open) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                text: str | None = file.read().decode()
        except FileNotFoundError:
            return ""
        # Raise after this block. An error that is raised here would have the UnicodeDecodeError as
        # its context, which contains the secrets.
        except UnicodeDecodeError:
            text = None
        if text is None:
            raise SecretError(f"{str(self.path)!r} is not UTF-8 text")
        fault = fault_among(secret_lines(text), str(self.path))
        if fault is not None:
            raise SecretError(fault)
        return text

    def replace(self, text: str, mode: int | None = None) -> None:
        """Write the text into a new file with the same owner, which replaces the file.

        Args:
            mode: the file's mode; by default it stays, or is 0600 if others could read the file.

        Raises:
            OSError: the file cannot be replaced, for example because it is a mount point.
        """
        before = self.path.lstat() if self.path.exists() else None
        if mode is None:
            mode = 0o600 if before is None else stat.S_IMODE(before.st_mode)
            mode = 0o600 if mode & stat.S_IRWXO else mode
        temporary = self.path.with_name(f".{self.path.name}.new")
        temporary.unlink(missing_ok=True)  # a killed command may have left this file
        with open(temporary, "xb", opener=_open) as file:
            try:
                file.write(text.encode())
                file.flush()
                if before is not None:
                    _give(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                os.rename(temporary, self.path)
            except OSError:
                temporary.unlink()
                raise
        os.fsync(self._folder)

    def prove_replaceable(self) -> None:
        """Replace the file by the same text, so that an error shows before a rotation begins."""
        text, is_new = self.read(), not self.path.exists()
        self.replace(text)
        if is_new:
            self.path.unlink()


def _open(path: str, flags: int) -> int:
    # O_NONBLOCK, because opening a named pipe would wait for its other end.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def _give(file: int, user: int, group: int) -> None:
    """Give the new file the owner of the old file, so that the service can still read it."""
    made = os.fstat(file)
    if (user, group) == (made.st_uid, made.st_gid):
        return
    try:
        os.fchown(file, user, group)
    except PermissionError:
        fault = f"it belongs to user {user}, group {group}; run this as that user, or as root"
        raise PermissionError(errno.EPERM, fault) from None
