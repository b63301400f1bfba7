"""Explanations of server errors, and whether a retry may succeed."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

# Error codes that a server sends while it starts, or while a cluster or a failover is under way.
_PASSING = (
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MOVED",
    "NOREPLICAS",
    "READONLY",
    "TRYAGAIN",
)
_EXPLANATIONS = {
    "MISCONF": "it accepts no writes, because it cannot write its snapshot or append-only file",
    "NOPERM": "the Redis user lacks a permission: allow the keys of the prefix, EVALSHA, and the"
    " commands of the script",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write",
    "OOM": "its memory is full (maxmemory)",
    "READONLY": "it is a replica, and accepts no writes",
    "WRONGPASS": "the user name or password is wrong or missing: redis://user:password@host",
}


def is_passing(error: Exception) -> bool:
    """Return whether the same call may succeed soon after this error."""
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, ResponseError):
        return _code(error) in _PASSING
    return True


def _code(error: Exception) -> str:
    # redis-py turns some codes into error classes, and removes these codes from the text.
    name = type(error).__name__.removesuffix("Error").upper()
    known = {*_PASSING, *_EXPLANATIONS}
    first = str(error).partition(" ")[0].lstrip("-")
    return first if first in known else _CLASSES.get(name, name)


_CLASSES = {
    "OUTOFMEMORY": "OOM",
    "NOPERMISSION": "NOPERM",
    "AUTHENTICATION": "WRONGPASS",
    "BUSYLOADING": "LOADING",
}


def explained(error: BaseException) -> str:
    """Return the cause and the remedy without quoting the request, because it may be secret."""
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time; is it overloaded, or the network down?"
    code = _code(error) if isinstance(error, Exception) else ""
    if "unauthenticated" in str(error):  # the reply to a long command before login
        code = "WRONGPASS"
    if code in _EXPLANATIONS:
        return _EXPLANATIONS[code]
    if isinstance(error, RedisConnectionError):
        return f"no connection: {error}"
    return str(error) or type(error).__name__
