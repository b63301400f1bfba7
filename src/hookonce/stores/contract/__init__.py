"""Rules that every store must keep, for tests of a store of your own.

Each rule is an async function that takes a ``Bench``. It raises AssertionError if the store breaks
the rule::

    @pytest.mark.parametrize("rule", [*RULES, *BODY_RULES])
    def test_my_store(rule, tmp_path):
        bench = Bench(partial(MyStore, tmp_path / "events"))
        asyncio.run(rule(bench))

``RULES`` are for every store, with the rows of the table of an event's life that need neither
bodies nor an inbox. ``BODY_RULES`` are for a store with ``keeps_bodies``, so that dead letters can
be replayed. ``INBOX_RULES`` are for an ``InboxStore``; it also keeps ``BODY_RULES``.
``ACTIVITY_RULES``, ``REGISTERING_RULES``, ``RECONCILING_RULES`` and ``HANDLED_RULES`` are for the
four optional protocols. Give each rule a bench of its own, without data.
"""

from __future__ import annotations

from ...clock import ManualClock
from . import (  # noqa: F401 - importing a file adds its rules to the groups
    activity,
    claims,
    dead_letters,
    fetching,
    handled,
    inbox,
    inbox_listing,
    keeping,
    key_locks,
    life,
    outstanding,
    reconciling,
    registering,
    replay_batches,
    replays,
    reports,
    settling,
    sharing,
)
from .bench import (
    Bench,
    MakeStore,
    Rule,
    every_store,
    with_activity,
    with_applications,
    with_bodies,
    with_handled,
    with_inbox,
    with_reconciling,
)

__all__ = [
    "ACTIVITY_RULES",
    "BODY_RULES",
    "HANDLED_RULES",
    "INBOX_RULES",
    "RECONCILING_RULES",
    "REGISTERING_RULES",
    "RULES",
    "Bench",
    "MakeStore",
    "ManualClock",
    "Rule",
]

RULES: tuple[Rule, ...] = tuple(every_store.rules)
"""The rules for every store."""

BODY_RULES: tuple[Rule, ...] = tuple(with_bodies.rules)
"""The rules for a store that keeps the bodies of deliveries."""

INBOX_RULES: tuple[Rule, ...] = tuple(with_inbox.rules)
"""The rules for a store with an inbox, in addition to ``BODY_RULES``."""

ACTIVITY_RULES: tuple[Rule, ...] = tuple(with_activity.rules)
"""The rules for an ``ActivityStore``."""

REGISTERING_RULES: tuple[Rule, ...] = tuple(with_applications.rules)
"""The rules for a ``RegisteringStore``."""

RECONCILING_RULES: tuple[Rule, ...] = tuple(with_reconciling.rules)
"""The rules for a ``ReconcilingStore``."""

HANDLED_RULES: tuple[Rule, ...] = tuple(with_handled.rules)
"""The rules for a ``HandledStore``."""
