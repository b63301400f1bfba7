"""What every ledger must keep to, as rules that anybody can run on one of their own.

Give each rule a bench: the ledger on an empty table, and a table of yours in the same database::

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
    def test_my_ledger(rule):
        asyncio.run(rule(my_bench))

A rule that is broken raises AssertionError. ``WATERMARK_RULES`` are for ledgers that
keep watermarks, which handlers with ``latest_by`` need.
"""

from __future__ import annotations

from .bench import Bench, MakeBench, Rule
from .rules import RULES
from .watermarks import WATERMARK_RULES

__all__ = ["RULES", "WATERMARK_RULES", "Bench", "MakeBench", "Rule"]
