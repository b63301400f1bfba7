"""The storage for the bytes of media (interface, Endpoints: Media, upload procedure).

The storage is not a part of the API: a client reaches it by a pre-signed address and without a key.
The interface shows neither its checks nor its answers: those are the emulator's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from secrets import token_hex
from typing import Literal, TypeAlias
from urllib.parse import quote

from .content import MediaRow
from .refusals import at_storage
from .workspace import WorkspaceState

Method: TypeAlias = Literal["PUT", "POST"]

ACCEPTED = (
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/heic",
    "video/mp4",
    "video/quicktime",
    "video/webm",
)
"""The accepted media types (interface, Resources: Media)."""

ADDRESS_SECONDS = 3600.0
"""How long an upload address is valid: the emulator's choice, as the interface does not show it."""
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"})
_UPLOAD_HEADER = "x-storage-upload"


class Storage:
    """Receives and serves the bytes of media."""

    def __init__(self, workspace: WorkspaceState) -> None:
        self._workspace = workspace

    def reserve(
        self, row: MediaRow, base_url: str, expires_at: float
    ) -> tuple[str, Method, dict[str, str]]:
        """Return the address, the method and the headers for an upload.

        The method is PUT for images and POST for videos. So a client that ignores ``method``
        already fails here, and not only at the real service.
        """
        row.token = token_hex(16)
        row.expires_at = expires_at
        row.url = f"{base_url}/files/{row.id}/{quote(row.filename, safe='')}"
        headers = {"content-type": row.mime, _UPLOAD_HEADER: row.id}
        return f"{base_url}/storage/{row.token}", method_of(row), headers

    async def receive(
        self,
        token: str,
        method: str,
        headers: Mapping[str, str],
        body: AsyncIterator[bytes],
        now: float,
    ) -> None:
        """Receive and keep the bytes of a file.

        Args:
            token: the last part of the address.
            headers: the headers of the request, by their names in lower case.

        Raises:
            RefusedError: the request differs from what ``reserve`` returned, or the bytes differ
                from the announced size or type.
        """
        row = next((row for row in self._workspace.media.values() if row.token == token), None)
        if row is None or now >= row.expires_at or row.status != "uploading":
            raise at_storage(HTTPStatus.FORBIDDEN, "The address is not valid, or no longer valid.")
        if "authorization" in headers or "x-api-key" in headers:
            raise at_storage(HTTPStatus.BAD_REQUEST, "Send the API key to the API only.")
        if method != method_of(row):
            raise at_storage(HTTPStatus.METHOD_NOT_ALLOWED, f"The method is {method_of(row)}.")
        if headers.get(_UPLOAD_HEADER) != row.id or headers.get("content-type") != row.mime:
            raise at_storage(
                HTTPStatus.FORBIDDEN, "Send the headers from the answer to the start of the upload."
            )
        content = bytearray()
        async for piece in body:
            content += piece
            if len(content) > row.size:
                raise at_storage(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "There are more bytes than announced."
                )
        if len(content) < row.size:
            raise at_storage(HTTPStatus.BAD_REQUEST, "There are fewer bytes than announced.")
        if not fits_media_type(row.mime, bytes(content[:32])):
            raise at_storage(HTTPStatus.BAD_REQUEST, f"The bytes are not of the type {row.mime}.")
        row.content = bytes(content)

    def file(self, media_id: str) -> tuple[str, bytes]:
        """Return the media type and the bytes of a file; RefusedError if there is no such file."""
        row = self._workspace.media.get(media_id)
        if row is None or row.content is None:
            raise at_storage(HTTPStatus.NOT_FOUND, "There is no such file.")
        return row.mime, row.content


def method_of(row: MediaRow) -> Method:
    """Return the HTTP method of an upload."""
    return "PUT" if row.kind == "image" else "POST"


def fits_media_type(mime: str, start: bytes) -> bool:
    """Return whether the first bytes of a file fit a media type."""
    is_ftyp, brand = start[4:8] == b"ftyp", start[8:12]
    match mime:
        case "image/jpeg":
            return start.startswith(b"\xff\xd8\xff")
        case "image/png":
            return start.startswith(b"\x89PNG\r\n\x1a\n")
        case "image/webp":
            return start.startswith(b"RIFF") and brand == b"WEBP"
        case "image/heic":
            return is_ftyp and brand in _HEIC_BRANDS
        case "video/mp4":
            return is_ftyp and brand not in _HEIC_BRANDS | {b"qt  "}
        case "video/quicktime":
            # A `ftyp` box names the brand; older QuickTime files begin with another box.
            return (is_ftyp and brand == b"qt  ") or start[4:8] in {b"moov", b"mdat", b"wide"}
        case _:
            return start.startswith(b"\x1a\x45\xdf\xa3")
