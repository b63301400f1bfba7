"""The workspace: what it is allowed, and everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from ..resources import Comment, ReceivedComment, Workspace
from .content import ChannelRow, CommentRow, MediaRow, PostRow
from .records import EndpointRow
from .rules import PLANS, SUBSCRIBABLE, Allowances, PlanLimits

# A service that runs for weeks and makes up comments does not fill the memory with them.
_COMMENTS_KEPT = 10_000


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name; ValueError if it is not known here."""
    if name == "UTC":
        return UTC  # also where there is no database of zones
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}") from error


@dataclass(slots=True)
class Usage:
    """What was used of the workspace's allowances.

    Attributes:
        month: the year and month that ``posts`` is about.
        posts: the ids of the posts that count in this month.
        x_credits: how many credits a post took, by its id.

    """

    month: tuple[int, int] = (0, 0)
    posts: set[str] = field(default_factory=set)
    x_credits: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class WorkspaceState:
    """A workspace of the service.

    Attributes:
        id: as events name it.
        plan: free, starter, pro or agency.
        service: the name in the service's own headers and keys.
        name: what people call it.
        slug: its name in addresses.
        timezone: an IANA zone name.
        allowances: the limits whose numbers the interface does not show.
        usage: what was used of them.
        endpoints: the registered endpoints by id.
        channels: the connected accounts by id.
        posts: the posts by id, oldest first.
        numbered: how many posts, media and comments there have been.
        removed: the numbers of the posts that were deleted, which old cursors name, by id.
        media: images and videos by id, oldest first.
        comments: comments by other people by id, in the order of their arrival.

    """

    id: str
    plan: str
    service: str
    name: str = "Harbour Bakery"
    slug: str = "harbour-bakery"
    timezone: str = "UTC"
    allowances: Allowances = field(default_factory=Allowances)
    usage: Usage = field(default_factory=Usage)
    endpoints: dict[str, EndpointRow] = field(default_factory=dict)
    channels: dict[str, ChannelRow] = field(default_factory=dict)
    posts: dict[str, PostRow] = field(default_factory=dict)
    numbered: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    media: dict[str, MediaRow] = field(default_factory=dict)
    comments: dict[str, CommentRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            raise ValueError(f"there is no plan {self.plan!r}; there are {', '.join(PLANS)}")
        zone_of(self.timezone)

    @property
    def limits(self) -> PlanLimits:
        """What the plan allows."""
        return PLANS[self.plan]

    @property
    def zone(self) -> tzinfo:
        """The time zone that queue slots are in."""
        return zone_of(self.timezone)

    def shown(self) -> Workspace:
        """Return the resource of the interface."""
        return Workspace(
            id=self.id, slug=self.slug, name=self.name, timezone=self.timezone, plan=self.plan
        )

    def add(
        self,
        url: str,
        events: Sequence[str],
        description: str,
        secret: str,
        now: float,
        endpoint_id: str,
    ) -> EndpointRow:
        """Register an endpoint; ValueError for an event type that cannot be subscribed to."""
        unknown = [name for name in events if name not in SUBSCRIBABLE]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} cannot be subscribed to; there are {', '.join(SUBSCRIBABLE)}"
            )
        row = EndpointRow(endpoint_id, url, description, tuple(events), now, secret)
        self.endpoints[endpoint_id] = row
        return row

    def next_number(self) -> int:
        """Return the number of the next post, media item or comment."""
        self.numbered += 1
        return self.numbered

    def remove_post(self, post: PostRow) -> None:
        """Remove a post; a cursor that names it keeps its place."""
        del self.posts[post.id]
        self.removed[post.id] = post.number

    def keep_comment(self, received: ReceivedComment, now: float) -> None:
        """Let a comment that an event tells of be one that can be listed and answered."""
        written = now if received.created_at is None else received.created_at.timestamp()
        comment = Comment(**{name: getattr(received, name) for name in Comment.model_fields})
        known = self.comments.get(received.id)
        number = self.next_number() if known is None else known.number
        self.comments[received.id] = CommentRow(comment, number, written, received.post_id)
        if len(self.comments) > _COMMENTS_KEPT:
            del self.comments[next(iter(self.comments))]

    def posts_this_month(self, now: float) -> set[str]:
        """Return the ids of the posts that count toward the limit of the month."""
        local = datetime.fromtimestamp(now, self.zone)
        if self.usage.month != (local.year, local.month):
            self.usage.month, self.usage.posts = (local.year, local.month), set()
        return self.usage.posts
