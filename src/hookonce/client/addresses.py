"""The addresses to which the client sends its key, and the paths below them."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import quote, urlsplit

import httpx2

from ..addresses import is_public

_NO_ADDRESS = (
    "must be an https URL such as https://api.example.com, without a user or password; http is"
    " allowed for this machine only"
)


def fault_of_address(url: str, *, allow_http: bool) -> str | None:
    """Return why an address cannot be used; do not quote it, because it may hold a password."""
    try:
        parts = urlsplit(url)
        host, has_user = parts.hostname or "", parts.username is not None
        _ = parts.port  # raises ValueError for a wrong port
        httpx2.URL(url)  # raises an error for some URLs that urlsplit accepts
    except (ValueError, TypeError, AttributeError, httpx2.InvalidURL):
        return _NO_ADDRESS
    is_safe = parts.scheme == "https" or (
        parts.scheme == "http" and (allow_http or is_this_machine(host))
    )
    return _NO_ADDRESS if not host or has_user or parts.fragment or not is_safe else None


def segment(resource_id: str) -> str:
    """Return an id as a segment of a path; ValueError if it could change the path."""
    if not isinstance(resource_id, str) or resource_id in {"", ".", ".."}:
        raise ValueError(f"an id is text such as 'post_1', not {resource_id!r}")
    return quote(resource_id, safe="")


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_private_host(host: str) -> bool:
    """Return whether a host belongs to this machine or to a private network."""
    name = host.rstrip(".").lower()
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return not is_public(address)
