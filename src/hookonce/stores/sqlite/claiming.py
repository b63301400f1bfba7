"""Claims and completions of one batch: for all of a kind as few statements as for one.

The interpreter's lock is let go of and taken again at every statement, and the event loop wants it
meanwhile. Most events are new, and nobody else asks for them; those that something is known of are
left to go the long way, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from .. import life
from ..values import Claimed, ClaimResult, DeliveryKey, Token
from .batch import Job
from .claims import Claims
from .records import digest_of, execute_rows

# FREE.claim of what is new.
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
# One that had the same token before is no new one.
_CLAIMED_NOW = """
SELECT key FROM (VALUES {rows}) CROSS JOIN attempts ON key = column1
WHERE token = column2 AND lease = column3 AND until = ?1 + lease AND attempt = 1
  AND finished = '' AND outstanding = ''
"""

_NONE: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Claim(Job[ClaimResult]):
    """A call of ``Store.claim``."""

    key: DeliveryKey
    claims: Claims
    token: Token
    lease: float

    # No answer rests on a claim: what one does rest on is committed later, and takes the claim
    # along to the disk. If a power cut comes first, the sender has no answer and repeats the
    # delivery; it counts them as well. That saves half of the waits.
    may_be_lost: bool = field(kw_only=True, default=True)
    may_be_dropped: bool = field(kw_only=True, default=True)

    def do(self, connection: apsw.Connection) -> None:
        """Claim one event, whatever is known of it."""
        asked = (self.key, self.token, self.lease)
        self.outcome = self.claims.step(
            connection, self.key, lambda record, moment: life.claim(record, moment, *asked)
        )

    @classmethod
    def do_all(cls, connection: apsw.Connection, jobs: Sequence[Claim]) -> Sequence[Claim]:
        """Claim those that nothing is known of, in one statement."""
        claims = jobs[0].claims
        now = claims.uptime()
        rows = [
            (digest_of(job.key), job.key.partition(":")[0], job.token, job.lease) for job in jobs
        ]
        execute_rows(connection, _CLAIM_NEW, (now, claims.expires()), rows)
        left: list[Claim] = []
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
class Completion(Job[None]):
    """A call of ``Store.complete``."""

    key: DeliveryKey
    claims: Claims

    def do(self, connection: apsw.Connection) -> None:
        """Record that one event is handled."""
        self.do_all(connection, [self])

    @classmethod
    def do_all(
        cls, connection: apsw.Connection, jobs: Sequence[Completion]
    ) -> Sequence[Completion]:
        """Record that all of them are handled."""
        jobs[0].claims.finish(connection, [(digest_of(job.key),) for job in jobs])
        for job in jobs:
            job.outcome = None
        return ()
