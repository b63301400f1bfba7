"""`hookonce dead` lists, shows, replays and discards dead letters."""

import asyncio
import json
import subprocess
from contextlib import closing
from dataclasses import replace as changed
from pathlib import Path

import pytest
from support.sqlite_files import sqlite_connection

from hookonce import Receiver
from hookonce.events import CommentReceived, Envelope
from hookonce.senders import standard
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import DeadReason
from hookonce.testing import TestSender

from .dead_letters import (
    APP,
    COMMENT,
    ELSEWHERE,
    HOSTILE,
    MESSAGE,
    UNREADABLE,
    bury,
    dead_letter,
    journal,
    listed,
    replay,
)
from .running import COMMAND, SECRET, Result, invoke, on_a_terminal, run

pytestmark = pytest.mark.sample(6, of="file")

in_a_process = pytest.mark.sample(1, of="file")

OTHER_SENDER = """
from dataclasses import replace

from hookonce import EnvironmentSecrets, Receiver
from hookonce.senders import Envelope, standard

sender = replace(standard, envelope=Envelope(created_at="timestamp", times="seconds"))
receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", sender=sender)


@receiver.on("*", name="note")
def note(event):
    with open("journal", "a") as journal:
        journal.write(f"{event.id} {event.type} {event.data}\\n")
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with the receiver's module."""
    (tmp_path / "hooks.py").write_text(APP)
    return tmp_path


def test_list_prints_each_dead_letter_on_a_line_with_tabs_between_the_fields(here: Path) -> None:
    result = invoke("dead", "list", bury(here, COMMENT, UNREADABLE))
    first, second = "2026-05-28T20:26:40Z", "2026-05-28T20:26:41Z"
    assert (result.status, result.errors) == (0, "")
    assert [line.split("\t") for line in result.output.splitlines()] == [
        [
            first,
            "default",
            "evt_comment",
            "comment.received",
            "dead",
            "exhausted",
            "1",
            "answer: away",
        ],
        [second, "default", "evt_cut", "", "dead", "unreadable", "1", "no JSON"],
    ]


def test_list_prints_records_for_programs(here: Path) -> None:
    result = invoke("dead", "list", bury(here, UNREADABLE), "--json")
    assert json.loads(result.output) == {
        "buried_at": "2026-05-28T20:26:40Z",
        "endpoint": "default",
        "id": "evt_cut",
        "type": None,
        "state": "dead",
        "reason": "unreadable",
        "attempts": 1,
        "received_at": "2026-05-28T20:26:39Z",
        "error": "no JSON",
    }


def test_list_selects_by_endpoint_and_type_oldest_first(here: Path) -> None:
    store = bury(here, MESSAGE, COMMENT, ELSEWHERE)
    assert listed(store) == ["evt_message", "evt_comment", "evt_elsewhere"]
    assert listed(store, "--endpoint", "social") == ["evt_elsewhere"]
    assert listed(store, "--endpoint", "nowhere") == []
    assert listed(store, "--type", "comment.received") == ["evt_comment", "evt_elsewhere"]
    assert listed(store, "--limit", "3") == listed(store)


def keep(here: Path, event_id: str) -> None:
    """Store an event that the sender may deliver again until 2100."""
    delivery = dead_letter(event_id).delivery

    async def put() -> None:
        store = SQLiteStore(here / "hookonce.db")
        await store.keep_in_flight(delivery, dead_unix=4_102_444_800.0)
        await store.aclose()

    asyncio.run(put())


def test_a_kept_event_is_listed_as_kept_and_selected_only_by_its_id(here: Path) -> None:
    store = bury(here, COMMENT)
    keep(here, "evt_kept")
    shown = invoke("dead", "list", store, "--json").output.splitlines()
    assert [(one["id"], one["state"]) for one in map(json.loads, shown)] == [
        ("evt_comment", "dead"),
        ("evt_kept", "kept"),
    ]
    assert json.loads(shown[1])["buried_at"] == "2100-01-01T00:00:00Z"
    assert invoke("dead", "list", store, "--limit", "1").errors == "1 more; --all lists them\n"
    assert invoke("dead", "show", store, "evt_kept", "--raw").output
    everything = ("dead", "discard", store, "--all", "--yes")
    assert invoke(*everything).output == "evt_comment: discarded\n"
    assert invoke(*everything).output == "no dead letters\n"
    assert listed(store) == ["evt_kept"]
    assert invoke("dead", "discard", store, "evt_kept").output == "evt_kept: discarded\n"
    assert listed(store) == []


