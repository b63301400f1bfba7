"""Reads the error codes of databases, from the errors of all drivers."""

from __future__ import annotations

_CONFLICTS = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_MYSQL_DEADLOCK = 1213  # MySQL's drivers give this number instead of the SQLSTATE 40001


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error or of one of its causes; None if there is none.

    Drivers have no common class for errors, and libraries wrap their errors, so this looks for the
    code.
    """
    seen: set[int] = set()
    look: BaseException | None = error
    while look is not None and id(look) not in seen:
        seen.add(id(look))
        for name in ("sqlstate", "pgcode"):
            code = getattr(look, name, None)
            if isinstance(code, str):
                return code
        if look.args[:1] == (_MYSQL_DEADLOCK,):
            return "40001"
        wrapped = getattr(look, "orig", None)  # SQLAlchemy's name for the driver's error
        look = wrapped if isinstance(wrapped, BaseException) else look.__cause__
    return None


def is_conflict(error: BaseException) -> bool:
    """Return whether the database rolled a transaction back because of another transaction."""
    return sqlstate(error) in _CONFLICTS


def first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
