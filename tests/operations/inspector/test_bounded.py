"""A bounded mapping drops its oldest entries when it has too many entries or bytes."""

from hypothesis import given
from hypothesis import strategies as st

from hookonce.operations.inspector.bounds import Bounded


def test_the_oldest_entries_go_when_there_are_too_many() -> None:
    kept: Bounded[int, str] = Bounded(count=2, size=100)
    assert not kept.put(1, "a", 1)
    assert not kept.put(2, "b", 1)
    assert kept.put(3, "c", 1) == ["a"]
    assert list(kept.newest_first()) == [(3, "c"), (2, "b")]
    assert kept.get(1) is None


def test_the_oldest_entries_go_when_there_are_too_many_bytes() -> None:
    kept: Bounded[int, str] = Bounded(count=10, size=10)
    kept.put(1, "a", 4)
    kept.put(2, "b", 4)
    assert kept.put(3, "c", 8) == ["a", "b"]
    assert kept.bytes == 8


def test_an_entry_that_grows_becomes_the_newest() -> None:
    kept: Bounded[int, str] = Bounded(count=2, size=10)
    kept.put(1, "a", 1)
    kept.put(2, "b", 1)
    kept.grow(1, 2)
    assert kept.put(3, "c", 1) == ["b"]
    assert kept.bytes == 4


def test_an_entry_that_grows_too_large_is_dropped() -> None:
    kept: Bounded[int, str] = Bounded(count=2, size=10)
    kept.put(1, "a", 1)
    assert kept.grow(1, 10) == ["a"]
    assert (len(kept), kept.bytes) == (0, 0)
    assert not kept.grow(1, 10)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12))))
def test_a_bounded_mapping_never_exceeds_its_bounds(steps: list[tuple[int, int]]) -> None:
    kept: Bounded[int, int] = Bounded(count=3, size=20)
    for key, size in steps:
        if kept.get(key) is None:
            kept.put(key, key, size)
        else:
            kept.grow(key, size)
        assert len(kept) <= 3
        assert 0 <= kept.bytes <= 20
