"""The public surface: names that users and other tools rely on."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hookonce
from hookonce.guide.reference import MODULES

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


def test_each_name_can_be_had_and_is_listed() -> None:
    for name in PUBLIC:
        assert getattr(hookonce, name).__name__ == name
    assert set(dir(hookonce)) > PUBLIC
    with pytest.raises(AttributeError, match="has no attribute 'Reciever'"):
        _ = hookonce.Reciever  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "module", ["errors", "events", "operations", "resources", "senders", "testing"]
)
def test_a_public_module_can_be_had_by_its_name_alone(module: str) -> None:
    assert f"hookonce.{module}" in MODULES
    code = f"import hookonce; print(hookonce.{module}.__name__)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == f"hookonce.{module}\n"


def test_verification_alone_imports_neither_a_framework_nor_models() -> None:
    code = "import sys; from hookonce import verify; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "starlette", "apsw", "asyncio"} & set(ended.stdout.split())


def test_events_exports_every_event_class() -> None:
    events = importlib.import_module("hookonce.events")
    assert set(events.__all__) >= EVENTS


LISTED = {module for module, names in MODULES.items() if not names}


def test_a_module_lists_names_only_if_they_are_public() -> None:
    """A name without an underscore is not public if only other files of this package import it."""
    modules = {
        ".".join(["hookonce", *path.relative_to(PACKAGE).with_suffix("").parts])
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__")
    }
    listing = {module for module in modules if hasattr(importlib.import_module(module), "__all__")}
    hands_on_anothers = {"hookonce.http.app"}
    assert listing == (LISTED & modules) | hands_on_anothers


@pytest.mark.parametrize("module", sorted(LISTED))
def test_a_public_module_has_the_names_it_lists(module: str) -> None:
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)


def test_every_error_is_a_webhook_error() -> None:
    errors = importlib.import_module("hookonce.errors")
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    own = [
        kind for kind in kinds if issubclass(kind, Exception) and kind.__module__ == errors.__name__
    ]
    assert all(issubclass(kind, hookonce.WebhookError) for kind in own)
    assert len(own) == 10


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_the_doctor_gives_each_of_its_names_and_no_module_in_its_place() -> None:
    doctor = importlib.import_module("hookonce.operations.doctor")
    assert not [name for name in doctor.__all__ if inspect.ismodule(getattr(doctor, name))]
