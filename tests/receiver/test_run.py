"""No event runs beside itself, no success is forgotten, and what a handler does breaks nothing."""

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.stores import FaultyInboxStore, FaultyStore
from support.waiting import until, until_async

from hookonce import Context, Inbox, Limits, Outcome, Receiver, Retry, Router
from hookonce.events import CommentReceived, Event
from hookonce.stores import open_store
from hookonce.stores.contract import InboxStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.tokens import new_token
from hookonce.stores.values import Claimed, delivery_key
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()


def make(store: Any, *, inbox: Inbox | None = None, **limits: float) -> Receiver:
    return Receiver(secrets=SECRET, store=store, inbox=inbox, limits=Limits(**limits))  # type: ignore[arg-type]  # threads is whole


async def deliver(receiver: Receiver, event: Event[Any], attempt: int = 1) -> Outcome:
    request = signed_request(event, SECRET, attempt=attempt)
    return await receiver.handle(request.body, request.headers)


def run_python(code: str) -> str:
    """Return what a process prints that ends by itself and well."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def answer_of(outcome: Outcome) -> tuple[int, str]:
    return int(outcome.status), str(outcome.reason)


def on(receiver: Receiver, name: str, handler: Callable[..., Any]) -> None:
    receiver.on(CommentReceived, name=name)(handler)


# An event does not run beside itself


async def test_a_retry_joins_the_run_whose_lease_ended_while_the_loop_was_blocked(
    store_url: str,
) -> None:
    receiver = make(store_url, lease_seconds=0.4, answer_seconds=0.3)
    began, ended, gate = list[str](), list[str](), asyncio.Event()

    async def slow(event: CommentReceived) -> None:
        began.append(event.id)
        await gate.wait()
        ended.append(event.id)

    async def block(_: CommentReceived) -> None:
        time.sleep(0.9)  # noqa: ASYNC251 - a stall longer than the lease of the other event

    on(receiver, "slow", slow)
    blocking = receiver.copy(endpoint="other", router=_router("block", block))
    async with receiver, blocking:
        event = make_event(CommentReceived)
        first = asyncio.create_task(deliver(receiver, event))
        await until(lambda: began)
        await deliver(blocking, make_event(CommentReceived))
        assert answer_of(await first) == (503, "still_running")
        retry = asyncio.create_task(deliver(receiver, event, attempt=2))
        await asyncio.sleep(0)
        gate.set()
        assert answer_of(await retry) == (200, "duplicate")
    assert (len(began), len(ended)) == (1, 1)


def _router(name: str, handler: Callable[..., Any]) -> Router:
    router = Router()
    router.on(CommentReceived, name=name)(handler)
    return router


async def test_a_retry_joins_the_run_whose_lease_ended_while_the_store_was_away(
    store_url: str,
) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = make(store, lease_seconds=0.2, answer_seconds=0.2)
    began, gate = list[str](), asyncio.Event()

    async def slow(event: CommentReceived) -> None:
        began.append(event.id)
        await gate.wait()

    on(receiver, "slow", slow)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures["extend"] = -1
        assert answer_of(await deliver(receiver, event)) == (503, "still_running")
        await until(lambda: store.calls["extend"] >= 12)  # longer than the lease
        assert answer_of(await deliver(receiver, event, attempt=2)) == (503, "in_flight")
        gate.set()
        store.failures.clear()
        await until_async(partial(_is_duplicate, receiver, event))
    assert len(began) == 1


async def _is_duplicate(receiver: Receiver, event: Event[Any]) -> bool:
    return (await deliver(receiver, event, attempt=3)).reason == "duplicate"


# What has succeeded is never forgotten


async def test_inline_a_success_beside_a_failure_outlives_a_store_that_is_away_for_long(
    store_url: str,
) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = make(store, lease_seconds=0.2)
    ran = list[str]()
    fails = [True]

    async def mail(_: CommentReceived) -> None:
        ran.append("mail")

    async def book(_: CommentReceived) -> None:
        ran.append("book")
        if fails:
            raise ValueError("not yet")

    on(receiver, "mail", mail)
    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures |= {"release": -1, "extend": -1}
        assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        await until(lambda: store.calls["release"] >= 4)  # 0.1 + 0.2 + 0.4 s: the lease is over
        fails.clear()
        retry = await deliver(receiver, event, attempt=2)
        assert answer_of(retry) == (200, "handled")
    assert sorted(ran) == ["book", "book", "mail"]


async def test_another_process_learns_of_a_success_once_the_store_is_back(
    durable_url: str,
) -> None:
    store = FaultyStore(open_store(durable_url, clock=time.time))
    here, there = make(store, lease_seconds=0.2), make(durable_url)
    ran = list[str]()

    async def mail(_: CommentReceived) -> None:
        ran.append("mail")

    async def fail(_: CommentReceived) -> None:
        raise ValueError("not here")

    async def book(_: CommentReceived) -> None:
        ran.append("book")

    for receiver, handler in ((here, fail), (there, book)):
        on(receiver, "mail", mail)
        on(receiver, "book", handler)
    async with here, there:
        event = make_event(CommentReceived)
        store.failures |= {"release": -1, "extend": -1}
        await deliver(here, event)
        await until(lambda: store.calls["release"] >= 4)
        store.failures.clear()
        calls = store.calls["release"]
        await until(lambda: store.calls["release"] > calls)
        await until_async(partial(_is_free, durable_url))
        assert answer_of(await deliver(there, event, attempt=2)) == (200, "handled")
    assert sorted(ran) == ["book", "mail"]


async def _is_free(url: str) -> bool:
    store = open_store(url, clock=time.time)
    try:
        return (await store.stats()).in_flight == 0
    finally:
        await store.aclose()


async def test_in_the_inbox_a_success_beside_a_failure_outlives_a_store_that_is_away_for_long(
    durable_url: str,
) -> None:
    inner = open_store(durable_url, clock=time.time)
    assert isinstance(inner, InboxStore)
    store = FaultyInboxStore(inner)
    receiver = make(store, inbox=Inbox(backoff=0.0), lease_seconds=0.2)
    ran = list[str]()
    fails = [True]

    async def mail(_: CommentReceived) -> None:
        ran.append("mail")

    async def book(_: CommentReceived) -> None:
        ran.append("book")
        if fails:
            raise ValueError("not yet")

    on(receiver, "mail", mail)
    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures |= {"retry": -1, "extend": -1, "take": 0}
        assert answer_of(await deliver(receiver, event)) == (202, "stored")
        await until(lambda: store.calls["retry"] >= 4)
        fails.clear()
        store.failures.clear()
        await until_async(partial(_is_done, receiver))
    assert ran.count("mail") == 1


async def _is_done(receiver: Receiver) -> bool:
    return (await receiver.inbox.stats()).depth == 0


# No exception of a user's breaks out


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
    receiver = make(url, inbox=Inbox(backoff=3600.0) if has_inbox else None)
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
    receiver, told = make(f"sqlite:///{tmp_path}/hooks.db"), list[ExceptionGroup[Exception]]()
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


# Different sets of handlers on one store


async def test_a_process_without_the_handler_that_failed_does_not_complete_its_event(
    durable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make(durable_url), make(durable_url)
    ran, fails = list[str](), [True]

    async def both(_: CommentReceived) -> None:
        ran.append("both")

    async def only_new(_: CommentReceived) -> None:
        ran.append("only new")
        if fails:
            raise ValueError("not yet")

    for receiver in (old, new):
        on(receiver, "both", both)
    on(new, "only-new", only_new)
    async with old, new:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(new, event)) == (500, "handler_failed")
        assert answer_of(await deliver(old, event, attempt=2)) == (503, "handler_absent")
        assert "only-new" in caplog.text
        fails.clear()
        assert answer_of(await deliver(new, event, attempt=3)) == (200, "handled")
        assert answer_of(await deliver(old, event, attempt=4)) == (200, "duplicate")
    assert ran == ["both", "only new", "only new"]


async def test_a_process_with_no_handler_at_all_leaves_an_event_to_the_one_it_is_owed_to(
    durable_url: str,
) -> None:
    bare, full = make(durable_url), make(durable_url)
    on(full, "fails", _fail)
    async with bare, full:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(bare, event)) == (200, "no_handler")
        assert answer_of(await deliver(full, event)) == (500, "handler_failed")
        assert answer_of(await deliver(bare, event, attempt=2)) == (503, "handler_absent")
        unknown_here = make_event(CommentReceived)
        assert answer_of(await deliver(bare, unknown_here, attempt=2)) == (200, "no_handler")


async def _fail(_: Event[Any]) -> None:
    raise ValueError("x")


async def test_a_handler_that_is_gone_everywhere_makes_a_dead_letter_that_names_it(
    durable_url: str,
) -> None:
    old, new = make(durable_url), make(durable_url)
    for receiver in (old, new):
        on(receiver, "stays", _succeed)
    on(old, "removed", _fail)
    async with old, new:
        event = make_event(CommentReceived)
        await deliver(old, event)
        assert answer_of(await deliver(new, event, attempt=9)) == (202, "exhausted")
        letter = await new.dead.show(event.id)
        assert letter is not None
        assert "removed" in letter.error
        assert letter.owed == {"removed"}
        assert answer_of(await new.dead.replay(event.id)) == (202, "exhausted")
        assert await new.dead.show(event.id) is not None


async def _succeed(_: Event[Any]) -> None:
    return


async def test_in_the_inbox_an_event_waits_for_the_worker_that_knows_its_handler(
    durable_url: str,
) -> None:
    inbox = Inbox(backoff=0.0, max_attempts=1000, embedded=False)
    old, new = make(durable_url, inbox=inbox), make(durable_url, inbox=inbox)
    ran, fails = list[str](), [True]

    async def only_new(_: CommentReceived) -> None:
        ran.append("only new")
        if fails:
            raise Retry(after=0)

    for receiver in (old, new):
        on(receiver, "both", _succeed)
    on(new, "only-new", only_new)
    async with old, new:
        event = make_event(CommentReceived)
        await deliver(old, event)
        async with new.working():
            await until(lambda: ran)
        assert (await old.inbox.stats()).depth == 1
        async with old.working():
            await until_async(partial(_has_tried, old, event, 3))
        fails.clear()
        async with new.working():
            await until_async(partial(_is_done, new))
    assert set(ran) == {"only new"}


async def _has_tried(receiver: Receiver, event: Event[Any], more: int) -> bool:
    entry = await receiver.inbox.show(event.id)
    return entry is not None and entry.attempts >= more


async def test_a_new_handler_does_not_run_for_what_was_completed_before_it_came(
    durable_url: str,
) -> None:
    old, new = make(durable_url), make(durable_url)
    ran = list[str]()

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(old, "stays", _succeed)
    on(new, "stays", _succeed)
    on(new, "late", note)
    async with old, new:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(old, event)) == (200, "handled")
        assert answer_of(await deliver(new, event, attempt=2)) == (200, "duplicate")
    assert ran == []


# An attempt that began no handler


async def test_a_request_that_is_cancelled_while_its_event_is_claimed_leaves_no_claim_behind(
    store_url: str,
) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver, contexts = make(store), list[Context]()

    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    on(receiver, "note", note)
    async with receiver:
        event = make_event(CommentReceived)
        gate = store.hang("claim")
        request = asyncio.create_task(deliver(receiver, event))
        await until(lambda: store.calls["claim"])
        request.cancel()
        await asyncio.wait({request})
        gate.set()
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "duplicate")
    assert [context.attempt for context in contexts] == [1]


async def test_an_answer_of_the_store_that_is_lost_costs_no_attempt(durable_url: str) -> None:
    store = _Deaf(open_store(durable_url, clock=time.time))
    receiver = make(store, lease_seconds=20, store_seconds=0.1)
    contexts = list[Context]()

    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    on(receiver, "note", note)
    async with receiver:
        event = make_event(CommentReceived)
        store.deaf = True
        assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        store.deaf = False
        await until_async(partial(_is_free, durable_url))
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "handled")
    assert [context.attempt for context in contexts] == [1]


class _Deaf(FaultyStore):
    """Claims, and does not answer."""

    deaf = False

    async def claim(self, key: Any, token: Any, lease: float) -> Any:
        result = await super().claim(key, token, lease)
        if self.deaf:
            await asyncio.Event().wait()
        return result


async def test_a_shutdown_before_the_first_handler_costs_no_attempt(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = make(store, drain_seconds=0.05)
    on(receiver, "note", _succeed)
    store.hang("keep")
    async with receiver:
        event = make_event(CommentReceived)
        waiting = asyncio.create_task(deliver(receiver, event, attempt=9))
        await until(lambda: store.calls["keep"])
    assert (await waiting).reason == "shutting_down"
    after = SQLiteStore(tmp_path / "hooks.db")
    claim = await after.claim(delivery_key("default", event.id), new_token(), 30)
    await after.aclose()
    assert isinstance(claim, Claimed)
    assert claim.attempt == 1


# A handler that does not end


async def test_a_handler_that_swallows_its_cancellation_is_named_and_ends_no_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = make(
        f"sqlite:///{tmp_path}/hooks.db",
        handler_timeout_seconds=0.1,
        answer_seconds=0.1,
        drain_seconds=0.1,
        store_seconds=0.2,
    )
    stop = threading.Event()

    async def stubborn(_: CommentReceived) -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    on(receiver, "stubborn", stubborn)
    async with receiver:
        await deliver(receiver, make_event(CommentReceived))
        await until_async(partial(_has_problem, receiver, "stubborn"))
        assert "stubborn" in caplog.text
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert "not waited for any longer" in caplog.text
    stop.set()
    await asyncio.sleep(0.05)


async def _has_problem(receiver: Receiver, text: str) -> bool:
    return any(text in problem for problem in (await receiver.check()).problems)


def test_a_process_with_a_handler_that_never_ends_can_end(tmp_path: Path) -> None:
    result = run_python(
        f"""
        import asyncio
        from hookonce import Limits, Receiver
        from hookonce.events import CommentReceived
        from hookonce.testing import make_event, signed_request
        limits = Limits(handler_timeout_seconds=0.1, answer_seconds=0.1, drain_seconds=0.1)
        url = "sqlite:///{tmp_path}/hooks.db"
        receiver = Receiver(secrets={SECRET!r}, store=url, limits=limits)
        @receiver.on(CommentReceived)
        async def stubborn(event):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        @receiver.on(CommentReceived)
        async def second(event):
            await asyncio.sleep(0)
        async def main():
            async with receiver:
                request = signed_request(make_event(CommentReceived), {SECRET!r})
                print((await receiver.handle(request.body, request.headers)).reason)
        asyncio.run(main())
        print("ended")
        """
    )
    assert result.split() == ["still_running", "ended"]


# A process that stood still between the claim and the first handler


async def test_what_another_process_took_while_this_one_stood_still_is_not_begun_here(
    durable_url: str,
) -> None:
    stalled = _Stalled(open_store(durable_url, clock=time.time))
    here, there = make(stalled, lease_seconds=0.3), make(durable_url)
    ran = list[str]()
    for receiver, name in ((here, "here"), (there, "there")):
        on(receiver, "note", partial(_note, ran, name))
    async with here, there:
        event = make_event(CommentReceived)
        stalled.granted = asyncio.Event()
        first = asyncio.create_task(deliver(here, event))
        await stalled.granted.wait()
        assert answer_of(await deliver(there, event, attempt=2)) == (200, "handled")
        stalled.gate.set()
        assert (await first).status in {200, 503}
    assert ran == ["there"]


async def _note(ran: list[str], name: str, _: CommentReceived) -> None:
    ran.append(name)


class _Stalled(FaultyStore):
    """Claims, and lets nobody know until its gate opens."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.granted, self.gate = asyncio.Event(), asyncio.Event()

    async def claim(self, key: Any, token: Any, lease: float) -> Any:
        result = await super().claim(key, token, lease)
        self.granted.set()
        await self.gate.wait()
        return result
