"""Checks that an answer to a test delivery is the receiver's, and that the sender accepts it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from ...errors import Refusal, VerificationError
from ...http.inprocess import Answer
from ...outcome import Reason
from ...senders import Rules, Sender, publishing
from .findings import Finding, fault, fine, warning

# A test event runs no business handler: if its answer takes a fifth of the sender's time limit,
# little time remains for the handlers.
_SLOW_SHARE = 1 / 5

PROXY_LIMIT = (
    "raise the proxy's limit to that of the receiver, 2 MiB by default (nginx: client_max_body_size"
    " 2m;)"
)
"""What to do about a proxy that refuses large bodies."""

_EXEMPT = "exempt this path from middleware and proxy rules"
_EXPLAINED: dict[str, tuple[str, str]] = {
    Refusal.NO_MATCHING_SIGNATURE: (
        "no signature matches, because the server has other secrets than this configuration",
        "give the server the secrets that are configured here, and restart it",
    ),
    Refusal.TIMESTAMP_TOO_OLD: (
        "the server's clock is ahead of this machine's by more than the tolerance",
        "synchronise both clocks with NTP",
    ),
    Refusal.TIMESTAMP_TOO_NEW: (
        "the server's clock is behind this machine's by more than the tolerance",
        "synchronise both clocks with NTP",
    ),
    Reason.HANDLER_FAILED: (
        "a handler of the test event failed",
        "correct the handler that the receiver's log names",
    ),
    Reason.STILL_RUNNING: (
        "a handler of the test event ran longer than the answer budget",
        "make the handler faster, or give the receiver inbox=Inbox()",
    ),
    Reason.BODY_TIMEOUT: (
        "the body did not reach the receiver, because middleware or a proxy read it first",
        f"{_EXEMPT}, or let them pass the body on",
    ),
    Reason.BODY_TOO_LARGE: (
        "a test event of a few hundred bytes is over the size limit",
        "raise Limits(body_bytes=…)",
    ),
    Reason.BODY_INCOMPLETE: (
        "middleware or a proxy consumes or shortens the body before the receiver",
        f"{_EXEMPT}; the receiver's log says more",
    ),
    Reason.STORE_UNAVAILABLE: (
        "the server cannot use its store",
        "make the store reachable from the server; the server's log names the cause",
    ),
    Reason.SECRETS_UNAVAILABLE: (
        "the server has no usable secret",
        "configure a secret; the server's log names the cause",
    ),
    Reason.INBOX_FULL: ("the inbox is full", "start more workers, or find out why events fail"),
    Reason.OVERLOADED: (
        "the server has too many connections, or too many bodies in memory",
        "find the clients that hold them, or raise --max-connections or Limits(bodies_bytes=…)",
    ),
    Reason.SHUTTING_DOWN: (
        "the server is shutting down",
        "run the doctor again when the server has started",
    ),
    Reason.INTERNAL_ERROR: (
        "code around the receiver raised an error, or answered with a redirect or 410",
        f"{_EXEMPT}; the receiver's log names the cause",
    ),
    Reason.NOT_FOUND: ("there is no receiver at this path", "correct the path"),
}
_CORRECT = f"correct the path, or {_EXEMPT}"
_NOT_OURS = {
    HTTPStatus.BAD_REQUEST: ("a check of the host name may answer so", _CORRECT),
    HTTPStatus.UNAUTHORIZED: ("a login answers so", _CORRECT),
    HTTPStatus.FORBIDDEN: ("a CSRF check or a firewall may answer so", _CORRECT),
    HTTPStatus.NOT_FOUND: ("there is nothing at this path", _CORRECT),
    HTTPStatus.METHOD_NOT_ALLOWED: ("the route at this path does not accept POST", _CORRECT),
    HTTPStatus.GONE: ("this status disables the endpoint at once", _CORRECT),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (
        "a proxy has a lower limit for bodies than the receiver",
        PROXY_LIMIT,
    ),
    HTTPStatus.BAD_GATEWAY: (
        "a proxy cannot reach the application",
        "start the application, or correct the proxy's target (nginx: proxy_pass)",
    ),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "a proxy or load balancer has no application that is ready",
        "start the application, and look at its /readyz",
    ),
    HTTPStatus.GATEWAY_TIMEOUT: (
        "the application answers a proxy too late",
        (
            "look for a slow handler, and let the proxy wait longer than the answer budget (nginx:"
            " proxy_read_timeout 15s;)"
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a test delivery.

    Attributes:
        reason: the receiver's reason; None if something else has answered.
        location: the target of a redirect.
        sent_at: the Unix time in its Date header; None if it has none.
        seconds: how long the answer took.
    """

    status: int
    reason: str | None
    location: str | None
    sent_at: float | None
    seconds: float

    @classmethod
    def to(cls, answer: Answer, seconds: float) -> Reply:
        """Return the parts of an HTTP answer that the checks need."""
        return cls(
            status=answer.status,
            reason=_reason_in(answer.body),
            location=answer.headers.get("location"),
            sent_at=_date_in(answer.headers.get("date")),
            seconds=seconds,
        )

    @property
    def is_success(self) -> bool:
        """Whether the sender counts the event as delivered."""
        return 200 <= self.status < 300

    @property
    def is_redirect(self) -> bool:
        """Whether the answer is a redirect, which the sender does not follow."""
        return 300 <= self.status < 400


