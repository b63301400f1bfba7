"""The meaning of PostgreSQL's errors: whether to repeat a call, and the text for the operator."""

from __future__ import annotations

import psycopg
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from ...errors import StoreError

# Errors that a repetition may cure: a lost connection (08), a deadlock or a serialization failure
# (40), too many connections (53300), a lock that was not free (55P03), a cancelled statement
# (57014), a server that stops or starts (57P), and a standby, which may be promoted (25006).
_PASSING = ("08", "40", "53300", "55P03", "57014", "57P", "25006")
# Errors that the values of one call can cause: data (22), constraints (23) and limits (54).
_OF_VALUES = ("22", "23", "54")
# A server in recovery, or a standby, refuses to write.
READ_ONLY = "25006"
MISSING_TABLE, MISSING_SCHEMA = "42P01", "3F000"
LOCK_NOT_FREE, NOT_ALLOWED = "55P03", "42501"


class ServerError(Exception):
    """An error that the server has reported.

    Attributes:
        state: its SQLSTATE.
    """

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state

    @property
    def is_passing(self) -> bool:
        """Whether the call may succeed if it is repeated."""
        return self.state.startswith(_PASSING)

    @property
    def is_of_values(self) -> bool:
        """Whether the values of one call may have caused the error."""
        return self.state.startswith(_OF_VALUES)


def error_of(result: PGresult) -> ServerError:
    """Return the error of a failed statement, without the statement and its values."""
    state = result.error_field(DiagnosticField.SQLSTATE) or b""
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"unknown error"
    return ServerError(state.decode(), message.decode("utf-8", "replace"))


def failed(error: BaseException) -> StoreError:
    """Return the StoreError for an error of the server or the connection."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        reason = "it did not answer in time"
    elif isinstance(error, ServerError):
        reason = f"{error} (SQLSTATE {error.state})"
    elif isinstance(error, psycopg.Error):
        reason = " ".join(str(error).split()) or type(error).__name__
    else:
        reason = str(error) or type(error).__name__
    store_error = StoreError(f"the PostgreSQL store failed: {reason}")
    # Attributes of psycopg's errors and locals of its frames hold the password, and error trackers
    # upload both. So the cause is a new error of the same type.
    store_error.__cause__ = type(error)(reason) if isinstance(error, psycopg.Error) else None
    return store_error
