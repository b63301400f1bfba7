"""`serve` and `worker` with `--processes`: a dead process is replaced, and all end in order."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from .inboxes import APP, deliver, journal, url_of
from .running import (
    COMMAND,
    PATIENCE_SECONDS,
    SECRET,
    Process,
    eventually,
    invoke,
    run,
    running,
)

pytestmark = pytest.mark.sample(1, of="file")

# The file ``is broken`` makes the import fail; the file ``falls`` makes it end the process.
FRAGILE = """
if Path("is broken").exists():
    raise SystemExit("this module is broken")
if Path("falls").exists():
    os._exit(7)
"""

IN_A_GROUP = [
    *(sys.executable, "-c", "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"),
    *COMMAND,
]

SERVE = ["serve", "hooks:inline", "--port", "0", "--processes", "2"]
WORK = ["worker", "hooks:receiver", "--processes", "2"]

NAME = r"[^\s:]+:(\d+):[0-9a-f]{6}"
READY = rf"process {NAME} is ready\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a module of two receivers: with an inbox, and without."""
    inline = (
        "inline = Receiver(secrets=EnvironmentSecrets(), limits=limits,"
        ' store=os.environ.get("INLINE_STORE", "sqlite:///inline.db"))'
    )
    app = re.sub("inline = .*", inline, APP).replace(
        "@receiver.on", "@inline.on(CommentReceived)\n@receiver.on"
    )
    app = app.replace("started {event.id}", "started {event.id} in {os.getpid()}")
    (tmp_path / "hooks.py").write_text(app + FRAGILE)
    return tmp_path


@pytest.fixture
def server(here: Path) -> Iterator[Process]:
    """Serve in two processes, and wait until they are ready."""
    with running(*SERVE, here=here, secrets=[SECRET]) as process:
        ready(process, 2)
        yield process


def ready(process: Process, count: int) -> list[int]:
    """Return the ids of the processes that have reported ready, once there are ``count``."""

    def found() -> list[int]:
        return [int(pid) for pid in re.findall(READY, process.errors)]

    eventually(lambda: len(found()) >= count or process.process.poll() is not None, what="ready")
    assert len(found()) == count, process.errors
    return found()


def name_of(process: Process, pid: int) -> str:
    """Return the name under which a process has reported ready."""
    return process.printed(rf"process (\S+:{pid}:\S+) is ready\n")[1]


