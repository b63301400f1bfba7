"""A receiver where it is served: what the answers to a few requests tell."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from ...delivery.outcome import Reason
from ...emulator.addresses import check_url
from ...emulator.refusals import RefusedError
from ...emulator.transport import OutgoingRequest, Transport
from ...errors import Refusal
from ...sender import ANSWER_SECONDS
from ...testing import SignedRequest
from ...verification.clock import system_clock
from .answers import Reply, answer_finding, slash_findings, time_finding
from .clocks import clock_finding, date_seconds
from .deliveries import TestDelivery
from .findings import Finding, fault, fine, note, warning
from .subject import Subject
from .unfinished import unfinished_finding

_PLACE = "url"
_LOOK_UP_SECONDS = 5.0
_UNLIKE_WHAT_WAS_SENT = {Refusal.NO_MATCHING_SIGNATURE, Reason.BODY_INCOMPLETE}


async def examine_site(subject: Subject, url: str, transport: Transport) -> list[Finding]:
    """Deliver tests to where a receiver is served: four requests at the most.

    They are signed with the receiver's own newest secret. The body of the last never ends, which
    takes the server's patience with it, or twelve seconds.

    Args:
        subject: the receiver.
        url: where the sender delivers to.
        transport: what takes requests there, without following redirects.

    """
    findings = [await _address_finding(url)]
    try:
        secret = subject.receiver.current_secrets()[0]
    except Exception:  # noqa: BLE001 - a provider raises what it likes, and `examine` says what
        return findings  # nothing can be signed
    delivery = TestDelivery.new(secret, subject.receiver.service)
    path = urlsplit(url).path or "/"
    reply = await _post(transport, url, delivery.genuine())
    if isinstance(reply, Finding):
        return [*findings, reply]
    date = date_seconds(reply.date)
    if date is not None:
        skew = date - system_clock()
        findings.append(
            clock_finding("url.clock", "the server's clock", skew, subject.receiver.tolerance)
        )
    if reply.reason in _UNLIKE_WHAT_WAS_SENT and await _is_rewritten(transport, url, delivery):
        return [*findings, _rewritten_finding(path)]
    findings.append(answer_finding(_PLACE, path, reply))
    if not reply.is_success or reply.reason is None:
        return findings
    findings.append(time_finding(_PLACE, reply.seconds))
    findings.append(await _forgery_finding(transport, url, delivery))
    findings += await slash_findings(
        _PLACE,
        path,
        lambda other: _post(
            transport, urlsplit(url)._replace(path=other).geturl(), delivery.genuine()
        ),
    )
    unfinished = await unfinished_finding(url)
    return findings if unfinished is None else [*findings, unfinished]


async def _post(transport: Transport, url: str, request: SignedRequest) -> Reply | Finding:
    """Return the answer, or why there was none."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await transport.post(OutgoingRequest(url, request.headers, request.body))
    except TimeoutError:
        found = f"no answer within {ANSWER_SECONDS:g} s, which is all that the sender has"
        return fault("url.answer", found, "look for a slow handler, or a proxy that waits")
    except ConnectionError as error:
        cause = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) else ""
        fix = "start the server, or correct host, port and certificate"
        return fault("url.answer", f"{error}{cause}", fix)
    return Reply.to(answer, loop.time() - started)


async def _is_rewritten(transport: Transport, url: str, delivery: TestDelivery) -> bool:
    """Return whether the test is accepted in a spelling that writing it anew does not change."""
    for request in delivery.rewritten():
        reply = await _post(transport, url, request)
        if isinstance(reply, Reply) and reply.is_success:
            return True
    return False


def _rewritten_finding(path: str) -> Finding:
    return fault(
        "url.body",
        f"the body is parsed and written anew on its way to the receiver at {path}: what is spelt"
        " as that would spell it is accepted, and anything else refused",
        "let the middleware or proxy hand on the bytes as they came",
    )


async def _forgery_finding(transport: Transport, url: str, delivery: TestDelivery) -> Finding:
    reply = await _post(transport, url, delivery.forged())
    if isinstance(reply, Finding):
        return reply
    check = "url.forgery"
    if reply.is_success:
        return fault(
            check,
            f"a forged delivery is answered {reply.status}: anybody can send events",
            "find out what answers there; it does not verify signatures",
        )
    if reply.reason == Refusal.NO_MATCHING_SIGNATURE:
        return fine(check, f"a forged delivery is refused with {reply.status}")
    return warning(
        check,
        f"a forged delivery is answered {reply.status} {reply.reason or ''}".rstrip()
        + ", and not refused with 401",
        "look at the server's log for what it made of it",
    )


async def _address_finding(url: str) -> Finding:
    """Judge a URL as the sender does when an endpoint is registered."""
    check = "url.address"
    fix = "register the public https URL of this server, and look at that one as well"
    try:
        async with asyncio.timeout(_LOOK_UP_SECONDS):
            await check_url(url, allow_loopback=False)
    except TimeoutError:
        return warning(check, "the host's address was not found in time", "look at its DNS")
    except RefusedError as refused:
        if refused.body.code == "webhook.url_private":
            found = "the sender delivers to public addresses alone, and this is none"
        else:
            found = "the sender takes https URLs alone, with a host that can be resolved"
        # Whoever looks at the server behind its proxy knows that this is not its public name.
        return note(check, found, fix)
    return fine(check, "https, and a public address")