@in_a_process
def test_a_kept_event_is_replayed_only_by_its_id(here: Path) -> None:
    bury(here)
    keep(here, "evt_kept")
    assert replay(here, "--all").output == "no dead letters\n"
    assert replay(here, "evt_kept").output == "evt_kept: handled\n"
    assert sorted(journal(here)) == ["answered evt_kept again", "counted evt_kept"]


def test_an_empty_list_prints_a_sentence_for_people_and_nothing_for_programs(here: Path) -> None:
    store = bury(here)
    assert invoke("dead", "list", store).output == "no dead letters\n"
    assert invoke("dead", "list", store, "--json") == Result(0, "", "")


def test_a_listing_says_how_many_more_there_are(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE, UNREADABLE)
    short = invoke("dead", "list", store, "--limit", "1", "--json")
    assert (len(short.output.splitlines()), short.errors) == (1, "2 more; --all lists them\n")
    whole = invoke("dead", "list", store, "--limit", "1", "--all")
    assert (len(whole.output.splitlines()), whole.errors) == (3, "")


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--reason", "unreadable"], {"evt_cut"}),
        (["--since", "2026-05-28T20:26:41Z"], {"evt_cut"}),
        (["--since", "2026-05-28T20:26:40"], {"evt_comment", "evt_cut"}),
        (["--since", "2d", "--all"], set[str]()),
        (["--handler", "nobody"], set[str]()),
        (["--where", "type=comment.received"], {"evt_comment"}),
        (["--where", "type=comment.received", "--where", "id=evt_other"], set[str]()),
        (["--where", "type=comment.received", "--reason", "unreadable"], set[str]()),
    ],
)
def test_a_listing_is_filtered(arguments: list[str], ids: set[str], here: Path) -> None:
    store = bury(here, COMMENT, UNREADABLE)
    result = invoke("dead", "list", store, "--json", *arguments)
    assert {json.loads(line)["id"] for line in result.output.splitlines()} == ids
    invoke("dead", "list", store, "--since", "soon").says("'soon' is neither a time", status=2)
    wrong = invoke("dead", "list", store, "--where", "data.platform")
    wrong.says("a condition is FIELD=VALUE, such as data.platform=instagram", status=2)


def test_a_list_filtered_by_bodies_reads_one_match_beyond_its_limit(here: Path) -> None:
    store = bury(here, COMMENT, dead_letter("evt_2"), MESSAGE, dead_letter("evt_3"))
    chosen = ["--where", "type=comment.received", "--limit"]
    short = invoke("dead", "list", store, *chosen, "1")
    assert (len(short.output.splitlines()), short.errors) == (
        1,
        "at least 1 more; --all lists them\n",
    )
    assert invoke("dead", "list", store, *chosen, "3").errors == ""


@in_a_process
def test_on_80_columns_no_word_and_no_time_is_broken(here: Path) -> None:
    store = bury(here, COMMENT, UNREADABLE)
    shown = on_a_terminal("dead", "list", store, here=here)
    plain = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    named, *table = plain.splitlines()
    assert named == f"store: {store}"
    assert max(map(len, table)) <= 80
    assert "2026-05-28T20:26:40Z  evt_comment  comment.received" in plain
    assert "error answer: away" in " ".join(plain.split())
    wide = on_a_terminal("dead", "list", store, here=here, columns=140)
    assert "buried" in wide.splitlines()[1]


@in_a_process
def test_on_a_terminal_list_prints_a_table_whose_ids_can_be_copied(here: Path) -> None:
    long_id = "evt_" + "0123456789ab" * 2
    shown = on_a_terminal("dead", "list", bury(here, dead_letter(long_id), HOSTILE), here=here)
    assert f" {long_id} " in shown
    assert "\x1b[1m" in shown, "headings are bold"
    assert "…" not in shown, "nothing is cut off"
    without_styles = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert all(char.isprintable() or char == "\n" for char in without_styles)


