"""Generated data of every documented event type: varied, realistic, and repeatable by its seed.

The interface names every field and every enum value here (Resources; Events: Delivery format). A
receiver should not rely on the rest, which is the emulator's own: prefixes of ids, codes and
messages of failed targets, reasons of a channel's status, kinds and texts of messages, and the
content types of each platform. Settings stay empty, because the interface does not show their keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from string import ascii_letters, digits

from pydantic import JsonValue

from ..clock import Clock, system_clock, utc
from ..resources import Channel, PostTarget, ReceivedComment, TargetError
from .platforms import FIRST_COMMENTS, content_types

DIRECT_MESSAGE = "direct_message"
STORY_REPLY = "story_reply"

_WEIGHTS: Mapping[str, int] = {
    "comment.received": 50,
    "post.target.published": 25,
    "message.received": 15,
    "post.target.failed": 5,
    "channel.unhealthy": 3,
    "channel.disconnected": 2,
}
_MEDIA_COUNTS: Mapping[str, tuple[int, int]] = {"text": (0, 0), "carousel": (2, 10), "post": (0, 4)}
# The platforms for which the emulator makes long captions. The service accepts 63206 characters on
# every platform.
_LONG_CAPTIONS = frozenset({"facebook", "linkedin"})

# Platform, id, username, display name and followers of each channel. The channels never change, so
# that the ids in a receiver's database stay valid when the emulator starts again.
_WORKSPACE: tuple[tuple[str, str, str, str, int | None], ...] = (
    ("instagram", "ch_7Qm2xKfP", "harbour.bakery", "Harbour Bakery", 18_240),
    ("facebook", "ch_3Hd8vLwR", "harbourbakery", "Harbour Bakery", 9_115),
    ("tiktok", "ch_9Bn4cYtE", "harbour.bakes", "Harbour Bakes 🥐", 52_874),
    ("threads", "ch_2Xs6mJkU", "harbour.bakery", "Harbour Bakery", 1_403),
    ("youtube", "ch_8Gf1pQzA", "HarbourBakery", "Harbour Bakery — Backstube", 3_290),
    ("linkedin", "ch_5Wr7nDbV", "harbour-bakery-lda", "Harbour Bakery, Lda.", 412),
    ("x", "ch_4Kt9hMxC", "harbourbakery", "Harbour Bakery", 2_051),
    ("bluesky", "ch_6Py3sFgN", "harbour-bakery.example", "harbour bakery", 388),
    ("pinterest", "ch_1Lc5jRvT", "harbourbakery", "Harbour Bakery", None),
    ("google_business", "ch_0Ze2uHqB", "harbour-bakery-porto", "Harbour Bakery Porto", None),
    ("shopee", "ch_7Vk8aWnS", "harbour_pantry", "港口烘焙坊", 27),
    ("instagram", "ch_3Mj6tCyD", "hafen.cafe", "Café am Hafen ☕", 760),
    ("facebook", "ch_9Ux4gBpK", "hafencafe", "Café am Hafen", None),
)
_MILLISECOND = timedelta(milliseconds=1)  # the service's times have this precision
_NO_AVATAR = frozenset({"google_business", "shopee", "bluesky"})

_CAPTIONS = (
    "Fresh out of the oven: walnut bread 🍞 until noon today.",
    "Sunday is for slow mornings.\n\nCroissants from 8, coffee from 7:30 ☕🥐\n\n#bakery #sunday",
    "Wir suchen Verstärkung für unsere Backstube! Schreib uns über den Link im Profil 👩🏽‍🍳",
    "Novo horário de verão: terça a domingo, das 7h às 20h. Até já! 🌞",
    "新しい抹茶クロワッサンが登場しました🍵 数量限定、なくなり次第終了です。",
    "خبز الزعتر الطازج كل صباح 🌿 بانتظاركم",
    "Дорогі друзі, завтра зачинено — готуємо свято 🎉",
    "오늘의 빵은 크림치즈 베이글입니다 🥯 #빵스타그램",
    'They said "nobody eats rye anymore" — the queue says <otherwise> & so do we.',
    "आज की ताज़ा ब्रेड तैयार है 🙏",
    "Teşekkürler İzmir! 1000 simit, 1 gün 🥨🇹🇷",
    "2 for 1 on everything left after 18:00 ♻️ https://harbour-bakery.example/save?utm=post&d=1",
)
_REMARKS = (
    "Do you have the walnut bread on Saturdays? 🍞",
    "😍😍😍",
    "first!",
    "Is this gluten free? My daughter is coeliac, so I would rather ask twice.",
    "Wann macht ihr am Feiertag auf?",
    "Adorei! Parabéns à equipa toda 👏🏻",
    "これ、まだありますか…",
    "كم السعر من فضلك؟",
    "Чекаємо на відкриття в Одесі ❤️",
    "정말 맛있어요 👍",
    "@mara.k look at these!!\nSaturday?",
    "Ordered on Tuesday, nothing so far, and nobody picks up the phone. Who looks after #20417?",
    "👨‍👩‍👧‍👦 = 4 🥐",
    'The "large" one is rather small, isn\'t it? :/',
)
_AUTHORS: tuple[tuple[str | None, str | None], ...] = (
    ("ines.walks", "Inês"),
    ("tomasz_k", None),
    ("mara.k", "Mara Köhler"),
    ("yuki_0423", "田中ゆき"),
    (None, "Олена Шевченко"),
    ("layla.eats", "ليلى"),
    ("bread.pitt", "Bread Pitt 🍞"),
    (None, None),
)
_ERRORS: tuple[tuple[str, str | None], ...] = (
    ("media.rejected", "The platform rejected the image."),
    ("media.aspect_ratio", "The video must be upright, 9:16."),
    ("caption.too_long", "The caption is longer than the platform allows."),
    ("channel.permission_missing", "The account no longer allows publishing."),
    ("platform.unavailable", None),
)
_STATUS_REASONS = (
    "The access token has expired.",
    "The password of the account was changed.",
    "A permission was withdrawn on the platform.",
    None,
)


class EventGenerator:
    """Generates the data of one workspace's events.

    Args:
        seed: the same seed, clock and calls give the same data; a ``Random`` is used as it is; by
            default every generator gives different data.
        clock: the present; all generated times are before it.
        channels: the workspace's channels; by default a bakery's, with every documented platform.
    """

    def __init__(
        self,
        seed: int | Random | None = None,
        *,
        clock: Clock = system_clock,
        channels: Sequence[Channel] = (),
    ) -> None:
        self._random = seed if isinstance(seed, Random) else Random(seed)  # noqa: S311 - not used for secrets
        self._clock = clock
        self.channels: tuple[Channel, ...] = tuple(channels) or tuple(
            Channel(
                id=channel_id,
                platform=platform,
                username=username,
                display_name=display_name,
                avatar_url=None
                if platform in _NO_AVATAR
                else f"https://cdn.example/avatars/{channel_id}.jpg",
                status="active",
                status_reason=None,
                follower_count=followers,
                connected_at=None if platform == "shopee" else self._ago(timedelta(days=600)),
            )
            for platform, channel_id, username, display_name, followers in _WORKSPACE
        )

    @property
    def active_channels(self) -> tuple[Channel, ...]:
        """The active channels; all channels if none is active."""
        active = tuple(channel for channel in self.channels if channel.status == "active")
        return active or self.channels

    def event_type(self) -> str:
        """Return a random event type: often a comment, seldom a lost channel, never a test."""
        return self._random.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0]

    def data(self, event_type: str, *, channel: Channel | None = None) -> dict[str, JsonValue]:
        """Return the data of an event under its wire names, with every field of its resource.

        Args:
            event_type: a type of the interface (Events: Event types). The data of ``webhook.test``
                is not shown there, so it is empty, as it is for unknown types.
            channel: the channel of the event; by default any active one, and any of the
                workspace's for an event about a channel.
        """
        if channel is None:
            lost = event_type.startswith("channel.")
            channel = self._random.choice(self.channels if lost else self.active_channels)
        match event_type:
            case "post.target.published":
                return self._target(channel, published=True)
            case "post.target.failed":
                return self._target(channel, published=False)
            case "comment.received":
                return self._comment(channel)
            case "message.received":
                kind = self._random.choice((DIRECT_MESSAGE, STORY_REPLY))
                return {"message": {"kind": kind, "text": self.remark()}}
            case "channel.unhealthy":
                return self._lost(channel, self._random.choice(("needs_reconnect", "error")))
            case "channel.disconnected":
                return self._lost(channel, "disconnected")
            case _:
                return {}

    def new_id(self, prefix: str) -> str:
        """Return a new id: ``prefix_`` and 12 letters and digits."""
        return f"{prefix}_{''.join(self._random.choices(ascii_letters + digits, k=12))}"

    def remark(self) -> str:
        """Return a random text of a comment or message."""
        return self._random.choice(_REMARKS)

    def _target(self, channel: Channel, *, published: bool) -> dict[str, JsonValue]:
        content_type = self._random.choice(content_types(channel.platform))
        media_count = self._random.randint(*_MEDIA_COUNTS.get(content_type, (1, 1)))
        first_comment = channel.platform in FIRST_COMMENTS and self._once_in(3)
        external_id = self._external_id()
        code, message = self._random.choice(_ERRORS)
        return PostTarget(
            id=self.new_id("tgt"),
            channel_id=channel.id,
            platform=channel.platform,
            username=channel.username,
            content_type=content_type,
            caption=self._caption(channel),
            media_ids=[self.new_id("med") for _ in range(media_count)],
            first_comment="#bread #porto #パン" if first_comment else None,
            settings={},
            status="published" if published else "failed",
            external_post_id=external_id if published else None,
            permalink=self._permalink(channel, external_id) if published else None,
            error=None if published else TargetError(code=code, message=message),
            # At most 5 seconds ago, because the event comes "as soon as the result is known"
            # (interface, Events: rule 2).
            published_at=self._ago(timedelta(seconds=5)) if published else None,
        ).model_dump(mode="json")

    def _caption(self, channel: Channel) -> str | None:
        if self._once_in(3):
            return None  # null means that the post's own caption applies
        paragraphs = 1
        if channel.platform in _LONG_CAPTIONS and self._once_in(5):
            paragraphs = self._random.randint(20, 200)
        return "\n\n".join(self._random.choices(_CAPTIONS, k=paragraphs))

    def _comment(self, channel: Channel) -> dict[str, JsonValue]:
        username, name = self._random.choice(_AUTHORS)
        return ReceivedComment(
            id=self.new_id("cmt"),
            text=self.remark(),
            status="open",
            is_hidden=self._once_in(20),
            channel_id=channel.id,
            platform=channel.platform,
            external_post_id=None if self._once_in(10) else self._external_id(),
            author_username=username,
            author_name=name,
            # Up to 15 minutes ago, because on polled platforms the event comes minutes after the
            # comment (interface, Events: rule 2).
            created_at=None if self._once_in(20) else self._ago(timedelta(minutes=15)),
            post_id=None if self._once_in(4) else self.new_id("post"),
            parent_id=self.new_id("cmt") if self._once_in(4) else None,
        ).model_dump(mode="json")

    def _lost(self, channel: Channel, status: str) -> dict[str, JsonValue]:
        reason = self._random.choice(_STATUS_REASONS)
        return channel.model_dump(mode="json") | {"status": status, "statusReason": reason}

    def _external_id(self) -> str:
        return "17" + "".join(self._random.choices(digits, k=15))

    def _permalink(self, channel: Channel, external_id: str) -> str | None:
        host = channel.platform.replace("_", "-")
        return None if self._once_in(10) else f"https://{host}.example/p/{external_id}"

    def _once_in(self, times: int) -> bool:
        return self._random.randrange(times) == 0

    def _ago(self, longest: timedelta) -> datetime:
        now = utc(round(self._clock(), 3))
        return now - timedelta(milliseconds=self._random.randrange(longest // _MILLISECOND))
