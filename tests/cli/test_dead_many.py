"""`hookonce dead` with many dead letters: selections, pages, progress and interruption."""

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from support.redis_servers import RedisServer

from hookonce.samples.events import event_body
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Token,
)

from .dead_letters import (
    APP,
    COMMENT,
    ELSEWHERE,
    MESSAGE,
    UNREADABLE,
    bury,
    dead_letter,
    journal,
    listed,
    replay,
)
from .running import SECRET, Result, eventually, invoke, on_a_terminal, run, running

pytestmark = pytest.mark.sample(1, of="file")

# More than two pages of a listing, and more than the command discards in one step.
MORE_THAN_TWO_PAGES = 1100


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with the receiver's module."""
    (tmp_path / "hooks.py").write_text(APP)
    return tmp_path


def bury_many(here: Path, count: int, *, readable: bool) -> str:
    """Put many dead letters of one kind into the receiver's store."""

    async def bury_one(store: SQLiteStore, number: int) -> None:
        event_id = f"evt_{number}"
        body = event_body("comment.received", event_id=event_id) if readable else b"{"
        delivery = Delivery("default", event_id, "comment.received", 1e9, body)
        claim = await store.claim(delivery.key, Token(event_id), 30)
        assert isinstance(claim, Claimed)
        await store.bury(claim, DeadReason.EXHAUSTED, error="away", delivery=delivery)

    async def bury_all() -> None:
        store = SQLiteStore(here / "hookonce.db")
        await store.open()
        await asyncio.gather(*(bury_one(store, number) for number in range(count)))
        await store.aclose()

    asyncio.run(bury_all())
    return f"sqlite:///{here / 'hookonce.db'}"


def test_discard_all_discards_the_dead_letters_of_one_endpoint(here: Path) -> None:
    store = bury(here, COMMENT, ELSEWHERE, MESSAGE)
    result = invoke("dead", "discard", store, "--all", "--yes")
    assert result == Result(0, "evt_comment: discarded\nevt_message: discarded\n", "")
    assert listed(store) == ["evt_elsewhere"]
    again = invoke("dead", "discard", store, "--all", "--yes")
    assert again == Result(0, "no dead letters\n", "")


def test_discard_by_type_discards_only_events_of_this_type(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE, ELSEWHERE)
    options = ["--type", "comment.received", "--endpoint", "social", "--yes", "--json"]
    result = invoke("dead", "discard", store, *options)
    assert json.loads(result.output) == {
        "id": "evt_elsewhere",
        "endpoint": "social",
        "result": "discarded",
    }
    assert listed(store) == ["evt_comment", "evt_message"]


@pytest.mark.parametrize("selection", [["--all"], ["--type", "comment.received"]])
def test_discard_of_many_is_refused_without_a_terminal_to_ask_on(
    selection: list[str], here: Path
) -> None:
    store = bury(here, COMMENT)
    invoke("dead", "discard", store, *selection).says("add --yes", status=2)
    assert listed(store) == ["evt_comment"]


def test_discard_of_many_asks_on_a_terminal(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE)
    command = ["dead", "discard", store, "--all"]
    shown = on_a_terminal(*command, here=here, typed=b"n\n", status=1)
    assert "Discard 2 dead letters at 'default' for good? [y/N]" in shown
    assert "Aborted!" in shown
    assert listed(store) == ["evt_comment", "evt_message"]
    shown = on_a_terminal(*command, here=here, typed=b"y\n")
    assert "evt_message: discarded" in shown
    assert listed(store) == []
    assert "no dead letters" in on_a_terminal(*command, here=here), "it asks nothing then"


def test_discard_asks_even_if_the_first_page_has_only_kept_deliveries(here: Path) -> None:
    async def keep_many() -> None:
        store = SQLiteStore(here / "hookonce.db")
        await store.open()
        kept = (Delivery("default", f"evt_{number}", "a.b", 1e9, b"{}") for number in range(500))
        await asyncio.gather(*(store.keep_in_flight(one, dead_unix=4e9) for one in kept))
        await store.aclose()

    asyncio.run(keep_many())
    store = bury(here, COMMENT)
    shown = on_a_terminal("dead", "discard", store, "--all", here=here, typed=b"n\n", status=1)
    assert "Discard 1 dead letters at 'default' for good? [y/N]" in shown
    assert "evt_comment" in listed(store, "--all")


