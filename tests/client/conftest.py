"""A scripted service, and a client for it."""

from collections.abc import AsyncIterator

import pytest
from support.scripted_api import ScriptedApi, scripted_api

from hookonce.client import Client

KEY = "example_sk_0123456789abcdef"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api() as api:
        yield api


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[Client]:
    async with Client(api.url, KEY, patience=5.0, answer_seconds=5.0) as client:
        yield client
