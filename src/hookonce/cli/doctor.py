"""``hookonce doctor``: what is wrong with a receiver, and its fix."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import click

from hookonce import Receiver
from hookonce.emulator.over_http import OverHttp
from hookonce.errors import SecretError
from hookonce.operations.doctor import (
    Finding,
    Level,
    Subject,
    endpoint_findings,
    examine,
    examine_site,
    router_findings,
    subjects_in,
)
from hookonce.operations.doctor.findings import error_text, fault

from .ending import end_with_its_threads
from .loading import factory_option, import_named, receivers_of
from .output import Output, json_option
from .statuses import Status

_Found: TypeAlias = tuple[str, list[Finding]]
"""The name of an endpoint, and what was found about its receiver."""

_STYLES = {Level.OK: "green", Level.NOTE: "", Level.WARNING: "yellow", Level.FAULT: "bold red"}


@click.command()
@click.argument("target", metavar="MODULE:RECEIVER")
@click.option(
    "--url", help="Where it is served: also deliver tests there, four requests at the most."
)
@factory_option
@json_option
def doctor(target: str, url: str | None, *, factory: bool, as_json: bool) -> None:
    """Look for what is wrong with MODULE:RECEIVER, and name the fix of each fault.

    Name the application that has the receiver, MODULE:APP, to have its lifespan, middleware and
    routes looked at too. Its lifespan is run in this process, and a test delivered to a copy of the
    receiver there, with a store in memory: the real store is looked at, and nothing in it changed.

    With --url signed tests, and a forged one, go to the server. A test is an event of the type
    webhook.test, which reaches only handlers registered for it by name: no business code runs.

    Exits 0 if there is no fault, though there may be warnings; 1 with a fault; 2 for arguments that
    cannot be used.

    For example: hookonce doctor app.main:app --url https://hooks.example.com/webhooks
    """
    host = _host_of(url)
    output = Output(as_json=as_json)
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)  # findings say it
    # What an application prints is not the report.
    with contextlib.redirect_stdout(sys.stderr):
        subjects = _load(target, url, factory=factory)
        if isinstance(subjects, Finding):
            found = [("", [subjects])]
        else:
            found = asyncio.run(_examine(subjects, url, host))
            found[0][1].extend(endpoint_findings(subjects))
            found[0][1].extend(router_findings(target.partition(":")[0]))
    counts = _show(found, output)
    if counts[Level.FAULT]:
        end_with_its_threads("what ran was a test")
        raise SystemExit(Status.FOUND)


def _host_of(url: str | None) -> str:
    """Return the host and port of a URL, or end with the usage."""
    if url is None:
        return "testserver"
    try:
        parts = urlsplit(url)
        _ = parts.port  # checked when it is read
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise click.BadParameter("--url takes an http or https URL, without a user or password")
    return parts.netloc


def _load(target: str, url: str | None, *, factory: bool) -> tuple[Subject, ...] | Finding:
    """Return the receivers that ``MODULE:NAME`` names or has, or why it cannot be imported."""
    module_name, _, attribute = target.partition(":")
    try:
        named = import_named(target, factory=factory)
    except LookupError as error:
        raise click.UsageError(str(error.args[0])) from None
    except ModuleNotFoundError as error:
        return fault("import", f"{module_name} needs {error.name}", "install it")
    except Exception as error:  # noqa: BLE001 - a module raises what it likes
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
            f"{attribute!r} in {module_name} is no receiver, and none is found in it; name the"
            " receiver itself, MODULE:RECEIVER"
        )
    if url is not None and len(subjects) > 1:
        at_path = [s for s in subjects if s.path.rstrip("/") == urlsplit(url).path.rstrip("/")]
        if not at_path:
            paths = ", ".join(subject.path for subject in subjects)
            raise click.UsageError(f"--url names none of the receivers in {attribute!r}: {paths}")
        return tuple(at_path)
    return subjects


def _import_finding(module: str, error: Exception) -> Finding:
    if isinstance(error, SecretError):
        return fault(
            "secrets",
            f"{module} cannot start: {error}",
            "put the endpoint's secret where the receiver reads it, readable for this user",
        )
    return fault(
        "import",
        f"{module} cannot start: {error_text(error)}",
        f"mend it; python -c 'import {module}' shows where it comes from",
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
