"""An error that a handler raises is a failure of this handler, and harms no other handler."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.deliveries import SECRET, answer_of, deliver, long_ago, receiver_on, sqlite_url
from support.handlers import Handlers, on
from support.processes import run_python
from support.waiting import until

from hookonce import Inbox, Receiver, Reject
from hookonce.events import CommentReceived
from hookonce.stores.values import DeadReason
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = [pytest.mark.anyio, pytest.mark.sample(25, of="file")]


@dataclass(frozen=True)
class FrozenError(Exception):
    sku: str


class NoNotesError(Exception):
    __notes__ = "not a list"  # type: ignore[assignment]


class AddNoteFailsError(Exception):
    def add_note(self, note: str) -> None:
        raise RuntimeError(note)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even its text is broken")


class ExitsWhenPrintedError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class _Loud(type):
    def __repr__(cls) -> str:
        raise KeyboardInterrupt


class UnprintableClassError(Exception, metaclass=_Loud):
    pass


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(7),
    "StopAsyncIteration": StopAsyncIteration,
    "BaseException": lambda: BaseException("bare"),
    "a group": lambda: ExceptionGroup("x", [ValueError("x"), Reject("y"), AddNoteFailsError()]),
    "a group of exits": lambda: BaseExceptionGroup("x", [SystemExit(1)]),
    "frozen": lambda: FrozenError("a"),
    "notes that are no list": NoNotesError,
    "add_note raises": AddNoteFailsError,
    "unprintable": UnprintableError,
    "its text ends the process": ExitsWhenPrintedError,
    "its class cannot be shown": UnprintableClassError,
    "a lone surrogate": lambda: ValueError("half an emoji: \ud83d"),
    "a long text": lambda: ValueError("x" * 1_000_000),
    "a NUL": lambda: ValueError("nul \0 byte"),
}


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("has_inbox", [False, True], ids=["inline", "inbox"])
async def test_a_failure_cancels_no_other_handler_and_reaches_on_error_once(
    kind: str, is_async: bool, has_inbox: bool, tmp_path: Path
) -> None:
    url = sqlite_url(tmp_path)
    receiver = receiver_on(url, inbox=Inbox(backoff=3600.0) if has_inbox else None)
    finished, told = list[str](), list[ExceptionGroup[Exception]]()
    errors = [RAISED[kind]()]
    kind_of_error = type(errors[0])

    async def effect(event: CommentReceived) -> None:
        await asyncio.sleep(0.02)
        finished.append(event.id)

    async def raise_async(_: CommentReceived) -> None:
        await asyncio.sleep(0)
        raise_sync(_)

    def raise_sync(_: CommentReceived) -> None:
        if errors:
            raise errors.pop()

    on(receiver, "effect", effect)
    on(receiver, "odd", raise_async if is_async else raise_sync)
    receiver.on_error(told.append)
    async with receiver:
        event = make_event(CommentReceived)
        outcome = await deliver(receiver, event)
        assert answer_of(outcome) == ((202, "stored") if has_inbox else (500, "handler_failed"))
        await until(lambda: told)
        if not has_inbox:
            retry = await deliver(receiver, event, attempt=2)
            assert answer_of(retry) == (200, "handled")
    assert finished == [event.id]
    [group] = told
    [reported] = group.exceptions
    assert reported.__notes__ == ["raised by the handler 'odd'"]
    assert kind_of_error in {type(reported), type(reported.__cause__)}


@pytest.mark.parametrize("kind", RAISED)
async def test_a_failure_at_the_last_chance_makes_a_dead_letter(
    durable: Receiver, webhook_sender: SenderFactory, kind: str
) -> None:
    handlers = Handlers(durable, "a", "b")
    handlers.raises["a"] = RAISED[kind]()
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        (await sender.send(event, attempt=9)).expect(202, "exhausted")
        dead_letter = await durable.dead.show(event.id)
        assert dead_letter is not None
        assert dead_letter.reason is DeadReason.EXHAUSTED
        assert dead_letter.error.startswith("a: ")
        assert len(dead_letter.error) < 10_000
        assert dead_letter.finished == {"b"}


async def test_one_exception_raised_by_two_handlers_carries_one_note_for_each(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    error, told = ValueError("always the same object"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)
    Handlers(receiver, "a").raises["a"] = error
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        for _ in range(3):
            (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: len(told) == 3)
    assert error.__notes__ == ["raised by the handler 'a'"]


def test_a_keyboard_interrupt_in_a_thread_ends_no_server(tmp_path: Path) -> None:
    result = run_python(
        f"""
        import asyncio
        from hookonce import Receiver
        from hookonce.events import CommentReceived
        from hookonce.testing import make_event, signed_request
        receiver = Receiver(secrets={SECRET!r}, store="sqlite:///{tmp_path}/hooks.db")
        @receiver.on(CommentReceived)
        def interrupt(event):
            raise KeyboardInterrupt
        async def main():
            async with receiver:
                for _ in range(2):
                    request = signed_request(make_event(CommentReceived), {SECRET!r})
                    print((await receiver.handle(request.body, request.headers)).reason)
        asyncio.run(main())
        """
    )
    assert result.split() == ["handler_failed", "handler_failed"]
