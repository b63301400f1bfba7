"""The file of a request: ``hookonce serve --save-refused`` writes it, ``hookonce verify`` reads it.

The file is the request as HTTP: request line, headers, an empty line and the body. A comment in
its first line says how and when the receiver refused it::

    # refused by default: 401 no_matching_signature, received 1780000000.125
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_REFUSED = re.compile(
    rb"# refused by (\S+): (\d{3}) (\w+), received (\d+\.\d+)(, without its body)?\r?\n"
)
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class Refused(NamedTuple):
    """A receiver's refusal of a request.

    Attributes:
        endpoint: the name of the receiver's endpoint.
        status: the HTTP status of the answer.
        reason: the reason in the answer's body.
        received_unix: when the request arrived, in Unix seconds.
        has_body: whether the body was saved.
    """

    endpoint: str
    status: int
    reason: str
    received_unix: float
    has_body: bool = True

    def __str__(self) -> str:
        end = "" if self.has_body else ", without its body"
        return (
            f"# refused by {self.endpoint}: {self.status} {self.reason},"
            f" received {self.received_unix:.6f}{end}"
        )


class SavedRequest(NamedTuple):
    """A request that was saved.

    Attributes:
        refused: how a receiver refused it; None if the file does not say.
        request_line: method, target and version; ``parse`` does not read it.
    """

    body: bytes
    headers: list[tuple[bytes, bytes]]
    refused: Refused | None = None
    request_line: bytes = b"POST / HTTP/1.1"

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Return the request in a file; lines of its head may end with LF or CR LF.

        Raises:
            ValueError: the file has no empty line.
        """
        note = _REFUSED.match(raw)
        refused = None
        if note is not None:
            raw = raw[note.end() :]
            endpoint, status, reason, at, no_body = note.groups()
            refused = Refused(
                endpoint.decode("utf-8", "replace"),
                int(status),
                reason.decode(),
                float(at),
                has_body=not no_body,
            )
        end = _END_OF_HEAD.search(raw)
        if end is None:
            raise ValueError("the saved request has no blank line between headers and body")
        return cls(raw[end.end() :], header_lines(raw[: end.start()]), refused)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        note = [] if self.refused is None else [str(self.refused).encode()]
        headers = (b"%b: %b" % header for header in self.headers)
        return b"\r\n".join([*note, self.request_line, *headers, b"", self.body])


def header_lines(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers from lines of ``Name: value``; skip the request line."""
    pairs = []
    for line in raw.splitlines():
        name, colon, value = line.partition(b":")
        if colon and b" " not in name.strip():
            pairs.append((name.strip(), value.strip()))
    return pairs
