"""Fixtures for pytest.

Ask for them in your ``conftest.py``::

pytest_plugins = ["hookonce.testing.pytest_plugin"]
"""

from __future__ import annotations

from typing import Protocol

import pytest

from ..clock import system_clock
from ..emulator import Chaos, EmulatedService, RequestFaults, VirtualClock, WorkspaceData
from ..emulator.timeline import TimeSource
from ..http.app import ASGIApp
from ..senders import Sender
from ..verification.secrets import new_secret
from . import TestSender

__all__ = [
    "SenderFactory",
    "ServiceFactory",
    "emulated_service",
    "virtual_clock",
    "webhook_secret",
    "webhook_sender",
]


class SenderFactory(Protocol):
    """Makes senders that deliver to an application and sign with ``webhook_secret``."""

    def __call__(
        self, app: ASGIApp, *, path: str = "/webhooks", sender: Sender | None = None
    ) -> TestSender:
        """Return a sender for a receiver, or for an application that receives at ``path``.

        It sends as the receiver's sender does; see ``TestSender``.
        """
        ...


class ServiceFactory(Protocol):
    """Makes emulated services that deliver to an application and sign with ``webhook_secret``."""

    def __call__(
        self,
        app: ASGIApp,
        *,
        path: str = "/webhooks",
        clock: TimeSource = system_clock,
        chaos: Chaos | RequestFaults | None = None,
        seed: int | None = None,
        data: WorkspaceData | None = None,
    ) -> EmulatedService:
        """Return a service whose time moves with ``advance``; see ``EmulatedService``."""
        ...


@pytest.fixture
def webhook_secret() -> str:
    """Return a new signing secret (``whsec_…``)."""
    return new_secret()


@pytest.fixture
def webhook_sender(webhook_secret: str) -> SenderFactory:
    """Return a function that makes a ``TestSender`` for a receiver or application."""

    def make(app: ASGIApp, *, path: str = "/webhooks", sender: Sender | None = None) -> TestSender:
        return TestSender(app, secrets=webhook_secret, path=path, sender=sender)

    return make


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """Return a clock that only the test moves, for a receiver and its service."""
    return VirtualClock()


@pytest.fixture
def emulated_service(webhook_secret: str) -> ServiceFactory:
    """Return a function that makes an ``EmulatedService`` for a receiver or application."""

    def make(
        app: ASGIApp,
        *,
        path: str = "/webhooks",
        clock: TimeSource = system_clock,
        chaos: Chaos | RequestFaults | None = None,
        seed: int | None = None,
        data: WorkspaceData | None = None,
    ) -> EmulatedService:
        return EmulatedService(
            app, secret=webhook_secret, path=path, clock=clock, chaos=chaos, seed=seed, data=data
        )

    return make
