"""Wrong tokens are limited for each client; nobody is locked out, and memory is bounded."""

from dataclasses import dataclass

import pytest

from hookonce.operations.inspector.login_limit import LoginLimit


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def limit(time: Time) -> LoginLimit:
    return LoginLimit(clock=time)


def checked(limit: LoginLimit, client: str | None, tries: int) -> int:
    """Try this many wrong tokens at one moment; return how many the limit allowed."""
    count = 0
    for _ in range(tries):
        if not limit.seconds_to_wait(client):
            limit.count_wrong(client)
            count += 1
    return count


@pytest.mark.parametrize("client", ["203.0.113.9", "2001:db8::1", "no address", None])
def test_a_client_has_ten_tries_and_then_one_in_two_seconds(
    limit: LoginLimit, time: Time, client: str | None
) -> None:
    assert checked(limit, client, 100) == 10
    time.now += 60
    assert checked(limit, client, 100) == 10
    count = 0
    for _ in range(600):
        time.now += 0.1
        count += checked(limit, client, 5)
    assert 29 <= count <= 31


def test_nobody_waits_longer_than_two_seconds(limit: LoginLimit, time: Time) -> None:
    checked(limit, "203.0.113.9", 10_000)
    assert 0 < limit.seconds_to_wait("203.0.113.9") <= 2
    time.now += 2
    assert limit.seconds_to_wait("203.0.113.9") == 0


def test_wrong_tokens_of_one_client_do_not_delay_others(limit: LoginLimit) -> None:
    checked(limit, "203.0.113.9", 100)
    assert limit.seconds_to_wait("203.0.113.10") == 0


def test_all_addresses_of_one_ipv6_network_are_one_client(limit: LoginLimit) -> None:
    assert sum(checked(limit, f"2001:db8::{n:x}", 1) for n in range(100)) == 10
    assert checked(limit, "::ffff:203.0.113.9", 10) == 10
    assert limit.seconds_to_wait("203.0.113.9") > 0


def test_an_attacker_with_many_addresses_gains_few_tries(limit: LoginLimit, time: Time) -> None:
    """Each of the first hundred clients has its own limit; all other clients share one limit."""
    crowd = [f"10.{n // 250}.{n % 250}.1" for n in range(300)]
    assert sum(checked(limit, client, 1) for client in crowd[:100]) == 100
    assert sum(checked(limit, client, 1) for client in crowd[100:]) == 10
    assert 0 < limit.seconds_to_wait("203.0.113.9") <= 2
    count = 0
    for _ in range(10):
        time.now += 1
        count += sum(checked(limit, client, 20) for client in crowd)
    # Each of 101 limits allows ten tries at once, then one try every two seconds for ten seconds.
    assert count <= 101 * (10 + 5)


def test_a_client_that_failed_once_is_not_slowed_by_a_crowd(limit: LoginLimit) -> None:
    limit.count_wrong("198.51.100.1")
    for n in range(5000):
        checked(limit, f"10.{n // 250}.{n % 250}.1", 1)
    assert limit.seconds_to_wait("198.51.100.1") == 0


def test_memory_is_bounded_and_clients_are_forgotten(limit: LoginLimit, time: Time) -> None:
    for n in range(1000):
        limit.count_wrong(f"10.{n // 250}.{n % 250}.1")
    assert len(limit._clear_at) == 101
    time.now += 3600
    assert checked(limit, "203.0.113.9", 100) == 10
    assert len(limit._clear_at) == 1
