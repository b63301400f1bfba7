"""`hookonce handled replay`: selections, joined batches, interruption, kills and refusals."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, aclosing, closing
from pathlib import Path

import pytest
from support.redis_servers import RedisServer

from hookonce.clock import system_clock
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.samples.events import event_body
from hookonce.stores import open_store
from hookonce.stores.handled import HandledStore, Keeping
from hookonce.stores.values import Claimed, Delivery, new_token

from .running import SECRET, Result, eventually, on_a_terminal, run, running

pytestmark = pytest.mark.sample(1, of="file")

DAYS = Keeping(3 * 86_400.0)

APP = '''
"""A receiver with a handler within a ledger and a handler that writes a journal."""
import os, time
from datetime import timedelta
from pathlib import Path

from hookonce import Context, EnvironmentSecrets, Limits, Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import ChannelUnhealthy, CommentReceived

receiver = Receiver(
    secrets=EnvironmentSecrets(),
    store=os.environ.get("STORE", "sqlite:///hookonce.db"),
    keep_handled=timedelta(days=3),
    limits=Limits(lease_seconds=1),
)
keeps_none = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
ledger = SQLiteLedger("shop.db")


def note(line):
    with open("journal", "a") as journal:
        journal.write(f"{line}\\n")


@receiver.on(CommentReceived, ChannelUnhealthy, name="book", within=ledger)
def book(event, connection, context):
    connection.execute("INSERT INTO orders VALUES (?, ?)", (event.id, context.generation))
    if Path("slow").exists():
        note("booking")
        time.sleep(0.02)


@keeps_none.on(CommentReceived, name="mail")
@receiver.on(CommentReceived, ChannelUnhealthy, name="mail")
async def mail(event, context: Context):
    if Path(f"refuses {event.id}").exists():
        raise ConnectionError("the post office is closed")
    note(f"mailed {event.id} {context.generation} {context.idempotency_key}")
'''


def handle(url: str, event_ids: list[str], event_type: str = "comment.received") -> None:
    """Store events that both handlers have handled; the ledger gets no rows for them."""

    async def handle_all() -> None:
        async with aclosing(open_store(url, clock=system_clock)) as store:
            assert isinstance(store, HandledStore)
            for event_id in event_ids:
                body = event_body(event_type, event_id=event_id)
                delivery = Delivery("default", event_id, event_type, system_clock(), body)
                claim = await store.claim(delivery.key, new_token(), 30.0)
                assert isinstance(claim, Claimed)
                await store.complete_and_keep(claim, delivery, {"book", "mail"}, DAYS)

    asyncio.run(handle_all())


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with the receiver's module and three handled events."""
    (tmp_path / "hooks.py").write_text(APP)
    ledger = SQLiteLedger(tmp_path / "shop.db")
    ledger.create_table()
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (event_id text, generation integer)")
    url = f"sqlite:///{tmp_path / 'hookonce.db'}"
    handle(url, ["evt_1", "evt_2"])
    handle(url, ["evt_3"], "channel.unhealthy")
    return tmp_path


def command(*arguments: str, handler: str = "mail") -> tuple[str, ...]:
    return ("handled", "replay", "hooks:receiver", "--handler", handler, *arguments)


def replay(here: Path, *arguments: str, handler: str = "mail") -> Result:
    return run(*command(*arguments, handler=handler), here=here, secrets=[SECRET])


def journal(here: Path) -> list[str]:
    file = here / "journal"
    return file.read_text().splitlines() if file.exists() else []


def mailed(here: Path) -> list[str]:
    """Return the events of the journal with their generations."""
    return sorted(" ".join(line.split()[1:3]) for line in journal(here))


def orders(here: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(here / "shop.db")) as connection:
        found = connection.execute("SELECT event_id, generation FROM orders ORDER BY 1, 2")
        return found.fetchall()


def results(result: Result) -> dict[str, str]:
    records = map(json.loads, result.output.splitlines())
    return {record["id"]: record["result"] for record in records}


