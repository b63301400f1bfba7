"""``hookonce doctor``: finds faults of a receiver, and names the fix of each."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import urlsplit

import click
import httpx2

from hookonce import Receiver
from hookonce.emulator.over_http import OverHttp
from hookonce.errors import SecretError
from hookonce.operations.doctor import (
    Finding,
    Level,
    Subject,
    endpoint_findings,
    examine,
    router_findings,
    subjects_in,
)
from hookonce.operations.doctor.findings import error_text, fault
from hookonce.operations.doctor.readiness import readiness_findings
from hookonce.operations.doctor.service_user import ServiceUser, is_root, user_findings
from hookonce.operations.doctor.site import examine_site
from hookonce.receiver.receiver import secrets_files
from hookonce.stores.sqlite import SQLiteStore

from .ending import end_with_its_threads
from .health import ask
from .loading import NotFound, factory_option, import_named, receivers_of
from .output import Output, json_option
from .statuses import Status

_Found: TypeAlias = tuple[str, list[Finding]]
"""The name of an endpoint, and the doctor's findings about its receiver."""

_STYLES = {Level.OK: "green", Level.NOTE: "", Level.WARNING: "yellow", Level.FAULT: "bold red"}


@click.command()
@click.argument("target", metavar="MODULE:RECEIVER")
@click.option(
    "--url", help="The receiver's URL. The doctor also delivers tests there, at most five requests."
)
@click.option(
    "--health-url",
    help="The URL of /readyz, by default on the host of --url. A proxy usually hides it: name the"
    " server's own address.",
)
@click.option(
    "--user",
    "user_name",
    metavar="NAME",
    help="For root: the service's user. The doctor checks that this user may read the secrets and"
    " write the store. By default the user of a process that has the store open, or else the owner"
    " of the store's folder.",
)
@factory_option
@json_option
def doctor(
    target: str,
    url: str | None,
    health_url: str | None,
    user_name: str | None,
    *,
    factory: bool,
    as_json: bool,
) -> None:
    """Look for faults of MODULE:RECEIVER, and name the fix of each.

    With MODULE:APP, the doctor also checks the application's lifespan, middleware and routes. It
    runs the lifespan in this process, and delivers a test to a copy of the receiver with a store in
    memory. It reads the real store, but changes nothing in it.

    With --url, the doctor sends signed tests and two forged ones to the server; one has the largest
    body that the receiver accepts, 2 MiB by default. A test is the sender's test event, such as
    webhook.test, which reaches only handlers registered for it by name: no business code runs. If
    the sender has no test event, all tests are forged.
    It also repeats the problems and warnings of the server's /readyz, which the server shows to
    requests with $HOOKONCE_HEALTH_TOKEN as a bearer token.

    Root may read and write everything. So when root runs the doctor, it also checks what the
    service's user may do.

    Exits 0 without a fault, even with warnings; 1 with a fault; 2 for wrong arguments.

    For example: hookonce doctor app.main:app --url https://hooks.example.com/webhooks
    """
    host, user = _host_of(url), _named_user(user_name)
    output = Output(as_json=as_json)
    # Log nothing, because the findings report the errors.
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)
    # Keep the application's own output out of the report.
    with contextlib.redirect_stdout(sys.stderr):
        subjects = _load(target, url, factory=factory)
        if not factory and not isinstance(subjects, Finding):
            subjects = tuple(replace(subject, name=target) for subject in subjects)
        if isinstance(subjects, Finding):
            found = [("", [subjects])]
        else:
            # Ask before the test deliveries, because they change what /readyz reports.
            said = None if url is None else _ask_readiness(url, health_url)
            # Check files before the doctor opens the store: this check looks for a process that has
            # the store open, to learn the service's user.
            rights = [_user_findings(subject.receiver, user) for subject in subjects]
            found = asyncio.run(_examine(subjects, url, host))
            for (_, findings), more in zip(found, rights, strict=True):
                findings.extend(more)
            found[0][1].extend(endpoint_findings(subjects))
            found[0][1].extend(router_findings(target.partition(":")[0]))
            if said is not None:
                known = [finding for _, findings in found for finding in findings]
                found[0][1].extend(readiness_findings(*said, known))
    counts = _show(found, output)
    if counts[Level.FAULT]:
        end_with_its_threads("the doctor only ran tests")
        raise SystemExit(Status.FOUND)


