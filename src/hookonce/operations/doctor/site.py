"""Checks of a running server: a few test deliveries to its URL, and their answers."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from urllib.parse import urlsplit

from ...clock import system_clock
from ...emulator.addresses import check_url
from ...emulator.refusals import RefusedError
from ...emulator.transport import OutgoingRequest, Transport
from ...errors import Refusal
from ...outcome import Reason
from ...senders import Rules
from ...testing import SignedRequest
from ...verification.secrets import new_secret, verifying_key
from .answers import (
    PROXY_LIMIT,
    Reply,
    answer_finding,
    slash_findings,
    time_finding,
    time_limit_text,
)
from .deliveries import TestDelivery
from .findings import Finding, fault, fine, note, warning
from .settings import clock_finding
from .subjects import Subject
from .unfinished import unfinished_finding

_PLACE = "url"
_LOOK_UP_SECONDS = 5.0
# Limit the size of the test body, because each run of the doctor sends it.
_MOST_BODY_BYTES = 16 * 1024 * 1024
_SIGNS_OF_A_CHANGED_BODY = {Refusal.NO_MATCHING_SIGNATURE, Reason.BODY_INCOMPLETE}


async def examine_site(subject: Subject, url: str, transport: Transport) -> list[Finding]:
    """Send at most five test deliveries to a running server, and check the answers.

    They are signed with the receiver's newest secret. If the receiver has only public keys, or the
    sender has no test event, only forged deliveries are sent. One delivery has the largest body
    that the receiver accepts. The body of the last delivery never ends, so the check lasts until
    the server gives up, or two seconds longer than the sender waits.

    Args:
        subject: the receiver.
        transport: sends the requests, and does not follow redirects.
    """
    findings = [await _address_finding(url)]
    try:
        secrets = subject.receiver.current_secrets()
    except Exception:  # noqa: BLE001 - the user's provider may raise anything; `examine` reports it
        # Without a secret the doctor cannot sign a test delivery.
        return findings
    most = subject.receiver.limits.body_bytes
    secret = next((one for one in secrets if verifying_key(one).is_shared), None)
    delivery = TestDelivery.new(secret or new_secret(), subject.receiver.sender)
    if secret is None or delivery.is_only_forged:
        why = (
            "the receiver has only public keys (whpk_…), so only the sender can sign a test"
            " delivery that it accepts"
            if secret is None
            else "the sender has no test event, and a genuine delivery could run your handlers"
        )
        return [
            *findings,
            note(
                "url.answer",
                why,
                "let the sender deliver an event, and look for it in the server's log",
            ),
            await _forgery_finding(transport, url, delivery),
            await _size_finding(transport, url, delivery, most),
        ]
    rules = delivery.sender.rules
    path = urlsplit(url).path or "/"
    reply = await _post(transport, url, delivery.genuine(), rules)
    if isinstance(reply, Finding):
        return [*findings, reply]
    if reply.sent_at is not None:
        skew = reply.sent_at - system_clock()
        findings.append(
            clock_finding(
                "url.clock", "the server's clock", skew, subject.receiver.tolerance_seconds
            )
        )
    if reply.reason in _SIGNS_OF_A_CHANGED_BODY and await _is_rewritten(transport, url, delivery):
        return [
            *findings,
            fault(
                "url.body",
                f"middleware or a proxy parses and rewrites the body before the receiver at {path}",
                "let it pass the bytes on unchanged",
            ),
        ]
    findings.append(answer_finding(_PLACE, path, reply, delivery.sender))
    if not reply.is_success or reply.reason is None:
        return findings
    findings.append(time_finding(_PLACE, reply.seconds, rules))
    findings.append(await _forgery_finding(transport, url, delivery))
    findings.append(await _size_finding(transport, url, delivery, most))
    findings += await slash_findings(
        _PLACE,
        path,
        lambda other: _post(
            transport, urlsplit(url)._replace(path=other).geturl(), delivery.genuine(), rules
        ),
    )
    unfinished = await unfinished_finding(url, rules.patience_seconds)
    return findings if unfinished is None else [*findings, unfinished]


async def _post(
    transport: Transport, url: str, request: SignedRequest, rules: Rules
) -> Reply | Finding:
    """Return the server's answer, or a finding if the server gives no answer."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout(rules.patience_seconds):
            answer = await transport.post(OutgoingRequest(url, request.headers, request.body))
    except TimeoutError:
        found = f"no answer within {time_limit_text(rules)}"
        return fault("url.answer", found, "look for a slow handler, or a proxy that waits")
    except ConnectionError as error:
        cause = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) else ""
        fix = "start the server, or correct host, port and certificate"
        return fault("url.answer", f"{error}{cause}", fix)
    return Reply.to(answer, loop.time() - started)


