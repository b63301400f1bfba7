"""Checks, as root, which files the service's user may read and write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .database_file import PROCESSES, processes_with
from .findings import Finding, fault, fine, note

_CHECK = "user"

_UNKNOWN = note(
    _CHECK,
    "the doctor runs as root, and does not know which user runs the service",
    "name the user with --user, so that the doctor checks what this user may read and write",
)


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user that runs the service.

    Attributes:
        name: the user's name, or its number if it has no name.
        uid: the user's number.
        gid: the number of the user's group.
        groups: the numbers of the user's further groups.
        source: how the user is known, for messages.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    source: str

    @classmethod
    def of(cls, name: str | int, source: str) -> ServiceUser:
        """Return the user with a name or number; LookupError if there is no such name."""
        import pwd  # noqa: PLC0415 - Windows lacks the module

        if isinstance(name, str) and not name.isdecimal():
            entry = pwd.getpwnam(name)
        else:
            try:
                entry = pwd.getpwuid(int(name))
            except KeyError:  # a container's user may have a number, but no name
                return cls(str(name), int(name), int(name), (), source)
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, source)


def is_root() -> bool:
    """Return whether this process runs as root, and so may act as any user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def user_findings(
    secrets_files: Sequence[Path], database: Path | None, user: ServiceUser | None = None
) -> list[Finding]:
    """Check, as root, whether the service's user may read the secrets and write the store.

    Args:
        secrets_files: the files with the secrets.
        database: the store's file, if the store is a file; it need not exist.
        user: the service's user; by default the user of a process that has the store open, or
            else the owner of the store's folder, or of the first file with secrets.
    """
    if database is None and not secrets_files:
        return []
    user = user or _likely_user(database) or _owner(secrets_files, database)
    if user is None:
        return [_UNKNOWN]
    who = f"the service's user {user.name} ({user.source})"
    try:
        with _acting_as(user):
            faults = [found for file in secrets_files if (found := _secrets_fault(who, user, file))]
            if database is not None:
                faults += _store_faults(who, user, database)
    except PermissionError:  # in a container, root may lack this right
        return [note(_CHECK, f"the doctor cannot act as {who}", "run the doctor as this user")]
    if faults:
        return faults
    rights = ["read the secrets"] if secrets_files else []
    rights += ["write the store"] if database is not None else []
    return [fine(_CHECK, f"{who} may {' and '.join(rights)}")]


def _likely_user(database: Path | None) -> ServiceUser | None:
    """Return the user of a process that has the store open."""
    if database is None:
        return None
    opened = os.path.realpath(database)
    for process, _ in processes_with({opened, f"{opened}-wal"}):
        with suppress(OSError, KeyError, ValueError):  # the process may have ended
            lines = (PROCESSES / process / "status").read_text("utf-8", "replace").splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            uid, gid = int(fields["Uid"].split()[1]), int(fields["Gid"].split()[1])
            groups = tuple(map(int, fields["Groups"].split()))
            name = ServiceUser.of(uid, "").name
            return ServiceUser(name, uid, gid, groups, f"of process {process}")
    return None


def _owner(secrets_files: Sequence[Path], database: Path | None) -> ServiceUser | None:
    """Return the owner of the store's folder or of the first secrets; None if the owner is root."""
    place, what = (
        (secrets_files[0], "the owner of the secrets")
        if database is None
        else (database.parent, f"the owner of {database.parent}")
    )
    with suppress(OSError):
        if uid := place.stat().st_uid:
            return ServiceUser.of(uid, what)
    return None


@contextmanager
def _acting_as(user: ServiceUser) -> Iterator[None]:
    """Give this process another user's rights during the block; PermissionError if it may not.

    During the block all threads of the process have these rights, so the block must be short.
    """
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
    try:
        os.setgroups(user.groups)
        os.setegid(user.gid)
        os.seteuid(user.uid)
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def _may(path: Path, mode: int) -> bool:
    # Do not open the file: to close it again would drop the locks that this process has on the
    # store.
    return os.access(path, mode, effective_ids=True)


def _closed_folder(path: Path) -> Path | None:
    """Return the outermost parent folder that the user may not enter; None if there is none."""
    folders = reversed(path.parents)
    return next((folder for folder in folders if not _may(folder, os.X_OK)), None)


def _not_entered(who: str, path: Path, closed: Path) -> Finding:
    return fault(
        _CHECK,
        f"{who} may not enter {closed}, and so cannot use {path}",
        f"let the user enter the folder (chmod o+x {closed}), or choose another folder",
    )


def _secrets_fault(who: str, user: ServiceUser, path: Path) -> Finding | None:
    file = path.absolute()
    if (closed := _closed_folder(file)) is not None:
        return _not_entered(who, file, closed)
    if _may(file, os.R_OK):
        return None
    return fault(
        _CHECK,
        f"{who} may not read the secrets in {file}",
        f"chown {user.name} {file}, or let the user's group read it (with systemd's LoadCredential="
        " neither is needed)",
    )


def _store_faults(who: str, user: ServiceUser, database: Path) -> list[Finding]:
    folder = database.parent
    if (closed := _closed_folder(database)) is not None:
        return [_not_entered(who, database, closed)]
    faults = []
    if not _may(folder, os.W_OK):
        faults.append(
            fault(
                _CHECK,
                f"{who} may not write to {folder}, where SQLite makes the store's -wal and -shm"
                " files",
                f"chown {user.name} {folder}",
            )
        )
    files = [Path(f"{database}{suffix}") for suffix in ("", "-wal", "-shm")]
    return faults + [
        fault(
            _CHECK,
            f"{who} may not read and write {file}: the store cannot be used",
            f"chown {user.name} {file}",
        )
        for file in files
        if file.exists() and not _may(file, os.R_OK | os.W_OK)
    ]
