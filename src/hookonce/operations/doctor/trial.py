"""Checks of an application in this process: its lifespan, and the requests to the receiver.

A copy takes the place of the receiver, with its own secret and a store in memory. The real store is
not touched. The application's own lifespan does run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ...clock import system_clock
from ...errors import Refusal
from ...http.app import ASGIApp, Receive, Scope, Send
from ...http.inprocess import Lifespan, exchange, whole
from ...outcome import Reason
from ...receiver.receiver import replaced
from ...senders import Rules, Sender
from ...stores.memory import MemoryStore
from ...stores.time_limit import OutOfTimeError, limited
from ...testing import SignedRequest
from ...verification.headers import header_pairs
from ...verification.secrets import new_secret
from ...watching.records import DeliveryReceived, LoopBlocked, Observer
from .answers import Reply, answer_finding, slash_findings, time_finding, time_limit_text
from .deliveries import TestDelivery
from .findings import Finding, error_text, fault, fine, note, warning
from .subjects import Subject

_PLACE = "application"
_LIFESPAN_SECONDS = 10.0
_SIGNED_PARTS = ("id", "timestamp", "signature")


class Arrivals(Observer):
    """Records each request to a receiver, and each time when a handler blocks the event loop."""

    def __init__(self) -> None:
        self.records: list[DeliveryReceived] = []
        self.blocks: list[LoopBlocked] = []

    def delivery_received(self, record: DeliveryReceived) -> None:
        self.records.append(record)

    def loop_blocked(self, record: LoopBlocked) -> None:
        self.blocks.append(record)


async def trial_findings(subject: Subject, *, host: str) -> list[Finding]:
    """Run an application's lifespan, and deliver test events to it in this process.

    Args:
        subject: the receiver, and the application that contains it.
        host: the host name that requests carry, which the application may check.
    """
    secret = new_secret()
    has_workers = subject.receiver.has_embedded_workers
    store = MemoryStore(retention=subject.receiver.sender.rules.span_seconds, clock=system_clock)
    twin = subject.receiver.copy(secrets=secret, store=store, inbox=None, clock=system_clock)
    arrivals = Arrivals()
    twin.observe(arrivals)
    app = _without_exits(subject.app)
    lifespan = Lifespan(app)
    with replaced(subject.receiver, twin):
        failed = await _failure_of(lifespan.__aenter__(), "start")
        if failed is not None:
            return [failed]
        findings = [_lifespan_finding(subject, has_workers=has_workers)]
        delivery = TestDelivery.new(secret, subject.receiver.sender)
        findings += await _deliver(_behind_tls(app, host), subject.path, delivery, arrivals.records)
        findings += [_block_finding(block) for block in arrivals.blocks]
        failed = await _failure_of(lifespan.__aexit__(), "end")
        # If a handler still runs, the lifespan cannot end. The findings above report such a
        # handler.
        if await twin.idle(0):
            findings += [failed] if failed is not None else []
            async with twin.opened():
                pass  # closing `twin` ends the threads that the lifespan has left running
    return findings


async def _failure_of(step: Awaitable[object], name: str) -> Finding | None:
    """Return a finding if the start or end of an application's lifespan fails, else None."""
    check = f"{_PLACE}.lifespan"
    try:
        await limited(_LIFESPAN_SECONDS, step)
    except OutOfTimeError:
        found = f"the application's lifespan does not {name} within {_LIFESPAN_SECONDS:g} s"
        return fault(check, found, "find out what it waits for")
    except Exception as error:  # noqa: BLE001 - an application's lifespan may raise anything
        found = f"the application's lifespan fails at its {name}: {_error_text(error)}"
        return fault(check, found, "correct the lifespan, or make available what it needs")
    return None


def _lifespan_finding(subject: Subject, *, has_workers: bool) -> Finding:
    check = f"{_PLACE}.lifespan"
    if subject.is_alone:
        return note(
            check,
            "the argument names a receiver, so its application was not checked",
            "if an application mounts the receiver, name the application: hookonce doctor"
            " MODULE:APP",
        )
    if subject.receiver.is_open:
        return fine(check, "the application's lifespan opens the receiver")
    fix = "pass lifespan=receiver.lifespan to the outermost application, or enter it in its own"
    if has_workers:
        found = "the application's lifespan does not run the receiver's, so its workers never start"
        return fault(check, found, fix)
    return warning(
        check,
        "the application's lifespan does not run the receiver's: a shutdown cuts off running"
        " handlers, and a store that cannot be opened fails only at the first delivery",
        fix,
    )


