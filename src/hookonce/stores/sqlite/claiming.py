"""Claims and completions of one batch: many calls take as few statements as one call.

Every statement releases and acquires the interpreter's lock, for which the event loop competes.
Most events are new, so one statement claims all new events. Events that the store knows already are
claimed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from .. import life
from ..values import Claimed, ClaimResult, DeliveryKey, Token
from .batch import Job
from .claims import ClaimsTable
from .records import digest_of, execute_rows

# Claims new events (FREE.claim in the table `life.LIFE`).
_CLAIM_NEW = """
INSERT INTO attempts (key, endpoint, token, until, lease, attempt, finished, history, expires)
SELECT column1, column2, column3, ?1 + column4, column4, 1, '', '', ?2
FROM (VALUES {rows})
WHERE column1 IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM done WHERE key = column1)
  AND NOT EXISTS (SELECT 1 FROM dead WHERE key = column1)
  AND NOT EXISTS (SELECT 1 FROM entries WHERE key = column1)
ON CONFLICT (key) DO NOTHING
"""
# Finds the claims that were just inserted, but no older claim with the same token.
_CLAIMED_NOW = """
SELECT key FROM (VALUES {rows}) CROSS JOIN attempts ON key = column1
WHERE token = column2 AND lease = column3 AND until = ?1 + lease AND attempt = 1
  AND finished = '' AND outstanding = ''
"""

_NONE: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class ClaimJob(Job[ClaimResult]):
    """A call of ``Claims.claim``."""

    key: DeliveryKey
    claims: ClaimsTable
    token: Token
    lease: float

    # A claim need not be on the disk before its handlers run: the sender is answered only after a
    # later commit, which writes the claim to the disk as well. If the power fails before that, the
    # sender has no answer and repeats the delivery. This saves half of the waits for the disk.
    may_be_lost: bool = field(kw_only=True, default=True)
    may_be_dropped: bool = field(kw_only=True, default=True)

    def do(self, connection: apsw.Connection) -> None:
        """Claim one event, new or known."""
        asked = (self.key, self.token, self.lease)
        self.outcome: ClaimResult = self.claims.step(
            connection, self.key, lambda record, moment: life.claim(record, moment, *asked)
        )

    @classmethod
    def do_all(cls, connection: apsw.Connection, jobs: Sequence[ClaimJob]) -> Sequence[ClaimJob]:
        """Claim all new events in one statement; return the jobs for known events."""
        claims = jobs[0].claims
        now = claims.uptime()
        rows = [
            (digest_of(job.key), job.key.partition(":")[0], job.token, job.lease) for job in jobs
        ]
        execute_rows(connection, _CLAIM_NEW, (now, claims.expires()), rows)
        left: list[ClaimJob] = []
        new = None
        if connection.changes() < len(jobs):
            own = [(digest, token, lease) for digest, _, token, lease in rows]
            new = {key for (key,) in execute_rows(connection, _CLAIMED_NOW, (now,), own)}
        for job, row in zip(jobs, rows, strict=True):
            if new is None or row[0] in new:
                job.outcome = Claimed(job.key, job.token, 1, _NONE, job.lease)
            else:
                left.append(job)
        return left


@dataclass(eq=False, slots=True)
class CompleteJob(Job[None]):
    """A call of ``Claims.complete``."""

    key: DeliveryKey
    claims: ClaimsTable

    def do(self, connection: apsw.Connection) -> None:
        """Record that one event is handled."""
        self.do_all(connection, [self])

    @classmethod
    def do_all(
        cls, connection: apsw.Connection, jobs: Sequence[CompleteJob]
    ) -> Sequence[CompleteJob]:
        """Record that all these events are handled."""
        jobs[0].claims.finish(connection, [(digest_of(job.key), None) for job in jobs])
        for job in jobs:
            job.outcome = None
        return ()
