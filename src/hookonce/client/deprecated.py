"""Replaces deprecated names of a post's fields, and refuses misspelt names.

An old name is accepted with a warning and sent under the new name (interface, Versioning: 5).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

from ..resources import PostInput, PostTargetInput

PostLike: TypeAlias = PostInput | Mapping[str, Any]
"""A post to send: a ``PostInput``, or a mapping of its fields in either spelling."""

SentT = TypeVar("SentT", PostInput, PostTargetInput)

_WHAT = {PostInput: "post", PostTargetInput: "target"}
_OF_A_POST = {"base_caption": "caption", "base_media_ids": "media_ids"}
_OF_A_TARGET = {"social_account_id": "channel_id"}


def current_names(post: PostLike) -> PostInput:
    """Return a post with the current names of its fields.

    Raises:
        ValueError: an old name and its new name hold different values; or the interface does not
            list a name (a post with a misspelt caption would replace the old caption with none).
            Pydantic's ``ValidationError``, for a mapping that is not a post, is a ValueError too.
    """
    if not isinstance(post, PostInput):
        post = PostInput.model_validate(post)
    targets = []
    for target in post.targets:
        # Use a loop: in Python 3.11 a comprehension has its own frame, so `stacklevel` would name
        # the wrong line.
        targets.append(_renamed(target, _OF_A_TARGET))  # noqa: PERF401 - a loop, for the reason above
    return _renamed(post, _OF_A_POST).model_copy(update={"targets": targets})


def _renamed(sent: SentT, names: Mapping[str, str]) -> SentT:
    for name in sent.model_extra or {}:
        fields = {field.replace("_", ""): field for field in type(sent).model_fields}
        like = get_close_matches(name.replace("_", "").lower(), fields, 1)
        hint = f"did you mean {fields[like[0]]}?" if like else "leave it out"
        raise ValueError(f"a {_WHAT[type(sent)]} has no field {name!r}; {hint}")
    update: dict[str, object] = {}
    for old, new in names.items():
        value, known = getattr(sent, old), getattr(sent, new)
        if value is None:
            continue
        if known is not None and known != value:
            raise ValueError(
                f"{old} is the old name of {new}, and their values differ; give {new} only"
            )
        # Level 4 is the user's line. Levels 3 to 1 are the client's operation, the caller of this
        # function, and this function.
        warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=4)
        update |= {old: None, new: value}
    return sent.model_copy(update=update) if update else sent
