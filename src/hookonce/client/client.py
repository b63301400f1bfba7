"""The client: every documented operation of the service."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Literal, Self

import httpx2

from ..clock import span_seconds
from ..errors import shows_half_built
from ..resources import API_URL_VARIABLE, Channel, Me, Page
from .addresses import fault_of_address
from .comments import Comments
from .connection import Connection, Item, Operation
from .errors import ApiKeyError
from .keys import EnvironmentKey, HiddenKey, KeySource
from .listing import Listing
from .media import MediaLibrary
from .posts import Posts
from .quota import Quota, QuotaListener, QuotaWatch
from .webhooks import Webhooks


class Channels:
    """Operations on channels (interface, Endpoints: Channels); each raises ``ClientError``.

    Get it from ``Client.channels``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, include_disconnected: bool = False) -> Listing[Channel]:
        """Return the connected channels.

        Args:
            include_disconnected: return disconnected channels as well.
        """
        wanted: Literal["true"] | None = "true" if include_disconnected else None
        query = {"includeDisconnected": wanted}
        return Listing(self._connection, Page[Channel], "/v1/channels", query)


@shows_half_built
class Client:
    """A typed client of the service's API; an async context manager.

    Every operation raises ``ClientError``; ``hookonce.client.errors`` lists its kinds. The client
    repeats a request if the service asks for it (429) and if a repetition is safe: the operation
    only reads, or the request was never sent.

    Args:
        base_url: the address of the service, with or without ``/v1`` at the end; by default the
            environment variable ``HOOKONCE_API_URL``.
        key: the API key, or a provider such as ``FileKey``; by default the environment variable
            ``HOOKONCE_API_KEY``.
        patience: how long one call may wait in all before repetitions: seconds or a ``timedelta``.
        answer_seconds: how long one answer may take: seconds or a ``timedelta``.
        on_quota: called once with the ``Quota`` when little of the day's quota is left.
        quota_reserve: which part of the quota is little, from 0 to 1.
        allow_http: allow http to hosts other than this machine; the network can then read the key.
        transport: the transport of httpx2, for tests; the network by default.

    Raises:
        ApiKeyError: the key cannot be used, or there is none.
        ValueError: another argument cannot be used; the message says what to do.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: KeySource | None = None,
        *,
        patience: float | timedelta = 30.0,
        answer_seconds: float | timedelta = 30.0,
        on_quota: QuotaListener | None = None,
        quota_reserve: float = 0.1,
        allow_http: bool = False,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        # Read the key first and delete the argument: error trackers send the local variables of
        # every frame.
        try:
            known = HiddenKey(EnvironmentKey() if key is None else key)
        except ApiKeyError as error:
            raise error.with_traceback(None) from None
        finally:
            del key
        if base_url is None:
            base_url = os.environ.get(API_URL_VARIABLE, "").strip()
            if not base_url:
                raise ValueError(
                    f"give base_url, or set the environment variable {API_URL_VARIABLE}"
                )
        fault = fault_of_address(base_url, allow_http=allow_http)
        if fault is None and "?" in base_url:
            fault = "takes no query"
        if fault is not None:
            del base_url  # the URL may hold a password
            refusal = ValueError(f"base_url {fault}")
            refusal.add_note("Client(…, allow_http=True) allows http to other machines")
            raise refusal
        if not 0 <= quota_reserve <= 1:
            raise ValueError(f"quota_reserve is a part, from 0 to 1, not {quota_reserve!r}")
        self._watch = QuotaWatch(on_quota, quota_reserve)
        self._connection = Connection(
            base_url,
            known,
            patience=span_seconds("patience", patience),
            answer_seconds=span_seconds("answer_seconds", answer_seconds, positive=True),
            watch=self._watch,
            allow_http=allow_http,
            transport=transport,
        )
        self.channels: Channels = Channels(self._connection)
        self.posts: Posts = Posts(self._connection)
        self.media: MediaLibrary = MediaLibrary(self._connection)
        self.comments: Comments = Comments(self._connection)
        self.webhooks: Webhooks = Webhooks(self._connection)

    def __repr__(self) -> str:
        return f"Client({self._connection.base_url!r})"

    @property
    def quota(self) -> Quota | None:
        """The quota that the service has last reported; None before the first report."""
        return self._watch.current

    async def me(self) -> Me:
        """Return the key's name, role and workspace: the cheapest way to check a key."""
        return (await self._connection.ask(_ME, Item[Me])).data

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_ME = Operation("GET", "/v1/me", is_repeatable=True)
