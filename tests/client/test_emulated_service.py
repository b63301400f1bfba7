"""The client works with the emulator, also in cases that no documented exchange shows.

Every kind of error, whole uploads, the test operation, and a publication with its event.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.exchanges import NOON
from support.workspaces import Bakery, bakery

from hookonce import Receiver
from hookonce.client import (
    ApiError,
    Client,
    ConflictError,
    InternalError,
    LimitError,
    NotFoundError,
    PermissionDeniedError,
    PlatformError,
    ValidationFailedError,
)
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.events import PostTargetFailed, PostTargetPublished
from hookonce.resources import Post, PostInput, PostTargetInput
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

NOWHERE = PostInput(targets=[PostTargetInput(channel_id="ch_nowhere")])


@asynccontextmanager
async def client_of(service: EmulatedService, role: str = "admin") -> AsyncIterator[Client]:
    transport = httpx2.ASGITransport(service.api)
    key = service.new_key(role)
    async with Client("https://service.test", key, transport=transport, patience=0) as client:
        yield client


async def replied(here: Bakery, client: Client) -> Any:
    here.service.faults.platform_fails(code="comment.too_old")
    return await client.comments.reply("cmt_gluten", "Thank you!")


async def without_quota(here: Bakery, client: Client) -> Any:
    here.service.leave_quota(0)
    return await client.me()


KINDS: dict[type[ApiError], tuple[int, Callable[[Bakery, Client], Awaitable[Any]]]] = {
    ValidationFailedError: (422, lambda _, client: client.posts.create(NOWHERE)),
    NotFoundError: (404, lambda _, c: c.posts.get("nowhere")),
    ConflictError: (409, lambda _, c: c.posts.delete("post_walnut")),
    LimitError: (429, without_quota),
    PlatformError: (502, replied),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_refusal_is_a_class_of_its_own(kind: type[ApiError]) -> None:
    status, ask = KINDS[kind]
    async with bakery() as here, client_of(here.service) as client:
        with pytest.raises(kind) as caught:
            await ask(here, client)
    assert caught.value.status == status
    assert caught.value.path.startswith("/v1/")


async def test_a_forbidden_role_or_plan_is_a_permission_error() -> None:
    async with bakery() as here, client_of(here.service, "viewer") as client:
        with pytest.raises(PermissionDeniedError) as caught:
            await client.posts.publish("post_draft")
        assert caught.value.status == 403
    async with EmulatedService(plan="free") as service, client_of(service) as client:
        with pytest.raises(PermissionDeniedError) as caught:
            await client.me()
        assert (caught.value.status, caught.value.code) == (402, "api.not_on_plan")


async def test_a_fault_of_the_service_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(EmulatedService, "test", broken)
    async with bakery() as here, client_of(here.service) as client:
        with pytest.raises(InternalError):
            await client.webhooks.test(here.service.endpoint().id)


async def test_a_requested_test_event_is_delivered_and_logged() -> None:
    async with bakery() as here, client_of(here.service) as client:
        webhook_id = here.service.endpoint().id
        await client.webhooks.test(webhook_id)
        [delivery] = [one async for one in client.webhooks.deliveries(webhook_id)]
        assert (delivery.is_test, delivery.event_type) == (True, "webhook.test")
        assert [event["type"] for event in here.events] == ["webhook.test"]
        shown = await client.webhooks.read(webhook_id)
        assert shown is not None
        assert shown.status == "active"


@pytest.mark.parametrize("name", ["rye.png", "rye.mp4"])  # once by PUT, once by POST
async def test_a_file_is_uploaded_in_three_steps(tmp_path: Path, name: str) -> None:
    head = b"\x89PNG\r\n\x1a\n" if name.endswith("png") else b"\x00\x00\x00\x18ftypisom"
    path = tmp_path / name
    await asyncio.to_thread(path.write_bytes, head + bytes(600_000))
    told: list[tuple[int, int]] = []
    async with bakery() as here, client_of(here.service) as client:
        media = await client.media.upload(path, progress=lambda *sent: told.append(sent))
        assert (media.status, media.filename) == ("ready", name)
        assert told[-1] == (len(head) + 600_000, len(head) + 600_000)
        assert len(told) > 1
        assert media.id in [one.id async for one in client.media.list()]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_publication_is_reported_by_its_event_or_else_by_the_poll(
    is_lost: bool,
) -> None:
    clock, secret = VirtualClock(NOON), new_secret()
    receiver = Receiver(secrets=secret, store="memory://", clock=clock)
    async with (
        EmulatedService(receiver, clock=clock, seed=1) as service,
        client_of(service) as client,
    ):
        [channel, *_] = [one.id async for one in client.channels.list()]
        targets = [PostTargetInput(channel_id=channel, content_type="post", caption="Rye.")]
        saved = await client.posts.create(PostInput(targets=targets, caption="Rye."))
        own = {target.id for target in (await client.posts.get(saved.id)).targets}
        if is_lost:
            service.faults.lose_webhook()

        async def settled() -> Post | None:
            post = await client.posts.get(saved.id)
            return None if post.status == "publishing" else post

        await client.posts.publish(saved.id)
        await service.advance(minutes=1)  # the event comes before anybody waits for it
        async with receiver.expecting(
            PostTargetPublished,
            PostTargetFailed,
            where=lambda event: event.data.id in own,
            within=5,
            poll=settled,
        ) as expected:
            result = await expected.first()
    assert isinstance(result, Post if is_lost else PostTargetPublished)
