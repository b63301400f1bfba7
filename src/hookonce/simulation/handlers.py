"""A receiver's handlers with injected faults and a log of all calls.

An injected sleep passes in virtual time. The user's own code may wait for real events, so it runs
in a block of ``VirtualLoop.outside``.
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
from .calls import CallLog, CallOutcome, HandlerCall, error_with_line
from .faults import Fault, HandlerFaults, InjectedError, InjectedRetry, Injection
from .virtual_loop import VirtualLoop


def instrumented(router: Router, *, log: CallLog, plan: HandlerFaults, loop: VirtualLoop) -> Router:
    """Return a router with the same handlers, which log their calls and fail as planned.

    Args:
        router: has the original handlers and error hooks; it does not change. A receiver is a
            router.
    """
    return Router(
        [_instrumented(handler, log, plan, loop) for handler in router.handlers],
        [_outside(hook, loop) for hook in router.error_hooks],
    )


def _instrumented(
    handler: Handler, log: CallLog, plan: HandlerFaults, loop: VirtualLoop
) -> Handler:
    async def run(event: Event[Any], *context: object) -> None:
        number, start_order = log.start(event.id, handler.name), log.next_position()
        injection = plan.injection(event.id, handler.name, number)
        started_unix, cancellations = loop.unix_clock(), _cancellations()
        outcome, is_injected, text = CallOutcome.SUCCEEDED, False, None
        try:
            await _run(handler, (event, *context), injection, loop)
        except BaseException as error:
            # If nobody has cancelled the task, the handler's own code has raised CancelledError,
            # which counts as a failure.
            is_cancelled = _cancellations() > cancellations
            outcome = CallOutcome.CANCELLED if is_cancelled else _outcome_of(error)
            is_injected = isinstance(error, InjectedError | InjectedRetry)
            text = None if is_injected or is_cancelled else error_with_line(error)
            raise
        finally:
            log.record(
                HandlerCall(
                    event_id=event.id,
                    handler=handler.name,
                    number=number,
                    started_unix=started_unix,
                    ended_unix=loop.unix_clock(),
                    outcome=outcome,
                    fault=None if injection is None else injection.fault,
                    failure_injected=is_injected,
                    error=text,
                    start_order=start_order,
                    end_order=log.next_position(),
                )
            )

    keyed = handler.keyed and _logging_failures(handler.keyed, handler.name, log, loop)
    # Leave the ledger out: the simulation has checked it already, and in virtual time the check
    # would time out at once.
    return replace(handler, function=run, is_async=True, keyed=keyed, ledger=None)


def _logging_failures(keyed: Keyed, handler: str, log: CallLog, loop: VirtualLoop) -> Keyed:
    """Return a key function that logs its own errors as failed calls of the handler."""

    def key(event: Event[Any]) -> object:
        try:
            return keyed.function(event)
        except BaseException as error:
            now, start_order = loop.unix_clock(), log.next_position()
            log.record(
                HandlerCall(
                    event_id=event.id,
                    handler=handler,
                    number=log.start(event.id, handler),
                    started_unix=now,
                    ended_unix=now,
                    outcome=CallOutcome.FAILED,
                    fault=None,
                    failure_injected=False,
                    error=error_with_line(error),
                    start_order=start_order,
                    end_order=log.next_position(),
                )
            )
            raise

    return replace(keyed, function=key)


def _outside(hook: ErrorHook, loop: VirtualLoop) -> ErrorHook:
    async def call(*arguments: object) -> None:
        await _call(hook.function, hook.is_async, arguments, loop)

    return replace(hook, function=call, is_async=True)


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _outcome_of(error: BaseException) -> CallOutcome:
    if isinstance(error, Reject):
        return CallOutcome.REJECTED
    if isinstance(error, TooLateError):
        return CallOutcome.TOO_LATE
    return CallOutcome.RETRY_REQUESTED if isinstance(error, Retry) else CallOutcome.FAILED


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
            raise InjectedError("injected after a sleep, before the handler's own code")
        case Injection(Fault.ASKS_RETRY, seconds):
            raise InjectedRetry(seconds)
        case Injection(Fault.SLOW, seconds):
            await asyncio.sleep(seconds)
    await _call(handler.function, handler.is_async, arguments, loop)
    if injection is not None and injection.fault is Fault.FAILS_AFTER:
        raise InjectedError("injected after the handler's own code, whose effect remains")


async def _call(
    function: Callable[..., Any], is_async: bool, arguments: tuple[object, ...], loop: VirtualLoop
) -> None:
    """Call a user's function and await its result, in the same way as a receiver does."""
    async with loop.outside(runs_handler=is_async):
        result = function(*arguments) if is_async else await _in_thread(function, arguments)
        while inspect.isawaitable(result):
            result = await result
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the handler returned a generator, so none of its code has run")


async def _in_thread(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    def call() -> Any:
        try:
            return function(*arguments)
        except StopIteration as error:  # a future rejects StopIteration
            raise RuntimeError("the handler raised StopIteration") from error

    # Do not use `shield(to_thread(…))`: it creates a task, and SystemExit in a task would end the
    # event loop.
    loop = asyncio.get_running_loop()
    thread = loop.run_in_executor(None, contextvars.copy_context().run, call)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        # Nothing can cancel a thread. Wait for its end, because no retry may run at the same time.
        await asyncio.wait({thread})
        raise
