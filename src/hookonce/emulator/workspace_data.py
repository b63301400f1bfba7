"""The description of a workspace, read from a file: the channels, posts and keys at the start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, ValidationError, model_validator

from ..errors import NeedsExtra
from ..resources import Channel, ReceivedComment
from ..samples.finite import non_finite
from .content import ChannelRow
from .described import (
    Described,
    DescribedChannel,
    DescribedComment,
    DescribedDelay,
    DescribedFault,
    DescribedKey,
    DescribedLimits,
    DescribedMedia,
    DescribedPost,
    DescribedWebhook,
    slots_of,
    unix_seconds_or,
)
from .platforms import one_of
from .rules import PLANS, Allowances
from .workspace import WorkspaceState, zone_of


def _zone(name: str) -> str:
    zone_of(name)
    return name


class WorkspaceData(Described):
    """The description of a workspace; every part is optional.

    Get it from ``WorkspaceData.load``, or from ``WorkspaceData.model_validate`` for a mapping.
    Each attribute is a field of the description; in the file, names are written ``likeThis``.

    Attributes:
        id: the workspace's id in events.
        name: the name for people.
        slug: the name in URLs.
        timezone: the IANA zone of queue slots.
        plan: free, starter, pro or agency.
        keys: API keys that programs already know.
        channels: the channels; by default a bakery's thirteen.
        media: finished uploads.
        posts: posts in any order; lists sort them by their creation.
        comments: comments by other people.
        webhooks: registered endpoints.
        limits: the limits whose numbers the interface does not show, and the rest of the first
            day's quota.
        faults: failing platforms.
        slow: slow platforms.
    """

    id: str | None = None
    name: str = "Harbour Bakery"
    slug: str = "harbour-bakery"
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    plan: Annotated[str, one_of(PLANS)] = "agency"
    keys: Sequence[DescribedKey] = ()
    channels: Sequence[DescribedChannel] | None = None
    media: Sequence[DescribedMedia] = ()
    posts: Sequence[DescribedPost] = ()
    comments: Sequence[DescribedComment] = ()
    webhooks: Sequence[DescribedWebhook] = ()
    limits: DescribedLimits = DescribedLimits()
    faults: Sequence[DescribedFault] = ()
    slow: Sequence[DescribedDelay] = ()

    @model_validator(mode="before")
    @classmethod
    def _has_finite_numbers(cls, described: object) -> object:
        place = non_finite(described)
        if place is not None:
            raise ValueError(f"{place or 'it'} is not a finite number: JSON has no NaN or Infinity")
        return described

    @model_validator(mode="after")
    def _names_what_is_there(self) -> Self:
        for rows in (self.channels or (), self.media, self.posts, self.comments):
            ids = [row.id for row in rows]
            if twice := {one for one in ids if ids.count(one) > 1}:
                raise ValueError(f"two have the same id {min(twice)!r}")
        if self.channels is None:
            return self
        known = {channel.id for channel in self.channels}
        named = {target.channel_id for post in self.posts for target in post.targets}
        named |= {comment.channel_id for comment in self.comments}
        named |= {fault.channel_id for fault in self.faults if fault.channel_id is not None}
        named |= {delay.channel_id for delay in self.slow if delay.channel_id is not None}
        if missing := named - known:
            raise ValueError(f"there is no channel {min(missing)!r}")
        return self

    @classmethod
    def load(cls, path: Path | str) -> WorkspaceData:
        """Load a description from a file: YAML if it ends in .yaml or .yml, else JSON.

        Raises:
            ValueError: the file is not valid; the message says why.
            OSError: the file cannot be read.
            ImportError: the file is YAML, and PyYAML is not installed.
        """
        path = Path(path)
        text = path.read_text("utf-8")
        described = _yaml(text) if path.suffix in {".yaml", ".yml"} else json.loads(text)
        try:
            return cls.model_validate({} if described is None else described)
        except ValidationError as error:
            raise ValueError(_problems(error)) from None


def empty_workspace(
    data: WorkspaceData, default_id: str, *, plan: str | None, service: str
) -> WorkspaceState:
    """Return the workspace of a description, still without channels, media, posts and comments.

    Args:
        default_id: the workspace's id if the description has none.
        plan: replaces the described plan, unless it is None.
        service: the name in the service's own headers and keys.

    Raises:
        ValueError: there is no such plan.
    """
    return WorkspaceState(
        id=data.id or default_id,
        plan=plan or data.plan,
        service=service,
        name=data.name,
        slug=data.slug,
        timezone=data.timezone,
        allowances=Allowances(**data.limits.model_dump(exclude={"requests_left"})),
    )


def fill(
    workspace: WorkspaceState,
    data: WorkspaceData,
    channels: Sequence[Channel],
    now: float,
    new_id: Callable[[str], str],
) -> None:
    """Add the described channels, media, posts and comments to a workspace.

    Args:
        channels: the channels if the description has none.
        new_id: makes an id, given its prefix.

    Raises:
        ValueError: a post or comment names an unknown channel.
    """
    if data.channels is None:
        rows = [ChannelRow(channel, slots_of()) for channel in channels]
    else:
        rows = [channel.row() for channel in data.channels]
    workspace.channels.update({row.id: row for row in rows})
    for media in data.media:
        workspace.media[media.id] = media.row(workspace.next_number(), now)
    for post in sorted(data.posts, key=lambda one: unix_seconds_or(one.created_at, now)):
        try:
            row = post.row(workspace.next_number(), now, workspace.channels, new_id)
        except KeyError as error:
            raise ValueError(f"there is no channel {error}") from None
        workspace.posts[post.id] = row
    for comment in data.comments:
        channel = workspace.channels.get(comment.channel_id)
        if channel is None:
            raise ValueError(f"there is no channel {comment.channel_id!r}")
        received = ReceivedComment(platform=channel.platform, **comment.model_dump())
        workspace.keep_comment(received, now)


def _yaml(text: str) -> object:
    with NeedsExtra("emulator", "a YAML file (unlike JSON)", "yaml"):
        yaml = import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}"
        raise ValueError(f"this is not YAML{place}: {getattr(error, 'problem', error)}") from None


def _problems(error: ValidationError) -> str:
    faults = error.errors(include_input=False, include_context=False, include_url=False)
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'the workspace'}: {fault['msg']}"
        for fault in faults[:5]
    )
