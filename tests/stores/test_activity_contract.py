"""What processes tell each other: kept while somebody looks, bounded, each endpoint for itself."""

from collections.abc import Callable

import pytest

from hookonce.stores.activity import MOST_LINES, WATCHED_SECONDS, ActivityStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def shared(store: Store) -> ActivityStore:
    if not isinstance(store, ActivityStore):
        pytest.skip("this store is of one process, which has nobody to tell")
    return store


async def test_what_nobody_looks_at_is_not_kept(shared: ActivityStore) -> None:
    assert not await shared.publish("default", [b"lost"])
    assert not await shared.publish("default", [])
    place, lines = await shared.follow("default", None)
    assert lines == ()
    assert (await shared.follow("default", place)).lines == ()


async def test_each_who_looks_gets_every_line_in_order(shared: ActivityStore) -> None:
    first = await shared.follow("default", None)
    assert await shared.publish("default", [b"one", b"two"])
    second = await shared.follow("default", first.place)
    assert second.lines == (b"one", b"two")
    assert await shared.publish("default", [b"three"])
    assert (await shared.follow("default", first.place)).lines == (b"one", b"two", b"three")
    assert (await shared.follow("default", second.place)).lines == (b"three",)


async def test_endpoints_are_apart(shared: ActivityStore) -> None:
    here, there = await shared.follow("here", None), await shared.follow("there", None)
    await shared.publish("there", [b"of there"])
    await shared.publish("here", [b"of here"])
    assert (await shared.follow("here", here.place)).lines == (b"of here",)
    assert (await shared.follow("there", there.place)).lines == (b"of there",)
    assert not await shared.publish("elsewhere", [b"nobody looks"])


async def test_the_oldest_lines_are_forgotten_first(shared: ActivityStore) -> None:
    place, _ = await shared.follow("default", None)
    for number in range(0, MOST_LINES + 500, 250):
        await shared.publish("default", [b"%d" % line for line in range(number, number + 250)])
    _, lines = await shared.follow("default", place)
    assert lines == tuple(b"%d" % line for line in range(500, MOST_LINES + 500))


async def test_a_place_of_a_store_that_was_emptied_begins_anew(shared: ActivityStore) -> None:
    await shared.follow("default", None)
    await shared.publish("default", [b"new"])
    assert (await shared.follow("default", 1_000_000)).lines == (b"new",)


async def test_telling_ends_when_nobody_looks_any_more(
    shared: ActivityStore, pass_time: Callable[[float], None]
) -> None:
    if not isinstance(shared, SQLiteStore):
        pytest.skip("the server forgets by its own time")
    place, _ = await shared.follow("default", None)
    pass_time(WATCHED_SECONDS / 2 - 1)
    assert await shared.publish("default", [b"seen"])
    assert (await shared.follow("default", place)).lines == (b"seen",)
    pass_time(WATCHED_SECONDS + 1)
    assert not await shared.publish("default", [b"lost"])
