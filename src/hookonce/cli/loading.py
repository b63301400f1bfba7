"""Loads receivers by ``MODULE:NAME``, and secrets from a file or an environment variable."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

import click

from hookonce import Receiver
from hookonce.errors import SecretError, WebhookError
from hookonce.logs import get_logger
from hookonce.operations.doctor.subjects import subjects_in
from hookonce.verification.providers import (
    SECRETS_VARIABLE,
    EnvironmentSecrets,
    FileSecrets,
    read_environment,
)
from hookonce.verification.secrets import new_secret, secret_lines, signing_key

from .output import Option, one_line, system_fault
from .statuses import CannotBegin

_log = get_logger("hookonce")

secrets_option: Option = click.option(
    "--secrets-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Read the secrets from this file, one per line, instead of from ${SECRETS_VARIABLE}.",
)


def load_secrets(path: Path | None) -> tuple[str, ...]:
    """Return the configured secrets, newest first, or exit with an error."""
    try:
        return (EnvironmentSecrets() if path is None else FileSecrets(path)).current()
    except SecretError as error:
        raise CannotBegin(str(error)) from None


def load_signing_secret(path: Path | None) -> str:
    """Return the newest configured secret or private key, or exit with an error."""
    with suppress(OSError):  # `load_secrets` reports what is wrong with the file
        first = next(iter(unchecked_secrets(path)), "")
        if first.startswith(("whsk_", "whpk_")):
            try:
                signing_key(first)
            except SecretError as error:
                place = SECRETS_VARIABLE if path is None else path
                raise CannotBegin(f"secret 1 in {place} cannot be used: {error}") from None
            return first
    return load_secrets(path)[0]


def unchecked_secrets(path: Path | None) -> tuple[str, ...]:
    """Return the configured secrets without checking whether they are usable."""
    if path is None:
        return read_environment()
    # Keep bytes that are not UTF-8: the diagnosis reports the secret that contains them.
    return secret_lines(path.read_text("utf-8", "replace"))


@contextmanager
def stand_in_secrets() -> Iterator[None]:
    """Set a new secret in the environment during the block if the environment has no secret.

    A command that needs no secrets can then import a module that reads its secrets at import.
    """
    before = os.environ.get(SECRETS_VARIABLE)
    if before:
        yield
        return
    os.environ[SECRETS_VARIABLE] = new_secret()
    try:
        yield
    finally:
        del os.environ[SECRETS_VARIABLE]
        if before is not None:
            os.environ[SECRETS_VARIABLE] = before


factory_option: Option = click.option(
    "--factory",
    is_flag=True,
    help="MODULE:NAME is a function without arguments that returns the receiver or application.",
)


class Loaded(NamedTuple):
    """The object that ``MODULE:NAME`` names, and its receivers.

    Attributes:
        named: the object; with --factory, the object that the function returned.
        receivers: the receivers of the object by path, or the object itself.
    """

    named: object
    receivers: Mapping[str, Receiver]


def load_receiver(name: str) -> Receiver:
    """Return the one receiver of ``MODULE:NAME``, or exit with an error."""
    receivers = load_receivers(name)
    if len(receivers) > 1:
        endpoints = ", ".join(one.endpoint for one in receivers)
        raise CannotBegin(
            f"{name} has {len(receivers)} receivers, at the endpoints {endpoints}; name one with"
            " MODULE:RECEIVER"
        )
    return receivers[0]


def load_receivers(name: str, *, factory: bool = False) -> tuple[Receiver, ...]:
    """Return the receivers of ``MODULE:NAME``, or exit with an error."""
    return tuple(load(name, factory=factory).receivers.values())


def load(name: str, *, factory: bool = False) -> Loaded:
    """Return the object of ``MODULE:NAME`` and its receivers, or exit with an error.

    The object is a receiver, a mapping or sequence of receivers, or an application with mounted
    receivers. ``MODULE:receivers.acme`` names an attribute or a key of ``receivers``.
    """
    module_name, _, attribute = name.partition(":")
    try:
        named = imported(name, factory=factory)
    except NotFound as error:
        raise CannotBegin(str(error)) from None
    if not factory and inspect.isfunction(named) and not inspect.signature(named).parameters:
        raise CannotBegin(f"{attribute!r} in {module_name} is a function; call it with --factory")
    receivers = receivers_of(named)
    if not receivers:
        raise CannotBegin(
            f"{attribute!r} in {module_name} is of type {type(named).__name__}, not a Receiver,"
            f" and contains none{_likely(attribute, sys.modules.get(module_name))}"
        )
    return Loaded(named, receivers)


def imported(name: str, *, factory: bool = False) -> object:
    """Return the object that ``MODULE:NAME`` names, or exit with the error that its module raises.

    Raises:
        NotFound: as ``import_named`` does.
    """
    module_name, _, attribute = name.partition(":")
    try:
        return import_named(name, factory=factory)
    except SecretError as error:
        raise CannotBegin(f"{module_name} cannot start: {error}") from None
    except (click.ClickException, KeyboardInterrupt, NotFound):
        raise
    except SystemExit as error:
        raise CannotBegin(
            f"{module_name} called sys.exit({error.code!r}) while it was imported"
        ) from None
    except BaseException as error:
        call = f"; {module_name}.{attribute}()" if factory else ""
        raise CannotBegin(
            f"{module_name} cannot start: {start_fault(error)}; python -c"
            f" 'import {module_name}{call}' shows the full traceback"
        ) from error


def receivers_of(named: object) -> dict[str, Receiver]:
    """Return the receivers of an application, a collection or a single receiver, by path."""
    if isinstance(named, Receiver):
        return {"": named}
    if isinstance(named, Mapping | list | tuple):
        values = named.values() if isinstance(named, Mapping) else named
        if all(isinstance(one, Receiver) for one in values):
            return {f"/webhooks/{one.endpoint}": one for one in values}
        return {}
    found = subjects_in(named) if callable(named) else ()
    return {subject.path: subject.receiver for subject in found}


def start_fault(error: BaseException) -> str:
    """Return one line that says why an application cannot start, and where in the user's code."""
    from hookonce.simulation.calls import error_with_line  # noqa: PLC0415 - this import is slow: it loads the emulator and the client

    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, OSError):
        return system_fault(error)
    if isinstance(error, WebhookError):
        return one_line(error)
    return one_line(error_with_line(error))


