"""Processes are killed while they work; no event is lost or handled twice."""

import asyncio
from pathlib import Path

import pytest
from support.deliveries import long_ago
from support.processes import ServedProcess, served_process
from support.waiting import until_async

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.stores.values import DeadReason
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = [pytest.mark.anyio, pytest.mark.sample(2, of="file")]

SECRET = new_secret()

# Every process of this file runs one handler, which notes its runs and waits at the gate `finish`.
# Its lease lasts a second.
RECEIVER = """
from hookonce import Context

receiver = Receiver(
    secrets=secret,
    store=f"sqlite:///{here}/hooks.db",
    limits=Limits(lease_seconds=1, answer_seconds=0.5, drain_seconds=DRAIN),
)

@receiver.on(CommentReceived, name="waiting")
async def waiting(event, context):
    note(f"began {event.id} attempt {context.attempt}")
    await gate("finish")
    note(f"finished {event.id}")
"""
SCRIPT = RECEIVER.replace("DRAIN", "20") + "serve(receiver)\n"


async def accepted(server: ServedProcess, event: CommentReceived, *, attempt: int = 2) -> str:
    """Deliver an event until it is accepted, as the sender would; return the reason."""
    reasons: list[str] = []

    async def delivered() -> bool:
        answer = await server.sender.send(event, attempt=attempt)
        reasons.append(answer.reason)
        return answer.status < 300

    await until_async(delivered)
    return reasons[-1]


async def test_an_event_whose_process_was_killed_is_handled_once_by_the_retry(
    tmp_path: Path,
) -> None:
    event = make_event(CommentReceived)
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        first = asyncio.create_task(server.sender.send(event))
        await server.noted(f"began {event.id} attempt 1")
        await server.kill()
        await asyncio.gather(first, return_exceptions=True)
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        server.open("finish")
        assert await accepted(server, event) in {"handled", "duplicate"}
        assert server.journal() == [
            f"began {event.id} attempt 1",
            f"began {event.id} attempt 2",
            f"finished {event.id}",
        ]
        (await server.sender.send(event, attempt=3)).expect(200, "duplicate")
        await server.kill()
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        (await server.sender.send(event, attempt=4)).expect(200, "duplicate")
        assert await server.terminate() in {0, -15}
        assert len(server.journal()) == 3


async def test_a_handler_that_had_finished_before_the_crash_does_not_run_again(
    tmp_path: Path,
) -> None:
    script = (
        RECEIVER.replace("DRAIN", "20")
        + """
@receiver.on(CommentReceived, name="quick")
async def quick(event):
    note(f"quick {event.id}")

extend = receiver.store.extend

async def extend_and_tell(claim, finished=frozenset(), outstanding=frozenset()):
    ownership = await extend(claim, finished, outstanding)
    note(f"recorded {sorted(finished)}")
    return ownership

receiver.store.extend = extend_and_tell
serve(receiver)
"""
    )
    event = make_event(CommentReceived)
    async with served_process(tmp_path, script, SECRET) as server:
        first = asyncio.create_task(server.sender.send(event))
        await server.noted("recorded ['quick']")
        await server.kill()
        await asyncio.gather(first, return_exceptions=True)
    async with served_process(tmp_path, script, SECRET) as server:
        server.open("finish")
        await accepted(server, event)
        journal = server.journal()
    assert journal.count(f"quick {event.id}") == 1
    assert journal.count(f"began {event.id} attempt 2") == 1
    assert journal.count(f"finished {event.id}") == 1


async def test_a_crash_in_the_last_attempt_leaves_a_dead_letter_with_its_bytes(
    tmp_path: Path,
) -> None:
    event = make_event(CommentReceived, created_at=long_ago())
    request = signed_request(event, SECRET, attempt=9)
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        last = asyncio.create_task(server.sender.post(request))
        await server.noted(f"began {event.id} attempt 1")
        await server.kill()
        await asyncio.gather(last, return_exceptions=True)
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path / 'hooks.db'}")
    ran: list[str] = []

    @receiver.on(CommentReceived, name="waiting")
    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    async with receiver:

        async def is_listed() -> bool:
            return bool(await receiver.dead.list())

        await until_async(is_listed)
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.reason is DeadReason.INTERRUPTED
        assert letter.delivery.body == request.body
        assert letter.delivery.event_type == "comment.received"
        assert letter.attempts == 1
        late = await receiver.handle(request.body, request.headers)
        assert (late.status, late.reason) == (202, "already_dead")
        assert ran == []
        replayed = await receiver.dead.replay(event.id)
        assert (replayed.status, replayed.reason) == (200, "handled")
        assert ran == [event.id]
        assert await receiver.dead.list() == []


async def test_a_crash_after_a_copy_with_attempt_9_in_its_header_leaves_the_event_to_the_sender(
    tmp_path: Path,
) -> None:
    event = make_event(CommentReceived)
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        forged = asyncio.create_task(server.sender.send(event, attempt=9))
        await server.noted(f"began {event.id} attempt 1")
        await server.kill()
        await asyncio.gather(forged, return_exceptions=True)
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        server.open("finish")
        assert await accepted(server, event, attempt=2) in {"handled", "duplicate"}
        assert f"finished {event.id}" in server.journal()
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path / 'hooks.db'}")
    async with receiver:
        assert await receiver.dead.list() == []


async def test_an_event_is_no_dead_letter_while_its_last_attempt_still_runs(tmp_path: Path) -> None:
    event = make_event(CommentReceived, created_at=long_ago())
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        (await server.sender.send(event, attempt=9)).expect(503, "still_running")
        receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path / 'hooks.db'}")
        async with receiver:
            assert await receiver.dead.list() == []
            assert await receiver.dead.show(event.id) is None
            server.open("finish")
            assert await accepted(server, event, attempt=9) == "duplicate"
            assert await receiver.dead.list() == []