def answer_finding(place: str, path: str, reply: Reply, sender: Sender = publishing) -> Finding:
    """Check the answer to a genuine test delivery.

    Args:
        place: the first part of each finding's name.
        path: the path of the delivery.
        reply: the answer.
        sender: the sender, which decides the names of the headers.
    """
    check = f"{place}.answer"
    if reply.is_redirect:
        if _differs_by_slash(path, reply.location):
            return fault(f"{place}.slash", *_slash_problem(path, reply))
        where = _shown(reply.location)
        return fault(
            check,
            f"{path} answers {reply.status}, a redirect{where}, which is a failed delivery",
            "exempt this path from redirects (to a login, to https or to another host)",
        )
    if reply.reason is None:
        return _foreign_finding(check, path, reply)
    if reply.reason in _EXPLAINED:
        found, fix = _EXPLAINED[reply.reason]
        if reply.reason == Reason.BODY_TIMEOUT:
            check = f"{place}.body"
        return fault(check, f"{path} answers {reply.status} {reply.reason}: {found}", fix)
    found = f"{path} answers {reply.status} {reply.reason}"
    if reply.is_success:
        return fine(check, f"{found} to a genuine test delivery")
    if reply.reason in set(Refusal):
        found += f": {VerificationError(Refusal(reply.reason), headers=sender.headers)}"
    return fault(check, found, "let proxies and middleware pass on every header and the body")


async def slash_findings(
    place: str, path: str, deliver: Callable[[str], Awaitable[Reply | Finding]]
) -> list[Finding]:
    """Check the answer at the same path with a slash at its end, or without one.

    Args:
        place: the first part of each finding's name.
        path: the path that answered a test delivery; the root path is not checked.
        deliver: sends a genuine test delivery to a path.
    """
    bare, check = path.rstrip("/"), f"{place}.slash"
    if not bare:
        return []
    other = bare if path.endswith("/") else f"{bare}/"
    reply = await deliver(other)
    if isinstance(reply, Finding):
        return [reply]
    if reply.is_redirect:
        return [warning(check, *_slash_problem(other, reply))]
    if reply.is_success and reply.reason is not None:
        return [fine(check, f"{other} answers too, without a redirect")]
    return [fine(check, f"{other} is not redirected; it answers {reply.status}")]


def time_limit_text(rules: Rules) -> str:
    """Return the time that the checks wait for an answer, with the reason."""
    seconds = f"{rules.patience_seconds:g} s"
    if rules.answer_seconds is None:
        return f"{seconds}, because the sender does not say how long it waits"
    return f"{seconds}, the sender's time limit"


def time_finding(place: str, seconds: float, rules: Rules) -> Finding:
    """Check how long the answer to a test delivery took.

    Args:
        place: the first part of the finding's name.
        seconds: how long it took.
        rules: the rules by which the sender delivers.
    """
    check = f"{place}.time"
    if seconds > _SLOW_SHARE * rules.patience_seconds:
        waits = (
            "the sender does not say how long it waits"
            if rules.answer_seconds is None
            else f"the sender waits {rules.answer_seconds:g} s"
        )
        return warning(
            check,
            f"a test took {seconds:.1f} s to answer, and {waits}",
            "look for a slow handler of the test event, middleware or store; with inbox=Inbox()"
            " handlers run after the answer",
        )
    return fine(check, f"a test took {seconds * 1000:.0f} ms to answer")


def _foreign_finding(check: str, path: str, reply: Reply) -> Finding:
    if reply.is_success:
        return fault(
            check,
            f"something other than the receiver answers {reply.status} at {path}: the sender counts"
            " events as delivered, and they are lost",
            "find out what answers at this path, and remove it",
        )
    found = f"something other than the receiver answers {reply.status} at {path}"
    if reply.status not in _NOT_OURS:
        return fault(check, found, _CORRECT)
    why, fix = _NOT_OURS[HTTPStatus(reply.status)]
    return fault(check, f"{found}: {why}", fix)


def _slash_problem(path: str, reply: Reply) -> tuple[str, str]:
    found = f"{path} is redirected ({reply.status}){_shown(reply.location)}"
    fix = (
        "use receiver.routes(path), whose routes answer with and without the slash, or register the"
        " other spelling as the endpoint's URL"
    )
    return f"{found}, and a redirect is a failed delivery", fix


def _differs_by_slash(path: str, location: str | None) -> bool:
    there = _target(location).path
    return there not in {"", path} and there.rstrip("/") == path.rstrip("/")


def _shown(location: str | None) -> str:
    """Return a redirect's target without user, query and fragment, which may be secret."""
    target = _target(location)
    host = target.netloc.rpartition("@")[2]
    shown = target._replace(netloc=host, query="", fragment="").geturl()
    return f" to {shown}" if shown else ""


def _target(location: str | None) -> SplitResult:
    try:
        return urlsplit(location or "")
    except ValueError:
        return urlsplit("")


def _reason_in(body: bytes) -> str | None:
    """Return the reason in an answer; None if the answer is not a receiver's."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or set(content) != {"status", "reason"}:
        return None
    reason = content["reason"]
    return reason if isinstance(reason, str) else None


def _date_in(header: str | None) -> float | None:
    """Return the Unix time in a Date header; None if the header is missing or invalid."""
    try:
        parsed = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
