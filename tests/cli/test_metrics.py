"""`serve --metrics` and `worker --metrics`: one port shows the sums of all processes."""

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .inboxes import APP, deliver, journal, url_of
from .running import SECRET, Process, eventually, invoke, run, running
from .test_supervisor import gone, ready

pytestmark = pytest.mark.sample(1, of="file")

# Like the module of other tests, but a handler fails if a certain file exists.
FAILING = """
    if Path("fails").exists():
        raise RuntimeError("the mail server refuses the message")
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder that holds only a module of receivers."""
    app = APP.replace("started {event.id}", "started {event.id} in {os.getpid()}")
    app = app.replace("max_attempts=2", "max_attempts=2, concurrency=1")
    app = app.replace("memory://", "sqlite:///inline.db")
    app = app.replace("@receiver.on", '@inline.on(CommentReceived, name="handle")\n@receiver.on')
    (tmp_path / "hooks.py").write_text(app + FAILING)
    (tmp_path / "tmp").mkdir()
    return tmp_path


@contextmanager
def metered(here: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """Run a command with metrics; its temporary files are in the folder ``tmp``."""
    settings = {"TMPDIR": str(here / "tmp"), **environment}
    with running(*arguments, here=here, secrets=[SECRET], environment=settings) as process:
        yield process


def working(here: Path, *arguments: str, **environment: str) -> AbstractContextManager[Process]:
    return metered(here, "worker", "hooks:receiver", "--metrics", "0", *arguments, **environment)


def metrics_url(process: Process) -> str:
    return process.printed(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n")[1]


def shown(url: str) -> Callable[..., list[float]]:
    """Read the metrics; return a function that returns the values of a metric's series."""
    text = httpx2.get(url, trust_env=False, timeout=60).raise_for_status().text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def values(name: str, **labels: str) -> list[float]:
        return [
            s.value
            for s in samples
            if s.name == f"hookonce_{name}" and labels.items() <= s.labels.items()
        ]

    return values


def handled(url: str, result: str = "succeeded") -> float:
    """Return how many runs of the handler have ended with this result."""
    return sum(shown(url)("handler_duration_seconds_count", handler="handle", result=result))


def begun_by(here: Path, event_id: str) -> int | None:
    """Return the process that has begun to handle an event, if there is one."""
    for line in journal(here):
        if found := re.match(rf"started {event_id} in (\d+) ", line):
            return int(found[1])
    return None


def stored(server: Process, event_id: str) -> None:
    assert deliver(url_of(server), event_id) == (202, "stored")


def handled_at_once(here: Path, server: Process, *event_ids: str) -> set[int | None]:
    """Let the processes handle these events at the same time; return the processes that did."""
    for event_id in event_ids:
        (here / f"hold {event_id}").touch()
        stored(server, event_id)
    for event_id in event_ids:
        eventually(partial(begun_by, here, event_id), what=f"{event_id} is begun")
    for event_id in event_ids:
        (here / f"hold {event_id}").unlink()
    return {begun_by(here, event_id) for event_id in event_ids}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend a process until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_one_port_shows_all_processes_of_a_worker_and_a_killed_one_loses_no_counts(
    here: Path,
) -> None:
    with (
        running("serve", "hooks:receiver", "--port", "0", here=here, secrets=[SECRET]) as server,
        working(here, "--processes", "2", LEASE="1") as worker,
    ):
        first, second = ready(worker, 2)
        url = metrics_url(worker)
        assert handled_at_once(here, server, "evt_1", "evt_2") == {first, second}
        eventually(lambda: handled(url) == 2, what="both are counted")
        os.kill(first, signal.SIGKILL)
        third = ready(worker, 3)[-1]
        assert handled(url) == 2
        assert handled_at_once(here, server, "evt_3", "evt_4") == {second, third}
        eventually(lambda: handled(url) == 4, what="the new process adds to the sums")
        for _ in range(4):  # any process may answer, and all answer the same sums
            values = shown(url)
            assert values("inbox_fetched_total", endpoint="default") == [4]
            assert values("workers", endpoint="default") in ([2], [3])
            assert values("inbox_events", endpoint="default") == [0]
            assert values("store_up", endpoint="default") == [1]
        [folder] = (here / "tmp").iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        names = {path.stem.rpartition("_")[2] for path in folder.iterdir()}
        assert names == {"process0", "process1"}, "a restart adds no files"
        worker.signal(signal.SIGTERM)
        ended = worker.ended()
    assert (ended.status, ended.output) == (0, "")
    assert "Traceback" not in ended.errors
    assert list((here / "tmp").iterdir()) == []


def test_a_failing_handler_of_a_worker_is_counted(here: Path) -> None:
    """The alert HookonceHandlerFails uses this series."""
    (here / "fails").touch()
    with (
        running("serve", "hooks:receiver", "--port", "0", here=here, secrets=[SECRET]) as server,
        working(here) as worker,
    ):
        url = metrics_url(worker)
        stored(server, "evt_1")
        eventually(lambda: handled(url, "failed") == 2, what="both attempts have failed")
        eventually(lambda: shown(url)("dead_letters") == [1], what="it is a dead letter")
        worker.signal(signal.SIGTERM)
        ended = worker.ended()
    assert ended.status == 0
    assert not list((here / "tmp").iterdir()), "one process needs no folder"


def test_processes_of_a_server_share_one_endpoint_and_a_killed_one_loses_no_counts(
    here: Path,
) -> None:
    arguments = ["serve", "hooks:inline", "--port", "0", "--processes", "2", "--metrics"]
    with metered(here, *arguments) as server:
        pids, url = ready(server, 2), url_of(server)
        metrics = f"{url}/metrics"
        for number, other in enumerate(pids):
            with stopped(other):
                assert deliver(url, f"evt_{number}") == (200, "handled")
        assert {begun_by(here, "evt_0"), begun_by(here, "evt_1")} == set(pids)
        assert handled(metrics) == 2
        os.kill(pids[0], signal.SIGKILL)
        ready(server, 3)
        assert handled(metrics) == 2
        with stopped(pids[1]):
            assert deliver(url, "evt_2") == (200, "handled")
            assert handled(metrics) == 3
        assert sum(shown(metrics)("http_requests_total", kind="receiver")) == 3
        answer = httpx2.get(metrics, trust_env=False)
        assert answer.headers["connection"] == "close", "the next scrape may reach another process"
        server.signal(signal.SIGTERM)
        assert server.ended().status == 0
    gone(*pids)
    assert list((here / "tmp").iterdir()) == []


def test_a_named_metrics_folder_is_used_and_not_removed(here: Path) -> None:
    folder = here / "metrics"
    folder.mkdir()
    arguments = ["serve", "hooks:inline", "--port", "0", "--processes", "2", "--metrics"]
    with metered(here, *arguments, PROMETHEUS_MULTIPROC_DIR=str(folder)) as server:
        pids, url = ready(server, 2), url_of(server)
        for number, other in enumerate(pids):
            with stopped(other):
                assert deliver(url, f"evt_{number}") == (200, "handled")
        assert handled(f"{url}/metrics") == 2
        server.signal(signal.SIGTERM)
        assert server.ended().status == 0
    names = {path.stem.rpartition("_")[2] for path in folder.iterdir()}
    assert names == {str(pid) for pid in pids}, "other commands may have the same folder"
    assert list((here / "tmp").iterdir()) == []


@pytest.mark.parametrize("address", ["no-port", "70000", "host:", "-1", "9" * 5000])
def test_an_invalid_address_is_refused(address: str) -> None:
    invoke("worker", "hooks:receiver", f"--metrics={address}").says("is not a port", status=2)


def test_a_port_in_use_is_reported_in_one_line(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["worker", "hooks:receiver", "--metrics", address]
        run(*arguments, here=here, secrets=[SECRET]).says("cannot listen on", "already in use")


def test_without_a_writable_folder_the_error_says_what_to_do(here: Path) -> None:
    arguments = ["serve", "hooks:inline", "--port", "0", "--processes", "2", "--metrics"]
    code = (
        "import sys, tempfile, hookonce.cli as c; tempfile.tempdir = '/no/such/folder';"
        " sys.argv[0] = 'hookonce'; c.main()"
    )
    result = run(*arguments, here=here, secrets=[SECRET], command=[sys.executable, "-c", code])
    result.says("cannot make a folder for the metrics", "TMPDIR")