async def _is_rewritten(transport: Transport, url: str, delivery: TestDelivery) -> bool:
    """Return whether the server accepts a signature over the re-serialized JSON.

    If it does, a middleware changes bodies before verification.
    """
    for request in delivery.rewritten():
        reply = await _post(transport, url, request, delivery.sender.rules)
        if isinstance(reply, Reply) and reply.is_success:
            return True
    return False


async def _forgery_finding(transport: Transport, url: str, delivery: TestDelivery) -> Finding:
    reply = await _post(transport, url, delivery.forged(), delivery.sender.rules)
    if isinstance(reply, Finding):
        return reply
    check = "url.forgery"
    if reply.is_success:
        return fault(
            check,
            f"a forged delivery is answered {reply.status}: anyone can send events",
            "find out what answers at this URL; it does not verify signatures",
        )
    if reply.reason == Refusal.NO_MATCHING_SIGNATURE:
        return fine(check, f"a forged delivery is refused with {reply.status}")
    return warning(
        check,
        f"a forged delivery is answered {reply.status} {reply.reason or ''}".rstrip()
        + " instead of 401",
        "look up this delivery in the server's log",
    )


async def _size_finding(
    transport: Transport, url: str, delivery: TestDelivery, most: int
) -> Finding:
    """Check whether a body of the largest size that the receiver accepts reaches the receiver.

    The delivery is forged, so that no store keeps its body.
    """
    check, size = "url.size", min(most, _MOST_BODY_BYTES)
    forged = delivery.forged()
    request = SignedRequest(forged.body.ljust(size), forged.headers)
    reply = await _post(transport, url, request, delivery.sender.rules)
    shown = f"a body of {size:,} bytes"
    if isinstance(reply, Finding):
        # A server that refuses a body without reading it may break the connection.
        fix = f"{PROXY_LIMIT}, and compare the server's Limits(body_bytes=…)"
        return warning(check, f"{shown} gets no answer ({reply.found})", fix)
    if reply.reason == Refusal.NO_MATCHING_SIGNATURE:
        return fine(check, f"{shown} reaches the receiver")
    if reply.reason == Reason.BODY_TOO_LARGE:
        found = f"{shown} is over the limit of the server, but not over the limit configured here"
        return warning(check, found, "restart the server with Limits(body_bytes=…) as it is here")
    if reply.reason is None and reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        found = f"a proxy answers 413 to {shown}, which the receiver accepts: large events are lost"
        return warning(check, found, PROXY_LIMIT)
    answer = f"{reply.status} {reply.reason or 'by something other than the receiver'}"
    found = f"{shown} is answered {answer}, instead of 401 by the receiver"
    return warning(check, found, PROXY_LIMIT)


async def _address_finding(url: str) -> Finding:
    """Check whether a sender is likely to accept this URL for an endpoint."""
    check = "url.address"
    fix = "register the server's public https URL, and check it with the doctor too"
    try:
        async with asyncio.timeout(_LOOK_UP_SECONDS):
            await check_url(url, allow_loopback=False)
    except TimeoutError:
        return warning(check, "the host name was not resolved in time", "check its DNS records")
    except RefusedError as refused:
        if refused.body.code == "webhook.url_private":
            found = "the address is not public, and most senders deliver only to public addresses"
        else:
            found = "the URL is not https or its host name does not resolve; most senders refuse it"
        # If you check a server behind its proxy, a private address is not a fault.
        return note(check, found, fix)
    return fine(check, "https, and a public address")
