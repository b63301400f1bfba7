"""Parses Redis URLs and the settings of redis-py clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.sentinel import (
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import RedisError

from .. import REDIS_SCHEMES
from .connection import Address, ClusterServers, SentinelServer, Servers, bounded, one_server

_FORMS = (
    "redis://host:6379/0, rediss://host:6379/0, unix:///path/to/socket?db=0,"
    " redis+cluster://host:6379 or redis+sentinel://host:26379,host:26379/service/0"
)
_OWN = ("prefix", "shards", "durability", "replicas")
_CLUSTER_SHARDS = 16
_CLASSES = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}


@dataclass(frozen=True, slots=True)
class Place:
    """The way to connect to the servers, from a URL or a client.

    Attributes:
        connect: creates the connections to the servers for one event loop.
        shards: the default number of shards.
        options: the store's own options in the URL.
        name: the URL without user, password and options.
    """

    connect: Callable[[], Servers] = field(repr=False)
    shards: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""


class _UnusableError(ValueError):
    """A fault of a URL; its message is safe, while a library's message may quote a password."""


def place_of(url: str) -> Place:
    """Return the way to connect to the servers of a URL.

    Raises:
        ValueError: the URL cannot be used; the message never shows a password.
    """
    try:
        return replace(_place(url), name=_without_credentials(url))
    except _UnusableError as error:
        reason = str(error)
    except ValueError:
        reason = (
            "it cannot be read; write '@', ':', '/' and '#' in a password as %40, %3A, %2F, %23"
        )
    del url  # the URL may hold a password, and error trackers upload local variables
    raise ValueError(f"the Redis URL cannot be used: {reason} (the valid forms are {_FORMS})")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{hosts}{parts.path}"


def _place(url: str) -> Place:
    scheme = url.partition("://")[0].lower()
    if scheme not in REDIS_SCHEMES:
        raise _UnusableError(f"the scheme {scheme!r} is unknown")
    kind, _, variant = scheme.partition("+")
    parts, options = _options(url)
    settings = _settings(parts, kind)
    connection_class = _CLASSES[kind]
    if kind == "unix":
        if not parts.path:
            raise _UnusableError("it names no socket")
        return _one(connection_class, settings, options)
    hosts = _hosts(parts, 26379 if variant == "sentinel" else 6379)
    path = parts.path.strip("/")
    if variant == "sentinel":
        return _sentinel(connection_class, hosts, settings, path, options)
    settings |= _database(path, is_cluster=variant == "cluster")
    if variant == "cluster":
        _check(connection_class, settings)
        connect = partial(ClusterServers, hosts, connection_class, settings)
        return Place(connect, _CLUSTER_SHARDS, options)
    if len(hosts) > 1:
        raise _UnusableError(
            "redis:// names one server; for several use redis+cluster:// or redis+sentinel://"
        )
    return _one(connection_class, settings | {"host": hosts[0][0], "port": hosts[0][1]}, options)


def place_of_client(client: Redis | RedisCluster) -> Place:
    """Return the way to connect to a client's servers, with the settings of the client."""
    if isinstance(client, RedisCluster):
        nodes = client.nodes_manager.startup_nodes.values()
        connection_class = client.connection_kwargs.get("connection_class", Connection)
        known = _parameters(connection_class)
        settings = {n: value for n, value in client.connection_kwargs.items() if n in known}
        hosts = [(str(node.host), int(node.port)) for node in nodes]
        connect = partial(ClusterServers, hosts, connection_class, settings)
        return Place(connect, _CLUSTER_SHARDS, name=f"redis+cluster://{_joined(hosts)}")
    if not isinstance(client, Redis):
        raise TypeError(
            "RedisStore takes a URL, a redis.asyncio.Redis or a redis.asyncio.RedisCluster,"
            f" not {type(client).__name__}"
        )
    pool = client.connection_pool
    settings = dict(pool.connection_kwargs)
    if isinstance(pool, SentinelConnectionPool):
        manager = pool.sentinel_manager
        sentinels = [
            (str(kwargs["host"]), int(kwargs["port"]))
            for kwargs in (one.connection_pool.connection_kwargs for one in manager.sentinels)
        ]
        settings["connection_class"] = pool.connection_class
        service, watching = pool.service_name, manager.sentinel_kwargs
        name = f"redis+sentinel://{_joined(sentinels)}/{service}"
        return Place(partial(SentinelServer, sentinels, service, settings, watching), name=name)
    if "path" in settings:
        name = f"unix://{settings['path']}"
    else:
        host, port = settings.get("host", "localhost"), settings.get("port", 6379)
        name = f"redis://{host}:{port}/{settings.get('db') or 0}"
    return Place(partial(one_server, pool.connection_class, settings), name=name)