def lives(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(*pids: int) -> None:
    """Return once none of these processes exists."""
    eventually(lambda: not any(lives(pid) for pid in pids), what=f"{pids} are gone")


def handled_by(here: Path, url: str, event_id: str) -> int:
    """Deliver an event, and return the process that has handled it."""
    status, reason = deliver(url, event_id)
    assert (status, reason) == (200, "handled")
    return runs_of(here, event_id)[0]


def runs_of(here: Path, event_id: str) -> list[int]:
    """Return the processes that have begun to handle an event, in their order."""
    lines = [re.fullmatch(rf"started {event_id} in (\d+) \d", line) for line in journal(here)]
    return [int(found[1]) for found in lines if found]


def test_both_processes_answer_at_one_port_and_a_copy_is_a_duplicate_in_either(
    here: Path, server: Process
) -> None:
    url, pids = url_of(server), ready(server, 2)
    held = [here / f"hold evt_{n}" for n in range(8)]
    for hold in held:
        hold.touch()
    with ThreadPoolExecutor(len(held)) as senders:
        answers = [senders.submit(deliver, url, f"evt_{n}") for n in range(len(held))]
        os.kill(pids[0], signal.SIGSTOP)
        eventually(lambda: len(journal(here)) >= 1, what="one of them handles")
        os.kill(pids[0], signal.SIGCONT)
        for hold in held:
            hold.unlink()
        assert {answer.result(PATIENCE_SECONDS) for answer in answers} == {(200, "handled")}
    for n in range(len(held)):
        assert deliver(url, f"evt_{n}") == (200, "duplicate")
        assert len(runs_of(here, f"evt_{n}")) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_process_is_replaced_while_the_port_still_answers(
    which: int, here: Path, server: Process
) -> None:
    url, pids = url_of(server), ready(server, 2)
    server.signal(signal.SIGSTOP)  # the stopped supervisor cannot start another process
    os.kill(pids[which], signal.SIGKILL)
    gone(pids[which])
    assert handled_by(here, url, "evt_meanwhile") == pids[1 - which]
    server.signal(signal.SIGCONT)
    new = ready(server, 3)[-1]
    os.kill(pids[1 - which], signal.SIGSTOP)
    assert handled_by(here, url, "evt_after") == new
    os.kill(pids[1 - which], signal.SIGCONT)
    server.printed(rf"hookonce: process {name_of(server, pids[which])} was ended by signal 9")


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_handlers_finish_in_every_process(
    way: signal.Signals, here: Path, server: Process
) -> None:
    url, pids = url_of(server), ready(server, 2)
    hold = here / "hold evt_slow"
    hold.touch()
    with ThreadPoolExecutor(1) as elsewhere:
        waiting = elsewhere.submit(deliver, url, "evt_slow")
        eventually(lambda: runs_of(here, "evt_slow"), what="the handler runs")
        server.signal(way)
        server.printed("shutting down 2 processes: running handlers may finish")
        eventually(lambda: is_refused(url), what="nobody listens any more")
        hold.unlink()
        assert waiting.result(PATIENCE_SECONDS) == (200, "handled")
        ended = server.ended()
    assert (ended.status, ended.output) == (0, "")
    assert "Traceback" not in ended.errors
    gone(*pids)


def is_refused(url: str) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def test_ctrl_c_on_a_terminal_is_one_signal_for_each_process(here: Path) -> None:
    """The terminal signals the whole group; a second signal would end a process at once."""
    hold = here / "hold evt_slow"
    hold.touch()
    with (
        running(*SERVE, here=here, secrets=[SECRET], command=IN_A_GROUP) as server,
        ThreadPoolExecutor(1) as elsewhere,
    ):
        ready(server, 2)
        waiting = elsewhere.submit(deliver, url_of(server), "evt_slow")
        eventually(lambda: runs_of(here, "evt_slow"), what="the handler runs")
        os.killpg(server.process.pid, signal.SIGINT)
        server.printed("shutting down 2 processes: running handlers may finish")
        hold.unlink()
        assert waiting.result(PATIENCE_SECONDS) == (200, "handled")
        assert server.ended().status == 0


def test_a_second_signal_ends_all_at_once(here: Path, server: Process) -> None:
    url, pids = url_of(server), ready(server, 2)
    (here / "hold evt_slow").touch()
    with ThreadPoolExecutor(1) as elsewhere:
        waiting = elsewhere.submit(deliver, url, "evt_slow")
        eventually(lambda: runs_of(here, "evt_slow"), what="the handler runs")
        server.signal(signal.SIGTERM)
        server.printed("a second signal kills them")
        server.signal(signal.SIGTERM)
        assert server.ended().status == 128 + signal.SIGTERM
        with suppress(httpx2.TransportError):
            waiting.result(PATIENCE_SECONDS)
    gone(*pids)


def test_processes_end_in_order_when_their_supervisor_is_killed(
    here: Path, server: Process
) -> None:
    url, pids = url_of(server), ready(server, 2)
    hold = here / "hold evt_slow"
    hold.touch()
    with ThreadPoolExecutor(1) as elsewhere:
        waiting = elsewhere.submit(deliver, url, "evt_slow")
        eventually(lambda: runs_of(here, "evt_slow"), what="the handler runs")
        server.signal(signal.SIGKILL)
        eventually(lambda: server.errors.count("Shutting down") == 2, what="both end")
        hold.unlink()
        assert waiting.result(PATIENCE_SECONDS) == (200, "handled")
    gone(*pids)
    assert is_refused(url)


def test_a_process_that_hangs_at_the_end_is_killed_in_bounded_time(here: Path) -> None:
    module = here / "hooks.py"
    module.write_text(
        module.read_text().replace("limits = Limits(", "limits = Limits(store_seconds=0.1,")
    )
    with running(*WORK, here=here, secrets=[SECRET], environment={"DRAIN": "0.1"}) as worker:
        hanging, other = ready(worker, 2)
        os.kill(hanging, signal.SIGSTOP)
        worker.signal(signal.SIGTERM)
        ended = worker.ended()
    assert ended.status == 1
    assert (
        f"killing processes that did not end in time: {name_of(worker, hanging)}\n" in ended.errors
    )
    gone(hanging, other)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (SERVE, {"INLINE_STORE": "memory://"}, "hooks:inline keeps its store in memory"),
        (SERVE, {"INLINE_STORE": "sqlite:///no/folder/a.db"}, "does its folder exist"),
        (WORK, {"STORE": "sqlite:///no/folder/a.db"}, "does its folder exist"),
        (["worker", "hooks:missing", "--processes", "3"], {}, "there is no 'missing' in hooks"),
        (["worker", "hooks:inline", "--processes", "3"], {}, "hooks:inline has no inbox"),
    ],
)
def test_a_failed_start_is_reported_once_and_not_repeated(
    arguments: list[str], environment: dict[str, str], message: str, here: Path
) -> None:
    result = run(*arguments, here=here, secrets=[SECRET], environment=environment)
    result.says(message)


