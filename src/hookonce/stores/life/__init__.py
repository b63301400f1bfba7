"""The life of an event: its states, the steps between the states, and each step's answer.

``table`` has the states and steps, ``record`` the values that a store keeps, and ``steps`` the
functions. All are pure: they read no clock, make no token and store nothing. A store passes the
record of an event and the moment, and writes the record that it gets back.

The memory store calls these functions for all steps except the first claim. The SQLite and the
PostgreSQL store do the first claim, the first enqueue, fetch and completion in SQL, for many events
at once. The Redis store has the whole table a second time, in Lua. Comments in all four name the
rows that the code implements: FREE.claim is the step CLAIM in the state FREE.

Five rules hold in every state and are not rows of the table:

- A claim has an owner, named by a token. Only the owner extends, releases, keeps and buries. For
  every other caller the claim is lost: such a call only adds the handlers that it reports as
  finished. When the lease runs out, the owner stays the owner until another caller claims the event
  or the event is settled.
- A caller that repeats a claim or an enqueue with the same token gets the first answer again.
- A success is final. A handler that has finished is remembered even if the claim was lost, unless
  the event is done, and is never outstanding again. In every state any caller may record that the
  event is handled.
- Every claim that is granted counts as an attempt. If the owner releases the claim before a handler
  began, the attempt is not counted; if the lease runs out, it is.
- Nobody can claim or enqueue a dead letter whose record could not be read
  (``DeadReason.DAMAGED``): both calls raise StoreError until an operator has replayed or discarded
  the dead letter.
"""

from .record import (
    MAX_HISTORY,
    MAX_HISTORY_ERROR_CHARACTERS,
    NEW,
    DeadLetterRecord,
    InboxEntry,
    Moment,
    Record,
    dead_letter,
    error_text,
    is_forgotten,
    known_as,
    state_of,
)
from .steps import (
    bury,
    claim,
    complete,
    discard,
    enqueue,
    extend,
    fetch,
    fetch_again,
    keep,
    keep_in_flight,
    make_due,
    release,
    replay,
)
from .table import LIFE, Answer, State, Step, Then

__all__ = [
    "LIFE",
    "MAX_HISTORY",
    "MAX_HISTORY_ERROR_CHARACTERS",
    "NEW",
    "Answer",
    "DeadLetterRecord",
    "InboxEntry",
    "Moment",
    "Record",
    "State",
    "Step",
    "Then",
    "bury",
    "claim",
    "complete",
    "dead_letter",
    "discard",
    "enqueue",
    "error_text",
    "extend",
    "fetch",
    "fetch_again",
    "is_forgotten",
    "keep",
    "keep_in_flight",
    "known_as",
    "make_due",
    "release",
    "replay",
    "state_of",
]
