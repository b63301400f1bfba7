"""Notifies the observers, which include logging, metrics, traces and the inspector.

An exception in an observer never changes a delivery.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable
from typing import Any, ParamSpec, TypeAlias, get_type_hints

from ..logs import get_logger
from .log import record_fields
from .records import DeliveryAuthenticated, DeliveryReceived, Observer, is_step

_log = get_logger("hookonce.observation")

P = ParamSpec("P")

_Listener: TypeAlias = tuple[Callable[[Any], object], Container[str] | None]
"""An observer's method, and the ids of the events for which it is called; None for all events."""

_HOOKS: dict[type, str] = {
    get_type_hints(hook)["record"]: name
    for name, hook in vars(Observer).items()
    if not name.startswith("_")
}


class Observers:
    """Calls the methods that a receiver's observers override.

    Args:
        observers: the observers to notify.

    Attributes:
        look_closely: whether an observer wants more records of a delivery than its answer and its
            failures. If not, the pipeline and the attempts make no records of a success.

    Raises:
        TypeError: an argument is not an observer; the message says what to do.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._listeners: dict[object, list[_Listener]] = {}
        self.look_closely: bool = False
        for observer in observers:
            self.add(observer)

    def add(self, observer: Observer, *, of: Container[str] | None = None) -> None:
        """Add an observer; see `Receiver.observe`."""
        wanted = {record: _method(observer, name) for record, name in _HOOKS.items()}
        for record, method in wanted.items():
            if getattr(method, "__func__", None) is not getattr(Observer, _HOOKS[record]):
                events = of if is_step(record) else None
                self._listeners.setdefault(record, []).append((method, events))
                self.look_closely |= _is_close(record)

    def remove(self, observer: Observer) -> None:
        """Stop notifying this observer."""
        for record, listeners in self._listeners.items():
            others = [one for one in listeners if getattr(one[0], "__self__", None) is not observer]
            self._listeners[record] = others
        self.look_closely = any(
            listeners and _is_close(record) for record, listeners in self._listeners.items()
        )

    def notify_of(self, kind: Callable[P, object], *fields: P.args, **named: P.kwargs) -> None:
        """Create a record of this kind if an observer wants it, and notify the observers."""
        for _, events in self._listeners.get(kind, ()):
            if events is None or _may_hold(events, fields[0]):
                self.notify(kind(*fields, **named))
                return

    def notify(self, record: Any) -> None:
        """Pass a record to every observer that wants it."""
        for method, events in self._listeners.get(record.__class__, ()):
            try:
                if events is None or record.delivery.event_id in events:
                    method(record)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - an observer's SystemExit must not end the server
                _log.exception(
                    "%s failed; the delivery is not affected",
                    getattr(method, "__qualname__", "an observer"),
                    extra=record_fields(record),
                )


def _may_hold(events: Container[str], delivery: Any) -> bool:
    """Return whether the container holds the event of a delivery; True if the container raises."""
    try:
        return delivery.event_id in events
    except Exception:  # noqa: BLE001 - the user's container may raise; `notify` logs the error
        return True


def _is_close(record: Any) -> bool:
    """Return whether every successful delivery makes this kind of record before its answer."""
    return record in {DeliveryReceived, DeliveryAuthenticated} or is_step(record)


def _method(observer: Observer, name: str) -> Callable[[Any], object]:
    method: Callable[[Any], object] | None = getattr(observer, name, None)
    if isinstance(observer, type) or not callable(method):
        raise TypeError(
            f"{observer!r} cannot observe a receiver: give an instance of a subclass of Observer"
        )
    if inspect.iscoroutinefunction(method):
        raise TypeError(
            f"{type(observer).__name__}.{name} is async; observers are called in the middle of a"
            " delivery, so make it a plain method, and start a task for anything slow"
        )
    return method
