"""Fixtures for every test."""

import pytest

from hookonce.integrations.pytest_plugin import (
    emulated_service,
    virtual_clock,
    webhook_secret,
    webhook_sender,
)

__all__ = [
    "anyio_backend",
    "emulated_service",
    "virtual_clock",
    "webhook_secret",
    "webhook_sender",
]


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which is what uvicorn and the stores run on."""
    return "asyncio"
