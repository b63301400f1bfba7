"""`hookonce worker` handles events that another process has stored, and ends as expected."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.redis_servers import redis_server

from .inboxes import APP, deliver, journal, url_of
from .running import SECRET, Process, eventually, run, running

pytestmark = pytest.mark.sample(1, of="file")

EVERYTHING: dict[str, Any] = {"keys": "*", "channels": "*", "categories": ["+@all"]}
"""What a user of a Redis server may do in these tests."""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with the receiver's module."""
    (tmp_path / "hooks.py").write_text(APP)
    return tmp_path


@contextmanager
def serving(here: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the receiver, and give its URL."""
    arguments = ["hooks:receiver", "--port", "0"]
    with running(
        "serve", *arguments, here=here, secrets=[SECRET], environment=environment
    ) as server:
        yield url_of(server)


@contextmanager
def working(here: Path, **environment: str) -> Iterator[Process]:
    """Run a worker, and wait until it has begun."""
    with running(
        "worker", "hooks:receiver", here=here, secrets=[SECRET], environment=environment
    ) as worker:
        worker.printed(r"INFO +hookonce: hooks:receiver at endpoint default, handlers: handle\n")
        yield worker


def noted(here: Path, line: str) -> None:
    """Wait until a handler has written a line."""
    eventually(lambda: line in journal(here), what=f"{line!r} in {journal(here)}")


def hold(here: Path, event_id: str) -> Path:
    """Make the handler of an event wait until the returned file is deleted."""
    path = here / f"hold {event_id}"
    path.touch()
    return path


def stats(here: Path) -> dict[str, object]:
    result = run("inbox", "stats", "sqlite:///hookonce.db", "--json", here=here)
    found: dict[str, object] = json.loads(result.output)
    return found


@pytest.mark.full("3 s")
def test_a_worker_handles_events_stored_before_and_after_its_start(here: Path) -> None:
    token = "a token for those who may know"
    with serving(here, {"HOOKONCE_HEALTH_TOKEN": token}) as url:
        assert deliver(url, "evt_before") == (202, "stored")
        shown = {"authorization": f"Bearer {token}"}
        required = f"{url}/readyz?workers=required"
        unready = httpx2.get(required, headers=shown, trust_env=False)
        assert unready.status_code == 503
        assert "start `hookonce worker`" in unready.text
        assert httpx2.get(f"{url}/readyz", trust_env=False).status_code == 200
        assert journal(here) == []
        with working(here) as worker:
            noted(here, "finished evt_before 1")
            eventually(
                lambda: httpx2.get(required, trust_env=False).status_code == 200,
                what="it is ready",
            )
            assert deliver(url, "evt_meanwhile") == (202, "stored")
            noted(here, "finished evt_meanwhile 1")
            worker.signal(signal.SIGTERM)
            ended = worker.ended()
    assert (ended.status, ended.output) == (0, "")
    assert "Traceback" not in ended.errors
    assert stats(here)["depth"] == 0
    assert stats(here)["workers"] == 0, "it has said that it ends"


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_running_handler_finish_and_stops_fetching(
    way: signal.Signals, here: Path
) -> None:
    held = hold(here, "evt_slow")
    with serving(here) as url, working(here) as worker:
        deliver(url, "evt_slow")
        noted(here, "started evt_slow 1")
        worker.signal(way)
        worker.printed("shutting down: running handlers may finish")
        deliver(url, "evt_later")
        held.unlink()
        ended = worker.ended()
    assert ended.status == 0
    assert "Traceback" not in ended.errors
    assert journal(here) == ["started evt_slow 1", "finished evt_slow 1"]
    assert stats(here)["depth"] == 1, "the later one waits for another worker"


def test_an_event_whose_handler_does_not_end_in_time_is_released_for_the_next_worker(
    here: Path,
) -> None:
    held = hold(here, "evt_slow")
    with serving(here) as url, working(here, DRAIN="0.1", LEASE="300") as worker:
        deliver(url, "evt_slow")
        noted(here, "started evt_slow 1")
        worker.signal(signal.SIGTERM)
        ended = worker.ended()
    assert ended.status == 0
    assert "handlers still running after 0.1 s: 1" in ended.errors
    held.unlink()
    with working(here):  # the restart does not wait for the lease
        noted(here, "finished evt_slow 2")


def test_a_second_signal_ends_a_worker_at_once(here: Path) -> None:
    hold(here, "evt_slow")
    with serving(here) as url, working(here) as worker:
        deliver(url, "evt_slow")
        noted(here, "started evt_slow 1")
        worker.signal(signal.SIGTERM)
        worker.printed("a second signal kills them")
        worker.signal(signal.SIGTERM)
        assert worker.ended().status == 128 + signal.SIGTERM
    assert stats(here)["depth"] == 1


def test_a_running_thread_does_not_keep_the_process_alive(here: Path) -> None:
    app = APP.replace("async def", "def").replace("await asyncio", "time")
    (here / "hooks.py").write_text(app.replace("import asyncio", "import time"))
    hold(here, "evt_slow")
    with serving(here) as url, working(here, DRAIN="0.1") as worker:
        deliver(url, "evt_slow")
        noted(here, "started evt_slow 1")
        worker.signal(signal.SIGTERM)
        ended = worker.ended()
    assert ended.status == 1
    assert "ended while sync handlers were running; their events will be retried" in ended.errors


def test_another_worker_finishes_the_event_of_a_killed_worker(here: Path) -> None:
    held = hold(here, "evt_slow")
    with serving(here) as url, working(here, LEASE="0.5") as first:
        deliver(url, "evt_slow")
        noted(here, "started evt_slow 1")
        first.signal(signal.SIGKILL)
        assert first.ended().status == -signal.SIGKILL
        held.unlink()
        with working(here, LEASE="0.5"):
            noted(here, "finished evt_slow 2")
    assert journal(here) == ["started evt_slow 1", "started evt_slow 2", "finished evt_slow 2"]


def test_the_worker_of_a_served_receiver_ends_with_the_server_in_order(here: Path) -> None:
    held = hold(here, "evt_slow")
    arguments = ["hooks:receiver", "--port", "0"]
    environment = {"EMBEDDED": "1"}
    with running(
        "serve", *arguments, here=here, secrets=[SECRET], environment=environment
    ) as server:
        url = url_of(server)
        assert httpx2.get(f"{url}/readyz", trust_env=False).status_code == 200
        assert deliver(url, "evt_slow") == (202, "stored")
        noted(here, "started evt_slow 1")
        server.signal(signal.SIGTERM)
        server.printed("Waiting for application shutdown")
        held.unlink()
        ended = server.ended()
    assert ended.status in {0, -signal.SIGTERM}
    assert "Traceback" not in ended.errors
    assert journal(here) == ["started evt_slow 1", "finished evt_slow 1"]
    assert stats(here)["depth"] == 0


def test_a_receiver_without_an_inbox_is_refused_with_advice(here: Path) -> None:
    result = run("worker", "hooks:inline", here=here, secrets=[SECRET])
    result.says("hooks:inline has no inbox", "Receiver(inbox=Inbox(embedded=False)")


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("sqlite:///no/such/folder/hookonce.db", "does its folder exist"),
        ("redis://:opensesame@127.0.0.1:1", "the Redis store cannot be opened"),
    ],
)
def test_a_worker_does_not_start_if_the_store_cannot_be_opened(
    store: str, message: str, here: Path
) -> None:
    environment = {"STORE": store}
    result = run("worker", "hooks:receiver", here=here, secrets=[SECRET], environment=environment)
    result.says(message)
    assert "opensesame" not in result.errors


def test_a_name_of_no_receiver_is_refused_in_one_line(here: Path) -> None:
    result = run("worker", "hooks:missing", here=here, secrets=[SECRET])
    result.says("there is no 'missing' in hooks")


@pytest.mark.full("2.5 s")
def test_a_worker_on_redis_handles_events_of_a_server_and_shows_no_password(
    here: Path,
) -> None:
    with redis_server() as redis:
        with redis.client() as client:
            client.acl_setuser("app", True, passwords="+opensesame", **EVERYTHING)
        store = redis.url.replace("//", "//app:opensesame@")
        with serving(here, {"STORE": store}) as url, working(here, STORE=store) as worker:
            assert deliver(url, "evt_1") == (202, "stored")
            noted(here, "finished evt_1 1")
            shown = run("inbox", "stats", store, here=here)
            assert "workers: 1\n" in shown.output, shown
            worker.signal(signal.SIGTERM)
            ended = worker.ended()
    assert ended.status == 0
    assert "opensesame" not in ended.errors + shown.output + shown.errors
