"""Reads the errors of databases, whichever driver raised them."""

from __future__ import annotations

_CONFLICTS = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_MYSQL_DEADLOCK = 1213  # MySQL's drivers give this number instead of the SQLSTATE 40001


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error or of one of its causes; None if there is none.

    Drivers have no common class for errors, and libraries wrap them; so look for the code.
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
    """Return whether the database rolled this transaction back because of another one."""
    return sqlstate(error) in _CONFLICTS


def first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