def test_a_port_in_use_is_reported_in_one_line(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["serve", "hooks:inline", "--processes", "2", "--port", str(port)]
        run(*arguments, here=here, secrets=[SECRET]).says("cannot listen on", "already in use")


@pytest.mark.parametrize("command", [SERVE, WORK])
def test_a_process_that_dies_silently_during_its_start_is_reported(
    command: list[str], here: Path
) -> None:
    (here / "falls").touch()
    result = run(*command, here=here, secrets=[SECRET])
    assert (result.status, result.output) == (7, "")
    assert re.search(rf"process {NAME} ended with status 7 before it was ready\n\Z", result.errors)


def test_processes_that_die_soon_after_their_start_again_and_again_end_the_command(
    here: Path,
) -> None:
    killed: set[int] = set()

    def killed_one_more() -> bool:
        before = len(killed)
        for found in re.findall(READY, served.errors):
            if int(found) not in killed and lives(int(found)):
                os.kill(int(found), signal.SIGKILL)
                killed.add(int(found))
        return len(killed) > before or served.process.poll() is not None

    with running(*SERVE, here=here, secrets=[SECRET]) as served:
        while served.process.poll() is None:
            eventually(killed_one_more, what="another is started, or it gives up")
        ended = served.ended()
    assert ended.status == 1
    assert "soon after its start; giving up after 5 failures" in ended.errors
    pauses = [float(p) for p in re.findall(r"starting another in ([\d.]+) s", ended.errors)]
    assert pauses == [0.0, 0.5, 1.0, 1.5], "they grow"
    assert len(killed) <= 6, "no storm of starts"


def test_a_process_whose_restart_fails_is_started_again_later(here: Path, server: Process) -> None:
    pids = ready(server, 2)
    (here / "is broken").touch()
    os.kill(pids[0], signal.SIGKILL)
    server.printed("this module is broken")
    assert handled_by(here, url_of(server), "evt_meanwhile") == pids[1]
    (here / "is broken").unlink()
    ready(server, 3)


def test_a_killed_worker_is_replaced_and_its_event_is_handled(here: Path) -> None:
    hold = here / "hold evt_slow"
    hold.touch()
    arguments = ["serve", "hooks:receiver", "--port", "0"]
    with (
        running(*arguments, here=here, secrets=[SECRET]) as server,
        running(*WORK, here=here, secrets=[SECRET], environment={"LEASE": "0.5"}) as worker,
    ):
        ready(worker, 2)
        assert deliver(url_of(server), "evt_slow") == (202, "stored")
        eventually(lambda: runs_of(here, "evt_slow"), what="the handler runs")
        os.kill(runs_of(here, "evt_slow")[0], signal.SIGKILL)
        hold.unlink()
        eventually(lambda: "finished evt_slow 2" in journal(here), what="another has handled it")
        ready(worker, 3)
        shown = run("inbox", "stats", "sqlite:///hookonce.db", here=here).output
        assert "depth: 0\n" in shown
        worker.signal(signal.SIGTERM)
        ended = worker.ended()
    assert ended.status == 0
    assert "Traceback" not in ended.errors


def test_a_signal_that_reaches_a_worker_twice_still_lets_its_handler_finish(here: Path) -> None:
    """A service manager signals every process, and the supervisor forwards its own signal."""
    hold = here / "hold evt_slow"
    hold.touch()
    arguments = ["serve", "hooks:receiver", "--port", "0"]
    with (
        running(*arguments, here=here, secrets=[SECRET]) as server,
        running(*WORK, here=here, secrets=[SECRET]) as worker,
    ):
        ready(worker, 2)
        deliver(url_of(server), "evt_slow")
        eventually(lambda: runs_of(here, "evt_slow"), what="the handler runs")
        [busy] = runs_of(here, "evt_slow")
        os.kill(busy, signal.SIGTERM)
        worker.signal(signal.SIGTERM)
        worker.printed("shutting down 2 processes: running handlers may finish")
        os.kill(busy, signal.SIGTERM)
        hold.unlink()
        assert worker.ended().status == 0
    assert "finished evt_slow 1" in journal(here)


def test_a_process_that_a_service_manager_ends_with_the_supervisor_is_not_replaced(
    here: Path,
) -> None:
    with running(*WORK, here=here, secrets=[SECRET]) as worker:
        pids = ready(worker, 2)
        worker.signal(signal.SIGSTOP)  # so a process ends before the supervisor handles SIGTERM
        worker.signal(signal.SIGTERM)
        os.kill(pids[0], signal.SIGTERM)
        gone(pids[0])
        worker.signal(signal.SIGCONT)
        ended = worker.ended()
    assert ended.status == 0
    assert "shutting down 2 processes" in ended.errors
    assert "starting another" not in ended.errors


def test_each_process_works_on_an_embedded_inbox(here: Path) -> None:
    arguments = ["serve", "hooks:receiver", "--port", "0", "--processes", "2"]
    environment = {"EMBEDDED": "1"}
    with running(*arguments, here=here, secrets=[SECRET], environment=environment) as server:
        ready(server, 2)
        assert deliver(url_of(server), "evt_1") == (202, "stored")
        eventually(lambda: "finished evt_1 1" in journal(here), what="it is handled")
        assert "workers: 2\n" in run("inbox", "stats", "sqlite:///hookonce.db", here=here).output
        assert httpx2.get(f"{url_of(server)}/readyz", trust_env=False).status_code == 200


def test_the_inspector_is_refused_with_several_processes() -> None:
    message = "--inspector is a page of one process. Leave it out here"
    invoke(*SERVE, "--inspector").says(message, status=2)


def test_an_inspector_of_one_more_process_shows_what_the_others_do(here: Path) -> None:
    page = ["serve", "hooks:receiver", "--port", "0", "--inspector"]
    with (
        running(*SERVE, here=here, secrets=[SECRET]) as server,
        running(*page, here=here, secrets=[SECRET]) as inspector,
        httpx2.Client(follow_redirects=True, trust_env=False) as visitor,
    ):
        url = url_of(server)
        looked_at = inspector.printed(r"inspector: (http://\S+)")[1]
        visitor.get(looked_at)
        looked_at = looked_at.partition("?")[0]
        numbers = iter(range(1000))

        def is_told() -> bool:
            """Return whether the other process has noticed the inspector and publishes its work."""
            deliver(url, f"evt_{next(numbers)}")
            return "evt_" in visitor.get(looked_at).text

        eventually(is_told, what="the page shows what another process has received")


def test_a_worker_has_the_same_name_everywhere(here: Path) -> None:
    token = "a token for those who may know"
    serve = ["serve", "hooks:receiver", "--port", "0"]
    listed = ["inbox", "workers", "sqlite:///hookonce.db", "--json"]
    names: set[str] = set()

    def are_listed() -> bool:
        printed = run(*listed, here=here).output
        names.clear()
        names.update(json.loads(line)["worker"] for line in printed.splitlines())
        return len(names) == 2

    with (
        running(
            *serve, here=here, secrets=[SECRET], environment={"HOOKONCE_HEALTH_TOKEN": token}
        ) as one,
        running(*WORK, "--log-format", "json", here=here, secrets=[SECRET]) as worker,
    ):
        url = url_of(one)
        eventually(are_listed, what="both workers have reported")
        lines = [json.loads(line) for line in worker.errors.splitlines()]
        asked = {"authorization": f"Bearer {token}"}
        ready = httpx2.get(f"{url}/readyz", headers=asked, trust_env=False).json()
    of_workers = [line for line in lines if line["logger"] == "hookonce.worker"]
    assert {line["process"] for line in of_workers} == names
    assert {line["message"].rpartition(" ")[2] for line in of_workers} == names
    reported = re.findall(r"process (\S+) is ready", "\n".join(line["message"] for line in lines))
    assert set(reported) == names
    assert re.fullmatch(NAME, ready["process"])
    assert ready["process"] not in names