def test_text_of_the_sender_cannot_control_the_terminal_or_add_lines(here: Path) -> None:
    store = bury(here, HOSTILE)
    plain = invoke("dead", "list", store).output
    assert len(plain.splitlines()) == 1
    assert len(plain.split("\t")) == 8
    assert all(char.isprintable() or char in "\t\n" for char in plain)
    (line,) = invoke("dead", "list", store, "--json").output.splitlines()
    assert line.isprintable()
    record = json.loads(line)
    assert (record["id"], record["error"]) == (HOSTILE.delivery.event_id, HOSTILE.error)
    assert record["type"] == HOSTILE.delivery.event_type


def test_show_shows_a_body_with_its_lines_and_no_control_characters(here: Path) -> None:
    store = bury(here, HOSTILE)
    shown = invoke("dead", "show", store, HOSTILE.delivery.event_id).output
    assert all(char.isprintable() or char in "\t\n" for char in shown)
    fields, _, body = shown.partition("\n\n")
    assert len(fields.splitlines()) == 11
    assert body == "first\nsecond  \\x1b[31mred\\x7f\\x9b2J\\xff\\r\n"
    (line,) = invoke("dead", "show", store, HOSTILE.delivery.event_id, "--json").output.splitlines()
    assert line.isprintable()
    assert json.loads(line)["body"] == "first\nsecond\t\x1b[31mred\x7f\u009b2J\\xff\r"


def test_show_prints_a_dead_letter_with_its_body(here: Path) -> None:
    store = bury(here, COMMENT, dead_letter("evt_comment", endpoint="social", body=b"another"))
    words = "'evt_comment' is at 'default' and 'social'; name one of them with --endpoint"
    invoke("dead", "show", store, "evt_comment").says(words, status=1)
    shown = invoke("dead", "show", store, "evt_comment", "--endpoint", "default")
    assert shown == Result(
        0,
        "buried_at: 2026-05-28T20:26:40Z\nendpoint: default\nid: evt_comment\n"
        "type: comment.received\nstate: dead\nreason: exhausted\nattempts: 1\n"
        "received_at: 2026-05-28T20:26:39Z\nerror: answer: away\n"
        "finished: ['count']\nattempt 1: 2026-05-28T20:26:40Z answer: away\n"
        f"\n{COMMENT.delivery.body.decode()}\n",
        "",
    )
    here_alone = ["--endpoint", "default", "--json"]
    record = json.loads(invoke("dead", "show", store, "evt_comment", *here_alone).output)
    assert json.loads(record["body"])["id"] == "evt_comment"
    assert record["finished"] == ["count"]
    assert record["history"] == [
        {"number": 1, "ended_at": "2026-05-28T20:26:40Z", "error": "answer: away"}
    ]
    assert invoke("dead", "show", store, "evt_comment", "--endpoint", "social").output.endswith(
        "\n\nanother\n"
    )


@in_a_process
def test_show_raw_writes_the_bytes_as_they_came(here: Path) -> None:
    store = bury(here, HOSTILE)
    shown = subprocess.run(
        [*COMMAND, "dead", "show", store, HOSTILE.delivery.event_id, "--raw"],
        capture_output=True,
        check=True,
    )
    assert shown.stdout == HOSTILE.delivery.body


def test_show_says_which_dead_letter_it_does_not_find(here: Path) -> None:
    store = bury(here, ELSEWHERE)
    result = invoke("dead", "show", store, "evt_elsewhere", "--endpoint", "default")
    result.says("no dead letter 'evt_elsewhere' at 'default'; there is one at 'social'", status=1)
    assert invoke("dead", "show", store, "evt_elsewhere").status == 0, "wherever it is"


def test_discard_forgets_and_counts_the_event_as_handled(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE, UNREADABLE)
    result = invoke("dead", "discard", store, "evt_comment", "evt_cut")
    assert result == Result(0, "evt_comment: discarded\nevt_cut: discarded\n", "")
    assert listed(store) == ["evt_message"]

    async def deliver_again() -> None:
        receiver = Receiver(secrets=SECRET, store=store)

        @receiver.on(CommentReceived)
        async def handle(event: CommentReceived) -> None:
            raise AssertionError(event.id)

        async with TestSender(receiver, secrets=SECRET) as sender:
            (await sender.send(COMMENT.delivery.body)).expect(200, "duplicate")

    asyncio.run(deliver_again())


