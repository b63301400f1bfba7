"""Operations on comments (interface, Endpoints: Comments)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ..resources import Comment, Page, RepliedComment, ReplyInput
from .addresses import segment
from .connection import Connection, Item, Operation
from .listing import LARGEST_PAGE, Listing, texts


class Comments:
    """Operations on comments; each raises ``ClientError``.

    Get it from ``Client.comments``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        status: Literal["all", "open", "assigned", "done"] | None = None,
        channels: Iterable[str] = (),
        q: str | None = None,
        post_id: str | None = None,
        page_size: int = LARGEST_PAGE,
    ) -> Listing[Comment]:
        """Return comments by other people on your posts, newest first.

        Args:
            status: only comments of this status.
            channels: only comments on these channels.
            q: only comments whose text contains this, in upper or lower case.
            post_id: only comments on this post.
            page_size: items in one request, at most 100.
        """
        query = {
            "status": status,
            "channels": ",".join(texts("channels", channels)) or None,
            "q": q,
            "postId": post_id,
            "limit": page_size,
        }
        return Listing(self._connection, Page[Comment], "/v1/comments", query)

    async def reply(self, comment_id: str, text: str) -> RepliedComment:
        """Answer a comment on its platform, at once, and mark the comment done.

        The client never repeats a reply that may have arrived: people would read it twice.

        Args:
            text: 1 to 2200 characters.

        Raises:
            PlatformError: the platform rejects the reply.
            ValueError: the text is empty or too long.
        """
        path = f"/v1/comments/{segment(comment_id)}/reply"
        operation = Operation("POST", path, body=ReplyInput(text=text))
        return (await self._connection.ask(operation, Item[RepliedComment])).data
