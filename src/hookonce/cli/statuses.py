"""The exit statuses of all commands.

====== ==================================================================================
Status Meaning
====== ==================================================================================
0      Success. Also a server or worker that shut down after one SIGTERM or Ctrl-C.
1      The command found something: a delivery that is not genuine, a fault, an event
       that is lost, failed or missing, an answer that is not a 2xx.
2      The command cannot start: an argument is wrong, a module, store or secret is
       missing, a port is taken.
130    Ctrl-C interrupted the command. It cleaned up first.
143    SIGTERM interrupted the command. It cleaned up first.
====== ==================================================================================

``hookonce guide operations`` shows the same table.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

import click


class Status(IntEnum):
    """The exit status of a command."""

    WELL = 0
    FOUND = 1
    CANNOT_BEGIN = 2
    INTERRUPTED = 130
    TERMINATED = 143


ENDED_BY_SIGNAL = 128
"""A shell adds the signal's number to this base to report a process that a signal ended."""


class CannotBegin(click.ClickException):
    """Ends a command that cannot start, with one line that gives the reason."""

    exit_code: ClassVar[int] = Status.CANNOT_BEGIN


class Nothing(click.ClickException):
    """Ends a command if its event or endpoint does not exist, or if its server does not answer."""

    exit_code: ClassVar[int] = Status.FOUND
