"""The public surface: names that users and other tools rely on."""

import importlib
from pathlib import Path

import pytest

import hookonce

PACKAGE = Path(hookonce.__file__).parent

PUBLIC = {
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
}
EVENTS = {
    "ChannelDisconnected",
    "ChannelUnhealthy",
    "CommentReceived",
    "Event",
    "MessageReceived",
    "PostTargetFailed",
    "PostTargetPublished",
    "UnknownEvent",
    "WebhookTest",
}


def test_the_package_exports_these_names_and_no_others() -> None:
    assert set(hookonce.__all__) == PUBLIC


def test_events_exports_every_event_class() -> None:
    events = importlib.import_module("hookonce.events")
    assert set(events.__all__) >= EVENTS


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(["hookonce", *path.relative_to(PACKAGE).with_suffix("").parts])
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    ),
)
def test_a_module_names_what_it_exports_and_has_it(module: str) -> None:
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)


def test_every_error_is_a_webhook_error() -> None:
    errors = importlib.import_module("hookonce.errors")
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    own = [
        kind for kind in kinds if issubclass(kind, Exception) and kind.__module__ == errors.__name__
    ]
    assert all(issubclass(kind, hookonce.WebhookError) for kind in own)
    assert len(own) == 7


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
