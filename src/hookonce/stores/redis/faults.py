"""What is wrong with a server, in words that say what to do, and whether it passes."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

# What a server says while a cluster or a replication group finds itself again.
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
    "MISCONF": "it cannot write its snapshot or append-only file, and takes no writes until it can",
    "NOPERM": "the user may not do this; it needs the keys of the prefix, and EVALSHA with what the"
    " script calls",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write",
    "OOM": "its memory is full (maxmemory)",
    "READONLY": "it is a replica, and takes no writes",
    "WRONGPASS": "user name or password are wrong, or missing: redis://user:password@host",
}


def is_passing(error: Exception) -> bool:
    """Whether the same call may succeed in a moment."""
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, ResponseError):
        return _code(error) in _PASSING
    return True


def _code(error: Exception) -> str:
    # redis-py makes classes of some codes, and takes these codes from the text.
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
    """Return what went wrong and what to do, without anything that was sent."""
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time; is it overloaded, or the network down?"
    code = _code(error) if isinstance(error, Exception) else ""
    if "unauthenticated" in str(error):  # said of a call that is too long for a stranger
        code = "WRONGPASS"
    if code in _EXPLANATIONS:
        return _EXPLANATIONS[code]
    if isinstance(error, RedisConnectionError):
        return f"no connection: {error}"
    return str(error) or type(error).__name__
