"""A receiver in an event loop thread: started late, shared by threads, ended with the process."""

import asyncio
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.processes import run_to_its_end
from support.waiting import PATIENCE_SECONDS, until

from hookonce import Inbox, Limits, Outcome, Receiver
from hookonce.errors import StoreError
from hookonce.events import CommentReceived
from hookonce.integrations.loop_thread import LoopThread
from hookonce.outcome import BROKEN
from hookonce.senders import publishing, standard, svix
from hookonce.stores.memory import MemoryStore
from hookonce.testing import make_event, signed_request
from hookonce.verification.headers import RawHeaders
from hookonce.verification.secrets import new_secret

SECRET = new_secret()

in_a_process = pytest.mark.sample(1, of="file")


def deliver(loop: LoopThread, event: CommentReceived | None = None) -> Outcome:
    request = signed_request(event or make_event(CommentReceived), SECRET)
    return loop.handle(request.body, request.headers)


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "hookonce-loop"}


def test_the_first_delivery_starts_the_thread_and_close_ends_it() -> None:
    before = loop_threads()
    loop = LoopThread(receiver := Receiver(secrets=SECRET, store="memory://"))

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    assert loop_threads() == before
    assert deliver(loop).reason == "handled"
    assert deliver(loop).reason == "handled"
    assert len(loop_threads() - before) == 1
    loop.close()
    loop.close()
    assert loop_threads() == before
    assert deliver(loop).reason == "handled"
    loop.close()
    assert loop_threads() == before


def test_the_first_deliveries_of_many_threads_start_one_loop() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    loops: set[int] = set()

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None:  # noqa: ARG001 - handlers have this parameter
        loops.add(id(asyncio.get_running_loop()))

    loop = LoopThread(receiver)
    start = threading.Barrier(16)

    def one() -> str:
        start.wait(PATIENCE_SECONDS)
        return deliver(loop).reason

    with ThreadPoolExecutor(16) as pool:
        reasons = [answer.result() for answer in [pool.submit(one) for _ in range(16)]]
    loop.close()
    assert reasons == ["handled"] * 16
    assert len(loops) == 1


def test_close_drains_running_handlers_and_their_requests_are_answered() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    @receiver.on(CommentReceived)
    def wait(event: CommentReceived) -> None:
        if event.id != slow.id:
            return
        begun.set()
        assert gate.wait(PATIENCE_SECONDS)
        ended.set()

    slow = make_event(CommentReceived)
    loop = LoopThread(receiver)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(deliver, loop, slow)
        assert begun.wait(PATIENCE_SECONDS)
        closing = pool.submit(loop.close)
        late = deliver(loop)
        while late.status == 200:  # until the closing thread has started
            late = deliver(loop)
        assert late.reason == "shutting_down"
        assert not ended.is_set()
        gate.set()
        closing.result(PATIENCE_SECONDS)
        assert ended.is_set()
        assert answer.result(1).reason == "handled"


