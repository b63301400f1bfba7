"""An application in this process: whether it opens the receiver, and what reaches it.

A copy stands in for the receiver, with a secret of its own and a store in memory: no event is taken
from the real store, and nothing is left in it. The application's own lifespan does run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ...delivery.outcome import Reason
from ...delivery.records import DeliveryReceived, LoopBlocked, Observer
from ...delivery.time_limit import OutOfTimeError, limited
from ...http.app import ASGIApp, Receive, Scope, Send
from ...sender import ANSWER_SECONDS
from ...testing import SignedRequest
from ...testing.inprocess import Lifespan, exchange, whole
from ...verification.clock import system_clock
from ...verification.headers import header_pairs
from ...verification.secrets import new_secret
from .answers import Reply, answer_finding, slash_findings, time_finding
from .deliveries import TestDelivery
from .failures import told
from .findings import Finding, fault, fine, note, warning
from .subject import Subject

_PLACE = "application"
_LIFESPAN_SECONDS = 10.0
_SIGNED_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


class Arrivals(Observer):
    """Keeps what has come through to a receiver."""

    def __init__(self) -> None:
        self.records: list[DeliveryReceived] = []
        self.blocks: list[LoopBlocked] = []

    def delivery_received(self, record: DeliveryReceived) -> None:
        """Keep a request."""
        self.records.append(record)

    def loop_blocked(self, record: LoopBlocked) -> None:
        """Keep what has blocked the event loop."""
        self.blocks.append(record)


async def trial_findings(subject: Subject, *, host: str) -> list[Finding]:
    """Run an application's lifespan and deliver tests to it in this process.

    Args:
        subject: the receiver, and the application it is in.
        host: the host name that requests carry, which an application may check.

    """
    secret = new_secret()
    has_workers = subject.receiver.has_embedded_workers
    twin = subject.receiver.copy(secrets=secret, store="memory://", inbox=None, clock=system_clock)
    arrivals = Arrivals()
    twin.observe(arrivals)
    app = _kept_in(subject.app)
    lifespan = Lifespan(app)
    with subject.receiver.replaced_by(twin):
        failed = await _failure_of(lifespan.__aenter__(), "start")
        if failed is not None:
            return [failed]
        findings = [_lifespan_finding(subject, has_workers=has_workers)]
        delivery = TestDelivery.new(secret, subject.receiver.service)
        findings += await _deliver(_behind_tls(app, host), subject.path, delivery, arrivals.records)
        findings += [_block_finding(block) for block in arrivals.blocks]
        failed = await _failure_of(lifespan.__aexit__(), "end")
        # A handler that still runs is why it does not end, and has been found already.
        if await twin.idle(0):
            findings += [failed] if failed is not None else []
            async with twin.opened():
                pass  # what lets go of its threads, where no lifespan has
    return findings


async def _failure_of(step: Awaitable[object], name: str) -> Finding | None:
    """Return what is wrong with a step of an application's lifespan, if anything is."""
    check = f"{_PLACE}.lifespan"
    try:
        await limited(_LIFESPAN_SECONDS, step)
    except OutOfTimeError:
        found = f"the application's lifespan does not {name} within {_LIFESPAN_SECONDS:g} s"
        return fault(check, found, "look for what it waits for")
    except Exception as error:  # noqa: BLE001 - an application's lifespan raises what it likes
        found = f"the application's lifespan fails at its {name}: {_told(error)}"
        return fault(check, found, "mend it, or what it needs")
    return None


def _lifespan_finding(subject: Subject, *, has_workers: bool) -> Finding:
    check = f"{_PLACE}.lifespan"
    if subject.is_alone:
        return note(
            check,
            "only the receiver was named, and not what it is mounted in",
            "where an application mounts it, name that one: hookonce doctor MODULE:APP",
        )
    if subject.receiver.is_open:
        return fine(check, "the application's lifespan opens the receiver")
    fix = "pass lifespan=receiver.lifespan to the outermost application, or enter it in its own"
    if has_workers:
        found = "the application's lifespan does not run the receiver's: its workers never start"
        return fault(check, found, fix)
    return warning(
        check,
        "the application's lifespan does not run the receiver's: handlers that run at a shutdown"
        " are cut off, and a store that cannot be opened shows at the first delivery",
        fix,
    )


