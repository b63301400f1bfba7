"""The name of a process: the same name in the log, the inspector, ``/readyz`` and the commands."""

from __future__ import annotations

import os
import socket
from functools import lru_cache

from ..stores.values import new_token

# A process id is not unique: each container may have its own process 1, and some containers share a
# host name. So each name contains a random text. The processes of a supervisor inherit the text, so
# that the supervisor can derive their names.
_RUN = new_token()[2:8]


def process_name(pid: int | None = None) -> str:
    """Return the unique name of this process, or of a process that it has forked.

    The name consists of the host name, the process id, and a random text for each command.
    """
    return _name(os.getpid() if pid is None else pid)


@lru_cache(maxsize=32)
def _name(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}:{_RUN}"