def _block_finding(block: LoopBlocked) -> Finding:
    return warning(
        "handlers.blocking",
        f"the handler {block.handler} blocked the event loop for {block.seconds:g} s during a test",
        "use await in it, or make it a plain function, which runs in a thread",
    )


async def _deliver(
    app: ASGIApp, path: str, delivery: TestDelivery, arrivals: list[DeliveryReceived]
) -> list[Finding]:
    rules = delivery.sender.rules
    request = delivery.forged() if delivery.is_only_forged else delivery.genuine()
    reply = await _post(app, path, request, rules)
    if isinstance(reply, Finding):
        return [reply]
    changed = _changed(request, delivery.sender, arrivals)
    if changed is not None:
        return [changed]
    if reply.reason == Reason.BODY_INCOMPLETE:
        return [_body_fault("bytes are missing")]
    is_refused = delivery.is_only_forged and reply.reason == Refusal.NO_MATCHING_SIGNATURE
    findings = [
        fine(
            f"{_PLACE}.answer",
            f"{path} refuses a forged delivery with {reply.status}; the sender has no test event"
            " that could be accepted",
        )
        if is_refused
        else answer_finding(_PLACE, path, reply, delivery.sender)
    ]
    if arrivals:
        findings.append(fine(f"{_PLACE}.body", "body and signed headers arrive as they were sent"))
    if not reply.is_success:
        return findings
    findings.append(time_finding(_PLACE, reply.seconds, rules))
    findings += await slash_findings(
        _PLACE, path, lambda other: _post(app, other, delivery.genuine(), rules)
    )
    return findings


async def _post(app: ASGIApp, path: str, request: SignedRequest, rules: Rules) -> Reply | Finding:
    """Return the application's answer, or a finding if it gives no answer."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    headers = {"content-length": str(len(request.body)), **request.headers}
    check = f"{_PLACE}.answer"
    try:
        answer = await limited(
            rules.patience_seconds, exchange(app, path, headers.items(), whole(request.body))
        )
    except OutOfTimeError:
        found = f"{path} did not answer within {time_limit_text(rules)}"
        return fault(check, found, "find out what middleware before the receiver waits for")
    except Exception as error:  # noqa: BLE001 - an application may raise anything
        found = f"{path} raises an error before the receiver: {_error_text(error)}"
        return fault(check, found, "correct the middleware, or exempt the receiver's path from it")
    return Reply.to(answer, loop.time() - started)


class ApplicationExitError(Exception):
    """Raised instead of an application's SystemExit or similar error; that error is the cause."""


def _without_exits(app: ASGIApp) -> ASGIApp:
    """Return an application that raises an ``ApplicationExitError`` instead of SystemExit.

    In a task, SystemExit would stop the event loop before the report is printed.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ApplicationExitError from error

    return guarded


def _error_text(error: Exception) -> str:
    is_exit = isinstance(error, ApplicationExitError)
    return error_text(error.__cause__ or error if is_exit else error)


def _behind_tls(app: ASGIApp, host: str) -> ASGIApp:
    """Return an application that receives every request as https, with the public host name."""

    async def reached(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"host", host.encode()), *(h for h in scope["headers"] if h[0] != b"host")]
        await app({**scope, "scheme": "https", "headers": headers}, receive, send)

    return reached


def _changed(
    request: SignedRequest, sender: Sender, arrivals: list[DeliveryReceived]
) -> Finding | None:
    """Return a finding if the application lost or changed headers or the body, else None."""
    if not arrivals:
        return None
    arrival = arrivals[0]
    names = {
        (name if isinstance(name, str) else name.decode("latin-1")).lower()
        for name, _ in header_pairs(arrival.headers)
    }
    signed = [f"{sender.headers[0]}-{part}" for part in _SIGNED_PARTS]
    missing = [name for name in signed if name not in names]
    if missing:
        return fault(
            f"{_PLACE}.headers",
            f"{', '.join(missing)} did not reach the receiver",
            "let the middleware before the receiver pass every header on",
        )
    if arrival.body == request.body:
        return None
    return _body_fault(f"{len(request.body)} bytes were sent, and {len(arrival.body)} arrived")


def _body_fault(change: str) -> Finding:
    return fault(
        f"{_PLACE}.body",
        f"middleware consumes or rewrites the body before the receiver ({change}), so no signature"
        " can match",
        "exempt the receiver's path from that middleware, or let it pass the bytes on unchanged",
    )
