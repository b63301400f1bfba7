"""The exceptions that this package raises to its callers, with reasons that programs can check.

    WebhookError
    ├── SecretError (ValueError)          a signing secret cannot be used
    ├── VerificationError                 a delivery is not genuine; also a standardwebhooks error
    ├── PayloadError                      a delivery is genuine, but its body is not a known event
    ├── StoreError                        the store failed or cannot be reached
    ├── LedgerError                       an effect could not be recorded or committed
    ├── AlreadyDone                       raised by record_in: this effect was committed before
    ├── ReplayError                       a batch of replays cannot be begun or continued
    ├── Reject                            raised by a handler: make this event a dead letter
    └── Retry                             raised by a handler: try this event again later

Errors hold fields and render them. No field is a secret, a signature, an expected value or a body.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from functools import wraps
from typing import TypeVar

from standardwebhooks import WebhookVerificationError

from .clock import span_seconds

__all__ = [
    "AlreadyDone",
    "LedgerError",
    "PayloadError",
    "PayloadFault",
    "Refusal",
    "Reject",
    "ReplayError",
    "Retry",
    "SecretError",
    "StoreError",
    "VerificationError",
    "WebhookError",
]

T = TypeVar("T")


class NeedsExtra:
    """Turns a failed import of an optional package into an error that names the extra.

    It is a class, because type checkers assume that the context manager of a generator may swallow
    exceptions.

    Args:
        extra: the name of the extra to install.
        subject: the feature that needs the extra.
        modules: the top-level modules that the extra installs.
    """

    def __init__(self, extra: str, subject: str, *modules: str) -> None:
        self._extra = extra
        self._subject = subject
        self._modules = modules

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, ModuleNotFoundError) or error.name is None:
            return
        module = error.name.partition(".")[0]
        if module in self._modules:
            raise ImportError(
                f"{self._subject} needs {module}: pip install 'hookonce[{self._extra}]'",
                name=module,
            ) from error


def shows_half_built(cls: type[T]) -> type[T]:
    """Let ``repr`` and ``str`` work on an object whose constructor has raised.

    Error trackers call ``repr`` on the local variables of every frame. In the frame of ``__init__``
    the object still lacks some of its attributes.
    """
    for name in {"__repr__", "__str__"} & vars(cls).keys():
        setattr(cls, name, _rendering(vars(cls)[name]))
    return cls


def _rendering(render: Callable[[T], str]) -> Callable[[T], str]:
    @wraps(render)
    def rendered(self: T) -> str:
        try:
            return render(self)
        except (AttributeError, IndexError):
            return f"<{type(self).__name__}, half built>"

    return rendered


class WebhookError(Exception):
    """The base of every error of this package."""


class SecretError(WebhookError, ValueError):
    """A signing secret that cannot be used; the message says why and never shows the secret."""


class Refusal(StrEnum):
    """The reason why a delivery is not genuine."""

    MISSING_ID = "missing_id"
    MISSING_TIMESTAMP = "missing_timestamp"
    MISSING_SIGNATURE = "missing_signature"
    MALFORMED_ID = "malformed_id"
    MALFORMED_TIMESTAMP = "malformed_timestamp"
    MALFORMED_SIGNATURE = "malformed_signature"
    CONFLICTING_ID = "conflicting_id"
    CONFLICTING_TIMESTAMP = "conflicting_timestamp"
    CONFLICTING_HEADERS = "conflicting_headers"
    TIMESTAMP_TOO_OLD = "timestamp_too_old"
    TIMESTAMP_TOO_NEW = "timestamp_too_new"
    NO_MATCHING_SIGNATURE = "no_matching_signature"


_REFUSAL_TEXT = {
    Refusal.MISSING_ID: "the {id} header is missing or empty",
    Refusal.MISSING_TIMESTAMP: "the {timestamp} header is missing or empty",
    Refusal.MISSING_SIGNATURE: "the {signature} header is missing or empty",
    Refusal.MALFORMED_ID: (
        "{id} must be 1 to 512 characters of UTF-8 without control characters or full stops"
    ),
    Refusal.MALFORMED_TIMESTAMP: "{timestamp} must be Unix seconds in plain decimal digits",
    Refusal.MALFORMED_SIGNATURE: "{signature} is not text",
    Refusal.CONFLICTING_ID: "{id} is repeated with different values",
    Refusal.CONFLICTING_TIMESTAMP: "{timestamp} is repeated with different values",
    Refusal.CONFLICTING_HEADERS: (
        "two families of signed headers differ in their values: {families}"
    ),
    Refusal.TIMESTAMP_TOO_OLD: "the time of the signature is too far in the past",
    Refusal.TIMESTAMP_TOO_NEW: "the time of the signature is too far in the future",
    Refusal.NO_MATCHING_SIGNATURE: (
        "no signature matches: the sender used another secret, or something changed the body or"
        " the headers on the way"
    ),
}

_USUAL_PREFIXES = ("webhook",)


def _refusal_text(reason: Refusal, prefixes: tuple[str, ...]) -> str:
    """Return the text of a refusal with the names of the sender's headers."""

    def either(ending: str) -> str:
        return " or ".join(f"{prefix}-{ending}" for prefix in prefixes)

    return _REFUSAL_TEXT[reason].format(
        id=either("id"),
        timestamp=either("timestamp"),
        signature=either("signature"),
        families=" and ".join(f"{prefix}-*" for prefix in prefixes),
    )


