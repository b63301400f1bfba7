"""What the store knows, and other processes tell, of the endpoint that is looked at."""

from __future__ import annotations

from collections.abc import Iterable

from ...clock import uptime
from ...errors import StoreError
from ...logs import get_logger
from ...stores.activity import ActivityStore
from ...stores.time_limit import within
from ...stores.values import Known
from ...watching.activity import read_line
from ...watching.steps import State
from .journal import Journal, Seen
from .reading import claimed_id
from .watched import Watched

_log = get_logger("hookonce.inspector")

_STORE_SECONDS = 2.0
# However many pages are open, the store is asked this often.
_FOLLOW_SECONDS = 0.4
_LEARN_SECONDS = 2.0
_MOST_ASKED = 100

# What a store knows of an event that is still under way says less than its steps.
_STATES = {Known.DONE: State.HANDLED, Known.DEAD: State.DEAD}


class Elsewhere:
    """Looks for what happened in other processes, and only while somebody looks at a page.

    Args:
        receiver: whose endpoint and store.
        journal: where it is noted.

    """

    def __init__(self, receiver: Watched, journal: Journal) -> None:
        self._store = receiver.store
        self._endpoint = receiver.endpoint
        self._journal = journal
        self._place: int | None = None
        self._follow_at = self._learn_at = 0.0

    async def look(self) -> None:
        """Note what other processes have told, and what has become of events of theirs."""
        now = uptime()
        try:
            if isinstance(self._store, ActivityStore) and now >= self._follow_at:
                self._follow_at = now + _FOLLOW_SECONDS
                await self._follow(self._store)
            if now >= self._learn_at:
                self._learn_at = now + _LEARN_SECONDS
                await self._learn(self._journal.newest_first())
        except StoreError as error:
            _log.warning("the inspector cannot see what other processes do: %s", error)

    async def _follow(self, store: ActivityStore) -> None:
        place, lines = await within(_STORE_SECONDS, store.follow(self._endpoint, self._place))
        self._place = place
        for line in lines:
            for told in read_line(line, self._endpoint):
                self._journal.hear(told)

    async def _learn(self, newest: Iterable[Seen]) -> None:
        """Ask the store what became of events whose end nobody has told of."""
        wanted: dict[str, None] = {}
        for seen in newest:
            event_id = claimed_id(seen)
            if seen.history is None or event_id is None:
                continue
            if seen.history.state is not State.HANDLED:
                wanted[event_id] = None
            if len(wanted) == _MOST_ASKED:
                break
        if wanted:
            call = self._store.known(self._endpoint, list(wanted))
            for event_id, known in (await within(_STORE_SECONDS, call)).items():
                if known in _STATES:
                    self._journal.learn(event_id, _STATES[known])
