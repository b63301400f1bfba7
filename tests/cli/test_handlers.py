"""`hookonce handlers` lists the handlers of a version, and compares them with a store."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from hookonce.clock import system_clock
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, new_token

from .running import Result, run

pytestmark = pytest.mark.sample(1, of="file")

APP = """
from hookonce import EnvironmentSecrets, Inbox, Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", inbox=Inbox())


@receiver.on(CommentReceived, name="greet", latest_by=lambda event: event.data.id)
async def greet(event: CommentReceived) -> None: ...


@receiver.on("channel.*", name="watch", within=SQLiteLedger("app.db"))
def watch(event, connection) -> None: ...


@receiver.on_unknown
def note(event) -> None: ...
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def handlers(here: Path, *arguments: str) -> Result:
    return run("handlers", "app:receiver", *arguments, here=here)


def delivery(event_id: str, endpoint: str = "default") -> Delivery:
    return Delivery(endpoint, event_id, "comment.received", system_clock(), b"{}")


def leave(
    here: Path, *, finished: str = "", outstanding: str = "", endpoint: str = "default"
) -> None:
    """Put three events into the store: in the inbox, as a dead letter, and as a kept delivery."""
    did, left = (frozenset(text.split()) for text in (finished, outstanding))

    async def enter() -> None:
        async with aclosing(SQLiteStore(here / "hookonce.db")) as store:
            await store.enqueue(delivery("evt_inbox", endpoint), new_token())
            batch = await store.fetch(1, 30.0, endpoint=endpoint, worker="w", token=new_token())
            claim = batch.fetched[0].claim
            await store.retry(claim, 60.0, did, "away", outstanding=left)
            for event_id in ("evt_dead", "evt_kept"):
                one = delivery(event_id, endpoint)
                claimed = await store.claim(one.key, new_token(), 30.0)
                assert isinstance(claimed, Claimed)
                if event_id == "evt_kept":
                    until = system_clock() + 1e6
                    await store.keep(claimed, one, dead_unix=until)
                    await store.release(claimed, did, "away", outstanding=left)
                    continue
                await store.bury(
                    claimed, DeadReason.EXHAUSTED, finished=did, outstanding=left, delivery=one
                )

    asyncio.run(enter())


def test_the_handlers_of_a_version_are_listed_without_a_store_and_without_secrets(
    here: Path,
) -> None:
    result = handlers(here)
    assert (result.status, result.stores) == (0, ())
    assert [line.split("\t") for line in result.output.splitlines()] == [
        ["default", "greet", "comment.received", "", "latest_by", "async"],
        ["default", "watch", "channel.*", "SQLiteLedger", "", "in a thread"],
        ["default", "app.note", "unknown types", "", "", "in a thread"],
    ]
    first = json.loads(handlers(here, "--json").output.splitlines()[0])
    assert first["events"] == "comment.received"
    assert not (here / "hookonce.db").exists()


def test_a_version_that_fits_says_so_in_one_line(here: Path) -> None:
    leave(here, outstanding="greet")
    result = handlers(here, "--against", "sqlite:///hookonce.db")
    assert (result.status, result.stores) == (0, (f"sqlite:///{here}/hookonce.db",))
    assert result.output == (
        "app:receiver has every handler that unfinished events need at default\n"
    )
    assert handlers(here, "--against", "app:receiver", "--json") == Result(0, "", "")


def test_events_that_need_a_handler_which_the_version_lacks_are_named(here: Path) -> None:
    leave(here, outstanding="greet thank")
    result = handlers(here, "--against", "app:receiver")
    assert result.status == 1
    line, advice = result.output.splitlines()
    assert line == (
        "default: 3 comment.received events: this version lacks thank, which must still run"
        " (evt_inbox, evt_dead, evt_kept)"
    )
    assert advice.startswith("keep a handler's old name with name=…")


def test_a_renamed_handler_that_has_finished_is_named(here: Path) -> None:
    leave(here, finished="welcome")
    (here / "url").write_text("sqlite:///hookonce.db\n")
    result = handlers(here, "--store-file", "url", "--json")
    assert result.status == 1
    records = [json.loads(line) for line in result.output.splitlines()]
    assert [one.pop("id") for one in records] == ["evt_inbox", "evt_dead", "evt_kept"]
    assert records == 3 * [
        {
            "problem": "renamed",
            "endpoint": "default",
            "type": "comment.received",
            "handlers": ["welcome"],
            "would_run": ["greet"],
        }
    ]


def test_events_of_other_endpoints_do_not_count(here: Path) -> None:
    leave(here, outstanding="thank", endpoint="other")
    assert handlers(here, "--against", "app:receiver").status == 0


def test_a_store_that_is_not_there_is_not_made(here: Path) -> None:
    result = handlers(here, "--against", "sqlite:///wrong.db")
    result.says(f"there is no file '{here}/wrong.db'", status=2)
    assert not (here / "wrong.db").exists()