def test_all_events_of_one_handler_are_replayed_once_for_each_batch(here: Path) -> None:
    first = replay(here, "--all")
    assert (first.status, first.errors) == (0, "generation 1 of mail\n")
    assert sorted(first.output.splitlines()) == [f"evt_{n}: handled" for n in (1, 2, 3)]
    again = replay(here, "--all")
    assert (again.status, again.output) == (0, "")
    assert again.errors.startswith("generation 1 of mail was finished at 20")
    assert again.errors.endswith("; --new begins another\n")
    assert replay(here, "--all", "--new").errors == "generation 2 of mail\n"
    assert mailed(here) == [f"evt_{n} {g}" for n in (1, 2, 3) for g in (1, 2)]
    assert orders(here) == []


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (["--type", "comment.received"], {"evt_1", "evt_2"}),
        (["--where", "id=evt_2"], {"evt_2"}),
        (["--since", "1h"], {"evt_1", "evt_2", "evt_3"}),
        (["--since", "2020-01-01", "--type", "channel.unhealthy"], {"evt_3"}),
        (["--since", "3000-01-01"], set()),
        (["evt_3", "evt_1"], {"evt_1", "evt_3"}),
    ],
)
def test_events_are_selected_by_filters_or_ids(
    chosen: list[str], found: set[str], here: Path
) -> None:
    planned = replay(here, *chosen, "--dry-run", "--json")
    assert results(planned) == dict.fromkeys(found, "would be replayed")
    assert planned.errors == f"generation 1 of mail would replay {len(found)} events\n"
    assert journal(here) == []
    done = replay(here, *chosen, "--json")
    assert results(done) == dict.fromkeys(found, "handled")
    assert mailed(here) == sorted(f"{event_id} 1" for event_id in found)


def test_a_replay_within_a_ledger_has_its_effect_once_for_each_generation(here: Path) -> None:
    assert replay(here, "--all", handler="book").status == 0
    assert replay(here, "--all", "--new", handler="book").status == 0
    assert orders(here) == [(f"evt_{n}", g) for n in (1, 2, 3) for g in (1, 2)]
    assert journal(here) == []


def test_a_new_key_changes_the_idempotency_key(here: Path) -> None:
    replay(here, "evt_1", "--late")
    replay(here, "evt_1", "--new-key")
    assert [line.split()[-1] for line in journal(here)] == [
        "default:evt_1:mail",
        "default:evt_1.2:mail",
    ]


def test_a_handler_that_fails_for_good_leaves_a_dead_letter(here: Path) -> None:
    (here / "refuses evt_1").touch()
    failed = replay(here, "--all")
    assert failed.status == 1
    assert "evt_1: exhausted" in failed.output
    (here / "refuses evt_1").unlink()
    again = run("dead", "replay", "hooks:receiver", "--all", here=here, secrets=[SECRET])
    assert again.output == "evt_1.1.mail: handled\n"
    assert mailed(here) == ["evt_1 1", "evt_2 1", "evt_3 1"]


def test_other_options_are_refused_while_a_batch_is_open(here: Path) -> None:
    with running(*command("--all", "--rate", "1/h"), here=here, secrets=[SECRET]) as first:
        first.printed("evt_1: handled")
        replay(here, "evt_2").says("generation 1 of mail is open", "(every event)", status=2)
        replay(here, "--all", "--new").says("with the same arguments", status=2)
        new = replay(here, "evt_3", "--new")
        assert (new.status, new.output) == (0, "evt_3: handled\n")
    assert mailed(here) == ["evt_1 1", "evt_3 2"]


def test_two_operators_at_once_replay_each_event_once(here: Path) -> None:
    handle(f"sqlite:///{here / 'hookonce.db'}", [f"evt_{n}" for n in range(10, 60)])
    arguments = command("--all", "--json")
    with (
        running(*arguments, here=here, secrets=[SECRET]) as one,
        running(*arguments, here=here, secrets=[SECRET]) as other,
    ):
        ended = [one.ended(), other.ended()]
    assert [result.status for result in ended] == [0, 0], ended
    assert mailed(here) == sorted(f"evt_{n} 1" for n in [1, 2, 3, *range(10, 60)])


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_is_continued_by_the_same_command(
    way: signal.Signals, here: Path
) -> None:
    with running(*command("--all", "--rate", "1/h"), here=here, secrets=[SECRET]) as process:
        process.printed("evt_1: handled")
        process.signal(way)
        ended = process.ended()
    assert ended.status == 128 + way
    assert "stopped: 1 handled, 0 failed; the same command continues" in ended.errors
    assert replay(here, "--all").output in (
        "evt_2: handled\nevt_3: handled\n",
        "evt_3: handled\nevt_2: handled\n",
    )
    assert mailed(here) == ["evt_1 1", "evt_2 1", "evt_3 1"]


