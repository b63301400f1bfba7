"""Makes the garbage collector run less often in a long-running command."""

from __future__ import annotations

import gc

# 64 concurrent deliveries hold some thousands of new objects. With Python's default threshold of
# 700, every tenth delivery would start a useless collection.
_NEW_OBJECTS = 10_000


def collect_rarely() -> None:
    """Run the garbage collector less often, and skip the objects that exist now.

    A receiver makes no reference cycles, but a handler may.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
