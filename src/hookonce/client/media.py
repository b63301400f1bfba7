"""Operations on media, and the upload in three steps (interface, Endpoints: Media)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from ..clock import span_seconds
from ..resources import Media, Page, Upload, UploadCompletion, UploadInput
from .addresses import segment
from .connection import Connection, Item, Operation
from .listing import LARGEST_PAGE, Listing

Source: TypeAlias = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | AsyncIterable[bytes]
)
"""A path, bytes, a binary file open for reading, or an async iterable of bytes."""

_Bytes: TypeAlias = memoryview | BinaryIO | AsyncIterable[bytes]

Progress: TypeAlias = Callable[[int, int], object]
"""A function that gets the number of bytes sent so far, and the total number of bytes."""

_PIECE_BYTES = 256 * 1024

_NO_SIZE = "upload does not know how many bytes the source has; give size=…"

# "Accepted media types" (interface, Resources: Media), by file extension.
_MIME = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".heic": "image/heic",
    ".mp4": "video/mp4",
    ".mov": "video/quicktime",
    ".webm": "video/webm",
}


class MediaLibrary:
    """Operations on media; each raises ``ClientError``.

    Get it from ``Client.media``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self, *, kind: Literal["image", "video"] | None = None, page_size: int = LARGEST_PAGE
    ) -> Listing[Media]:
        """Return the finished uploads.

        Args:
            kind: only images, or only videos.
            page_size: items in one request, at most 100.
        """
        query = {"type": kind, "limit": page_size}
        return Listing(self._connection, Page[Media], "/v1/media", query)

    async def start_upload(
        self, filename: str, mime: str, size: int, *, folder_id: str | None = None
    ) -> Upload:
        """Reserve a media id, and return where to send the bytes.

        Args:
            filename: at most 255 characters.
            size: in bytes.
        """
        body = UploadInput(filename=filename, mime=mime, size=size, folder_id=folder_id)
        operation = Operation("POST", "/v1/media/uploads", body=body)
        return (await self._connection.ask(operation, Item[Upload])).data

    async def complete(
        self,
        media_id: str,
        *,
        width: int | None = None,
        height: int | None = None,
        duration_ms: int | None = None,
    ) -> Media:
        """Complete an upload after the bytes were sent; posts can then use the media.

        Args:
            media_id: the id from ``start_upload``.
            width: in pixels; several platforms reject media without it.
            height: likewise.
            duration_ms: the length of a video.
        """
        completion = UploadCompletion(width=width, height=height, duration_ms=duration_ms)
        body = completion if completion.model_dump() else None
        operation = Operation("POST", f"/v1/media/{segment(media_id)}/complete", body=body)
        return (await self._connection.ask(operation, Item[Media])).data

    async def upload(
        self,
        source: Source,
        *,
        filename: str | None = None,
        mime: str | None = None,
        size: int | None = None,
        width: int | None = None,
        height: int | None = None,
        duration_ms: int | None = None,
        folder_id: str | None = None,
        progress: Progress | None = None,
        seconds: float | timedelta = 900.0,
    ) -> Media:
        """Upload a file in the three steps, and return the media, ready for a post.

        The bytes go to the storage's own address, without the key.

        Args:
            source: a path, bytes, a binary file open for reading, an async iterable of bytes, or a
                bytearray or memoryview that does not change during the upload.
            filename: the name of the file; by default the path's last part.
            mime: the media type; by default it follows from the extension of the name.
            size: in bytes; needed only for an async iterable.
            width: in pixels; several platforms reject media without it.
            height: likewise.
            duration_ms: the length of a video.
            folder_id: the folder for the file.
            progress: called after each piece with the bytes sent and the bytes in all.
            seconds: how long the storage may take for the whole file: seconds or a ``timedelta``.

        Raises:
            UploadError: the storage did not accept the file. The reserved id stays unfinished;
                upload again.
            ValueError: the name, type or size is missing and cannot be derived; or the source has
                more or fewer bytes than its size; or ``seconds`` is not above 0.
            OSError: the file cannot be read.
        """
        seconds = span_seconds("seconds", seconds, positive=True)
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            with await asyncio.to_thread(path.open, "rb") as file:
                return await self.upload(
                    file,
                    filename=filename or path.name,
                    mime=mime,
                    size=size,
                    width=width,
                    height=height,
                    duration_ms=duration_ms,
                    folder_id=folder_id,
                    progress=progress,
                    seconds=seconds,
                )
        if isinstance(source, bytes | bytearray | memoryview):
            view = memoryview(source)
            source = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        if filename is None:
            raise ValueError("upload needs a filename, since the source is not a path")
        mime = mime or _MIME.get(Path(filename).suffix.lower())
        if mime is None:
            raise ValueError(f"upload does not know the media type of {filename!r}; give mime=…")
        size = _size_of(source) if size is None else size
        upload = await self.start_upload(filename, mime, size, folder_id=folder_id)
        await self._connection.send_file(
            upload.media_id,
            upload.method,
            upload.upload_url,
            upload.headers,
            _counted(_pieces(source), size, progress),
            size,
            seconds,
        )
        return await self.complete(
            upload.media_id, width=width, height=height, duration_ms=duration_ms
        )


def _size_of(source: _Bytes) -> int:
    """Return how many bytes are left to read; ValueError if that is unknown."""
    if isinstance(source, memoryview):
        return source.nbytes
    if isinstance(source, AsyncIterable):
        raise ValueError(_NO_SIZE)  # noqa: TRY004 - the type is allowed, but the size is unknown
    if not hasattr(source, "read"):
        raise TypeError(
            "upload takes a path, bytes, a file open for reading or an async iterable of bytes, not"
            f" {type(source).__name__}"
        )
    try:
        here = source.tell()
        end = source.seek(0, os.SEEK_END)
        source.seek(here)
    except OSError:
        raise ValueError(_NO_SIZE) from None
    return end - here


async def _pieces(source: _Bytes) -> AsyncIterator[bytes]:
    if isinstance(source, memoryview):
        for start in range(0, source.nbytes, _PIECE_BYTES):
            yield bytes(source[start : start + _PIECE_BYTES])
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    else:
        # Read in a thread, because a slow disk must not block the event loop.
        while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
            yield piece


async def _counted(
    pieces: AsyncIterator[bytes], size: int, progress: Progress | None
) -> AsyncIterator[bytes]:
    sent = 0
    async for piece in pieces:
        sent += len(piece)
        if sent > size:
            break
        yield piece
        if progress is not None:
            progress(sent, size)
    if sent != size:
        raise ValueError(f"the source has {'more' if sent > size else 'fewer'} than {size} bytes")