def test_discard_fails_for_an_unknown_id_and_discards_the_others(here: Path) -> None:
    store = bury(here, COMMENT, ELSEWHERE)
    at_one = ["--endpoint", "default", "--json"]
    result = invoke("dead", "discard", store, "evt_elsewhere", "evt_comment", *at_one)
    assert result.status == 1
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"id": "evt_elsewhere", "endpoint": "default", "result": "not found"},
        {"id": "evt_comment", "endpoint": "default", "result": "discarded"},
    ]
    assert listed(store) == ["evt_elsewhere"]
    everywhere = invoke("dead", "discard", store, "evt_elsewhere")
    assert everywhere == Result(0, "evt_elsewhere at social: discarded\n", "")
    assert listed(store) == []


@in_a_process
def test_replay_runs_the_outstanding_handlers_and_removes_the_dead_letter(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE)
    assert replay(here, "evt_comment") == Result(0, "evt_comment: handled\n", "")
    assert journal(here) == ["answered evt_comment again"]
    assert listed(store) == ["evt_message"]


@in_a_process
def test_replay_that_fails_again_keeps_the_dead_letter_and_says_so(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE)
    (here / "shop is closed").touch()
    result = replay(here, "evt_comment", "evt_message", "--json")
    assert result.status == 1
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"id": "evt_comment", "endpoint": "default", "result": "exhausted"},
        {"id": "evt_message", "endpoint": "default", "result": "handled"},
    ]
    assert "ConnectionError: the shop is closed" in result.errors
    assert listed(store) == ["evt_comment"]
    (here / "shop is closed").unlink()
    assert replay(here, "evt_comment").status == 0


@in_a_process
def test_replay_all_replays_every_dead_letter_of_the_receiver_and_no_other(here: Path) -> None:
    store = bury(here, COMMENT, UNREADABLE, ELSEWHERE, MESSAGE)
    result = replay(here, "--all")
    assert result.status == 1
    handled, unreadable, last = result.output.splitlines()
    assert (handled, last) == ("evt_comment: handled", "evt_message: handled")
    assert unreadable.startswith("evt_cut: the body is not ")
    assert listed(store) == ["evt_cut", "evt_elsewhere"]
    assert journal(here) == ["answered evt_comment again", "replied evt_message"]


@in_a_process
def test_replay_by_type_replays_only_events_of_this_type(here: Path) -> None:
    store = bury(here, COMMENT, MESSAGE, dead_letter("evt_second"))
    result = replay(here, "--type", "comment.received")
    assert result == Result(0, "evt_comment: handled\nevt_second: handled\n", "")
    assert listed(store) == ["evt_message"]
    assert replay(here, "--type", "comment.received").output == "no dead letters\n"


@in_a_process
def test_replay_by_filters_replays_only_events_that_pass_every_filter(here: Path) -> None:
    others = (dead_letter("evt_2"), dead_letter("evt_3", reason=DeadReason.REJECTED), MESSAGE)
    store = bury(here, COMMENT, *others)
    selection = ["--reason", "exhausted", "--where", "id=evt_2", "--type", "comment.received"]
    assert replay(here, *selection) == Result(0, "evt_2: handled\n", "")
    assert listed(store) == ["evt_comment", "evt_3", "evt_message"]
    assert replay(here, "--handler", "nobody") == Result(0, "no dead letters\n", "")
    assert replay(here, "--all", "--reason", "rejected").status == 0
    assert listed(store) == ["evt_comment"]


@in_a_process
def test_bodies_that_could_not_be_read_are_parsed_again_and_each_is_handled_once(
    here: Path,
) -> None:
    """At first the module has the wrong envelope; then an operator corrects the module."""
    module = here / "hooks.py"
    module.write_text(OTHER_SENDER.replace('"timestamp"', '"created"'))
    sent = [f'{{"type": "order.paid", "timestamp": 1767225600, "data": {n}}}' for n in range(3)]

    async def deliver() -> None:
        wrong = changed(standard, envelope=Envelope(created_at="created", times="seconds"))
        store = f"sqlite:///{here}/hookonce.db"
        receiver = Receiver(secrets=SECRET, store=store, sender=wrong)
        receiver.on("*", name="note")(lambda _: None)
        async with receiver, TestSender(receiver, secrets=SECRET) as sender:
            for number, body in enumerate(sent):
                answer = await sender.send(body.encode(), message_id=f"msg_{number}")
                answer.expect(202, "quarantined")

    asyncio.run(deliver())
    bury(here, MESSAGE)
    still = replay(here, "--reason", "unreadable", "--all")
    assert still.status == 1
    assert "created: Field required" in still.output
    module.write_text(OTHER_SENDER)
    selection = ["--reason", "unreadable", "--all"]
    lines = "".join(f"msg_{number}: handled\n" for number in range(3))
    assert replay(here, *selection) == Result(0, lines, "")
    assert replay(here, *selection) == Result(0, "no dead letters\n", "")
    assert journal(here) == ["msg_0 order.paid 0", "msg_1 order.paid 1", "msg_2 order.paid 2"]
    assert listed(f"sqlite:///{here}/hookonce.db") == ["evt_message"]


