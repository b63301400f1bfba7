"""A file of secrets, which commands replace as a whole; and a journal of each secret asked for.

Three things hold here, wherever a command is killed:

- A journal beside the file says which secret is asked for, before the request is sent; then the
  journal holds the secret, until the file does. So the next command writes the secret, or says that
  a secret was lost.
- A rotation leaves a comment before the new secret, so that the next command goes on with the
  rotation and asks for no other secret. A comment before each secret says which endpoint has it,
  because endpoints may share a file.
- Root may work in a folder that another user owns. All names are looked up in one opened folder, no
  link of that user is followed, and no file of that user is overwritten or taken for a journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

from hookonce.errors import SecretError
from hookonce.verification.clock import system_clock
from hookonce.verification.secrets import fault_among, secret_lines

_ROOM = "#" * 4096
"""Written before a secret is asked for: then a full disk cannot lose the secret."""

_ASKED = "# hookonce asked for a secret at "
_COMPLETE = "# complete\n"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40

_MARK = re.compile(
    r"^# rotating (?P<webhook>\S+) since (?P<at>[0-9T:-]{19})Z,"
    r" by hookonce: new below, old after it$",
    re.MULTILINE,
)


def label(webhook_id: str) -> str:
    """Return the comment that says which endpoint has the secret in the next line."""
    return f"# endpoint {webhook_id}"


class Mark(NamedTuple):
    """A rotation that was begun and not finished.

    Attributes:
        webhook_id: whose secret is rotated.
        at: when the service gave the new secret.

    """

    webhook_id: str
    at: datetime

    def __str__(self) -> str:
        since = f"{self.webhook_id} since {_utc(self.at)}"
        return f"# rotating {since}, by hookonce: new below, old after it"


Keep: TypeAlias = Callable[[Mark | str | None, str], None]
"""Puts a new secret before what the file holds, and a comment before the secret."""


class _Content(NamedTuple):
    """What a file holds and who may read it; from one descriptor, and so of one file."""

    text: str
    owner: tuple[int, int] | None = None
    mode: int = 0o600


class SecretsFile:
    """A file of secrets, one a line, newest first; all but ``held`` works inside its block.

    Args:
        path: the file, or a symbolic link to it.

    Attributes:
        journal: what holds a new secret that did not get into the file.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal: Path | None = None
        self._folder, self._name = -1, path.name

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other commands away while the block lasts.

        Raises:
            BlockingIOError: another command works on a file of this folder.
            OSError: the folder cannot be used.

        """
        self._folder, self._name = _place_of(self.path)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(self._folder)

    def take_up(self) -> Iterator[str]:
        """Finish what killed commands have left, and yield what the operator has to know."""
        pattern = re.compile(rf"\.{re.escape(self._name)}(?:\.[0-9a-f]{{16}})?\.(new|draft)")
        for name in sorted(os.listdir(self._folder)):
            found = pattern.fullmatch(name)
            if found is None:
                continue
            if found[1] == "draft":
                text = self._own_text(name)
                if text is None:
                    yield self._foreign(name)
                    continue
                asked, _, rest = text.partition("\n")
                addition, complete, _ = rest.partition(_COMPLETE)
                if complete:
                    self._add(addition, name)
                    yield f"{str(self.path)!r} now has the secret that a killed command was given"
                elif rest and asked.startswith(_ASKED):
                    yield f"a command was killed: it {asked.removeprefix('# hookonce ')}"
            with suppress(OSError):
                os.unlink(name, dir_fd=self._folder)

    def read(self) -> str:
        """Return what the file holds, or nothing where there is none; SecretError if no text."""
        return self._content().text

    def secrets(self) -> tuple[str, ...]:
        """Return the secrets, newest first; SecretError if one cannot be used."""
        secrets = secret_lines(self.read())
        fault = fault_among(secrets, str(self.path))
        if fault is not None:
            del secrets
            raise SecretError(fault)
        return secrets

    def mark(self) -> Mark | None:
        """Return the rotation that was begun and not finished."""
        found = _MARK.search(self.read())
        if found is None:
            return None
        return Mark(found["webhook"], datetime.fromisoformat(found["at"]).replace(tzinfo=UTC))

    def newest(self) -> str:
        """Return the secret that the rotation gave, or the first where there is none."""
        secrets = self.secrets()
        text = self.read()
        found = _MARK.search(text)
        after = secret_lines(text[found.end() :]) if found else ()
        return (after or secrets)[0]

    @contextmanager
    def asking(self, if_lost: str) -> Iterator[Keep]:
        """Write the journal, and give what keeps the secret that is asked for in the block.

        Args:
            if_lost: what the next command tells the operator, if this one is killed in the block.

        Raises:
            OSError: the file cannot be written; nothing was asked yet. From ``Keep``: the secret is
                lost, unless ``journal`` says where it is.

        """
        if (content := self._content()).owner is not None:
            # Only a copy shows whether the file can be replaced: a mount point cannot.
            self._replace(content)
        name = self._new_name("draft")
        asked = f"{_ASKED}{_utc(datetime.fromtimestamp(system_clock(), UTC))}. {if_lost}\n".encode()
        with self._created(name) as journal:

            def keep(comment: Mark | str | None, secret: str) -> None:
                addition = f"{secret}\n" if comment is None else f"{comment}\n{secret}\n"
                journal.seek(len(asked))
                _write(journal, f"{addition}{_COMPLETE}".encode())
                self._add(addition, name)

            try:
                _write(journal, asked + _ROOM.encode())
                os.fsync(self._folder)
                yield keep
            except Exception:  # which the caller reports; a killed command leaves the journal
                self._forget(name)
                raise
            self._forget(name)

    def finish(self) -> int:
        """Remove what the rotation has replaced, and nothing else; return how many secrets went.

        Raises:
            SecretError: it cannot be told which secret was replaced.

        """
        mark = self.mark()
        if mark is None:
            return 0
        own = label(mark.webhook_id)
        content = self._content()
        lines = content.text.splitlines()
        start = next(number for number, line in enumerate(lines) if _MARK.fullmatch(line))
        older = [n for n in range(start, len(lines)) if secret_lines(lines[n])][1:]
        gone = [n for n in older if lines[n - 1] == own]
        if not gone:
            gone = [n for n in older if not lines[n - 1].startswith(label(""))]
            if len(gone) > 1:
                raise SecretError(
                    f"{str(self.path)!r} holds {len(gone)} secrets that {mark.webhook_id} may have"
                    f" had: write the line {own!r} above each that can go, and run this again"
                )
        dropped = {*gone, *(n - 1 for n in gone if lines[n - 1] == own)}
        lines[start] = own
        kept = [line for number, line in enumerate(lines) if number not in dropped]
        self._replace(content._replace(text="\n".join(kept) + "\n"))
        return len(gone)

    def renew(self, secret: str, *, dropping: Collection[str] = ()) -> None:
        """Put a secret before what the file holds, and drop others; its mode stays."""
        content = self._content()
        kept = [line for line in content.text.splitlines() if line.strip() not in dropping]
        text = "".join(f"{line}\n" for line in [secret, *kept])
        self._replace(content._replace(text=text), content.mode)

    def _add(self, addition: str, journal: str) -> None:
        """Put a journal's text before what the file holds, unless its secret is there."""
        self.journal = self._shown(journal)
        content = self._content()
        if not set(secret_lines(addition)) <= set(secret_lines(content.text)):
            self._replace(content._replace(text=addition + content.text))
        self.journal = None

    def _content(self) -> _Content:
        try:
            with self._opened(self._name) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                owner, mode = (status.st_uid, status.st_gid), stat.S_IMODE(status.st_mode)
                return _Content(file.read().decode(), owner, mode)
        except FileNotFoundError:
            return _Content("")
        except UnicodeDecodeError:  # it would hold the text
            pass
        raise SecretError(f"{str(self.path)!r} is not UTF-8 text")

    def _own_text(self, name: str) -> str | None:
        """Return what a file holds that this user has written; None, unread, for any other."""
        with suppress(OSError), self._opened(name) as file:
            status = os.fstat(file.fileno())
            is_own = status.st_uid == os.geteuid() and status.st_nlink == 1
            if is_own and stat.S_ISREG(status.st_mode):
                return file.read().decode("utf-8", "replace")
        return None

    def _foreign(self, name: str) -> str:
        status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        return (
            f"{str(self._shown(name))!r} is left alone and not read: it is no file that user"
            f" {os.geteuid()} has written, and belongs to user {status.st_uid}. If that user has"
            " run this command, it may hold a new secret: run the command as that user. Else"
            " remove it"
        )

    def _forget(self, name: str) -> None:
        if self.journal is None:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._folder)

    def _replace(self, content: _Content, mode: int = 0o600) -> None:
        """Let the content take the file's place, complete and with the same owner."""
        name = self._new_name("new")
        with self._created(name) as file:
            try:
                _write(file, content.text.encode())
                _give(file.fileno(), content.owner)
                os.fchmod(file.fileno(), mode)
                os.rename(name, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except OSError:
                os.unlink(name, dir_fd=self._folder)
                raise
        os.fsync(self._folder)

    def _shown(self, name: str) -> Path:
        return Path(os.path.realpath(self.path)).with_name(name)

    def _new_name(self, kind: str) -> str:
        return f".{self._name}.{secrets.token_hex(8)}.{kind}"

    def _created(self, name: str) -> IO[bytes]:
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR
        return open(os.open(name, flags, 0o600, dir_fd=self._folder), "r+b")

    def _opened(self, name: str) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would make it wait
        return open(os.open(name, flags, dir_fd=self._folder), "rb")


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _give(file: int, owner: tuple[int, int] | None) -> None:
    """Give a new file to the owner of the file that it replaces: the service has to read it."""
    status = os.fstat(file)
    if owner in {None, (status.st_uid, status.st_gid)}:
        return
    try:
        os.fchown(file, *owner)
    except PermissionError:
        if owner[0] != status.st_uid:
            fault = f"it belongs to user {owner[0]}; run this as that user, or as root"
            raise PermissionError(errno.EPERM, fault) from None


def _place_of(path: Path) -> tuple[int, str]:
    """Open the folder that a path leads to, and return it with the name of the file there.

    A link is followed only in a folder where root and the caller alone may write: whoever else may
    write there could have it lead to any file of the caller.
    """
    parts = [*reversed(path.absolute().parts)]
    folder, links = os.open(parts.pop(), _way()), 0
    try:
        while True:
            name = parts.pop()
            target = _link(folder, name)
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                parts += reversed(Path(target).parts)
            elif parts:
                # An absolute name, the first part of an absolute link, begins at the root again.
                before, folder = folder, os.open(name, _way() | os.O_NOFOLLOW, dir_fd=folder)
                os.close(before)
            else:
                return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder), name
    finally:
        os.close(folder)


def _way() -> int:
    # A folder on the way may be one that the caller cannot list.
    return getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY


def _link(folder: int, name: str) -> str | None:
    try:
        target = os.readlink(name, dir_fd=folder)
    except OSError:  # no link
        return None
    status = os.fstat(folder)
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & _OTHERS_MAY_WRITE:
        fault = "a link in a folder where others may write is not followed; name the file itself"
        raise PermissionError(errno.EPERM, fault, name)
    return target


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"
