"""Rules that every ledger must keep, for tests of a ledger of your own.

Each rule is an async function that takes a ``Bench``: your ledger, and one more table. It
raises AssertionError if the ledger breaks the rule::

    @pytest.mark.parametrize("rule", RULES)
    def test_my_ledger(rule, tmp_path):
        bench = Bench(ledger=..., clock=..., write=..., fail=..., read=...)
        asyncio.run(rule(bench))

``RULES`` are for every ledger, ``WATERMARK_RULES`` for a ledger that keeps watermarks, which
handlers with ``latest_by`` need. Give each rule a bench of its own, with empty tables.
"""

from __future__ import annotations

from ...clock import ManualClock
from .bench import Bench, Rule
from .rules import RULES
from .watermarks import WATERMARK_RULES

__all__ = ["RULES", "WATERMARK_RULES", "Bench", "ManualClock", "Rule"]
