"""Operations on posts (interface, Endpoints: Posts)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ..resources import (
    DeletedPost,
    Page,
    Post,
    PostListItem,
    PublishedPost,
    Resource,
    SavedPost,
    ValidationResult,
)
from .connection import Connection, Operation, segment
from .deprecated import PostLike, current_names
from .listing import LARGEST_PAGE, Listing, texts


class _Post(Resource):
    data: Post


class _Saved(Resource):
    data: SavedPost


class _Validated(Resource):
    data: ValidationResult


class _Deleted(Resource):
    data: DeletedPost


class _Published(Resource):
    data: PublishedPost


class Posts:
    """Operations on posts; each raises ``ClientError``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        status: Literal[
            "all",
            "draft",
            "pending_approval",
            "scheduled",
            "publishing",
            "published",
            "failed",
            "partial",
        ]
        | None = None,
        channels: Iterable[str] = (),
        q: str | None = None,
        sort: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        page_size: int = LARGEST_PAGE,
    ) -> Listing[PostListItem]:
        """Return the posts, newest first by creation.

        Args:
            status: only posts of this status.
            channels: only posts that are aimed at any of these channels.
            q: sent as it is; its meaning is not shown, nor is that of the next three.
            sort: likewise.
            from_: likewise.
            to: likewise.
            page_size: items a request asks for, 100 at the most.

        """
        query = {
            "status": status,
            "channels": ",".join(texts("channels", channels)) or None,
            "q": q,
            "sort": sort,
            "from": from_,
            "to": to,
            "limit": page_size,
        }
        return Listing(self._connection, Page[PostListItem], "/v1/posts", query)

    async def create(self, post: PostLike) -> SavedPost:
        """Create a post; what becomes of it depends on its mode.

        It is never repeated by itself where it may have arrived, for that could make two posts.
        """
        operation = Operation("POST", "/v1/posts", body=current_names(post))
        return (await self._connection.ask(operation, _Saved)).data

    async def validate(self, post: PostLike) -> ValidationResult:
        """Return what creating the post would answer; nothing is saved."""
        body = current_names(post)
        operation = Operation("POST", "/v1/posts/validate", body=body, is_repeatable=True)
        return (await self._connection.ask(operation, _Validated)).data

    async def get(self, post_id: str) -> Post:
        """Return a post with its targets, each with its own status."""
        operation = Operation("GET", _path(post_id), is_repeatable=True)
        return (await self._connection.ask(operation, _Post)).data

    async def replace(self, post_id: str, post: PostLike) -> SavedPost:
        """Replace the whole post: targets and fields that are left out are removed."""
        operation = Operation("PATCH", _path(post_id), body=current_names(post))
        return (await self._connection.ask(operation, _Saved)).data

    async def delete(self, post_id: str) -> DeletedPost:
        """Delete a post that is neither published nor going out."""
        operation = Operation("DELETE", _path(post_id))
        return (await self._connection.ask(operation, _Deleted)).data

    async def publish(self, post_id: str) -> PublishedPost:
        """Queue every target that has not gone out; what becomes of each is told by events."""
        operation = Operation("POST", f"{_path(post_id)}/publish")
        return (await self._connection.ask(operation, _Published)).data


def _path(post_id: str) -> str:
    return f"/v1/posts/{segment(post_id)}"