_UNAUTHENTIC = {
    Refusal.TIMESTAMP_TOO_OLD,
    Refusal.TIMESTAMP_TOO_NEW,
    Refusal.NO_MATCHING_SIGNATURE,
}


@shows_half_built
class VerificationError(WebhookError, WebhookVerificationError):
    """A delivery that is not genuine.

    It is also a ``standardwebhooks.WebhookVerificationError``, so code that catches the reference
    library's error keeps working.

    Args:
        reason: the ``Refusal``, for a program to branch on.
        skew: for a timestamp outside the tolerance, our clock minus the timestamp in seconds.
        headers: the prefixes of the headers that the message names, as in ``Sender.headers``.
    """

    def __init__(
        self,
        reason: Refusal,
        skew: float | None = None,
        headers: tuple[str, ...] = _USUAL_PREFIXES,
    ) -> None:
        # The properties read `args`, because attributes would slow down each refusal of a forgery.
        if headers == _USUAL_PREFIXES:
            super().__init__(reason, skew)
        else:
            super().__init__(reason, skew, headers)

    @property
    def reason(self) -> Refusal:
        """The reason for the refusal, for a program to branch on."""
        reason: Refusal = self.args[0]
        return reason

    @property
    def skew(self) -> float | None:
        """The local clock minus the timestamp, in seconds; set only if it exceeds the tolerance."""
        skew: float | None = self.args[1]
        return skew

    @property
    def headers(self) -> tuple[str, ...]:
        """The prefixes of the signed headers that the sender declares."""
        return self.args[2] if len(self.args) > 2 else _USUAL_PREFIXES

    def __str__(self) -> str:
        text = _refusal_text(self.reason, self.headers)
        return text if self.skew is None else f"{text} (our clock minus it: {self.skew:+.0f} s)"

    @property
    def status_hint(self) -> int:
        """The HTTP status: 401 for a possible forgery or replay, 400 for unusable headers."""
        return 401 if self.reason in _UNAUTHENTIC else 400


_new = VerificationError.__new__
_NO_MATCH = Refusal.NO_MATCHING_SIGNATURE


def no_sender(given: object) -> TypeError:
    """Return the error for a ``sender`` that is not a ``Sender``, such as the name of a sender."""
    return TypeError(f"sender takes a Sender, such as hookonce.senders.svix, not {given!r}")


def unmatched() -> VerificationError:
    """Return the error for a well-formed delivery whose signature does not match.

    An attacker can cause many of these errors, so this skips ``__init__``; ``__new__`` sets
    ``args``.
    """
    return _new(VerificationError, _NO_MATCH, None)


