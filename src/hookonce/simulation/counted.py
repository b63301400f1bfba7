"""Handlers as a simulation runs them: the user's own, counted, and failing on purpose.

Injected sleep passes in virtual time. The user's own code may do anything, so it is waited for in
real time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import Reject, Retry
from ..events import Event
from ..routing.handler import ErrorHook, Handler
from ..routing.keyed import Keyed, TooLateError
from ..routing.router import Router
from .faults import Fault, FaultPlan, InjectedError, InjectedRetry, Injection
from .ledger import HandlerRun, Ledger, RunOutcome
from .places import raised
from .virtual_loop import VirtualLoop


def counted(router: Router, *, ledger: Ledger, plan: FaultPlan, loop: VirtualLoop) -> Router:
    """Return the router's handlers and error hooks for a simulation, under the same names.

    Args:
        router: whose handlers; a receiver is one. It stays as it is.
        ledger: where every run of a handler is noted.
        plan: which runs fail on purpose.
        loop: where they will run.

    """
    return router.wrapped(
        handler=lambda handler: _counted(handler, ledger, plan, loop),
        error_hook=lambda hook: _in_real_time(hook, loop),
    )


def _counted(handler: Handler, ledger: Ledger, plan: FaultPlan, loop: VirtualLoop) -> Handler:
    async def run(event: Event[Any], *context: object) -> None:
        number, began = ledger.begin(event.id, handler.name), ledger.place()
        injection = plan.injection(event.id, handler.name, number)
        started_at, cancellations = loop.unix_clock(), _cancellations()
        outcome, is_injected, text = RunOutcome.SUCCEEDED, False, None
        try:
            await _run(handler, (event, *context), injection, loop)
        except BaseException as error:
            # Without a request to cancel, a cancellation came out of the handler's own code.
            is_cancelled = _cancellations() > cancellations
            outcome = RunOutcome.CANCELLED if is_cancelled else _outcome_of(error)
            is_injected = isinstance(error, InjectedError | InjectedRetry)
            text = None if is_injected or is_cancelled else raised(error)
            raise
        finally:
            ledger.record(
                HandlerRun(
                    event_id=event.id,
                    handler=handler.name,
                    number=number,
                    started_at=started_at,
                    ended_at=loop.unix_clock(),
                    outcome=outcome,
                    fault=None if injection is None else injection.fault,
                    failure_injected=is_injected,
                    raised=text,
                    began=began,
                    ended=ledger.place(),
                )
            )

    keyed = handler.keyed and _noting_failures(handler.keyed, handler.name, ledger, loop)
    return replace(handler, function=run, is_async=True, keyed=keyed)


def _noting_failures(keyed: Keyed, handler: str, ledger: Ledger, loop: VirtualLoop) -> Keyed:
    """Note it as a run that has failed if a handler's key cannot be had."""

    def key(event: Event[Any]) -> object:
        try:
            return keyed.function(event)
        except BaseException as error:
            now, began = loop.unix_clock(), ledger.place()
            ledger.record(
                HandlerRun(
                    event_id=event.id,
                    handler=handler,
                    number=ledger.begin(event.id, handler),
                    started_at=now,
                    ended_at=now,
                    outcome=RunOutcome.FAILED,
                    fault=None,
                    failure_injected=False,
                    raised=raised(error),
                    began=began,
                    ended=ledger.place(),
                )
            )
            raise

    return replace(keyed, function=key)


def _in_real_time(hook: ErrorHook, loop: VirtualLoop) -> ErrorHook:
    async def told(*arguments: object) -> None:
        await _body(hook.function, hook.is_async, arguments, loop)

    return replace(hook, function=told, is_async=True)


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _outcome_of(error: BaseException) -> RunOutcome:
    if isinstance(error, Reject):
        return RunOutcome.REJECTED
    if isinstance(error, TooLateError):
        return RunOutcome.TOO_LATE
    return RunOutcome.RETRY_ASKED if isinstance(error, Retry) else RunOutcome.FAILED


async def _run(
    handler: Handler,
    arguments: tuple[object, ...],
    injection: Injection | None,
    loop: VirtualLoop,
) -> None:
    match injection:
        case Injection(Fault.FAILS_BEFORE):
            raise InjectedError("injected before the handler's own code")
        case Injection(Fault.FAILS_LATE, seconds):
            await asyncio.sleep(seconds)
            raise InjectedError("injected after a while, before the handler's own code")
        case Injection(Fault.ASKS_RETRY, seconds):
            raise InjectedRetry(seconds)
        case Injection(Fault.SLOW, seconds):
            await asyncio.sleep(seconds)
    await _body(handler.function, handler.is_async, arguments, loop)
    if injection is not None and injection.fault is Fault.FAILS_AFTER:
        raise InjectedError("injected after the handler's own code, whose effect is there")


async def _body(
    function: Callable[..., Any], is_async: bool, arguments: tuple[object, ...], loop: VirtualLoop
) -> None:
    """Call a user's function and wait for all it began, as the dispatcher does."""
    if is_async:
        with loop.real_time():
            result = await function(*arguments)
    else:
        with loop.real_time(is_in_thread=True):
            result = await _in_thread(function, arguments)
    with loop.real_time():
        while inspect.isawaitable(result):
            result = await result
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("it returned a generator, so nothing of it has run")


async def _in_thread(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    def call() -> Any:
        try:
            return function(*arguments)
        except StopIteration as error:  # a future cannot hold one
            raise RuntimeError("the handler raised StopIteration") from error

    # No task, as to_thread would need for the shield: one that raises SystemExit ends the loop.
    loop = asyncio.get_running_loop()
    thread = loop.run_in_executor(None, contextvars.copy_context().run, call)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        # A thread cannot be cancelled, and its event must not run beside it.
        await asyncio.wait({thread})
        raise
