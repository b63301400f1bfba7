"""A journal of a simulation: what each participant did, in order.

Many things happen at the same virtual time, so each entry has a position in the order of all
entries and of the starts and ends of handler calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..clock import Clock
from ..emulator.records import CommentReply, DeliveryAttempt
from ..http.app import Message
from ..http.inprocess import Answer
from ..senders import Sender
from .calls import CallLog, HandlerCall


@dataclass(frozen=True, slots=True)
class VirtualMoment:
    """A virtual time, and a position in the order of everything that happened."""

    at_unix: float
    order: int


@dataclass(frozen=True, slots=True)
class Emission:
    """An event that the service emitted."""

    event_id: str
    event_type: str
    moment: VirtualMoment


@dataclass(slots=True)
class ReceivedRequest:
    """A request that reached the receiver, and the receiver's answer if there was one.

    Attributes:
        event_id: the event in the request's headers.
        attempt: the number of the attempt in the request's headers; 0 if there is none.
        arrived: when it arrived.
        answered: when the answer was complete, or None.
        status: the answer's HTTP status, or None.
        reason: the ``reason`` in the answer's JSON body, or an empty string.
    """

    event_id: str
    attempt: int
    arrived: VirtualMoment
    journal: SimulationJournal = field(repr=False)
    answered: VirtualMoment | None = None
    status: int | None = None
    reason: str = ""
    _body: bytes = field(default=b"", repr=False)

    def sent(self, message: Message) -> None:
        """Note a message of the receiver's answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                self.answered = self.journal.now()
                self.reason = Answer(self.status or 0, {}, self._body).reason


@dataclass(frozen=True, slots=True)
class SimulationHistory:
    """Everything that happened in a simulation.

    Attributes:
        began_unix: the virtual time of the start.
        attempts: the requests as the sender saw them.
        requests: the requests as the receiver saw them.
        restarts: when a new receiver had replaced the old receiver.
        sender: the sender whose rules the answers must follow.
    """

    began_unix: float
    sender: Sender
    emissions: Sequence[Emission] = ()
    attempts: Sequence[DeliveryAttempt] = ()
    requests: Sequence[ReceivedRequest] = ()
    calls: Sequence[HandlerCall] = ()
    replies: Sequence[CommentReply] = ()
    restarts: Sequence[VirtualMoment] = ()


class SimulationJournal:
    """Notes what happens in a simulation.

    Args:
        log: the log of handler calls, which counts the positions.
        clock: the virtual time.
    """

    def __init__(self, log: CallLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._began_unix = clock()
        self._emissions: list[Emission] = []
        self._requests: list[ReceivedRequest] = []
        self._restarts: list[VirtualMoment] = []

    def begin(self) -> None:
        """Set the start of the simulation to the current time."""
        self._began_unix = self._clock()

    def now(self) -> VirtualMoment:
        """Return the time, and the next position."""
        return VirtualMoment(self._clock(), self._log.next_position())

    def emitted(self, event_id: str, event_type: str) -> None:
        """Note an event that the service emits."""
        self._emissions.append(Emission(event_id, event_type, self.now()))

    def restarted(self) -> None:
        """Note that a new receiver has replaced the old receiver."""
        self._restarts.append(self.now())

    def arrived(self, sender: Sender, headers: Iterable[tuple[bytes, bytes]]) -> ReceivedRequest:
        """Note a request, and return its entry; the caller adds the answer to the entry.

        Args:
            sender: the sender, which defines the names of the headers.
        """
        event_id, attempt = "", 0
        ids = {f"{prefix}-id".encode() for prefix in sender.headers}
        ending = b"" if sender.hints is None else f"-{sender.hints.attempt}".encode()
        for name, value in headers:
            if name in ids:
                event_id = value.decode("latin-1")
            elif ending and name.endswith(ending) and value.isdigit():
                attempt = int(value)
        request = ReceivedRequest(event_id, attempt, self.now(), self)
        self._requests.append(request)
        return request

    def history(
        self,
        attempts: Sequence[DeliveryAttempt],
        replies: Sequence[CommentReply],
        sender: Sender,
    ) -> SimulationHistory:
        """Return everything that happened.

        Args:
            attempts: the requests as the sender saw them.
            replies: the replies to comments that the service accepted.
            sender: the sender whose rules the answers must follow.
        """
        return SimulationHistory(
            self._began_unix,
            sender,
            tuple(self._emissions),
            tuple(attempts),
            tuple(self._requests),
            self._log.calls,
            tuple(replies),
            tuple(self._restarts),
        )
