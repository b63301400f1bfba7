"""The content types and settings of each platform, and which platforms allow first comments.

The interface names the platforms, content types and settings (Resources: Channel, PostTarget, Post
input). It does not show which platform accepts which: those tables are the emulator's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, Strict, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from ..resources import ContentType

PLATFORMS = (
    "instagram",
    "facebook",
    "youtube",
    "threads",
    "tiktok",
    "linkedin",
    "x",
    "bluesky",
    "pinterest",
    "google_business",
    "shopee",
)
"""The social networks (interface, Resources: Channel, platform)."""

CONTENT_TYPES: tuple[ContentType, ...] = (
    "feed",
    "photo",
    "post",
    "text",
    "carousel",
    "reels",
    "video",
    "short",
    "story",
)
"""The content types of all platforms (interface, Resources: PostTarget, contentType)."""

NEEDS_MEDIA = frozenset({"photo", "carousel", "reels", "video", "short", "story"})
"""The content types that need an image or a video."""

FIRST_COMMENTS = frozenset({"instagram", "facebook", "linkedin"})

# The first content type of a platform is for a single image or video. A platform that is missing
# here has only `post`.
_CONTENT_TYPES: Mapping[str, tuple[ContentType, ...]] = {
    "instagram": ("feed", "carousel", "reels", "story"),
    "facebook": ("photo", "feed", "video", "reels", "story"),
    "youtube": ("video", "short"),
    "threads": ("post", "text", "carousel"),
    "tiktok": ("video", "carousel"),
    "linkedin": ("post", "text", "carousel"),
    "x": ("post", "text"),
    "bluesky": ("post", "text"),
    "pinterest": ("photo", "video"),
    "shopee": ("video",),
}

_Text = Annotated[str, Strict()]
_PRIVACY: TypeAdapter[object] = TypeAdapter(Literal["public", "unlisted", "private"])
_TITLE: TypeAdapter[object] = TypeAdapter(Annotated[_Text, Field(max_length=100)])
_TEXT: TypeAdapter[object] = TypeAdapter(_Text)
_TEXTS: TypeAdapter[object] = TypeAdapter(list[_Text])
_YES_OR_NO: TypeAdapter[object] = TypeAdapter(Annotated[bool, Strict()])

# The settings that the interface names: "title, privacy, categoryId, tags, madeForKids" (Resources:
# Post input), and settings.boardId for Pinterest (Endpoints: Channels).
_SETTINGS: Mapping[str, Mapping[str, TypeAdapter[object]]] = MappingProxyType(
    {
        "youtube": {
            "title": _TITLE,
            "privacy": _PRIVACY,
            "categoryId": _TEXT,
            "tags": _TEXTS,
            "madeForKids": _YES_OR_NO,
        },
        "tiktok": {"privacy": _PRIVACY},
        "pinterest": {"title": _TITLE, "boardId": _TEXT},
    }
)


def one_of(names: Collection[str]) -> AfterValidator:
    """Return a validator that accepts only these names."""

    def check(name: str) -> str:
        if name not in names:
            raise PydanticCustomError(
                "one_of", "Input should be one of {names}", {"names": ", ".join(names)}
            )
        return name

    return AfterValidator(check)


def content_types(platform: str) -> tuple[ContentType, ...]:
    """Return the content types of a platform; the first is for a single image or video."""
    return _CONTENT_TYPES.get(platform, ("post",))


def settings_issues(platform: str, settings: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return a message for each setting whose value has a wrong type or is not allowed."""
    issues = {}
    for name, schema in _SETTINGS.get(platform, {}).items():
        if name not in settings:
            continue
        try:
            schema.validate_python(settings[name])
        except ValidationError as error:
            issues[name] = error.errors(include_input=False, include_url=False)[0]["msg"]
    return issues


def unknown_settings(platform: str, settings: Mapping[str, JsonValue]) -> list[str]:
    """Return the names of settings that the platform does not have."""
    return [name for name in settings if name not in _SETTINGS.get(platform, {})]
