"""The workspace: its limits, channels, posts, media, comments and endpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from zoneinfo import ZoneInfo

from ..resources import Comment, ReceivedComment, Workspace
from .content import ChannelRow, CommentRow, MediaRow, PostRow
from .records import CommentReply, EndpointRow
from .rules import PLANS, Allowances, PlanLimits

# The largest number of comments to keep: a service may run for weeks, and must not fill the memory.
_COMMENTS_KEPT = 10_000
_REPLIES_KEPT = 100_000


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name; ValueError if this machine does not know it."""
    if name == "UTC":
        return UTC  # UTC needs no time zone database
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}") from error


@dataclass(slots=True)
class WorkspaceState:
    """The state of the service's only workspace.

    Attributes:
        id: the workspace's id in events.
        plan: free, starter, pro or agency.
        service: the name in the service's own headers and keys.
        slug: the name in URLs.
        timezone: an IANA zone name.
        posts: the posts by id, oldest first.
        removed: the numbers of deleted posts by id; old cursors may still name these posts.
        media: images and videos by id, oldest first.
        comments: comments by other people by id, in the order of their arrival.
        replies: the latest accepted replies to comments, oldest first.
        x_credits: how many X credits each post cost, by the post's id.
    """

    id: str
    plan: str
    service: str
    name: str = "Harbour Bakery"
    slug: str = "harbour-bakery"
    timezone: str = "UTC"
    allowances: Allowances = field(default_factory=Allowances)
    endpoints: dict[str, EndpointRow] = field(default_factory=dict)
    replies: deque[CommentReply] = field(default_factory=partial(deque, maxlen=_REPLIES_KEPT))
    channels: dict[str, ChannelRow] = field(default_factory=dict)
    posts: dict[str, PostRow] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    media: dict[str, MediaRow] = field(default_factory=dict)
    comments: dict[str, CommentRow] = field(default_factory=dict)
    x_credits: dict[str, int] = field(default_factory=dict)
    _last_number: int = 0
    _month: tuple[int, int] = (0, 0)
    _posts_this_month: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            raise ValueError(f"there is no plan {self.plan!r}; there are {', '.join(PLANS)}")
        zone_of(self.timezone)

    @property
    def limits(self) -> PlanLimits:
        """The limits of the plan."""
        return PLANS[self.plan]

    @property
    def zone(self) -> tzinfo:
        """The time zone of queue slots."""
        return zone_of(self.timezone)

    def to_resource(self) -> Workspace:
        """Return the workspace as the interface shows it."""
        return Workspace(
            id=self.id, slug=self.slug, name=self.name, timezone=self.timezone, plan=self.plan
        )

    def add_endpoint(
        self,
        url: str,
        events: Sequence[str],
        description: str,
        secret: str,
        now: float,
        endpoint_id: str,
    ) -> EndpointRow:
        """Register an endpoint for events of these types; without types, for every event."""
        row = EndpointRow(endpoint_id, url, description, tuple(events), now, secret)
        self.endpoints[endpoint_id] = row
        return row

    def next_number(self) -> int:
        """Return the next number for a post, a media item or a comment."""
        self._last_number += 1
        return self._last_number

    def remove_post(self, post: PostRow) -> None:
        """Remove a post, but keep its number, so that a cursor with its id stays valid."""
        del self.posts[post.id]
        self.removed[post.id] = post.number

    def keep_comment(self, received: ReceivedComment, now: float) -> None:
        """Keep the comment of an event, so that clients can list it and reply to it."""
        written = now if received.created_at is None else received.created_at.timestamp()
        comment = Comment(**{name: getattr(received, name) for name in Comment.model_fields})
        known = self.comments.get(received.id)
        number = self.next_number() if known is None else known.number
        self.comments[received.id] = CommentRow(comment, number, written, received.post_id)
        if len(self.comments) > _COMMENTS_KEPT:
            del self.comments[next(iter(self.comments))]

    def posts_this_month(self, now: float) -> set[str]:
        """Return the ids of the posts that count for the limit of this month."""
        local = datetime.fromtimestamp(now, self.zone)
        if self._month != (local.year, local.month):
            self._month, self._posts_this_month = (local.year, local.month), set()
        return self._posts_this_month
