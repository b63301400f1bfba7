"""Names of a post's fields: old ones become new ones, and misspelt ones are refused.

Old names are taken with a warning, and sent under the new ones (interface, Versioning: 5).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

from ..resources import PostInput, PostTargetInput

PostLike: TypeAlias = PostInput | Mapping[str, Any]
"""A post to send: an input, or a mapping of its fields by either of their names."""

SentT = TypeVar("SentT", PostInput, PostTargetInput)

_WHAT = {PostInput: "post", PostTargetInput: "target"}
_OF_A_POST = {"base_caption": "caption", "base_media_ids": "media_ids"}
_OF_A_TARGET = {"social_account_id": "channel_id"}


def current_names(post: PostLike) -> PostInput:
    """Return a post to send with no old name in it.

    Raises:
        ValueError: an old name and the new one hold different values, or the interface lists no
            such name: a misspelt caption would be none, and a replacement would remove the old one.
            A ``ValidationError`` of pydantic, for a mapping that is no post, is one as well.

    """
    if not isinstance(post, PostInput):
        post = PostInput.model_validate(post)
    targets = []
    for target in post.targets:
        targets.append(_renamed(target, _OF_A_TARGET))  # noqa: PERF401 - a frame less to warn past
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
                f"{old} is the old name of {new}, and the two differ; give {new} alone"
            )
        # Shown where the operation is called: past this function, its caller and the operation.
        warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=4)
        update |= {old: None, new: value}
    return sent.model_copy(update=update) if update else sent
