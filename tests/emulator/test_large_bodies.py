"""The emulated service stops reading a body that is larger than any operation needs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.service_api import checked_error
from support.workspaces import Bakery, bakery

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


async def test_a_body_that_is_too_large_is_refused_before_it_has_ended(here: Bakery) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield b"x" * 256 * 1024

    response = await here.api.post("/v1/posts", content=pieces())
    error = checked_error(response, 422, "validation.failed")
    assert error["details"]["issues"][0]["field"] == "body"
    assert sent < 64
