"""Which URLs the service delivers to: those that lead to the public internet.

"The endpoint URL must use https and resolve to a public address. A private-network address is
refused with code webhook.url_private" (interface, Events: rule 3).
"""

from __future__ import annotations

import asyncio
import re
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from .refusals import Issue, RefusedError, invalid, private_url

# The characters of RFC 3986. Others are read in different ways by different parsers, so that
# another host could be checked than is delivered to.
_URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


async def check_url(url: str, *, allow_loopback: bool) -> None:
    """Return if an endpoint may have this URL.

    Args:
        url: what was sent.
        allow_loopback: whether loopback addresses will do, also by http, which they do not at the
            real service.

    Raises:
        RefusedError: ``webhook.url_private``, or ``validation.failed`` for what is no URL, or not
            https, or has a host that cannot be found.

    """
    parts = _parts(url)
    if parts.scheme not in ({"https", "http"} if allow_loopback else {"https"}):
        raise _invalid("must be an https URL")
    addresses = await _addresses(parts)
    if allow_loopback and all(_unwrapped(address).is_loopback for address in addresses):
        return
    if not all(is_public(address) for address in addresses):
        raise private_url()
    if parts.scheme != "https":
        raise _invalid("must be an https URL; http is for loopback addresses alone")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is one that anybody on the internet can reach.

    An IPv6 address that stands for an IPv4 address is judged by that one.
    """
    address = _unwrapped(address)
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    # Multicast and reserved addresses count as global for the library.
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _parts(url: str) -> SplitResult:
    if _URI.fullmatch(url) is None:
        raise _invalid("must be a URI")
    try:
        parts = urlsplit(url)
        _ = parts.port  # checked when it is read
    except ValueError as error:
        raise _invalid("must be a URI") from error
    if not parts.hostname:
        raise _invalid("must name a host")
    return parts


async def _addresses(parts: SplitResult) -> list[IPv4Address | IPv6Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name can look like this
        raise _invalid("must have a host that can be resolved") from error
    return [ip_address(sockaddr[0]) for *_, sockaddr in found]


def _invalid(message: str) -> RefusedError:
    return invalid([Issue("url", message)])
