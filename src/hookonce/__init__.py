"""Receive signed webhooks: verify each, handle each once, lose none.

The names below are the public surface, together with the modules ``events``, ``resources``,
``errors`` and ``testing``.
"""

from __future__ import annotations

from .context import Context
from .errors import (
    PayloadError,
    PayloadFault,
    Refusal,
    Reject,
    Retry,
    SecretError,
    StoreError,
    VerificationError,
    WebhookError,
)
from .events import Event, unwrap
from .inbox import Backoff, Inbox
from .limits import Limits
from .outcome import Outcome, Reason
from .providers import EnvironmentSecrets, FileSecrets
from .receiver import Receiver
from .routing import Router
from .secrets import SecretsProvider
from .signature import VerifiedDelivery, Verifier, sign, verify

__all__ = [
    "Backoff",
    "Context",
    "EnvironmentSecrets",
    "Event",
    "FileSecrets",
    "Inbox",
    "Limits",
    "Outcome",
    "PayloadError",
    "PayloadFault",
    "Reason",
    "Receiver",
    "Refusal",
    "Reject",
    "Retry",
    "Router",
    "SecretError",
    "SecretsProvider",
    "StoreError",
    "VerificationError",
    "VerifiedDelivery",
    "Verifier",
    "WebhookError",
    "sign",
    "unwrap",
    "verify",
]

__version__ = "0.1.0"
