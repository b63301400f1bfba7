"""What commands exit with: one table, for all of them.

====== ==================================================================================
Status Meaning
====== ==================================================================================
0      All is well: what was asked for is done. A server or worker that a first SIGTERM
       or Ctrl-C has ended in order is well too.
1      The command has found something: a delivery that is not genuine, a fault, an event
       that was lost, failed or is not there, an answer that is no success.
2      It cannot begin: arguments that cannot be used, a module, store or secret that
       cannot be had, a port that is taken.
130    Ctrl-C has broken it off. What was begun is ended in order.
143    SIGTERM has.
====== ==================================================================================

``hookonce guide operations`` has the same table for people.
"""

from __future__ import annotations

from enum import IntEnum

import click


class Status(IntEnum):
    """What a command exits with."""

    WELL = 0
    FOUND = 1
    CANNOT_BEGIN = 2
    INTERRUPTED = 130
    TERMINATED = 143


class CannotBegin(click.ClickException):
    """Ends a command that cannot begin, with one line that says why."""

    exit_code = Status.CANNOT_BEGIN


class Nothing(click.ClickException):
    """Ends a command whose answer is that something is not there, or did not answer."""

    exit_code = Status.FOUND