def test_a_long_replay_on_a_terminal_shows_a_progress_bar(here: Path) -> None:
    handle(f"sqlite:///{here / 'hookonce.db'}", [f"evt_{n}" for n in range(10, 60)])
    (here / "refuses evt_20").touch()
    shown = on_a_terminal(*command("--all"), here=here, secrets=[SECRET], status=1)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "53/53" in text
    assert "evt_20: exhausted" in text
    assert "evt_30: handled" not in text
    assert text.rstrip().endswith("52 handled, 1 failed")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["name events by their ids, or select them with --all"]),
        (["evt_1", "--all"], ["name events by their ids, or select them with --all"]),
        (["evt_\udcff"], ["'evt_\\udcff' is no id: it is not valid UTF-8"]),
        (["evt_9"], ["no delivery of 'evt_9' at 'default' is kept"]),
        (["--all", "--handler", "post"], ["no handler 'post'; it has book, mail"]),
        (["--all", "--endpoint", "other"], ["no endpoint 'other'; it has default"]),
        (["--all", "--rate", "0/s"], ["'0/s' is not a rate; write 10/s"]),
        (["--all", "--rate", "fast"], ["'fast' is not a rate"]),
        (["--all", "--rate", "9" * 400], ["inf is not a finite number"]),
        (["--all", "--type", ""], ["event_type is empty"]),
        (["--all", "--where", "platform"], ["a condition is FIELD=VALUE"]),
        (["--all", "--since", "soon"], ["'soon' is neither a time"]),
        (["--all", "--since", "0s"], ["since takes a finite number of seconds above 0"]),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    arguments: list[str], parts: list[str], here: Path
) -> None:
    replay(here, *arguments).says(*parts, status=2)


def test_a_batch_since_the_beginning_of_time_is_begun(here: Path) -> None:
    assert replay(here, "--since", "1970-01-01").errors == "generation 1 of mail\n"
    assert len(journal(here)) == 3


def test_a_receiver_that_keeps_nothing_is_refused(here: Path) -> None:
    words = ("handled", "replay", "hooks:keeps_none", "--handler", "mail", "--all")
    run(*words, here=here, secrets=[SECRET]).says("keeps no handled events", status=2)


def test_a_store_in_memory_is_refused(here: Path) -> None:
    result = run(*command("--all"), here=here, secrets=[SECRET], environment={"STORE": "memory://"})
    result.says("only its own process can see what is in memory://", status=2)


def test_without_the_tables_of_the_ledger_no_event_becomes_a_dead_letter(here: Path) -> None:
    (here / "shop.db").unlink()
    replay(here, "--all", handler="book").says("no such table: hookonce_effects", status=2)
    assert run("dead", "list", "sqlite:///hookonce.db", here=here).output == "no dead letters\n"


def killed_after(count: int, here: Path, words: Sequence[str], url: str) -> list[int]:
    """Kill two replaying commands after ``count`` handlers began; return their exit codes."""
    with ExitStack() as stack:
        operators = [
            stack.enter_context(
                running(*words, here=here, secrets=[SECRET], environment={"STORE": url})
            )
            for _ in range(2)
        ]

        def is_time() -> bool:
            have_ended = all(one.process.poll() is not None for one in operators)
            return have_ended or len(journal(here)) >= count

        eventually(is_time, what=f"{count} handlers have begun")
        for one in operators:
            one.signal(signal.SIGKILL)
        return [one.ended().status for one in operators]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_killed_replays_lose_nothing_and_have_each_effect_once(
    kind: str, here: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{here / 'hookonce.db'}"
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("valkey")
        url = server.url
    event_ids = [f"evt_{n}" for n in range(100, 180)]
    handle(url, event_ids)
    (here / "slow").touch()
    words = command("--type", "comment.received", "--json", handler="book")
    ends = [end for turn in range(1, 5) for end in killed_after(12 * turn, here, words, url)]
    assert ends.count(-signal.SIGKILL) >= 2, ends
    (here / "slow").unlink()
    last = run(*words, here=here, secrets=[SECRET], environment={"STORE": url})
    assert last.status == 0, last
    expected = event_ids if kind == "redis" else ["evt_1", "evt_2", *event_ids]
    assert orders(here) == sorted((event_id, 1) for event_id in expected)
    done = run(*words, here=here, secrets=[SECRET], environment={"STORE": url})
    assert "was finished at" in done.errors
