"""Secrets from the environment, and from files that may change.

The library reads the environment only here and, for the API key, in ``client/keys.py``.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TypeAlias

from ..errors import SecretError
from ..logs import get_logger
from .secrets import fault_among, secret_lines, split_secrets

_log = get_logger("hookonce.secrets")

SECRETS_VARIABLE = "HOOKONCE_SECRETS"

UNUSABLE = "the new secrets cannot be used, so the old ones stay"
"""The beginning of the warning that a provider still uses its last usable secrets."""

_FIXES = {
    FileNotFoundError: (
        "; write the endpoint's secret to this file, or correct the path (a relative path starts at"
        " the working folder)"
    ),
    PermissionError: (
        "; let the user that runs this process read the file (chown, chmod) and open its folder"
    ),
}
"""What to do about an error of the system when a file is read."""

_Version: TypeAlias = tuple[tuple[int, int, int] | None, ...]


def read_environment(variable: str = SECRETS_VARIABLE) -> tuple[str, ...]:
    """Return the secrets in an environment variable, unchecked."""
    return split_secrets(os.environ.get(variable, ""))


class EnvironmentSecrets:
    """The secrets in an environment variable, newest first, separated by white space or commas.

    The variable is read once: nothing outside a process can change its environment.

    Raises:
        SecretError: the variable is not set, or holds a secret that cannot be used.
    """

    def __init__(self, variable: str = SECRETS_VARIABLE) -> None:
        self._secrets = read_environment(variable)
        if not self._secrets:
            raise SecretError(
                f"set the environment variable {variable} to the endpoint's secret (whsec_…), or"
                " to several, newest first, with a space between"
            )
        fault = fault_among(self._secrets, variable)
        if fault is not None:
            raise SecretError(fault)

    def current(self) -> tuple[str, ...]:
        """Return the secrets, newest first."""
        return self._secrets


class FileSecrets:
    """The secrets in one or more files, newest first, read again when a file changes.

    A file has one secret on each line; blank lines and lines that start with ``#`` are skipped. A
    change takes effect at the next delivery, even if a mounted Kubernetes secret replaces a
    symbolic link. If the new content cannot be used, the last good secrets stay in force and an
    error is logged.

    Raises:
        SecretError: in the constructor, if a file cannot be read or holds no usable secret.
    """

    def __init__(self, *paths: str | Path) -> None:
        if not paths:
            raise SecretError("FileSecrets needs the path of at least one file")
        self._paths = tuple(Path(path) for path in paths)
        self._lock = threading.Lock()
        self._fault: tuple[_Version, str] | None = None  # the last fault that was logged
        self._version = self._look()
        self._secrets = self._read()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the files, newest secrets first."""
        return self._paths

    def current(self) -> tuple[str, ...]:
        """Return the secrets that are in the files now, newest first."""
        version = self._look()
        if version != self._version:
            with self._lock:
                if version != self._version:
                    self._reload(version)
        return self._secrets

    @property
    def fault(self) -> str | None:
        """The reason why the files cannot be used now; None if their secrets are in force."""
        self.current()
        return self._fault[1] if self._fault and self._look() != self._version else None

    def _reload(self, version: _Version) -> None:
        try:
            self._secrets = self._read()
        except SecretError as error:
            # Keep the old version, so that the next call tries again: a fault such as a missing
            # permission can end without a change of the file.
            if (version, str(error)) != self._fault:
                self._fault = version, str(error)
                _log.error("%s: %s", UNUSABLE, error)
        else:
            _log.info("reloaded %d secrets", len(self._secrets))
            # Set the version last: until then, other threads wait for the new secrets. Use the
            # version from before the read, so that the next call notices a change during the read.
            self._fault = None
            self._version = version

    def _look(self) -> _Version:
        return tuple(_file_version(path) for path in self._paths)

    def _read(self) -> tuple[str, ...]:
        try:
            return tuple(secret for path in self._paths for secret in _read_secrets(path))
        except SecretError as error:
            raise error.with_traceback(None) from None  # the error's frames hold secrets


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # no such file, or a path with a NUL
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _read_secrets(path: Path) -> tuple[str, ...]:
    text, fault = _text_or_fault(path)
    if fault is not None:
        raise SecretError(f"cannot read the secrets in {path}: {fault}")
    secrets = secret_lines(text)
    if not secrets:
        raise SecretError(f"{path} holds no secret; write one whsec_… on each line, newest first")
    fault = fault_among(secrets, str(path))
    if fault is not None:
        raise SecretError(fault)
    return secrets


def _text_or_fault(path: Path) -> tuple[str, str | None]:
    """Return a file's text and None, or an empty text and the fault.

    The errors of the standard library would hold the text.
    """
    try:
        return path.read_text(encoding="utf-8"), None
    except UnicodeDecodeError:
        return "", "it is not UTF-8 text; write the endpoint's secret (whsec_…) to it"
    except Exception as error:  # noqa: BLE001 - any error must leave the last good secrets in force
        fault = getattr(error, "strerror", None) or type(error).__name__
        fix = next((fix for kind, fix in _FIXES.items() if isinstance(error, kind)), "")
        return "", f"{fault}{fix}"