async def test_after_eight_crashed_attempts_the_event_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    script = """
    receiver = Receiver(
        secrets=secret,
        store=f"sqlite:///{here}/hooks.db",
        limits=Limits(lease_seconds=0.05, answer_seconds=2),
    )

    @receiver.on(CommentReceived, name="deadly")
    async def deadly(event):
        note("began")
        if len((here / "journal").read_text().splitlines()) < 8:
            raise ValueError("seven failures that count")
        os.kill(os.getpid(), signal.SIGKILL)

    serve(receiver)
    """
    event = make_event(CommentReceived, created_at=long_ago())
    async with served_process(tmp_path, script, SECRET) as server:
        for _ in range(7):
            (await server.sender.send(event)).expect(500, "handler_failed")
        await asyncio.gather(server.sender.send(event), return_exceptions=True)
        assert await server.ended() == -9
    async with served_process(tmp_path, script, SECRET) as server:
        (await server.sender.send(event)).expect(202, "already_dead")
        assert server.journal() == ["began"] * 8
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path / 'hooks.db'}")
    async with receiver:
        [letter] = await receiver.dead.list()
        assert (letter.reason, letter.attempts) == (DeadReason.INTERRUPTED, 8)


async def test_an_event_in_flight_in_another_process_is_waited_for_and_not_run_twice(
    tmp_path: Path,
) -> None:
    event = make_event(CommentReceived)
    async with (
        served_process(tmp_path, SCRIPT, SECRET) as one,
        served_process(tmp_path, SCRIPT, SECRET) as other,
    ):
        (await one.sender.send(event)).expect(503, "still_running")
        answer = (await other.sender.send(event, attempt=2)).expect(503, "in_flight")
        assert int(answer.headers["retry-after"]) >= 1
        copy = asyncio.create_task(other.sender.send(event, attempt=3))
        await asyncio.wait({copy}, timeout=0.1)
        one.open("finish")
        (await copy).expect(200, "duplicate")
        assert one.journal() == [f"began {event.id} attempt 1", f"finished {event.id}"]


async def test_copies_delivered_to_two_processes_at_once_are_handled_once(tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    events = [make_event(CommentReceived) for _ in range(25)]
    async with (
        served_process(tmp_path, SCRIPT, SECRET) as one,
        served_process(tmp_path, SCRIPT, SECRET) as other,
    ):
        answers = await asyncio.gather(
            *(server.sender.send(event) for event in events for server in (one, other))
        )
        journal = one.journal()
    assert {answer.status for answer in answers} == {200}
    assert sorted(journal) == sorted(
        line for event in events for line in (f"began {event.id} attempt 1", f"finished {event.id}")
    )


async def test_sigterm_waits_for_a_running_handler_and_records_it(tmp_path: Path) -> None:
    event = make_event(CommentReceived)
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        (await server.sender.send(event)).expect(503, "still_running")
        server.process.terminate()
        await asyncio.wait({asyncio.create_task(server.ended())}, timeout=0.3)
        assert server.process.poll() is None, "it did not wait"
        server.open("finish")
        assert await server.ended() in {0, -15}
        assert server.journal()[-1] == f"finished {event.id}"
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        (await server.sender.send(event, attempt=2)).expect(200, "duplicate")
        assert len(server.journal()) == 2


async def test_sigterm_releases_events_whose_handlers_do_not_end_for_the_next_process(
    tmp_path: Path,
) -> None:
    impatient = RECEIVER.replace("DRAIN", "0.2").replace("lease_seconds=1", "lease_seconds=60")
    event = make_event(CommentReceived)
    async with served_process(tmp_path, f"{impatient}\nserve(receiver)\n", SECRET) as server:
        (await server.sender.send(event)).expect(503, "still_running")
        assert await server.terminate() in {0, -15}
        assert server.journal() == [f"began {event.id} attempt 1"]
    async with served_process(tmp_path, SCRIPT, SECRET) as server:
        server.open("finish")
        (await server.sender.send(event, attempt=2)).expect(200, "handled")
        assert server.journal()[1:] == [
            f"began {event.id} attempt 2",
            f"finished {event.id}",
        ]


async def test_the_key_lock_of_a_killed_process_is_free_when_its_lease_ends(tmp_path: Path) -> None:
    script = """
    receiver = Receiver(
        secrets=secret,
        store=f"sqlite:///{here}/hooks.db",
        limits=Limits(lease_seconds=1, answer_seconds=8),
    )

    @receiver.on(CommentReceived, name="one", serial_by=lambda event: event.data.post_id)
    async def one(event):
        note(f"began {event.id}")
        await gate("finish")
        note(f"finished {event.id}")

    serve(receiver)
    """
    first, second = (make_event(CommentReceived, data={"postId": "post_1"}) for _ in range(2))
    async with served_process(tmp_path, script, SECRET) as server:
        killed = asyncio.create_task(server.sender.send(first))
        await server.noted(f"began {first.id}")
        await server.kill()
        await asyncio.gather(killed, return_exceptions=True)
    async with served_process(tmp_path, script, SECRET) as server:
        server.open("finish")
        (await server.sender.send(second)).expect(200, "handled")
        assert await accepted(server, first) == "handled"
        assert server.journal() == [
            f"began {first.id}",
            *(f"{what} {event.id}" for event in (second, first) for what in ("began", "finished")),
        ]