@pytest.mark.parametrize("arguments", [[], ["evt_1", "--all"], ["evt_1", "--since", "1h"]])
def test_discard_needs_ids_or_all_or_a_filter(arguments: list[str], here: Path) -> None:
    result = invoke("dead", "discard", bury(here), *arguments, "--yes")
    result.says(
        "name events by their ids, or select them with --all or with filters such as --type",
        status=2,
    )


def test_discard_all_goes_through_every_page(here: Path) -> None:
    store = bury_many(here, MORE_THAN_TWO_PAGES, readable=True)
    result = invoke("dead", "discard", store, "--all", "--yes")
    assert len(set(result.output.splitlines())) == MORE_THAN_TWO_PAGES
    assert listed(store) == []


def test_a_list_reads_no_more_of_the_store_than_it_shows(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bury_many(here, MORE_THAN_TWO_PAGES, readable=True)
    sizes = []
    dead_letters = SQLiteStore.dead_letters

    async def counted(store: SQLiteStore, **wanted: Any) -> list[DeadLetter]:
        found = await dead_letters(store, **wanted)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(SQLiteStore, "dead_letters", counted)
    short = invoke("dead", "list", store, "--limit", "3")
    assert (len(short.output.splitlines()), short.errors) == (3, "1097 more; --all lists them\n")
    assert sizes == [3]
    assert invoke("dead", "show", store, "evt_700").status == 0
    assert sizes[1:] == [1]
    every = invoke("dead", "list", store, "--all")
    assert (len(set(every.output.splitlines())), every.errors) == (MORE_THAN_TWO_PAGES, "")
    assert max(sizes) < MORE_THAN_TWO_PAGES / 2


def test_a_search_in_bodies_reads_the_store_in_pages(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bury_many(here, MORE_THAN_TWO_PAGES, readable=True)
    pages, reading, most_at_once = [], 0, 0
    dead_letters, dead_letter = SQLiteStore.dead_letters, SQLiteStore.dead_letter

    async def paged(store: SQLiteStore, **wanted: Any) -> list[DeadLetter]:
        pages.append(wanted["limit"])
        return await dead_letters(store, **wanted)

    async def read(store: SQLiteStore, key: DeliveryKey) -> DeadLetter | None:
        nonlocal reading, most_at_once
        reading += 1
        most_at_once = max(reading, most_at_once)
        try:
            return await dead_letter(store, key)
        finally:
            reading -= 1

    monkeypatch.setattr(SQLiteStore, "dead_letters", paged)
    monkeypatch.setattr(SQLiteStore, "dead_letter", read)
    assert listed(store, "--where", "id=evt_1050") == ["evt_1050"]
    assert max(pages) < MORE_THAN_TWO_PAGES / 2 < sum(pages)
    assert 1 < most_at_once < 100


def test_a_filtered_list_counts_at_most_a_thousand_matches(here: Path) -> None:
    store = bury_many(here, MORE_THAN_TWO_PAGES, readable=True)
    chosen = ["--reason", "exhausted", "--limit"]
    most = invoke("dead", "list", store, *chosen, "50")
    assert most.errors == "more than 1000 more; --all lists them\n"
    assert invoke("dead", "list", store, *chosen, "900").errors == "200 more; --all lists them\n"
    assert invoke("dead", "list", store, "--reason", "rejected").output == "no dead letters\n"


def test_replay_all_tries_each_dead_letter_once_even_if_every_replay_fails(here: Path) -> None:
    store = bury_many(here, MORE_THAN_TWO_PAGES, readable=False)
    result = replay(here, "--all", "--json")
    assert result.status == 1
    ids = [json.loads(line)["id"] for line in result.output.splitlines()]
    assert len(ids) == len(set(ids)) == MORE_THAN_TWO_PAGES
    assert len(listed(store, "--limit", "2000")) == MORE_THAN_TWO_PAGES


def test_a_long_replay_on_a_terminal_shows_a_progress_bar_and_only_failures(here: Path) -> None:
    bury(here, UNREADABLE, *(dead_letter(f"evt_{number}") for number in range(25)))
    shown = on_a_terminal(
        "dead", "replay", "hooks:receiver", "--all", here=here, secrets=[SECRET], status=1
    )
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "replaying" in text
    assert "26/26" in text
    assert "evt_cut: the body is not " in text
    assert "evt_7: handled" not in text
    assert text.rstrip().endswith("25 handled, 1 failed")
    assert len(journal(here)) == 25


def test_a_short_replay_on_a_terminal_has_a_line_for_each(here: Path) -> None:
    bury(here, COMMENT, MESSAGE)
    arguments = ["dead", "replay", "hooks:receiver", "--all"]
    shown = on_a_terminal(*arguments, here=here, secrets=[SECRET])
    assert "evt_comment: handled" in shown
    assert "replaying" not in shown


HOLDING = """
@receiver.on(MessageReceived, name="hold")
async def hold(event: MessageReceived) -> None:
    while Path(f"hold {event.id}").exists():
        await asyncio.sleep(0.005)
"""


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_loses_nothing_and_prints_its_progress(
    way: signal.Signals, here: Path
) -> None:
    (here / "hooks.py").write_text(f"import asyncio\n{APP}{HOLDING}")
    store = bury(here, COMMENT, MESSAGE, dead_letter("evt_last"))
    held = here / "hold evt_message"
    held.touch()
    arguments = ["dead", "replay", "hooks:receiver", "--all"]
    with running(*arguments, here=here, secrets=[SECRET]) as process:
        eventually(lambda: "replied evt_message" in journal(here), what="the second one runs")
        process.signal(way)
        ended = process.ended()
    assert ended.status == 128 + way
    assert ended.output.splitlines()[0] == "evt_comment: handled"
    assert "stopped: 1 handled, 0 failed; the rest stays as it was" in ended.errors
    assert "Traceback" not in ended.errors
    assert sorted(listed(store)) == ["evt_last", "evt_message"]
    held.unlink()
    assert replay(here, "--all").status == 0, "at once, without waiting for a lease"
    assert journal(here).count("replied evt_message") == 1, "that had succeeded before"


def test_a_running_thread_does_not_delay_the_end_of_an_interrupted_replay(here: Path) -> None:
    holding = HOLDING.replace("async def", "def").replace("await asyncio", "time")
    (here / "hooks.py").write_text(f"import time\n{APP}{holding}")
    store = bury(here, MESSAGE)
    (here / "hold evt_message").touch()
    arguments = ["dead", "replay", "hooks:receiver", "evt_message"]
    with running(*arguments, here=here, secrets=[SECRET]) as process:
        eventually(lambda: "replied evt_message" in journal(here), what="it runs")
        process.signal(signal.SIGINT)
        ended = process.ended()
    assert ended.status == 1
    assert "stopped: 0 handled, 0 failed" in ended.errors
    assert "sync handlers were running; their events stay dead letters" in ended.errors
    assert listed(store) == ["evt_message"]


def test_a_replay_does_not_work_on_the_inbox_of_its_receiver(here: Path) -> None:
    app = APP.replace("receiver = Receiver(", "receiver = Receiver(inbox=Inbox(), ")
    (here / "hooks.py").write_text(app.replace("import Context,", "import Context, Inbox,"))
    url = bury(here, COMMENT)

    async def put() -> None:
        store = SQLiteStore(here / "hookonce.db")
        await store.enqueue(dead_letter("evt_waiting").delivery, Token("t"))
        await store.aclose()

    asyncio.run(put())
    assert replay(here, "--all") == Result(0, "evt_comment: handled\n", "")
    (entry,) = invoke("inbox", "list", url, "--json").output.splitlines()
    assert json.loads(entry)["attempts"] == 0


def test_dead_letters_in_redis_are_listed_discarded_and_replayed(
    here: Path, lasting_valkey: RedisServer
) -> None:
    text = APP.replace("sqlite:///hookonce.db", lasting_valkey.url)
    (here / "hooks.py").write_text(text)

    async def bury_there() -> None:
        store = RedisStore(lasting_valkey.url)
        for dead in (COMMENT, MESSAGE, UNREADABLE):
            claim = await store.claim(dead.delivery.key, Token("t"), 30)
            assert isinstance(claim, Claimed)
            await store.bury(claim, dead.reason, error=dead.error, delivery=dead.delivery)
        await store.aclose()

    asyncio.run(bury_there())
    assert listed(lasting_valkey.url) == ["evt_comment", "evt_message", "evt_cut"]
    assert "attempt 1: " in invoke("dead", "show", lasting_valkey.url, "evt_message").output
    replayed = replay(here, "--type", "message.received")
    assert replayed == Result(0, "evt_message: handled\n", "")
    result = run("dead", "discard", lasting_valkey.url, "--all", "--yes", here=here)
    assert result == Result(0, "evt_comment: discarded\nevt_cut: discarded\n", "")
    assert listed(lasting_valkey.url) == []
