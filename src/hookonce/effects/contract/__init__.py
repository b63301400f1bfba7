"""What every ledger must keep to, as rules that anybody can run on one of their own.

Give each rule a bench: the ledger on an empty table, and a table of yours in the same database::

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
    def test_my_ledger(rule):
        asyncio.run(rule(my_bench))

A rule that is broken raises AssertionError. ``MARK_RULES`` are for ledgers that keep marks, which
handlers with ``latest_by`` need.
"""

from __future__ import annotations

from .bench import Bench, MakeBench, Rule
from .marks import MARK_RULES
from .rules import RULES

__all__ = ["MARK_RULES", "RULES", "Bench", "MakeBench", "Rule"]