def _block_finding(block: LoopBlocked) -> Finding:
    return warning(
        "handlers.blocking",
        f"the handler {block.handler} has blocked the event loop for {block.seconds:g} s at a test",
        "let it await, or make it a plain function, which runs in a thread",
    )


async def _deliver(
    app: ASGIApp, path: str, delivery: TestDelivery, arrivals: list[DeliveryReceived]
) -> list[Finding]:
    request = delivery.genuine()
    reply = await _post(app, path, request)
    if isinstance(reply, Finding):
        return [reply]
    changed = _changed(request, arrivals)
    if changed is not None:
        return [changed]
    if reply.reason == Reason.BODY_INCOMPLETE:
        return [_body_fault("bytes are missing")]
    findings = [answer_finding(_PLACE, path, reply)]
    if arrivals:
        findings.append(fine(f"{_PLACE}.body", "body and signed headers arrive as they were sent"))
    if not reply.is_success:
        return findings
    findings.append(time_finding(_PLACE, reply.seconds))
    findings += await slash_findings(
        _PLACE, path, lambda other: _post(app, other, delivery.genuine())
    )
    return findings


async def _post(app: ASGIApp, path: str, request: SignedRequest) -> Reply | Finding:
    """Return the answer, or why there was none."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    headers = {"content-length": str(len(request.body)), **request.headers}
    check = f"{_PLACE}.answer"
    try:
        answer = await limited(
            ANSWER_SECONDS, exchange(app, path, headers.items(), whole(request.body))
        )
    except OutOfTimeError:
        found = f"{path} did not answer within {ANSWER_SECONDS:g} s, all that the sender has"
        return fault(check, found, "look for what waits in middleware before the receiver")
    except Exception as error:  # noqa: BLE001 - an application raises what it likes
        found = f"{path} raises before the receiver is reached: {_told(error)}"
        return fault(check, found, "mend it, or let it leave the receiver's path alone")
    return Reply.to(answer, loop.time() - started)


class KeptInError(Exception):
    """An application raised what is no Exception; its cause says what."""


def _kept_in(app: ASGIApp) -> ASGIApp:
    """Return an application whose sys.exit, and what else is no Exception, is an error like others.

    In a task, SystemExit would end the event loop, and with it the report.
    """

    async def kept(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise KeptInError from error

    return kept


def _told(error: Exception) -> str:
    return told(error.__cause__ or error if isinstance(error, KeptInError) else error)


def _behind_tls(app: ASGIApp, host: str) -> ASGIApp:
    """Return an application that is reached as the sender reaches it: by https, at its own name."""

    async def reached(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"host", host.encode()), *(h for h in scope["headers"] if h[0] != b"host")]
        await app({**scope, "scheme": "https", "headers": headers}, receive, send)

    return reached


def _changed(request: SignedRequest, arrivals: list[DeliveryReceived]) -> Finding | None:
    """Return what was lost or changed on the way to the receiver."""
    if not arrivals:
        return None
    arrival = arrivals[0]
    names = {
        (name if isinstance(name, str) else name.decode("latin-1")).lower()
        for name, _ in header_pairs(arrival.headers)
    }
    missing = [name for name in _SIGNED_HEADERS if name not in names]
    if missing:
        return fault(
            f"{_PLACE}.headers",
            f"{', '.join(missing)} did not come through to the receiver",
            "let the middleware before it pass every header on",
        )
    if arrival.body == request.body:
        return None
    return _body_fault(f"{len(request.body)} bytes were sent, and {len(arrival.body)} arrived")


def _body_fault(became: str) -> Finding:
    return fault(
        f"{_PLACE}.body",
        f"the body is consumed or written anew before the receiver ({became}), so that no signature"
        " can match",
        "let the middleware that reads it leave the receiver's path alone, or hand on the bytes as"
        " they came",
    )
