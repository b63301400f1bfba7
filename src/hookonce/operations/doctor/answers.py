"""What the answer to a test delivery tells of the way to a receiver."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from ...delivery.handler import TEST_TYPE
from ...delivery.outcome import Reason
from ...errors import Refusal
from ...sender import ANSWER_SECONDS
from ...testing.inprocess import HttpAnswer
from .findings import Finding, fault, fine, warning

# A test runs no business code; what takes as long leaves little for what does.
_SLOW_SECONDS = 2.0

_LEAVE_ALONE = "let middleware and proxies leave this path alone"
_EXPLAINED: dict[str, tuple[str, str]] = {
    Refusal.NO_MATCHING_SIGNATURE: (
        "no signature matches: the server has other secrets than this configuration",
        "give the server the secrets that are configured here, and start it anew",
    ),
    Refusal.TIMESTAMP_TOO_OLD: (
        "the server's clock is ahead of this machine's, beyond the tolerance",
        "keep both clocks right with NTP",
    ),
    Refusal.TIMESTAMP_TOO_NEW: (
        "the server's clock is behind this machine's, beyond the tolerance",
        "keep both clocks right with NTP",
    ),
    Reason.HANDLER_FAILED: (
        f"a handler of {TEST_TYPE} failed",
        "mend it; the receiver's log names it",
    ),
    Reason.STILL_RUNNING: (
        f"a handler of {TEST_TYPE} ran longer than the answer may take",
        "make it quicker, or give the receiver inbox=Inbox()",
    ),
    Reason.BODY_TIMEOUT: (
        "the body did not arrive at the receiver: something before it has read it",
        f"{_LEAVE_ALONE}, or let them read with what keeps the body for others",
    ),
    Reason.BODY_TOO_LARGE: (
        "a test of some hundred bytes is over the limit",
        "raise Limits(body_bytes=…)",
    ),
    Reason.BODY_INCOMPLETE: (
        "the body is consumed or cut short before the receiver",
        f"{_LEAVE_ALONE}; the receiver's log says more",
    ),
    Reason.STORE_UNAVAILABLE: (
        "the server cannot use its store",
        "make the store reachable from the server; its log says what is wrong",
    ),
    Reason.SECRETS_UNAVAILABLE: (
        "the server has no secret it can use",
        "give it one; its log says what is wrong",
    ),
    Reason.INBOX_FULL: ("the inbox is full", "start more workers, or find out why events fail"),
    Reason.OVERLOADED: (
        "the server has more connections, or bodies under way, than it may",
        "find out who holds them, or raise --max-connections or Limits(bodies_bytes=…)",
    ),
    Reason.SHUTTING_DOWN: ("the server is shutting down", "look again when it has started"),
    Reason.INTERNAL_ERROR: (
        "something around the receiver raised, or answered with a redirect or 410",
        f"{_LEAVE_ALONE}; the receiver's log says what it was",
    ),
    Reason.NOT_FOUND: ("no receiver is at this path", "correct the path"),
}
_STRANGERS = {
    HTTPStatus.BAD_REQUEST: "which a check of host names may do",
    HTTPStatus.UNAUTHORIZED: "as a login does",
    HTTPStatus.FORBIDDEN: "as CSRF checks and firewalls do",
    HTTPStatus.NOT_FOUND: "so nothing is at this path",
    HTTPStatus.METHOD_NOT_ALLOWED: "so what is at this path takes no POST",
    HTTPStatus.GONE: "which disables the endpoint at once",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a test delivery.

    Attributes:
        status: the HTTP status.
        reason: what the receiver says of it; None where something else has answered.
        location: where it redirects to.
        date: its Date header.
        seconds: how long it took.

    """

    status: int
    reason: str | None
    location: str | None
    date: str | None
    seconds: float

    @classmethod
    def to(cls, answer: HttpAnswer, seconds: float) -> Reply:
        """Return what matters of an answer."""
        return cls(
            status=answer.status,
            reason=_reason_in(answer.body),
            location=answer.headers.get("location"),
            date=answer.headers.get("date"),
            seconds=seconds,
        )

    @property
    def is_success(self) -> bool:
        """Whether the sender takes it for delivered."""
        return 200 <= self.status < 300

    @property
    def is_redirect(self) -> bool:
        """Whether it sends the sender elsewhere, where it does not go."""
        return 300 <= self.status < 400


