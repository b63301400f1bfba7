"""Sessions are few, known by their own name only, and end."""

from hookonce.operations.inspector.sessions import SESSION_SECONDS, Sessions


def test_a_session_ends_with_its_time_or_before() -> None:
    now = 1_780_000_000.0
    sessions = Sessions(clock=lambda: now)
    one, other = sessions.begin(), sessions.begin()
    sessions.end(one)
    assert (sessions.goes_on(one), sessions.goes_on(other)) == (False, True)
    now += SESSION_SECONDS
    assert not sessions.goes_on(other)


def test_the_oldest_goes_where_they_are_too_many() -> None:
    sessions = Sessions(clock=lambda: 1_780_000_000.0)
    names = [sessions.begin() for _ in range(101)]
    assert [sessions.goes_on(name) for name in names] == [False, *[True] * 100]


def test_no_name_is_a_session_that_was_not_given() -> None:
    sessions = Sessions(clock=lambda: 0.0)
    for name in ("", "0.", "9999999999.", "\ud800", "1" * 5000):
        assert not sessions.goes_on(name)
        sessions.end(name)
