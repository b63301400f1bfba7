"""Settings of a PostgreSQL store, from a URL or a pool and from arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg import conninfo, pq

from ...clock import Clock, span_seconds, system_clock

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

Durability: TypeAlias = Literal["fsync", "remote_apply"]
"""Where a write must be before the store reports success: on the server's disk, or also visible on
the standbys that the server's ``synchronous_standby_names`` lists."""

DEFAULT_SCHEMA = "hookonce"
_COMMIT = {"fsync": "on", "remote_apply": "remote_apply"}
_SCHEMES = ("postgresql", "postgres")
_FORM = "postgresql://user:password@host:5432/database?schema=hookonce"
_LISTEN = {"true": True, "false": False}
_OWN = ("schema", "durability", "listen")
_SCHEMA_NAME = re.compile("[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """Checked settings of a PostgreSQL store.

    Attributes:
        source: parameters of libpq, or a pool.
        name: the database and the schema, without user and password.
        identity: a value that two stores share if they remember the same events.
        commit: the ``synchronous_commit`` of every transaction.
        retention: how many seconds a done event is remembered.
        listen: whether workers listen to notifications of new events.
        clock: replaces the server's clock; None for the server's clock.
    """

    source: dict[str, Any] | AsyncConnectionPool[Any] = field(repr=False)
    name: str
    identity: Hashable
    schema: str
    commit: str
    listen: bool
    retention: float
    clock: Clock | None


def settings_of(
    pool_or_url: str | AsyncConnectionPool[Any],
    schema: str | None,
    durability: Durability | None,
    listen: bool | None,
    *,
    retention: float | timedelta,
    clock: Clock,
) -> PostgresSettings:
    """Return checked settings; None means the value in the URL, or the default.

    Raises:
        TypeError: the first argument is neither a URL nor a pool.
        ValueError: a setting cannot be used, or is given twice.
    """
    place: Hashable
    source: dict[str, Any] | AsyncConnectionPool[Any]
    try:
        if isinstance(pool_or_url, str):
            source, options = _read_url(pool_or_url)
            name = place = _name_of(source)
        elif callable(getattr(pool_or_url, "getconn", None)):
            source, options = pool_or_url, {}
            name, place = f"PostgreSQL through the pool {pool_or_url.name}", pool_or_url
        else:
            raise TypeError(
                "PostgresStore takes a URL or a psycopg_pool.AsyncConnectionPool, not"
                f" {type(pool_or_url).__name__}"
            )
    finally:
        del pool_or_url  # the URL may hold a password, and error trackers upload local variables
    schema = check_schema_name(_either("schema", schema, options, DEFAULT_SCHEMA))
    chosen = _either("durability", durability, options, "fsync")
    if chosen not in _COMMIT:
        raise ValueError("durability takes 'fsync' or 'remote_apply'")
    listens = _LISTEN.get(str(_either("listen", listen, options, "false")).lower())
    if listens is None:
        raise ValueError("listen takes True or False, and in a URL true or false")
    return PostgresSettings(
        source=source,
        name=f"{name} (schema {schema})",
        identity=(place, schema),
        schema=schema,
        commit=_COMMIT[chosen],
        listen=listens,
        retention=span_seconds("retention", retention, positive=True),
        clock=None if clock is system_clock else clock,
    )


def check_schema_name(name: object) -> str:
    """Return the name of a schema; raise ValueError if SQL would need quotes around the name."""
    if not isinstance(name, str) or not _SCHEMA_NAME.fullmatch(name):
        raise ValueError(
            "schema takes 1 to 63 small letters, digits and underscores, and must not begin with a"
            " digit"
        )
    return name


class _UnusableError(ValueError):
    """A fault of a URL; its message is safe, while libpq's message may quote a password."""


def _read_url(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters of libpq, and the store's own options."""
    try:
        return _parse(url)
    except _UnusableError as error:
        reason = str(error)
    except (ValueError, psycopg.Error):
        reason = (
            "it cannot be read; write '@', ':', '/', '?' and '#' in a password as %40, %3A, %2F,"
            " %3F, %23"
        )
    del url  # error trackers upload local variables
    raise ValueError(f"the PostgreSQL URL cannot be used: {reason} (the form is {_FORM})")


def _parse(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _SCHEMES or len(url) == len(scheme):
        raise _UnusableError("it does not begin with postgresql://")
    parts = urlsplit(f"postgresql://{rest}")
    if parts.fragment:
        raise _UnusableError("it has a fragment; write '#' as %23")
    if rest.count("@") > 1 or "@" in parts.path + parts.query:
        raise ValueError  # the password contains '@', '/' or '?'
    known = [default.keyword.decode() for default in pq.Conninfo.get_defaults()]
    options: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    if any("=" not in option for option in parts.query.split("&") if option):
        raise _UnusableError("an option has no value; write '&' in a value as %26")
    literal = parts.query.replace("+", "%2B")  # a plus sign is no space to libpq
    for name, value in parse_qsl(literal, keep_blank_values=True):
        if name in _OWN:
            options[name] = value
        elif name in known:
            others.append((name, value))
        else:
            likely = get_close_matches(name.lower(), [*_OWN, *known], n=1)
            hint = f"; did you mean {likely[0]!r}?" if likely else ""
            raise _UnusableError(f"unknown option {name!r}{hint}")
    query = urlencode(others, quote_via=quote)
    # Do not use `geturl`: it would leave out the slashes of a URL without a host.
    read = conninfo.conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}?{query}")
    for port in str(read.get("port") or "").split(","):
        if port and not (port.isascii() and port.isdigit()):
            raise ValueError  # the password contains ':'; an error of libpq would quote it
    return cast("dict[str, Any]", read), options


def _name_of(parameters: dict[str, Any]) -> str:
    """Return the servers and the database without user and password, as libpq finds them."""
    user = parameters.get("user") or os.environ.get("PGUSER")
    hosts = str(parameters.get("host") or os.environ.get("PGHOST") or "").split(",")
    ports = str(parameters.get("port") or os.environ.get("PGPORT") or "5432").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    database = parameters.get("dbname") or os.environ.get("PGDATABASE") or user or ""
    return f"postgresql://{places}/{database}"


def _either(name: str, given: Any, options: dict[str, str], usual: str) -> Any:
    if given is not None and name in options:
        raise ValueError(f"{name} is given twice, in the URL and as an argument")
    return given if given is not None else options.get(name, usual)