def _joined(hosts: Iterable[Address]) -> str:
    return ",".join(f"{host}:{port}" for host, port in hosts)


def _parameters(connection_class: type[AbstractConnection]) -> set[str]:
    """Return the parameters of a connection class and its bases."""
    return {
        name
        for kind in connection_class.__mro__
        if kind is not object
        for name in signature(kind).parameters
    }


def _one(
    connection_class: type[AbstractConnection], settings: dict[str, Any], options: dict[str, Any]
) -> Place:
    _check(connection_class, settings)
    return Place(partial(one_server, connection_class, settings), options=options)


def _check(connection_class: type[AbstractConnection], settings: dict[str, Any]) -> None:
    """Create a connection without opening it, to refuse options that redis-py does not accept."""
    known = [*_OWN, *_parameters(connection_class)]
    for name in sorted(settings):
        if name not in known:
            likely = get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {likely[0]!r}?" if likely else ""
            raise _UnusableError(f"unknown option {name!r}{hint}")
    try:
        connection_class(**bounded(settings))
    except (TypeError, RedisError):
        raise _UnusableError(
            f"redis-py does not accept these options together: {', '.join(sorted(settings))}"
        ) from None


def _options(url: str) -> tuple[SplitResult, dict[str, Any]]:
    """Return the parts of a URL without the store's options, and these options separately."""
    parts = urlsplit(url)
    if parts.fragment:
        raise _UnusableError("it has a fragment; write '#' as %23")
    options: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OWN:
            rest.append((name, value))
            continue
        is_number = name in {"shards", "replicas"} and value.isascii() and value.isdigit()
        options[name] = int(value) if is_number else value
    return parts._replace(query=urlencode(rest)), options


def _settings(parts: SplitResult, kind: str) -> dict[str, Any]:
    """Return redis-py's settings in a URL, without the hosts and the database."""
    user = parts.netloc.rpartition("@")[0]
    path = parts.path if kind == "unix" else ""
    try:
        settings = dict(parse_url(f"{kind}://{user}@{path}?{parts.query}"))
    except ValueError:
        raise _UnusableError("an option in its query has a value of the wrong kind") from None
    for name in ("host", "port", "connection_class"):
        settings.pop(name, None)
    return settings


def _hosts(parts: SplitResult, usual_port: int) -> list[Address]:
    places = parts.netloc.rpartition("@")[2].split(",")
    hosts = [urlsplit(f"//{place}") for place in places]
    return [(unquote(host.hostname or "localhost"), host.port or usual_port) for host in hosts]


def _database(path: str, *, is_cluster: bool) -> dict[str, Any]:
    if not path:
        return {}
    if not (path.isascii() and path.isdigit()):
        raise _UnusableError("its path is not the number of a database, such as /0")
    if is_cluster and int(path):
        raise _UnusableError("a cluster has only database 0; leave the path out")
    return {} if is_cluster else {"db": int(path)}


def _sentinel(
    connection_class: type[AbstractConnection],
    hosts: list[Address],
    settings: dict[str, Any],
    path: str,
    options: dict[str, Any],
) -> Place:
    service, _, database = path.partition("/")
    if not service:
        raise _UnusableError("it names no service for the sentinels, such as /mymaster")
    settings |= _database(database, is_cluster=False)
    # The user and password of the sentinels are separate settings.
    watching = {
        name.removeprefix("sentinel_"): settings.pop(name)
        for name in list(settings)
        if name.startswith("sentinel_")
    }
    is_secure = connection_class is SSLConnection
    if is_secure:
        watching |= {name: value for name, value in settings.items() if name.startswith("ssl_")}
        watching["ssl"] = True
    _check(connection_class, settings)
    settings["connection_class"] = (
        SentinelManagedSSLConnection if is_secure else SentinelManagedConnection
    )
    connect = partial(SentinelServer, hosts, unquote(service), settings, watching)
    return Place(connect, options=options)
