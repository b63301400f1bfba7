"""Conversion of Python values to PostgreSQL's binary format, and back.

An array is packed with one ``bytes.join``: psycopg's own conversion of lists takes most of the time
of a batch.

Text columns hold text as the inside of a JSON string in ASCII. So every database encoding can store
the text, even with NUL or lone surrogates, which PostgreSQL would refuse otherwise. Usual ids and
names stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring_ascii
from struct import Struct
from typing import Any

from psycopg.pq.abc import PGresult

_BOOL, _BYTEA, _INT8, _INT2, _INT4, _TEXT, _JSON, _FLOAT8 = 16, 17, 20, 21, 23, 25, 114, 701

_HEAD = Struct("!iiIii")
_LENGTH = Struct("!i").pack
_FLOAT = Struct("!d")
_LONG, _INT, _SHORT = Struct("!q"), Struct("!i"), Struct("!h")
_NULL = _LENGTH(-1)


def dump_text(value: str) -> bytes:
    """Encode text for a column: in ASCII, with the escapes of JSON."""
    return encode_basestring_ascii(value)[1:-1].encode()


def load_text(data: bytes) -> str:
    """Decode the text of a column."""
    return json.loads(b'"%b"' % data) if b"\\" in data else data.decode()


def dump_float(value: float) -> bytes:
    return _FLOAT.pack(value)


def dump_time(now: float | None) -> bytes | None:
    """Encode a time as a parameter; with None, the statement uses the server's clock."""
    return None if now is None else _FLOAT.pack(now)


def dump_int(value: int) -> bytes:
    return _LONG.pack(value)


def texts(values: Iterable[str | None]) -> bytes:
    """Return an array of text."""
    return _array(_TEXT, [None if value is None else dump_text(value) for value in values])


def documents(values: Iterable[str | None]) -> bytes:
    """Return an array of text that holds JSON in ASCII, to be cast to ``json``."""
    return _array(_TEXT, [None if value is None else value.encode() for value in values])


def blobs(values: Sequence[bytes | None]) -> bytes:
    """Return an array of bytea."""
    return _array(_BYTEA, values)


def floats(values: Iterable[float | None]) -> bytes:
    """Return an array of float8."""
    return _array(_FLOAT8, [None if value is None else _FLOAT.pack(value) for value in values])


def ints(values: Iterable[int | None]) -> bytes:
    """Return an array of int8."""
    return _array(_INT8, [None if value is None else _LONG.pack(value) for value in values])


def _array(element: int, items: Sequence[bytes | None]) -> bytes:
    parts = [_HEAD.pack(1, 1, element, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH(len(item)), item)
    return b"".join(parts)


_LOADERS: dict[int, Callable[[bytes], Any]] = {
    _BOOL: lambda data: data == b"\x01",
    _BYTEA: bytes,
    _INT8: lambda data: _LONG.unpack(data)[0],
    _INT4: lambda data: _INT.unpack(data)[0],
    _INT2: lambda data: _SHORT.unpack(data)[0],
    _TEXT: load_text,
    _JSON: bytes.decode,
    _FLOAT8: lambda data: _FLOAT.unpack(data)[0],
}


def rows(result: PGresult) -> list[tuple[Any, ...]]:
    """Return the rows of a result in binary format."""
    value, numbers = result.get_value, range(result.ntuples)
    columns = []
    for column in range(result.nfields):
        # Load column by column, which is a third faster than row by row.
        load = _LOADERS[result.ftype(column)]
        columns.append(
            [None if (data := value(row, column)) is None else load(data) for row in numbers]
        )
    return list(zip(*columns, strict=True))
