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
    SavedPost,
    ValidationResult,
)
from .addresses import segment
from .connection import Connection, Item, Operation
from .deprecated import PostLike, current_names
from .listing import LARGEST_PAGE, Listing, texts


class Posts:
    """Operations on posts; each raises ``ClientError``.

    Get it from ``Client.posts``.
    """

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
            channels: only posts for any of these channels.
            q: sent unchanged; the interface does not show what it selects.
            sort: likewise.
            from_: likewise.
            to: likewise.
            page_size: items in one request, at most 100.
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
        """Create a post: a draft, or a post that is scheduled, queued or published at once.

        The client never repeats a request that may have arrived: it could create two posts.
        """
        operation = Operation("POST", "/v1/posts", body=current_names(post))
        return (await self._connection.ask(operation, Item[SavedPost])).data

    async def validate(self, post: PostLike) -> ValidationResult:
        """Check whether the service would accept a post, without creating it."""
        body = current_names(post)
        operation = Operation("POST", "/v1/posts/validate", body=body, is_repeatable=True)
        return (await self._connection.ask(operation, Item[ValidationResult])).data

    async def get(self, post_id: str) -> Post:
        """Return a post with the status of each of its channels."""
        operation = Operation("GET", _path(post_id), is_repeatable=True)
        return (await self._connection.ask(operation, Item[Post])).data

    async def replace(self, post_id: str, post: PostLike) -> SavedPost:
        """Replace a whole post: the service removes targets and fields that are left out."""
        operation = Operation("PATCH", _path(post_id), body=current_names(post))
        return (await self._connection.ask(operation, Item[SavedPost])).data

    async def delete(self, post_id: str) -> DeletedPost:
        """Delete a post that is neither published nor being published."""
        operation = Operation("DELETE", _path(post_id))
        return (await self._connection.ask(operation, Item[DeletedPost])).data

    async def publish(self, post_id: str) -> PublishedPost:
        """Queue every channel that has not published the post yet; events report each result."""
        operation = Operation("POST", f"{_path(post_id)}/publish")
        return (await self._connection.ask(operation, Item[PublishedPost])).data


def _path(post_id: str) -> str:
    return f"/v1/posts/{segment(post_id)}"