def logged_fault(error: Exception) -> str:
    """Log the traceback of a failed start at the level debug; return the failure in one line."""
    _log.debug("the traceback of the failed start", exc_info=error)
    fault = start_fault(error)
    is_known = isinstance(error, WebhookError | OSError)
    return fault if is_known else f"{fault}; --log-level debug shows the traceback"


class NotFound(LookupError):  # noqa: N818 - no user sees this name, so it needs no suffix Error
    """Raised if no module, object or factory has the name.

    The class differs from those of errors of the module itself, such as the ``KeyError`` of
    ``os.environ["NAME"]``.
    """


def import_named(name: str, *, factory: bool) -> object:
    """Import and return the object that ``MODULE:NAME`` names; call it if ``factory`` is true.

    As with ``python -m``, modules are also found in the current folder, unless ``PYTHONSAFEPATH``
    is set. Every error of the module passes through.

    Raises:
        NotFound: there is no such module, object or factory; the text says which.
    """
    module_name, colon, attribute = name.partition(":")
    if not (all(module_name.split(".")) and colon and all(attribute.split("."))):
        raise NotFound(
            f"{name!r} does not name a receiver; write MODULE:NAME, for example app.hooks:receiver"
        )
    sys.path[:0] = [folder for folder in _current_folder() if folder not in sys.path]
    try:
        named: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        if module_name.endswith(".py"):
            likely = f"; did you mean '{module_name.removesuffix('.py')}:{attribute}'?"
        else:
            likely = _close(error.name.rpartition(".")[2], _modules_beside(error.name))
        raise NotFound(f"there is no module {module_name!r} here{likely}") from None
    place = module_name
    for part in attribute.split("."):
        inner = named.get(part) if isinstance(named, Mapping) else getattr(named, part, None)
        if inner is None:
            raise NotFound(f"there is no {part!r} in {place}{_likely(part, named)}")
        named, place = inner, f"{place}.{part}"
    return _made_by(named, attribute) if factory else named


def _current_folder() -> list[str]:
    """Return the current folder in a list, or an empty list if Python cannot import from there."""
    with suppress(FileNotFoundError):
        if not sys.flags.safe_path:
            return [os.getcwd()]
    return []


def _modules_beside(name: str) -> list[str]:
    """Return the names of all modules in the folders where Python has searched for a module."""
    parent = sys.modules.get(name.rpartition(".")[0])
    if parent is not None:
        return [module.name for module in iter_modules(getattr(parent, "__path__", ()))]
    folders = [*_current_folder(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return [module.name for module in iter_modules(filter(None, folders))]


def _likely(part: str, named: object) -> str:
    """Return a hint for a message: the name that was probably meant, or the names that exist."""
    if isinstance(named, Mapping):
        return f"; there is {', '.join(sorted(map(str, named)))}" if named else ""
    names = {name: one for name, one in getattr(named, "__dict__", {}).items() if name[:1] != "_"}
    receivers = [name for name, one in names.items() if isinstance(one, Receiver)]
    return _close(part, [name for name in names if name != part]) or (
        f"; it has {', '.join(receivers)}" if receivers else ""
    )


def _close(wrong: str, known: Iterable[str]) -> str:
    likely = get_close_matches(wrong, known, n=1, cutoff=0.7)
    return f"; did you mean {likely[0]!r}?" if likely else ""


def _made_by(function: object, attribute: str) -> object:
    if not callable(function):
        raise NotFound(f"{attribute!r} is not a function; leave out --factory")
    made = function()
    if inspect.iscoroutine(made):
        made.close()
        raise NotFound(f"{attribute!r} is async; a factory must be a plain function")
    return made
