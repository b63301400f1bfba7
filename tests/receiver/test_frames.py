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
def test_none_of_what_the_constructor_raises(fault: str) -> None:
    with pytest.raises((ValueError, TypeError, ImportError)) as caught:
        Receiver(**{"secrets": SECRET, "store": "memory://", **BAD[fault]})
    assert not leaks(caught.value, MARKS, but_in=__file__)


@pytest.mark.parametrize("fault", BAD)
def test_none_of_what_a_copy_raises(fault: str) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    with pytest.raises((ValueError, TypeError, ImportError)) as caught:
        receiver.copy(**BAD[fault])
    assert not leaks(caught.value, MARKS, but_in=__file__)


def test_none_where_secrets_in_force_cannot_be_used() -> None:
    provider = ChangingSecrets(SECRET)
    receiver = Receiver(secrets=provider, store="memory://")
    provider.secrets = (SECRET, "whsec_QQ==")
    with pytest.raises(SecretError) as caught:
        receiver.current_secrets()
    assert not leaks(caught.value, MARKS, but_in=__file__)


def test_a_half_built_one_can_be_shown() -> None:
    assert "Receiver" in repr(object.__new__(Receiver))
