"""Every check of a receiver in this process, in the order in which an engineer would look."""

from __future__ import annotations

from ...errors import SecretError
from ...verification.clock import system_clock
from .clocks import clock_finding
from .effects import ledger_findings, transaction_findings
from .failures import told
from .findings import Finding, fault
from .settings import (
    handler_findings,
    inbox_limit_findings,
    limit_findings,
    retention_finding,
    secret_findings,
    tolerance_finding,
    type_findings,
)
from .storage import store_findings
from .subject import Subject
from .trial import trial_findings


async def examine(
    subject: Subject, *, host: str = "testserver", served: bool = False
) -> list[Finding]:
    """Return what is right and what is wrong with a receiver, each with its fix.

    Nothing in its store is changed, and no event is taken from it. The lifespan of its application
    is run, and a test is delivered to a copy of the receiver within it: handlers of
    ``webhook.test`` run. Every step is bounded in time, as long as the application's own code does
    not block the event loop.

    Args:
        subject: the receiver; it must not be in use in this process.
        host: the host name that requests within this process carry.
        served: whether a server is said to run that has this receiver.

    """
    receiver, classes = subject.receiver, subject.receiver.parser.classes
    try:
        findings = secret_findings(receiver.current_secrets())
    except SecretError as error:
        findings = [fault("secrets", str(error), "configure the endpoint's secret (whsec_…)")]
    except Exception as error:  # noqa: BLE001 - a provider raises what it likes
        findings = [fault("secrets", f"their provider fails: {told(error)}", "mend the provider")]
    retention_seconds = getattr(receiver.store, "retention_seconds", None)
    findings.append(retention_finding(retention_seconds))
    findings += handler_findings(receiver.handlers, classes)
    findings += transaction_findings(receiver.handlers)
    store_file = getattr(receiver.store, "path", None)
    findings += await ledger_findings(receiver.handlers, retention_seconds, store_file)
    findings += type_findings(receiver.unmatched(), classes)
    findings.append(tolerance_finding(receiver.tolerance))
    findings += limit_findings(receiver.limits)
    if receiver.inbox_settings is not None:
        findings += inbox_limit_findings(receiver.inbox_settings, receiver.limits)
    skew = receiver.clock() - system_clock()
    findings.append(
        clock_finding("clock", "the receiver's clock", skew, subject.receiver.tolerance)
    )
    findings += await store_findings(subject, served=served)
    try:
        findings += await trial_findings(subject, host=host)
    except Exception as error:  # noqa: BLE001 - what is configured may break anywhere
        findings.append(
            fault(
                "application.trial",
                f"a test cannot be delivered to a copy of the receiver: {told(error)}",
                "mend what the words name; the other findings stand",
            )
        )
    return findings
