"""No exception of a user's breaks out of its run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.deliveries import SECRET, answer_of, deliver, receiver_on
from support.handlers import on
from support.processes import run_python
from support.waiting import until

from hookonce import Inbox
from hookonce.events import CommentReceived
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class OutOfStock(Exception):  # noqa: N818 - as a user would name it
    sku: str


class NoNotes(Exception):  # noqa: N818
    __notes__ = "not a list"  # type: ignore[assignment]


class Proud(Exception):  # noqa: N818
    def add_note(self, note: str) -> None:
        raise RuntimeError(note)


class Unprintable(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class _Loud(type):
    def __repr__(cls) -> str:
        raise KeyboardInterrupt


class LoudClass(Exception, metaclass=_Loud):  # noqa: N818
    pass


ODD: dict[str, Callable[[], BaseException]] = {
    "frozen": lambda: OutOfStock("a"),
    "notes that are no list": NoNotes,
    "add_note raises": Proud,
    "its text ends the process": Unprintable,
    "its class cannot be shown": LoudClass,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "a group": lambda: ExceptionGroup("x", [OutOfStock("a"), Proud()]),
    "a group of exits": lambda: BaseExceptionGroup("x", [SystemExit(1)]),
    "cancelled": asyncio.CancelledError,
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("has_inbox", [False, True], ids=["inline", "inbox"])
async def test_what_a_handler_raises_cancels_no_other_and_reaches_on_error(
    kind: str, is_async: bool, has_inbox: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/hooks.db"
    receiver = receiver_on(url, inbox=Inbox(backoff=3600.0) if has_inbox else None)
    finished, told = list[str](), list[ExceptionGroup[Exception]]()

    make_error = ODD[kind]

    async def effect(event: CommentReceived) -> None:
        await asyncio.sleep(0.02)
        finished.append(event.id)

    async def raise_async(_: CommentReceived) -> None:
        await asyncio.sleep(0)
        raise make_error()

    def raise_sync(_: CommentReceived) -> None:
        raise make_error()

    on(receiver, "effect", effect)
    on(receiver, "odd", raise_async if is_async else raise_sync)
    receiver.on_error(told.append)
    async with receiver:
        event = make_event(CommentReceived)
        outcome = await deliver(receiver, event)
        assert answer_of(outcome) == ((202, "stored") if has_inbox else (500, "handler_failed"))
        await until(lambda: told)
    assert finished == [event.id]
    assert len(told[0].exceptions) == 1


@pytest.mark.parametrize("kind", ODD)
async def test_an_exception_is_told_with_a_note_that_names_its_handler(
    kind: str, tmp_path: Path
) -> None:
    receiver, told = (
        receiver_on(f"sqlite:///{tmp_path}/hooks.db"),
        list[ExceptionGroup[Exception]](),
    )
    make_error = ODD[kind]

    async def fail(_: CommentReceived) -> None:
        raise make_error()

    on(receiver, "odd", fail)
    receiver.on_error(told.append)
    async with receiver:
        await deliver(receiver, make_event(CommentReceived))
        await until(lambda: told)
    assert told[0].exceptions[0].__notes__ == ["raised by the handler 'odd'"]


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
