"""How often a long-running command looks for garbage."""

from __future__ import annotations

import gc

# 64 deliveries at once hold some thousands. With Python's 700, every tenth delivery set off a
# collection, which took 7 % of the processor's time, and found nothing.
_NEW_OBJECTS = 10_000


def collect_rarely() -> None:
    """Let the collector run when there may be garbage, not when many deliveries come at once.

    A receiver makes no cyclic garbage of its own, but a handler may. What is loaded by now stays
    for good, and is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
