"""Fixtures for pytest.

Ask for them in your ``conftest.py``::

pytest_plugins = ["hookonce.pytest_plugin"]
"""

from __future__ import annotations

from typing import Protocol

import pytest

from .asgi import ASGIApp
from .secrets import new_secret
from .testing import TestSender

__all__ = ["SenderFactory", "webhook_secret", "webhook_sender"]


class SenderFactory(Protocol):
    """Makes a sender for an application, signing with ``webhook_secret``."""

    def __call__(self, app: ASGIApp, *, path: str = "/webhooks") -> TestSender:
        """Return a sender for a receiver or an application that has its routes at ``path``."""
        ...


@pytest.fixture
def webhook_secret() -> str:
    """Return a new signing secret (``whsec_…``)."""
    return new_secret()


@pytest.fixture
def webhook_sender(webhook_secret: str) -> SenderFactory:
    """Return a function that makes a ``TestSender`` for a receiver or application."""

    def make(app: ASGIApp, *, path: str = "/webhooks") -> TestSender:
        return TestSender(app, secrets=webhook_secret, path=path)

    return make
