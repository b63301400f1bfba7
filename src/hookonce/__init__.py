"""Receive signed webhooks: verify each, handle each once, lose none.

The names below are public, and so are all other names that ``hookonce guide api`` lists. The
modules ``errors``, ``events``, ``operations``, ``resources``, ``senders`` and ``testing`` need no
import of their own. A name is imported when it is first used: a program that only verifies loads no
framework and no models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .delivery.limits import Limits
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
    from .events import Event
    from .inbox.settings import Backoff, Inbox
    from .outcome import Outcome, Reason
    from .receiver import Receiver
    from .routing.context import Context
    from .routing.router import Router
    from .senders.unwrapping import unwrap
    from .verification.providers import EnvironmentSecrets, FileSecrets
    from .verification.secrets import SecretsProvider
    from .verification.signature import VerifiedDelivery, Verifier, sign, verify

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

# The module of each public name. A module is imported when a program first uses one of its names.
_MODULES = {
    "routing.context": ("Context",),
    "delivery.limits": ("Limits",),
    "outcome": ("Outcome", "Reason"),
    "routing.router": ("Router",),
    "errors": (
        *("PayloadError", "PayloadFault", "Refusal", "Reject", "Retry", "SecretError"),
        *("StoreError", "VerificationError", "WebhookError"),
    ),
    "events": ("Event",),
    "senders.unwrapping": ("unwrap",),
    "inbox.settings": ("Backoff", "Inbox"),
    "receiver": ("Receiver",),
    "verification.providers": ("EnvironmentSecrets", "FileSecrets"),
    "verification.secrets": ("SecretsProvider",),
    "verification.signature": ("VerifiedDelivery", "Verifier", "sign", "verify"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_PUBLIC_MODULES = {"errors", "events", "operations", "resources", "senders", "testing"}


if not TYPE_CHECKING:  # if type checkers saw this function, they would accept misspelt names

    def __getattr__(name: str) -> object:
        if name in _PUBLIC_MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PUBLIC_MODULES})
