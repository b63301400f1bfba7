"""Runs all checks of a receiver in this process, the most basic check first."""

from __future__ import annotations

from ...clock import system_clock
from ...errors import SecretError
from ...routing.table import HandlerTable
from .findings import Finding, error_text, fault
from .handlers import handler_findings, ledger_findings, type_findings
from .settings import (
    clock_finding,
    inbox_limit_findings,
    limit_findings,
    retention_finding,
    secret_findings,
    tolerance_finding,
)
from .storage import store_findings
from .subjects import Subject
from .trial import trial_findings


async def examine(
    subject: Subject, *, host: str = "testserver", served: bool = False
) -> list[Finding]:
    """Return the findings of every check of a receiver, each with its fix.

    It changes nothing in the receiver's store, and fetches no event. It runs the application's
    lifespan and delivers a test event to a copy of the receiver: its handlers run.
    Every step has a time limit, which holds unless the application blocks the event loop.

    Args:
        subject: the receiver; it must not be in use in this process.
        host: the host name that requests in this process carry.
        served: whether a server with this receiver is running.
    """
    receiver = subject.receiver
    sender = receiver.sender
    known = HandlerTable(receiver.handlers, sender=sender).known
    try:
        findings = secret_findings(receiver.current_secrets())
    except SecretError as error:
        findings = [fault("secrets", str(error), "configure the endpoint's secret (whsec_…)")]
    except Exception as error:  # noqa: BLE001 - the user's provider may raise anything
        found = f"the provider of secrets fails: {error_text(error)}"
        findings = [fault("secrets", found, "correct the provider")]
    retention_seconds = getattr(receiver.store, "retention_seconds", None)
    findings.append(retention_finding(retention_seconds, sender.rules))
    findings += handler_findings(receiver.handlers, known, sender.rules.test_type)
    store_file = getattr(receiver.store, "path", None)
    findings += await ledger_findings(receiver.handlers, retention_seconds, store_file)
    if sender.event_classes:  # without them, nothing is known about the sender's types
        findings += type_findings(receiver.handlers, known)
    findings.append(tolerance_finding(receiver.tolerance_seconds, sender))
    findings += limit_findings(receiver.limits)
    if receiver.inbox is not None:
        findings += inbox_limit_findings(receiver.inbox, receiver.limits)
    skew = receiver.clock() - system_clock()
    findings.append(
        clock_finding("clock", "the receiver's clock", skew, receiver.tolerance_seconds)
    )
    findings += await store_findings(subject, served=served)
    try:
        findings += await trial_findings(subject, host=host)
    except Exception as error:  # noqa: BLE001 - the application's code may raise anything
        findings.append(
            fault(
                "application.trial",
                f"no test can be delivered to a copy of the receiver: {error_text(error)}",
                "correct the line that it names; the other findings are valid",
            )
        )
    return findings
