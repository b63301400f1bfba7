"""What a long-running command spares the garbage collector."""

from __future__ import annotations

import gc

__all__ = ["spare_what_is_loaded"]


def spare_what_is_loaded() -> None:
    """Keep the collector from going over modules, classes and models, which stay for good.

    A receiver makes no cyclic garbage of its own, but what many deliveries hold at the same moment
    sets off collections of everything.
    """
    gc.collect()
    gc.freeze()
