"""A file of secrets while one of them is rotated: at no moment does it lack one that is needed.

A rotation leaves its mark in the file, a comment before the new secret, so that whoever comes after
an interruption goes on and does not ask for another secret. Endpoints may share a file: a comment
before a secret says whose it is, and the end of a rotation removes no secret of another one.

The file is replaced as a whole: first a draft beside it is complete and on the disk, then it takes
the file's place. A draft that was completed and left behind is taken up again.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from hookonce.errors import SecretError
from hookonce.verification.secrets import fault_among, secret_lines

_ROOM = "#"
_MARK = re.compile(
    r"^# rotating (?P<webhook>\S+) since (?P<at>[0-9T:-]{19})Z,"
    r" by hookonce: new below, old after it$",
    re.MULTILINE,
)


def label(webhook_id: str) -> str:
    """Return the comment that says of which endpoint the secret in the next line is."""
    return f"# endpoint {webhook_id}"


class Mark(NamedTuple):
    """A rotation that was begun and not finished.

    Attributes:
        webhook_id: of which endpoint.
        at: when the service gave the new secret.

    """

    webhook_id: str
    at: datetime

    def __str__(self) -> str:
        at = self.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"# rotating {self.webhook_id} since {at}Z, by hookonce: new below, old after it"


class SecretsFile:
    """A file of secrets, one a line, newest first.

    Args:
        path: the file; where it is a symbolic link, what that leads to.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = Path(os.path.realpath(path))
        self._draft = self._real.with_name(f".{self._real.name}.draft")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other rotations away while the block lasts, and take up a draft left behind.

        Raises:
            BlockingIOError: another one is under way.
            OSError: the folder cannot be used.

        """
        folder = os.open(self._real.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_up()
            yield
        finally:
            self._give_up_room()
            os.close(folder)

    def read(self) -> str:
        """Return what the file holds, or nothing where there is none; SecretError if no text."""
        try:
            return self._real.read_text("utf-8")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:  # it would hold the text
            pass
        raise SecretError(f"{str(self.path)!r} is not UTF-8 text")

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

    def prepare(self) -> None:
        """Make sure that a secret can be written before one is asked for; raises OSError.

        The file is replaced by a copy of itself: whether a file that is mounted by itself can be
        replaced shows in no other way.
        """
        if self._real.exists():
            try:
                self._replace(self.read())
            except OSError:
                with suppress(OSError):
                    self._draft.unlink()
                raise
        self._write_draft(_ROOM * 4096)  # so much room there is, and it stays

    def begin(self, comment: Mark | str | None, secret: str) -> None:
        """Put a new secret before what the file holds, and a comment before that."""
        first = "" if comment is None else f"{comment}\n"
        self._replace(f"{first}{secret}\n{self.read()}")

    def kept_in_draft(self) -> Path | None:
        """Return the draft where it holds a secret that did not get into the file."""
        with suppress(OSError):
            if self._addition():
                return self._draft
        return None

    def finish(self) -> int:
        """Remove what the rotation has replaced, and nothing else; return how many secrets went.

        Raises:
            SecretError: it cannot be told which secret was replaced.

        """
        mark = self.mark()
        if mark is None:
            return 0
        own = label(mark.webhook_id)
        lines = self.read().splitlines()
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
        self._replace("\n".join(kept) + "\n")
        return len(gone)

    def _take_up(self) -> None:
        """Let a complete draft take the file's place, and remove any other."""
        if new := self._addition():
            self._replace(new + self.read())
        else:
            self._draft.unlink(missing_ok=True)

    def _addition(self) -> str:
        """Return what a complete draft adds before the file's text, a secret; nothing otherwise."""
        try:
            draft = self._draft.read_text("utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""
        # A draft that adds a secret is complete if all of the old text is at its end. What is left
        # of the room is behind that, until the draft is cut to its length.
        draft, end = draft.rstrip(_ROOM), self.read().rstrip(_ROOM)
        new = draft.removesuffix(end) if draft.endswith(end) else ""
        added = secret_lines(new)
        is_complete = new.endswith("\n") and added and fault_among(added, "the draft") is None
        return new if is_complete else ""

    def _give_up_room(self) -> None:
        """Remove a draft that no secret was written into."""
        with suppress(OSError, UnicodeDecodeError):
            if not self._draft.read_text("utf-8").strip(_ROOM):
                self._draft.unlink()

    def _replace(self, text: str) -> None:
        self._write_draft(text)
        self._move()

    def _move(self) -> None:
        os.replace(self._draft, self._real)
        folder = os.open(self._real.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _write_draft(self, text: str) -> None:
        content = text.encode()
        file = os.open(self._draft, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.fchmod(file, 0o600)
            # Root rotates for a service that runs as somebody else, and has to read it.
            with suppress(FileNotFoundError, PermissionError):
                status = self._real.stat()
                os.fchown(file, status.st_uid, status.st_gid)
            written = 0
            while written < len(content):
                written += os.write(file, content[written:])
            os.ftruncate(file, written)
            os.fsync(file)
        finally:
            os.close(file)
