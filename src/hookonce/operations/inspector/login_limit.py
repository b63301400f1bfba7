"""Limits how fast wrong tokens can be tried."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from ...clock import Clock

# A client never waits longer than one interval. So an operator can log in, even if an attacker
# shares the operator's address.
_BURST = 10
_INTERVAL_SECONDS = 2.0

_MOST_CLIENTS = 100
_OTHERS = "others"


class LoginLimit:
    """Allows each client ten wrong tokens at once, then one token every two seconds.

    While a hundred clients have wrong tokens that still count, all further clients share one limit.
    So memory is bounded, and an attacker with many addresses gets about fifty tries a second.

    Args:
        clock: seconds; only differences matter.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        # For each client, the time at which its last wrong token no longer counts.
        self._clear_at: dict[str, float] = {}

    def seconds_to_wait(self, client: str | None) -> float:
        """Return how many seconds a client must wait before its next token is checked."""
        now = self._clock()
        clear_at = self._clear_at.get(self._account_of(client, now), now)
        return max(0.0, clear_at - now - (_BURST - 1) * _INTERVAL_SECONDS)

    def count_wrong(self, client: str | None) -> None:
        now = self._clock()
        account = self._account_of(client, now)
        self._clear_at[account] = self._clear_at.get(account, now) + _INTERVAL_SECONDS

    def _account_of(self, client: str | None, now: float) -> str:
        # Forget the clients whose wrong tokens no longer count.
        self._clear_at = {account: at for account, at in self._clear_at.items() if at > now}
        network = _network_of(client)
        is_full = len(self._clear_at) >= _MOST_CLIENTS
        return _OTHERS if is_full and network not in self._clear_at else network


def _network_of(client: str | None) -> str:
    """Return the key of an address: the /64 for IPv6, because one client can use all of a /64."""
    try:
        address = ip_address(client or "")
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or address.packed[:8].hex())
    return str(address)