def answer_finding(place: str, path: str, reply: Reply) -> Finding:
    """Judge the answer to a genuine test delivery.

    Args:
        place: what the names of findings begin with.
        path: where it was sent.
        reply: the answer.

    """
    check = f"{place}.answer"
    if reply.is_redirect:
        if _differs_by_slash(path, reply.location):
            return fault(f"{place}.slash", *_slash_problem(path, reply))
        where = _shown(reply.location)
        return fault(
            check,
            f"{path} answers {reply.status}, a redirect{where}, which is a failed delivery",
            "exempt this path from what redirects (a login, a change to https or another host)",
        )
    if reply.reason is None:
        return _stranger_finding(check, path, reply)
    if reply.reason in _EXPLAINED:
        found, fix = _EXPLAINED[reply.reason]
        if reply.reason == Reason.BODY_TIMEOUT:
            check = f"{place}.body"
        return fault(check, f"{path} answers {reply.status} {reply.reason}: {found}", fix)
    found = f"{path} answers {reply.status} {reply.reason}"
    if reply.is_success:
        return fine(check, f"{found} to a genuine test delivery")
    return fault(check, found, "let proxies and middleware pass every header and the body on")


async def slash_findings(
    place: str, path: str, deliver: Callable[[str], Awaitable[Reply | Finding]]
) -> list[Finding]:
    """Judge the answer at the other spelling of a path, with or without the slash at its end.

    Args:
        place: what the names of findings begin with.
        path: where a test delivery was answered; the root has no other spelling.
        deliver: sends a genuine one to a path.

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
        return [fine(check, f"{other} is answered as well, without a redirect")]
    return [fine(check, f"{other} is not redirected; it answers {reply.status}")]


def time_finding(place: str, seconds: float) -> Finding:
    """Judge how long the answer to a test delivery took."""
    check = f"{place}.time"
    if seconds > _SLOW_SECONDS:
        return warning(
            check,
            f"a test was answered after {seconds:.1f} s, and the sender waits {ANSWER_SECONDS:g}",
            "look for a slow handler of webhook.test, slow middleware or a slow store; with"
            " inbox=Inbox() handlers run after the answer",
        )
    return fine(check, f"a test was answered after {seconds * 1000:.0f} ms")


def _stranger_finding(check: str, path: str, reply: Reply) -> Finding:
    if reply.is_success:
        return fault(
            check,
            f"{path} answers {reply.status}, and not by the receiver: the sender takes events for"
            " delivered that nobody has",
            "find out what answers at this path, and take it away",
        )
    why = _STRANGERS.get(HTTPStatus(reply.status)) if reply.status in set(HTTPStatus) else None
    return fault(
        check,
        f"{path} answers {reply.status}, and not by the receiver{f', {why}' if why else ''}",
        f"correct the path, or {_LEAVE_ALONE}",
    )


def _slash_problem(path: str, reply: Reply) -> tuple[str, str]:
    found = f"{path} is redirected ({reply.status}){_shown(reply.location)}"
    fix = (
        "take the routes from receiver.routes(path), which answer with and without the slash, or"
        " register the other spelling as the endpoint's URL"
    )
    return f"{found}, and a redirect is a failed delivery", fix


def _differs_by_slash(path: str, location: str | None) -> bool:
    there = _target(location).path
    return there not in {"", path} and there.rstrip("/") == path.rstrip("/")


def _shown(location: str | None) -> str:
    """Return where a redirect leads, without what may be secret: user, query and fragment."""
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
    """Return the reason in an answer of a receiver; None for anybody else's answer."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or set(content) != {"status", "reason"}:
        return None
    reason = content["reason"]
    return reason if isinstance(reason, str) else None