def test_replay_names_an_id_it_does_not_find_and_goes_on(here: Path) -> None:
    bury(here, COMMENT, ELSEWHERE)
    result = replay(here, "evt_elsewhere", "evt_comment")
    assert (result.status, result.errors) == (1, "")
    missing, handled = result.output.splitlines()
    assert missing == "evt_elsewhere: there is no dead letter 'evt_elsewhere' at 'default'"
    assert handled == "evt_comment: handled"


@in_a_process
def test_replay_of_an_event_without_a_handler_is_no_success(here: Path) -> None:
    store = bury(here, dead_letter("evt_1", "channel.unhealthy"))
    assert replay(here, "evt_1") == Result(1, "evt_1: no_handler\n", "")
    assert listed(store) == ["evt_1"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["evt_1", "--all"], ["evt_1", "--type", "a.b"], ["evt_1", "--where", "a=b"]],
)
def test_replay_needs_ids_or_all_or_a_filter(arguments: list[str]) -> None:
    result = invoke("dead", "replay", "hooks:receiver", *arguments)
    result.says(
        "name events by their ids, or select them with --all or with filters such as --type",
        status=2,
    )


@in_a_process
def test_replay_says_what_is_wrong_with_the_receiver(here: Path) -> None:
    arguments = ["dead", "replay", "hooks:missing", "--all"]
    run(*arguments, here=here, secrets=[SECRET]).says("there is no 'missing' in hooks")


USES = [["list"], ["show", "evt_1"], ["discard", "evt_1"]]


@pytest.mark.parametrize("use", USES, ids=" ".join)
@pytest.mark.parametrize("scheme", ["sqlite", "SQLite"])
def test_a_store_file_that_does_not_exist_is_an_error_and_is_not_created(
    use: list[str], scheme: str, tmp_path: Path
) -> None:
    command, *rest = use
    path = tmp_path / "hookonse.db"
    invoke("dead", command, f"{scheme}:///{path}", *rest).says(f"there is no file '{path}'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", USES, ids=" ".join)
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://", "only its own process can see what is in memory://"),
        ("mongodb://localhost", "no store has the scheme 'mongodb'"),
        ("hookonce.db", "no store has the scheme"),
        ("sqlite://hookonce.db", "sqlite:///hookonce.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://", "names a file"),
    ],
)
def test_a_store_that_is_no_file_is_refused(use: list[str], url: str, message: str) -> None:
    command, *rest = use
    invoke("dead", command, url, *rest).says(message)


def test_a_file_that_is_no_store_is_named_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Notes that are no database, and long enough to be looked at. " * 10)
    before = path.read_bytes()
    invoke("dead", "list", f"sqlite:///{path}").says("notes.txt", "not an SQLite database")
    assert path.read_bytes() == before


def test_show_prints_a_record_that_the_store_could_not_read(here: Path) -> None:
    url = bury(here, COMMENT)
    path = Path(url.removeprefix("sqlite:///"))
    with closing(sqlite_connection(path)) as connection:
        connection.execute("UPDATE dead SET history = '{broken\u00e9'")
    [listed_one] = json.loads(f"[{invoke('dead', 'list', url, '--json').output}]")
    assert listed_one["reason"] == "damaged"
    shown = json.loads(invoke("dead", "show", url, "evt_comment", "--json").output)
    assert "{broken" in shown["record"]
    assert "comment.received" in shown["body"]
    assert "\nrecord: " in invoke("dead", "show", url, "evt_comment").output