def _ask_readiness(url: str, health_url: str | None) -> tuple[str, object]:
    """Return the URL of a running server's ``/readyz``, and its answer; None without an answer."""
    health_url = health_url or urlsplit(url)._replace(path="/readyz", query="").geturl()
    with contextlib.suppress(httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        return health_url, ask(health_url).json()
    return health_url, None


def _named_user(name: str | None) -> ServiceUser | None:
    """Return the user of --user, or exit with a usage error."""
    if name is None:
        return None
    if not is_root():
        raise click.UsageError("--user is for root: another user can check only its own rights")
    try:
        return ServiceUser.of(name, "named by --user")
    except LookupError:
        raise click.BadParameter(f"--user: there is no user {name!r}") from None


def _user_findings(receiver: Receiver, user: ServiceUser | None) -> list[Finding]:
    if not is_root():
        return []
    database = receiver.store.path if isinstance(receiver.store, SQLiteStore) else None
    return user_findings(secrets_files(receiver), database, user)


def _host_of(url: str | None) -> str:
    """Return the host and port of a URL, or exit with a usage error."""
    if url is None:
        return "testserver"
    try:
        parts = urlsplit(url)
        _ = parts.port  # the property raises ValueError for a wrong port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise click.BadParameter("--url takes an http or https URL, without a user or password")
    return parts.netloc


def _load(target: str, url: str | None, *, factory: bool) -> tuple[Subject, ...] | Finding:
    """Return the receivers of ``MODULE:NAME``, or the finding that explains the failed import."""
    module_name, _, attribute = target.partition(":")
    try:
        named = import_named(target, factory=factory)
    except NotFound as error:
        raise click.UsageError(str(error)) from None
    except ModuleNotFoundError as error:
        return fault("import", f"{module_name} needs {error.name}", "install it")
    except Exception as error:  # noqa: BLE001 - an imported module may raise anything
        return _import_finding(module_name, error)
    if isinstance(named, Receiver):
        return (Subject(named, named, "/webhooks"),)
    if inspect.isfunction(named) and not inspect.signature(named).parameters:
        raise click.UsageError(f"{attribute!r} is a function; call it with --factory")
    if callable(named):
        subjects = subjects_in(named)
    else:
        subjects = tuple(Subject(one, one, path) for path, one in receivers_of(named).items())
    if not subjects:
        raise click.UsageError(
            f"{attribute!r} in {module_name} is not a receiver and contains none; name the receiver"
            " itself, MODULE:RECEIVER"
        )
    if url is not None and len(subjects) > 1:
        at_path = [s for s in subjects if s.path.rstrip("/") == urlsplit(url).path.rstrip("/")]
        if not at_path:
            paths = ", ".join(subject.path for subject in subjects)
            raise click.UsageError(
                f"--url has the path of no receiver in {attribute!r}; their paths: {paths}"
            )
        return tuple(at_path)
    return subjects


def _import_finding(module: str, error: Exception) -> Finding:
    if isinstance(error, SecretError):
        found, _, fix = f"{module} cannot start: {error}".rpartition("; ")
        if not found:
            found, fix = fix, "put the endpoint's secret where the receiver reads it"
        return fault("secrets", found, fix)
    return fault(
        "import",
        f"{module} cannot start: {error_text(error)}",
        f"repair it; python -c 'import {module}' shows the full traceback",
    )


async def _examine(subjects: Sequence[Subject], url: str | None, host: str) -> list[_Found]:
    found = []
    for subject in subjects:
        findings = await examine(subject, host=host, served=url is not None)
        if url is not None:
            async with OverHttp() as transport:
                findings += await examine_site(subject, url, transport)
        found.append((subject.receiver.endpoint, findings))
    return found


def _show(found: Sequence[_Found], output: Output) -> Counter[Level]:
    for endpoint, findings in found:
        if len(found) > 1:
            output.say(f"endpoint {endpoint}", "bold")
        for finding in findings:
            record = {
                "endpoint": endpoint,
                "check": finding.check,
                "level": finding.level,
                "found": finding.found,
                "fix": finding.fix,
            }
            line = f"{finding.level:8} {finding.check:21} {finding.found}"
            if finding.fix:
                line += f"\n{'':8} {'':21} fix: {finding.fix}"
            output.record(record, line, _STYLES[finding.level])
    counts = Counter(finding.level for _, findings in found for finding in findings)
    verdict = {f"{level}s": counts[level] for level in (Level.FAULT, Level.WARNING, Level.NOTE)}
    style = _STYLES[next((lv for lv in (Level.FAULT, Level.WARNING) if counts[lv]), Level.OK)]
    words = (f"{count} {name if count != 1 else name[:-1]}" for name, count in verdict.items())
    output.record(verdict, ", ".join(words), style)
    return counts
