"""No frame of an error that a receiver raises holds a secret, a password or a key."""

from typing import Any

import pytest
from support.frames import leaks
from support.secrets import ChangingSecrets

from hookonce import Receiver, SecretError

TEXT = "Q" * 43
SECRET = f"whsec_{TEXT}="
MARKS = {"secret": TEXT[:20], "password": "hunter2"}

BAD: dict[str, dict[str, Any]] = {
    "a short secret": {"secrets": [SECRET, "whsec_QQ=="]},
    "the endpoint": {"endpoint": "a b"},
    "the tolerance": {"tolerance": -1},
    "a store's scheme": {"store": "mysql://u:hunter2@h"},
    "a store's port": {"store": "redis://u:hunter2@h:port"},
    "the inbox": {"inbox": 5},
}


@pytest.mark.parametrize("fault", BAD)
def test_no_frame_of_a_constructors_error_holds_a_secret(fault: str) -> None:
    with pytest.raises((ValueError, TypeError, ImportError)) as caught:
        Receiver(**{"secrets": SECRET, "store": "memory://", **BAD[fault]})
    assert not leaks(caught.value, MARKS, but_in=__file__)


@pytest.mark.parametrize("fault", BAD)
def test_no_frame_of_a_copys_error_holds_a_secret(fault: str) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    with pytest.raises((ValueError, TypeError, ImportError)) as caught:
        receiver.copy(**BAD[fault])
    assert not leaks(caught.value, MARKS, but_in=__file__)


def test_no_frame_of_an_error_about_unusable_secrets_holds_a_secret() -> None:
    provider = ChangingSecrets(SECRET)
    receiver = Receiver(secrets=provider, store="memory://")
    provider.secrets = (SECRET, "whsec_QQ==")
    with pytest.raises(SecretError) as caught:
        receiver.current_secrets()
    assert not leaks(caught.value, MARKS, but_in=__file__)


def test_a_half_built_receiver_has_a_repr() -> None:
    assert "Receiver" in repr(object.__new__(Receiver))
