"""Wrong tokens have a rate; nobody can be locked out, and no crowd of guessers fills the memory."""

from dataclasses import dataclass

import pytest

from hookonce.operations.inspector.guesses import Guesses


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def guesses(time: Time) -> Guesses:
    return Guesses(clock=time)


def guessed(guesses: Guesses, client: str | None, times: int) -> int:
    """Guess so often at once, and return how many guesses were looked at."""
    looked_at = 0
    for _ in range(times):
        if not guesses.seconds_to_wait(client):
            guesses.note_wrong(client)
            looked_at += 1
    return looked_at


@pytest.mark.parametrize("client", ["203.0.113.9", "2001:db8::1", "no address", None])
def test_ten_guesses_are_free_and_then_one_in_two_seconds(
    guesses: Guesses, time: Time, client: str | None
) -> None:
    assert guessed(guesses, client, 100) == 10
    time.now += 60
    assert guessed(guesses, client, 100) == 10
    looked_at = 0
    for _ in range(600):
        time.now += 0.1
        looked_at += guessed(guesses, client, 5)
    assert 29 <= looked_at <= 31


def test_nobody_waits_longer_than_two_seconds_however_much_was_guessed(
    guesses: Guesses, time: Time
) -> None:
    guessed(guesses, "203.0.113.9", 100_000)
    assert 0 < guesses.seconds_to_wait("203.0.113.9") <= 2
    time.now += 2
    assert guesses.seconds_to_wait("203.0.113.9") == 0


def test_other_clients_are_not_held_up_by_one(guesses: Guesses) -> None:
    guessed(guesses, "203.0.113.9", 100)
    assert guesses.seconds_to_wait("203.0.113.10") == 0


def test_whoever_has_one_address_of_a_network_has_all_of_it(guesses: Guesses) -> None:
    assert sum(guessed(guesses, f"2001:db8::{n:x}", 1) for n in range(100)) == 10
    assert guessed(guesses, "::ffff:203.0.113.9", 10) == 10
    assert guesses.seconds_to_wait("203.0.113.9") > 0


def test_a_crowd_has_four_guesses_a_second_in_all_and_the_operator_goes_on(
    guesses: Guesses, time: Time
) -> None:
    guesses.note_right("198.51.100.1")
    crowd = [f"10.{n // 250}.{n % 250}.1" for n in range(5000)]
    assert sum(guessed(guesses, client, 1) for client in crowd) == 50
    assert guesses.seconds_to_wait("203.0.113.9") <= 0.25
    time.now += 10
    assert sum(guessed(guesses, client, 1) for client in crowd) == 40
    assert guesses.seconds_to_wait("198.51.100.1") == 0


def test_what_is_remembered_is_bounded(guesses: Guesses, time: Time) -> None:
    for n in range(5000):
        time.now += 1
        guesses.note_wrong(f"10.{n // 250}.{n % 250}.1")
        guesses.note_right(f"11.{n // 250}.{n % 250}.1")
    assert len(guesses._forgiven) == 1000
    assert len(guesses._trusted) == 100
