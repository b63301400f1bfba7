"""Detects a rotation of the secret, and warns if this receiver lacks the new secret.

For some time after a rotation (``Rules.two_signatures_seconds``) every delivery carries two
signatures, one for each secret. After that, a receiver with only the old secret refuses every
delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..clock import Clock, moment_text, utc
from ..errors import SecretError
from ..logs import get_logger
from ..senders import Rules
from ..verification.signature import count_matching
from .records import DeliveryAnswered

_log = get_logger("hookonce.rotation")

# Wait this long after a rotation's end: clocks differ, and a delivery may still be on its way.
_GRACE_SECONDS = 3600.0
# A proxy or an attacker can add a second, false signature to a genuine delivery. So a second
# signature counts as a rotation only if a configured secret made it, or if three events carry one.
_SEVERAL = 3
# Check the secrets only this often: a provider may read a file, and each check computes signatures.
_LOOK_SECONDS = 10.0
_LOG_AGAIN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotation of the sender's secret, recognised by deliveries with two signatures.

    Attributes:
        since: when the first delivery with two signatures came, as an aware UTC ``datetime``; the
            rotation may have begun earlier. If only one of the secrets is configured here, a
            rotation is recognised at the third event with two signatures.
        has_both: whether both secrets are configured here.
        rules: the rules by which the sender delivers.
    """

    since: datetime
    has_both: bool
    rules: Rules

    @property
    def ends_by(self) -> datetime | None:
        """The time by which the sender has stopped signing with the old secret; None if unknown."""
        seconds = self.rules.two_signatures_seconds
        return None if seconds is None else self.since + timedelta(seconds=seconds)


class RotationWatch:
    """Watches which secrets sign the deliveries.

    Args:
        secrets: returns the secrets in force, newest first.
        clock: Unix time in seconds.
        rules: the rules by which the sender delivers.

    Attributes:
        current: the rotation under way, if there is one.
        matched: when each secret, by its index, last matched; cleared at each check of the secrets.
        quiet_until: until this Unix time the caller may skip `note` for a delivery with one
            signature.
    """

    def __init__(self, secrets: Callable[[], tuple[str, ...]], clock: Clock, rules: Rules) -> None:
        self._rules = rules
        self._secrets = secrets
        self._clock = clock
        self._began = clock()
        self._known = secrets()
        self._matched: dict[str, float] = {}
        self.matched: dict[int, float] = {}
        self.current: Rotation | None = None
        self._signed_twice_at = 0
        # Whether the sender always adds a signature by a secret that is unknown here, such as `v1a`
        # beside `v1`.
        self._always_two = False
        # When each event with a second signature by an unknown secret arrived; the key is the event
        # id.
        self._half_known: dict[str, float] = {}
        self._next_look = self._next_log = 0.0
        self.quiet_until: float = 0.0

    def last_matched(self) -> tuple[float | None, ...]:
        """Return when each secret in force last verified a delivery, in Unix seconds.

        None for a secret that has verified no delivery since this process began.
        """
        return tuple(self._matched.get(secret) for secret in self._look())

    def note(self, record: DeliveryAnswered) -> None:
        """Record which secret matched, and how many signatures the delivery had."""
        self._note(record)
        self.quiet_until = 0.0 if self.current or self._half_known else self._next_look

    def _note(self, record: DeliveryAnswered) -> None:
        delivery, received = record.verified, record.received
        if delivery is None or received is None:
            return
        at = received.at_unix
        is_double, is_news = delivery.signature_count > 1, False
        if is_double:
            self._signed_twice_at = max(self._signed_twice_at, delivery.timestamp)
            is_news = self.current is None and delivery.id not in self._half_known
            if self._has_outlasted(at):
                self._always_two = True
                self._forget()
            if self._always_two:
                return
        elif delivery.timestamp > self._signed_twice_at:
            self._always_two = False
            self._forget()
        if at < self._next_look and not is_news:
            return
        self._next_look = at + _LOOK_SECONDS
        try:
            secrets = self._look()
        except SecretError:  # ignore the error here: the next delivery and `warnings` report it
            return
        if is_double and (headers := record.headers) is not None:
            has_both = count_matching(secrets, delivery.body, headers) > 1
            self._note_second(delivery.id, at, has_both=has_both)

    def _has_outlasted(self, at: float) -> bool:
        """Return whether deliveries have had two signatures for longer than a rotation lasts.

        The configured secret then still matches, so it cannot be the old secret of a rotation.
        """
        current = self.current
        if current is None or current.has_both:
            return False
        ends_by = current.ends_by
        return ends_by is not None and at > ends_by.timestamp() + _GRACE_SECONDS

    def _forget(self) -> None:
        self.current = None
        self._half_known.clear()

    def _note_second(self, event_id: str, at: float, *, has_both: bool) -> None:
        """Record an event with two signatures.

        ``has_both`` is true if configured secrets made both signatures.
        """
        known = self._half_known.values()
        since = self.current.since if self.current else utc(min([at, *known]))
        if has_both:
            self._half_known.clear()
            self.current = Rotation(since, has_both=True, rules=self._rules)
            return
        if len(self._half_known) < _SEVERAL:
            self._half_known.setdefault(event_id, at)
        if len(self._half_known) == _SEVERAL:
            self.current = Rotation(since, has_both=False, rules=self._rules)
            if at >= self._next_log:
                self._next_log = at + _LOG_AGAIN_SECONDS
                _log.warning("%s", _unprepared(self.current, at))

    def _look(self) -> tuple[str, ...]:
        """Return the secrets in force, and note which of them have matched since the last call."""
        secrets = self._secrets()
        if secrets == self._known:  # indexes in `matched` are valid only for unchanged secrets
            for index, at in self.matched.items():
                self._matched[secrets[index]] = at
        self.matched.clear()
        self._matched = {s: when for s, when in self._matched.items() if s in secrets}
        self._known = secrets
        return secrets

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the secrets; SecretError if no secret can be used."""
        now, current, matched = self._clock(), self.current, self.last_matched()
        if current is not None:
            return () if current.has_both else (_unprepared(current, now),)
        if not matched or matched[0] is None:
            return ()  # no warning yet: the newest secret has verified no delivery so far
        both_seconds = self._rules.two_signatures_seconds
        if both_seconds is None:
            return ()  # no known end of a rotation: the sender may still use every secret
        never = f"before {moment_text(self._began)}"
        return tuple(
            f"secret {number} of {len(matched)} last matched"
            f" {never if when is None else 'at ' + moment_text(when)}, and a rotation takes"
            f" {both_seconds / 3600:g} h;"
            " remove it"
            for number, when in enumerate(matched[1:], start=2)
            if now - (when or self._began) > both_seconds + _GRACE_SECONDS
        )


def _unprepared(rotation: Rotation, now: float) -> str:
    if rotation.ends_by is None:
        return (
            "the secret is being rotated: deliveries carry two signatures, and only one of the two"
            " secrets is configured here. The sender does not say how long it signs with both; if"
            " that secret is the old one, every delivery will be refused then. Configure the new"
            " secret now"
        )
    ends = rotation.ends_by.timestamp()
    if now > ends:
        return (
            f"the sender's secret was rotated, which ended by {moment_text(ends)}, and only one of"
            " the two secrets is configured here. If that is the old secret, every delivery is"
            " refused; configure the new secret now"
        )
    return (
        "the secret is being rotated: deliveries carry two signatures, and only one of the two"
        " secrets is configured here. If that is the old secret, every delivery will be refused"
        f" after {moment_text(ends)} at the latest ({(ends - now) / 3600:.1f} h left);"
        " configure the new secret before then"
    )
