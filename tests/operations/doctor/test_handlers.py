"""Checks of handlers, of the types they name, and of routers that no receiver includes."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

import pytest

from hookonce import Event, Receiver, Router
from hookonce.events import EVENT_CLASSES, CommentReceived, WebhookTest
from hookonce.operations.doctor import Finding, Level, router_findings
from hookonce.operations.doctor.handlers import handler_findings, type_findings
from hookonce.routing.table import HandlerTable
from hookonce.verification.secrets import new_secret

from .findings import only


class AdPublished(Event[dict[str, Any]]):
    type: Literal["ad.published"]


def receiver_for(*wanted: str | type[Event[Any]]) -> Receiver:
    receiver = Receiver(secrets=new_secret(), store="memory://")
    for number, one in enumerate(wanted):

        async def handler(event: Any) -> None: ...

        receiver.on(one, name=f"handler {number}")(handler)
    return receiver


def judged(*wanted: str | type[Event[Any]]) -> list[Finding]:
    receiver = receiver_for(*wanted)
    known = HandlerTable(receiver.handlers).parser.classes
    test_type = receiver.sender.rules.test_type
    return [
        *handler_findings(receiver.handlers, known, test_type),
        *type_findings(receiver.handlers, known),
    ]


class TestHandlers:
    def test_no_handler_is_a_fault(self) -> None:
        assert only(judged(), "handlers").level is Level.FAULT

    def test_a_handler_only_for_the_test_event_is_a_fault(self) -> None:
        found = only(judged(WebhookTest), "handlers")
        assert found.level is Level.FAULT
        assert "except the test event" in found.found

    def test_types_without_a_handler_are_a_note(self) -> None:
        found = only(judged(CommentReceived, "channel.*"), "handlers")
        assert found.level is Level.NOTE
        assert "post.target.failed" in found.found
        assert "channel.unhealthy" not in found.found
        assert "webhook.test" not in found.found

    def test_a_handler_for_every_type_is_fine(self) -> None:
        assert only(judged("*"), "handlers").level is Level.OK

    def test_a_type_with_an_event_class_of_the_user_is_known(self) -> None:
        found = judged(AdPublished, "ad.*")
        assert only(found, "event_types").level is Level.OK
        assert only(found, "handlers").level is Level.NOTE


class TestTypes:
    @pytest.mark.parametrize(
        ("wanted", "meant"),
        [
            ("comment.recieved", "comment.received"),
            ("Post.Target.Failed", "post.target.failed"),
            ("chanel.*", "channel.*"),
            ("post.targets.*", "post.target.*"),
        ],
    )
    def test_a_misspelt_type_is_a_warning_that_names_the_nearest_known_type(
        self, wanted: str, meant: str
    ) -> None:
        found = only(judged(wanted, CommentReceived), "event_types")
        assert found.level is Level.WARNING
        assert repr(wanted) in found.found
        assert found.fix.startswith(f"write {meant!r}")

    def test_a_type_that_resembles_none_may_be_new_and_is_a_note(self) -> None:
        found = only(judged("xylophone", CommentReceived), "event_types")
        assert found.level is Level.NOTE

    def test_each_unmatched_type_is_named_once_and_as_it_was_written(self) -> None:
        wanted = ("comment.recieved", "comment.recieved", "ad.*", CommentReceived, "post.*")

        def named(findings: list[Finding]) -> list[str]:
            found = [one.found for one in findings if one.check == "event_types"]
            return [text.split("'")[1] for text in found]

        assert named(judged(*wanted)) == ["ad.*", "comment.recieved"]
        assert named(judged(*wanted, AdPublished)) == ["comment.recieved"]

    @pytest.mark.parametrize("wanted", [*EVENT_CLASSES, "*", "post.*", "post.*.failed"])
    def test_a_known_type_is_fine(self, wanted: str) -> None:
        assert only(judged(wanted), "event_types").level is Level.OK


async def handle(event: Event[object]) -> None: ...


@pytest.fixture
def shop() -> Iterator[ModuleType]:
    """Load the modules shop and shop.hooks; the latter has a receiver."""
    shop, hooks = ModuleType("shop"), ModuleType("shop.hooks")
    vars(hooks)["receiver"] = Receiver(secrets=new_secret(), store="memory://")
    sys.modules |= {"shop": shop, "shop.hooks": hooks}
    yield hooks
    del sys.modules["shop"], sys.modules["shop.hooks"]


def test_a_router_that_no_receiver_includes_is_named(shop: ModuleType) -> None:
    assert router_findings("shop") == []
    shop.receiver.on("*", name="own")(handle)
    router = Router()
    vars(shop)["router"] = router
    assert router_findings("shop") == [], "the router has no handler yet"
    router.on("*", name="all")(handle)
    found = only(router_findings("shop"), "routers")
    assert found.level is Level.WARNING
    assert "the router shop.hooks.router has handlers, but no receiver includes it" in found.found
    shop.receiver.include(router)
    assert router_findings("shop.hooks") == []
