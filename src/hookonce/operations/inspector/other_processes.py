"""The work of other processes at the endpoint, from their records and from the store."""

from __future__ import annotations

from ...clock import uptime
from ...errors import StoreError
from ...logs import get_logger
from ...receiver import Receiver
from ...stores.activity import ActivityStore
from ...stores.time_limit import within
from ...stores.values import Known
from ...watching.activity import read_line
from ...watching.steps import EventState
from .journal import Journal

_log = get_logger("hookonce.inspector")

_STORE_SECONDS = 2.0
# The shortest time between two reads of the store. It does not depend on the number of open pages.
_RECORDS_SECONDS = 0.4
_STATES_SECONDS = 2.0
_MOST_ASKED = 100

# Show only final states: the steps of an event in flight are more exact than its stored state.
_STATES = {Known.DONE: EventState.HANDLED, Known.DEAD: EventState.DEAD}


class OtherProcesses:
    """Adds the work of other processes to the journal while a page is open."""

    def __init__(self, receiver: Receiver, journal: Journal) -> None:
        self._store = receiver.store
        self._endpoint = receiver.endpoint
        self._journal = journal
        self._place: int | None = None
        self._records_due = self._states_due = 0.0

    async def look(self) -> None:
        """Add new records of other processes, and final states of events, to the journal."""
        now = uptime()
        try:
            if isinstance(self._store, ActivityStore) and now >= self._records_due:
                self._records_due = now + _RECORDS_SECONDS
                await self._add_records(self._store)
            if now >= self._states_due:
                self._states_due = now + _STATES_SECONDS
                await self._add_states()
        except StoreError as error:
            _log.warning("the inspector cannot see what other processes do: %s", error)

    async def _add_records(self, store: ActivityStore) -> None:
        follow = store.follow(self._endpoint, self._place)
        self._place, lines = await within(_STORE_SECONDS, follow)
        for line in lines:
            for record in read_line(line, self._endpoint):
                self._journal.add_remote(record)

    async def _add_states(self) -> None:
        """Ask the store for the state of each event whose steps do not end with a success."""
        wanted: dict[str, None] = {}
        for seen in self._journal.newest_first():
            event_id = seen.event_id
            if seen.history is None or event_id is None:
                continue
            if seen.history.state is not EventState.HANDLED:
                wanted[event_id] = None
            if len(wanted) == _MOST_ASKED:
                break
        if wanted:
            call = self._store.known(self._endpoint, list(wanted))
            for event_id, known in (await within(_STORE_SECONDS, call)).items():
                if known in _STATES:
                    self._journal.set_stored_state(event_id, _STATES[known])
