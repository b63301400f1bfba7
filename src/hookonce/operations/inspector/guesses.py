"""Slows those who guess: wrong tokens have a rate, for each client and for all together."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from ...verification.clock import Clock, uptime

# So many at once, and then one in so many seconds. Nobody has to wait longer than for that one,
# so that an operator who comes from the address of an attacker gets in, too.
_FREE = 10
_SECONDS = 2.0
_FREE_OF_ALL = 50
_SECONDS_OF_ALL = 0.25

_MOST_CLIENTS = 1000
_MOST_TRUSTED = 100


class Guesses:
    """Remembers who has shown wrong tokens, and how lately; a bounded number of clients.

    Whoever has shown the right one is held up by its own mistakes only, not by those of others.

    Args:
        clock: seconds; only their differences matter.

    """

    def __init__(self, *, clock: Clock = uptime) -> None:
        self._clock = clock
        # When the last wrong token would be forgiven, were there no free ones.
        self._forgiven: OrderedDict[str, float] = OrderedDict()
        self._all_forgiven = 0.0
        self._trusted: OrderedDict[str, None] = OrderedDict()

    def seconds_to_wait(self, client: str | None) -> float:
        """Return for how long no token of a client is looked at; 0 for not at all."""
        who, now = _group_of(client), self._clock()
        wait = self._forgiven.get(who, now) - now - (_FREE - 1) * _SECONDS
        if who not in self._trusted:
            of_all = self._all_forgiven - now - (_FREE_OF_ALL - 1) * _SECONDS_OF_ALL
            wait = max(wait, of_all)
        return max(0.0, wait)

    def note_wrong(self, client: str | None) -> None:
        """Remember a wrong token."""
        who, now = _group_of(client), self._clock()
        self._forgiven[who] = max(now, self._forgiven.get(who, now)) + _SECONDS
        self._forgiven.move_to_end(who)
        if len(self._forgiven) > _MOST_CLIENTS:
            self._forgiven.popitem(last=False)
        if who not in self._trusted:
            self._all_forgiven = max(now, self._all_forgiven) + _SECONDS_OF_ALL

    def note_right(self, client: str | None) -> None:
        """Remember that a client knows the token."""
        who = _group_of(client)
        self._trusted[who] = None
        self._trusted.move_to_end(who)
        if len(self._trusted) > _MOST_TRUSTED:
            self._trusted.popitem(last=False)


def _group_of(client: str | None) -> str:
    """Return whom an address belongs to: who has one of IPv6 has all that begin like it."""
    try:
        address = ip_address(client or "")
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return address.packed[:8].hex()
    return str(address)
