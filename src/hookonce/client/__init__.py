"""A typed client of the service's API: posts, media, comments, channels and webhook endpoints.

It needs the extra ``client``: pip install 'hookonce[client]'.
"""

from __future__ import annotations

from ..errors import NeedsExtra

with NeedsExtra("client", "the client", "httpx2"):
    from .client import Channels, Client
from .comments import Comments
from .deprecated import PostLike
from .errors import (
    ApiError,
    ApiKeyError,
    ClientError,
    ConflictError,
    InternalError,
    LimitError,
    NoAnswerError,
    NotFoundError,
    PermissionDeniedError,
    PlatformError,
    UnreadableAnswerError,
    UploadError,
    ValidationFailedError,
)
from .keys import EnvironmentKey, FileKey, KeyProvider, KeySource
from .listing import Listing
from .media import MediaLibrary, Progress, Source
from .posts import Posts
from .quota import Quota, QuotaListener
from .webhooks import Webhooks

__all__ = [
    "ApiError",
    "ApiKeyError",
    "Channels",
    "Client",
    "ClientError",
    "Comments",
    "ConflictError",
    "EnvironmentKey",
    "FileKey",
    "InternalError",
    "KeyProvider",
    "KeySource",
    "LimitError",
    "Listing",
    "MediaLibrary",
    "NoAnswerError",
    "NotFoundError",
    "PermissionDeniedError",
    "PlatformError",
    "PostLike",
    "Posts",
    "Progress",
    "Quota",
    "QuotaListener",
    "Source",
    "UnreadableAnswerError",
    "UploadError",
    "ValidationFailedError",
    "Webhooks",
]
