"""Checks the URL of an endpoint: the service delivers only to public addresses.

"The endpoint URL must use https and resolve to a public address. A private-network address is
refused with code webhook.url_private" (interface, Events: rule 3).
"""

from __future__ import annotations

import asyncio
import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from ..addresses import is_public, unwrapped
from .refusals import Issue, RefusedError, invalid, refused

# The characters of RFC 3986. URL parsers disagree about other characters, so that the delivery
# could go to another host than the host that was checked.
_URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")


async def check_url(url: str, *, allow_loopback: bool) -> None:
    """Raise RefusedError if an endpoint may not have this URL.

    Args:
        allow_loopback: whether to accept loopback addresses, also by http; the real service does
            not.

    Raises:
        RefusedError: ``webhook.url_private``; or ``validation.failed`` for a text that is no URL,
            a scheme other than https, or a host that does not resolve.
    """
    parts = _parts(url)
    if parts.scheme not in ({"https", "http"} if allow_loopback else {"https"}):
        raise _invalid("must be an https URL")
    addresses = await _addresses(parts)
    if allow_loopback and all(unwrapped(address).is_loopback for address in addresses):
        return
    if not all(is_public(address) for address in addresses):
        raise refused("webhook.url_private")
    if parts.scheme != "https":
        raise _invalid("must be an https URL; http is for loopback addresses only")


def _parts(url: str) -> SplitResult:
    if _URI.fullmatch(url) is None:
        raise _invalid("must be a URI")
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError as error:
        raise _invalid("must be a URI") from error
    if not parts.hostname:
        raise _invalid("must name a host")
    return parts


async def _addresses(parts: SplitResult) -> list[IPv4Address | IPv6Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise _invalid("must have a host that can be resolved") from error
    return [ip_address(sockaddr[0]) for *_, sockaddr in found]


def _invalid(message: str) -> RefusedError:
    return invalid([Issue("url", message)])