def test_close_waits_for_a_request_that_is_nearly_answered() -> None:
    begun, closed = threading.Event(), threading.Event()

    class Late(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            begun.set()
            await until(closed.is_set)
            return await super().handle(body, headers, started=started)

        async def __aexit__(self, *_: object) -> None:
            await super().__aexit__(None, None, None)
            closed.set()

    loop = LoopThread(Late(secrets=SECRET, store="memory://"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(deliver, loop)
        assert begun.wait(PATIENCE_SECONDS)
        loop.close()
        assert answer.result(PATIENCE_SECONDS).reason == "shutting_down"


def test_a_request_that_close_gives_up_is_answered_503() -> None:
    begun = threading.Event()

    class Endless(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            begun.set()
            await asyncio.sleep(PATIENCE_SECONDS)
            return await super().handle(body, headers, started=started)

    limits = Limits(store_seconds=0.05)
    loop = LoopThread(Endless(secrets=SECRET, store="memory://", limits=limits))
    request = signed_request(make_event(CommentReceived), SECRET)

    def in_a_loop() -> Outcome:
        return asyncio.run(loop.handle_async(request.body, request.headers))

    for wait in (partial(deliver, loop), in_a_loop):
        begun.clear()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(wait)
            assert begun.wait(PATIENCE_SECONDS)
            loop.close()
            assert answer.result(PATIENCE_SECONDS / 4).reason == "shutting_down"


def test_embedded_workers_handle_the_inbox_in_the_thread(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url, inbox=Inbox())
    handled = threading.Event()

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None:  # noqa: ARG001 - handlers have this parameter
        handled.set()

    loop = LoopThread(receiver)
    assert deliver(loop).reason == "stored"
    assert handled.wait(PATIENCE_SECONDS)
    loop.close()


class Unopened(MemoryStore):
    """A store that cannot be opened until ``works`` is set."""

    works = False
    asked = 0

    async def open(self) -> None:
        self.asked += 1
        if not self.works:
            raise StoreError("the disk is gone")
        await super().open()


def test_a_store_that_cannot_be_opened_is_answered_503_and_tried_again() -> None:
    store = Unopened()
    loop = LoopThread(Receiver(secrets=SECRET, store=store))
    for asked in (1, 2):
        outcome = deliver(loop)
        assert (outcome.status, outcome.reason) == (503, "store_unavailable")
        assert store.asked == asked
    store.works = True
    assert deliver(loop).reason == "no_handler"
    loop.close()


def test_a_store_that_hangs_is_answered_503_in_time() -> None:
    class Hanging(MemoryStore):
        async def open(self) -> None:
            await asyncio.sleep(PATIENCE_SECONDS)

    receiver = Receiver(secrets=SECRET, store=Hanging(), limits=Limits(store_seconds=0.1))
    loop = LoopThread(receiver)
    began = time.monotonic()
    assert deliver(loop).reason == "store_unavailable"
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    loop.close()
    assert time.monotonic() - began < PATIENCE_SECONDS / 2


def test_a_handler_that_blocks_the_loop_holds_a_server_thread_as_long_as_the_sender_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hasty = replace(publishing, rules=replace(publishing.rules, answer_seconds=0.2))
    receiver = Receiver(secrets=SECRET, store="memory://", sender=hasty)
    gate = threading.Event()

    @receiver.on(CommentReceived)
    async def block(event: CommentReceived) -> None:  # noqa: ARG001 - handlers have this parameter
        gate.wait(PATIENCE_SECONDS)

    loop = LoopThread(receiver)
    began = time.monotonic()
    outcome = deliver(loop)
    assert (outcome.status, outcome.reason) == (503, "still_running")
    assert time.monotonic() - began < PATIENCE_SECONDS / 4
    assert any(r.levelno == logging.ERROR and "block" in r.getMessage() for r in caplog.records)
    gate.set()
    loop.close()


def test_a_server_thread_waits_as_long_as_a_patient_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    class Noted(Future[Outcome]):
        def result(self, timeout: float | None = None) -> Outcome:
            waits.append(timeout)
            return BROKEN

    monkeypatch.setattr(LoopThread, "_submit", lambda *_: Noted())
    for sender in (svix, publishing, standard):
        receiver = Receiver(secrets=SECRET, store="memory://", sender=sender)
        LoopThread(receiver).handle(b"", {}, waited=1.0)
        longest = waits.pop()
        assert longest is not None
        assert receiver.limits.answer_seconds < 1.0 + longest < sender.rules.patience_seconds


@pytest.mark.anyio
async def test_a_caller_in_another_loop_is_not_blocked() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    gate = threading.Event()
    runs: list[str] = []

    @receiver.on(CommentReceived)
    def wait(event: CommentReceived) -> None:
        runs.append(event.id)
        assert gate.wait(PATIENCE_SECONDS)

    loop = LoopThread(receiver)
    request = signed_request(make_event(CommentReceived), SECRET)
    answer = asyncio.create_task(loop.handle_async(request.body, request.headers))
    await until(lambda: runs)
    gate.set()
    assert (await answer).reason == "handled"
    await asyncio.to_thread(loop.close)


SCRIPT = """
from hookonce.integrations.wsgi import WSGIReceiver
from hookonce.integrations.loop_thread import LoopThread
from hookonce.testing import make_event, signed_request

receiver = Receiver(secrets=secret, store=f"sqlite:///{here / 'hooks.db'}")

@receiver.on(CommentReceived)
async def handle(event):
    note(f"begun {event.id}")
    await asyncio.sleep(0.2 if event.id == "evt_slow" else 0)
    note(f"ended {event.id}")

loop = LoopThread(receiver)

def deliver(event_id):
    request = signed_request(make_event(CommentReceived, event_id=event_id), secret)
    return loop.handle(request.body, request.headers).reason
"""


def journal(here: Path) -> list[str]:
    return (here / "journal").read_text().splitlines()


@pytest.mark.anyio
@in_a_process
async def test_a_process_lets_running_handlers_end_before_it_exits(tmp_path: Path) -> None:
    script = SCRIPT + (
        "threading.Thread(target=deliver, args=['evt_slow'], daemon=True).start()\n"
        "while not (here / 'journal').exists(): time.sleep(0.005)\n"
    )
    status, errors = await run_to_its_end(tmp_path, script, SECRET)
    assert (status, errors) == (0, "")
    assert journal(tmp_path) == ["begun evt_slow", "ended evt_slow"]
    status, errors = await run_to_its_end(tmp_path, SCRIPT + "note(deliver('evt_slow'))\n", SECRET)
    assert (status, errors) == (0, "")
    assert journal(tmp_path)[2:] == ["duplicate"], "what had ended was recorded"


@pytest.mark.anyio
@in_a_process
async def test_processes_forked_after_the_import_have_loops_of_their_own(tmp_path: Path) -> None:
    script = SCRIPT + (
        "for number in range(3):\n"
        "    if os.fork() == 0:\n"
        "        note(deliver(f'evt_{number}'))\n"
        "        loop.close()\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
        "note(deliver('evt_0'))\n"
    )
    status, errors = await run_to_its_end(tmp_path, script, SECRET)
    assert (status, errors) == (0, "")
    assert [line for line in journal(tmp_path) if " " not in line] == [
        *(["handled"] * 3),
        "duplicate",
    ]


@pytest.mark.anyio
@in_a_process
async def test_a_process_forked_from_an_open_receiver_says_what_is_wrong(tmp_path: Path) -> None:
    script = SCRIPT + (
        "note(deliver('evt_1'))\n"
        "import warnings\n"
        "warnings.simplefilter('ignore')  # Python 3.12 warns of a fork beside threads\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        deliver('evt_2')\n"
        "    except RuntimeError as error:\n"
        "        note(str(error).split(',')[0])\n"
        "    loop.close()\n"
        "    sys.exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "note(deliver('evt_1'))\n"
    )
    status, errors = await run_to_its_end(tmp_path, script, SECRET)
    assert (status, errors) == (0, "")
    said = [line for line in journal(tmp_path) if "evt" not in line]
    assert said == [
        "handled",
        "this process was forked after its receiver had been opened",
        "duplicate",
    ]
