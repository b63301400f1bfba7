"""`Receiver()` refuses settings that cannot work."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET
from support.secrets import ChangingSecrets

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.memory import MemoryStore
from hookonce.testing import TestSender, make_event

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"endpoint": ""}, "endpoint takes"),
        ({"endpoint": "a:b"}, "endpoint takes"),
        ({"endpoint": "x" * 65}, "endpoint takes"),
        ({"endpoint": "new\n"}, "endpoint takes"),
        ({"store": "mysql://"}, "no store has the scheme"),
        ({"store": "sqlite://hooks.db"}, "three slashes"),
        ({"tolerance": -1}, "tolerance"),
        ({"secrets": []}, "at least one secret"),
        ({"secrets": "whsec_"}, "empty"),
        ({"secrets": SECRET.encode()}, "not bytes; decode it"),
        ({"secrets": [SECRET.encode()]}, "not bytes; decode it"),
        ({"store": ""}, "is empty; is its setting missing"),
        ({"store": "memory://hooks"}, "takes no path and no options"),
        ({"store": "memory://?durability=fsync"}, "takes no path and no options"),
        ({"retention": timedelta(hours=25)}, "retention must be at least 26 hours, not 1 day"),
    ],
)
def test_a_receiver_refuses_settings_that_cannot_work(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Receiver(**{"secrets": SECRET, "store": "memory://", **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"store": None}, "store takes a URL.*not None; is the setting it comes from missing"),
        ({"store": 6379}, "store takes a URL.*not int"),
        ({"store": Path("hookonce.db")}, "write f'sqlite:///{path}'"),
        ({"store": MemoryStore}, "not the class MemoryStore: make an instance of it"),
        ({"limits": 8}, "limits takes Limits"),
        ({"limits": 0}, "limits takes Limits"),
        ({"inbox": True}, "inbox takes an Inbox"),
        ({"sender": "svix"}, "sender takes a Sender, such as hookonce.senders.svix"),
        ({"retention": "15"}, "retention takes seconds or a timedelta.*not str"),
        ({"tolerance": True}, "tolerance takes seconds or a timedelta.*not bool"),
        ({"tolerance": "300"}, "tolerance takes seconds or a timedelta.*not str"),
    ],
)
def test_an_argument_of_another_kind_is_refused_in_one_sentence(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        Receiver(**{"secrets": SECRET, "store": "memory://", **arguments})
    assert "\n" not in str(caught.value)


def test_an_endpoint_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="endpoint takes"):
        Receiver(secrets=SECRET, store="memory://", endpoint=None)  # type: ignore[arg-type]  # the test passes a wrong type


@pytest.mark.parametrize(
    "limits",
    [
        {"answer_seconds": 0},
        {"lease_seconds": -1},
        {"body_bytes": 0},
        {"drain_seconds": float("nan")},
        {"store_seconds": float("inf")},
    ],
)
def test_limits_that_cannot_work_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)


def test_an_answer_later_than_the_sender_waits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"answer_seconds must be at most 8\.5, since the sender"):
        Receiver(secrets=SECRET, store="memory://", limits=Limits(answer_seconds=10.0))


async def test_a_receiver_recovers_when_its_secrets_are_usable_again() -> None:
    provider = ChangingSecrets(SECRET)
    receiver = Receiver(secrets=provider, store="memory://")
    async with TestSender(receiver, secrets=SECRET) as sender:
        provider.secrets = ()
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "secrets_unavailable")
        provider.secrets = (SECRET,)
        (await sender.send(event)).expect(200, "no_handler")
