"""Sources of the API key: an argument, an environment variable or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from ..logs import get_logger
from ..resources import API_KEY_VARIABLE
from .errors import ApiKeyError

_log = get_logger("hookonce.client")

# Visible ASCII. RFC 6750, 2.1, allows fewer characters; the interface does not define the key's
# form.
_KEY = re.compile(r"[!-~]{1,4096}")


@runtime_checkable
class KeyProvider(Protocol):
    """A source of the API key, which may change while the program runs."""

    def current(self) -> str:
        """Return the key that the next request sends."""
        ...


KeySource: TypeAlias = str | KeyProvider
"""An API key, or a provider that returns the current key."""


class HiddenKey:
    """A key whose ``repr`` hides it.

    Raises:
        ApiKeyError: the key cannot be used.
    """

    __slots__ = ("_read",)

    def __init__(self, source: KeySource) -> None:
        self._read: Callable[[], str]
        if isinstance(source, str):
            fault = _fault_of(source)
            self._read = source.strip
        elif isinstance(source, KeyProvider):
            fault, self._read = None, source.current
        else:
            fault = f"a key is text, or an object with current(), not {type(source).__name__}"
        del source  # error trackers send the local variables of every frame
        if fault is not None:
            raise ApiKeyError(fault)

    def __repr__(self) -> str:
        return "HiddenKey(…)"

    def current(self) -> str:
        """Return the key; ApiKeyError if the provider has no usable key."""
        try:
            text = self._read().strip()
            fault = _fault_of(text)
        except Exception as error:  # noqa: BLE001 - the user's code raised it, and its message may show the key
            text, fault = "", f"the provider of the key raised {type(error).__name__}"
        if fault is not None:
            del text
            raise ApiKeyError(fault)
        return text


class EnvironmentKey:
    """The API key in an environment variable, read once.

    Raises:
        ApiKeyError: the variable is not set, or does not hold a key.
    """

    def __init__(self, variable: str = API_KEY_VARIABLE) -> None:
        self._key = os.environ.get(variable, "").strip()
        if not self._key:
            raise ApiKeyError(f"set the environment variable {variable} to an API key")
        fault = _fault_of(self._key)
        if fault is not None:
            raise ApiKeyError(f"{variable}: {fault}")

    def current(self) -> str:
        """Return the key."""
        return self._key


class FileKey:
    """Reads the API key from a file at each request, so that the key can change at any time.

    If the file at ``path`` cannot be used, the last good key stays in use and an error is logged.

    Raises:
        ApiKeyError: in the constructor, if the file cannot be read or does not hold a key.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._logged: str | None = None
        self._key, fault = self._look()
        if fault is not None:
            raise ApiKeyError(fault)

    def current(self) -> str:
        """Return the key that is in the file now."""
        key, fault = self._look()
        if fault is None:
            self._key = key
        elif fault != self._logged:
            _log.error("the new API key cannot be used, so the old one stays: %s", fault)
        self._logged = fault
        return self._key

    def _look(self) -> tuple[str, str | None]:
        try:
            text = self._path.read_text("utf-8").strip()
        except UnicodeDecodeError:
            return "", f"{self._path} is not UTF-8 text"
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            return "", f"cannot read the API key in {self._path}: {said}"
        fault = _fault_of(text)
        return text, None if fault is None else f"{self._path}: {fault}"


def _fault_of(key: object) -> str | None:
    """Describe the fault of an API key without quoting the key; None if the key is usable."""
    if not isinstance(key, str):
        return (
            f"an API key is text, not {type(key).__name__}; is the setting it comes from missing?"
        )
    text = key.strip()
    if not text:
        return "the API key is empty; copy the whole value that was shown when it was made"
    if text.startswith(("whsec_", "whsk_", "whpk_")):
        return "this is a signing secret, not an API key"
    if _KEY.fullmatch(text) is None:
        return "the API key has spaces, line breaks or other characters that no header can hold"
    return None
