"""`non_finite` finds NaN and infinities at any depth; functions refuse them as arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from hookonce import Backoff, Inbox, Limits, Receiver, Retry, Verifier, sign
from hookonce.client import Client
from hookonce.emulator import Chaos, EmulatedService, WorkspaceData
from hookonce.events import CommentReceived
from hookonce.resources import PostInput
from hookonce.samples.finite import non_finite
from hookonce.testing import event_body, make_event, signed_request
from hookonce.verification.secrets import new_secret

SECRET = new_secret()
BAD = [nan, inf, -inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda bad: bad, ""),
        (lambda bad: [1, bad], "1"),
        (lambda bad: {"a": [{"b": (0.5, bad)}], "c": 1}, "a.0.b.1"),
    ],
)
def test_a_number_that_is_not_finite_is_found(
    wrap: Callable[[float], Any], place: str, bad: float
) -> None:
    assert non_finite(wrap(bad)) == place


def test_finite_numbers_pass_even_in_a_list_that_contains_itself() -> None:
    endless: list[object] = [1, 1e308, "NaN", None, True, {"inf": -0.0}]
    endless.append(endless)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert non_finite(endless) is None
    assert non_finite(deep) is None


def _service(**settings: Any) -> EmulatedService:
    return EmulatedService(secret=SECRET, **settings)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "give",
    [
        pytest.param(lambda bad: Receiver(secrets=SECRET, tolerance=bad), id="Receiver.tolerance"),
        pytest.param(lambda bad: Verifier(SECRET, tolerance=bad), id="Verifier.tolerance"),
        pytest.param(lambda bad: sign(SECRET, "evt_1", b"", timestamp=bad), id="sign.timestamp"),
        pytest.param(lambda bad: Limits(store_seconds=bad), id="Limits"),
        pytest.param(lambda bad: Inbox(backoff=bad), id="Inbox.backoff"),
        pytest.param(lambda bad: Inbox(max_depth=bad), id="Inbox.max_depth"),
        pytest.param(lambda bad: Backoff(factor=bad), id="Backoff.factor"),
        pytest.param(lambda bad: Backoff(jitter=bad), id="Backoff.jitter"),
        pytest.param(lambda bad: Retry(after=bad), id="Retry"),
        pytest.param(lambda bad: Chaos(rate=bad), id="Chaos"),
        pytest.param(lambda bad: _service(speed=bad), id="service.speed"),
        pytest.param(lambda bad: _service(answer_seconds=bad), id="service.answer_seconds"),
        pytest.param(lambda bad: _service().new_key(expires_at=bad), id="service.new_key"),
        pytest.param(
            lambda bad: _service().faults.platform_is_slow(seconds=bad),
            id="service.faults.platform_is_slow",
        ),
        pytest.param(
            lambda bad: _service().faults.platform_fails(rate=bad),
            id="service.faults.platform_fails",
        ),
        pytest.param(
            lambda bad: Client("https://x.test", "example_sk_0123456789", answer_seconds=bad),
            id="Client.answer_seconds",
        ),
        pytest.param(
            lambda bad: event_body("comment.received", data={"x": bad}, extra=True), id="event_body"
        ),
        pytest.param(
            lambda bad: make_event("new.type", data={"deep": [{"x": bad}]}), id="make_event"
        ),
        pytest.param(lambda bad: signed_request({"x": [bad]}, SECRET), id="signed_request"),
        pytest.param(lambda bad: signed_request(b"{}", SECRET, skew=bad), id="signed_request.skew"),
        pytest.param(
            lambda bad: PostInput.model_validate(
                {"targets": [{"channelId": "ch_1", "settings": {"x": bad}}]}
            ),
            id="PostInput.settings",
        ),
        pytest.param(
            lambda bad: WorkspaceData.model_validate({"slow": [{"seconds": bad}]}),
            id="WorkspaceData.slow",
        ),
        pytest.param(
            lambda bad: WorkspaceData.model_validate({"faults": [{"rate": bad}]}),
            id="WorkspaceData.faults",
        ),
    ],
)
def test_every_argument_refuses_a_number_that_is_not_finite(
    give: Callable[[float], object], bad: float
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each call's message names its own argument
        give(bad)


@pytest.mark.anyio
@pytest.mark.parametrize("bad", BAD)
async def test_advancing_time_refuses_a_number_that_is_not_finite(bad: float) -> None:
    async with _service() as service:
        for units in ({"days": bad}, {"hours": bad}, {"minutes": bad}, {"seconds": bad}):
            with pytest.raises(ValueError, match="takes a finite number"):
                await service.advance(timedelta(), **units)
        await service.advance(timedelta(seconds=1))
        with pytest.raises(ValueError, match="x: JSON has no NaN"):
            await service.emit(CommentReceived, data={"x": bad}, extra=True)


@pytest.mark.anyio
async def test_waiting_for_handlers_refuses_a_time_that_is_not_finite() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    for bad in (nan, -1.0, -inf):
        with pytest.raises(ValueError, match="seconds takes a finite number of seconds from 0"):
            await receiver.idle(bad)
    assert await receiver.idle(0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
