"""Public and private IP addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether anybody on the internet can reach an address.

    For an IPv6 address that embeds an IPv4 address, the IPv4 address decides.
    """
    address = unwrapped(address)
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    # ipaddress calls multicast and reserved addresses global.
    return address.is_global and not (address.is_multicast or address.is_reserved)


def unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