class PayloadFault(StrEnum):
    """The reason why a genuine body cannot be read as an event."""

    NOT_JSON = "not_json"
    NOT_ENVELOPE = "not_envelope"
    WRONG_SHAPE = "wrong_shape"
    ID_MISMATCH = "id_mismatch"
    CLASS_FAILED = "class_failed"


_FAULT_TEXT = {
    PayloadFault.NOT_JSON: "the body is not JSON",
    PayloadFault.NOT_ENVELOPE: "the body is not an event envelope",
    PayloadFault.WRONG_SHAPE: "data does not have the shape of the event's type",
    PayloadFault.ID_MISMATCH: "the id in the body is not the id that was signed",
    PayloadFault.CLASS_FAILED: "a validator of the event class failed",
}


@shows_half_built
class PayloadError(WebhookError):
    """A genuine delivery whose body cannot be read as an event.

    Attributes:
        fault: the ``PayloadFault``, for a program to branch on.
        problems: one ``field.path: what was expected`` for each fault; never the values found.
        field: the path in the body of the first field that is missing or wrong, such as
            ``timestamp``; None if the fault is not in one field.
    """

    def __init__(
        self, fault: PayloadFault, problems: tuple[str, ...] = (), *, field: str | None = None
    ) -> None:
        super().__init__(fault, problems)
        self.fault = fault
        self.problems = problems
        self.field = field

    def __str__(self) -> str:
        text = _FAULT_TEXT[self.fault]
        return f"{text} ({'; '.join(self.problems)})" if self.problems else text


class StoreError(WebhookError):
    """The store failed: it is unreachable, locked or full, or does not support the operation.

    Assume that nothing was recorded. A delivery is answered 503, so the sender tries again.
    """


class LedgerError(WebhookError):
    """An effect could not be recorded in the user's database, or could not be committed.

    The transaction was rolled back, and the handler has failed.
    """


class AlreadyDone(WebhookError):  # noqa: N818 - no "Error" in the name: it is a signal, not a fault
    """Raised by ``Context.record_in``: this handler's effect on this event was committed before.

    If the handler does not catch it, its transaction is rolled back and the handler has succeeded.
    """


class ReplayError(WebhookError):
    """A batch of replays cannot be begun or continued; the message says what to do instead."""


class Reject(WebhookError):  # noqa: N818 - no "Error" in the name: it is an instruction to the receiver
    """Raised by a handler to say that no attempt will ever succeed.

    The event becomes a dead letter and is answered 202, so that the sender stops. If another
    handler of the event failed in another way, the event is tried again for that handler.

    Args:
        reason: shown with the dead letter.
    """

    def __init__(self, reason: str = "rejected by a handler") -> None:
        super().__init__(reason)
        self.reason = reason


_LONGEST_WAIT = timedelta(days=31)
"""The longest wait: it already outlasts the sender's retries, its log and a store's retention."""


@shows_half_built
class Retry(WebhookError):  # noqa: N818 - no "Error" in the name: it is an instruction to the receiver
    """Raised by a handler to ask for a later attempt; it is not reported as an error.

    Args:
        after: seconds (or a ``timedelta``) to wait, at most 31 days. Without an inbox the value is
            only the Retry-After of the answer, and the sender keeps its own schedule.

    Raises:
        TypeError: it is neither a number nor a ``timedelta``.
        ValueError: it is negative, not finite, or more than 31 days.
    """

    def __init__(self, after: float | timedelta | None = None) -> None:
        super().__init__(after)
        seconds = None if after is None else span_seconds("Retry(after=…)", after)
        if seconds is not None and seconds > _LONGEST_WAIT.total_seconds():
            raise ValueError(
                f"Retry(after=…) takes at most {_LONGEST_WAIT.days} days, not {after!r}"
            )
        self.after_seconds = seconds

    def __str__(self) -> str:
        when = "" if self.after_seconds is None else f" in {self.after_seconds:g} s"
        return f"a handler asked for another attempt{when}"
