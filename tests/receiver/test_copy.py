"""`Receiver.copy`: a copy has the same handlers and settings, except those that a test replaces."""

from __future__ import annotations

import gc
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.secrets import ChangingSecrets

from hookonce import Context, Inbox, Limits, Receiver, SecretError
from hookonce.events import CommentReceived, Event, MessageReceived
from hookonce.outcome import Outcome
from hookonce.routing.handler import ErrorHook, Handler
from hookonce.routing.router import Router
from hookonce.routing.table import HandlerTable
from hookonce.senders import publishing
from hookonce.stores.memory import MemoryStore
from hookonce.testing import TestSender, make_event
from hookonce.verification.headers import RawHeaders
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

PRODUCTION = new_secret()
SECRET = new_secret()


class Noting:
    """A handler that notes the ids of its events."""

    def __init__(self, receiver: Router, name: str = "handler") -> None:
        self.ids: list[str] = []
        receiver.on(CommentReceived, name=name)(self)

    async def __call__(self, event: CommentReceived) -> None:
        self.ids.append(event.id)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
def production(path: Path) -> Receiver:
    """Return a receiver configured as in production."""
    return Receiver(
        secrets=[PRODUCTION],
        store=f"sqlite:///{path}",
        endpoint="main",
        tolerance=60,
        retention=timedelta(days=3),
        inbox=Inbox(),
        limits=Limits(body_bytes=5000),
    )


def comment() -> CommentReceived:
    return make_event(CommentReceived)


class TestParts:
    async def test_a_copy_with_a_memory_store_and_no_inbox_handles_inside_the_request(
        self, production: Receiver, path: Path
    ) -> None:
        handler = Noting(production)
        copied = production.copy(secrets=SECRET, store="memory://", inbox=None)
        event = comment()
        async with TestSender(copied, secrets=SECRET) as sender:
            (await sender.send(event)).expect(200, "handled")
        assert handler.ids == [event.id]
        assert not path.exists()  # noqa: ASYNC240 - the call blocks no other task
        with pytest.raises(AttributeError, match="no inbox"):
            copied.waiting  # noqa: B018 - reading the attribute raises the error

    async def test_the_secrets_of_a_copy_replace_the_originals(self, production: Receiver) -> None:
        Noting(production)
        copied = production.copy(secrets=SECRET, store="memory://", inbox=None)
        async with TestSender(copied, secrets=SECRET) as sender:
            (await sender.send(comment(), secrets=PRODUCTION)).expect(401)
            (await sender.send(comment())).expect(200)
        assert copied.current_secrets() == (SECRET,)
        assert production.current_secrets() == (PRODUCTION,)

    async def test_a_copy_keeps_settings_that_are_not_changed(
        self, production: Receiver, path: Path
    ) -> None:
        Noting(production)
        copied = production.copy()
        assert copied.endpoint == "main"
        async with TestSender(copied, secrets=PRODUCTION) as sender:
            (await sender.send(comment(), skew=100)).expect(401)  # the copy has the same tolerance
            (await sender.send(b" " * 6000)).expect(413)  # the copy has the same limits
            (await sender.send(comment())).expect(202, "stored")  # the copy has the same inbox
        assert path.exists()  # noqa: ASYNC240 - the call blocks no other task

    async def test_a_copy_reads_the_headers_of_the_same_service(self) -> None:
        original = Receiver(
            secrets=SECRET, store="memory://", sender=publishing.with_service("acme")
        )
        attempts: list[int | None] = []

        @original.on(CommentReceived, name="handler")
        async def handler(_: CommentReceived, context: Context) -> None:
            attempts.append(context.delivery_attempt)

        copied = original.copy()
        for service in ("acme", "another"):
            named = publishing.with_service(service)
            async with TestSender(copied, secrets=SECRET, sender=named) as sender:
                await sender.send(comment(), attempt=2)
        assert attempts == [2, None]

    async def test_a_copy_without_a_new_store_shares_the_handled_events(self) -> None:
        original = Receiver(secrets=SECRET, store=MemoryStore())
        handler, event = Noting(original), comment()
        async with TestSender(original, secrets=SECRET) as sender:
            (await sender.send(event)).expect(200, "handled")
        async with TestSender(original.copy(), secrets=SECRET) as sender:
            (await sender.send(event)).expect(200, "duplicate")
        async with TestSender(original.copy(store="memory://"), secrets=SECRET) as sender:
            (await sender.send(event)).expect(200, "handled")
        assert handler.ids == [event.id, event.id]

    async def test_the_clock_of_a_copy_is_used_by_verification_and_by_a_store_given_as_a_url(
        self,
    ) -> None:
        now = [time.time() + 100_000]
        original = Receiver(secrets=SECRET, store="memory://")
        Noting(original)
        copied = original.copy(store="memory://", clock=lambda: now[0])
        event = comment()
        async with TestSender(copied, secrets=SECRET) as sender:
            (await sender.send(event)).expect(401)
            (await sender.send(event, skew=-100_000)).expect(200, "handled")
            now[0] += 16 * 86400  # the retention is over, so the store has forgotten the event
            (await sender.send(event, skew=-100_000 - 16 * 86400)).expect(200, "handled")

    async def test_a_store_given_as_a_url_keeps_the_original_retention(
        self, production: Receiver
    ) -> None:
        handler = Noting(production)
        now = [time.time()]
        # This copy uses the same store object. It must pass the retention on to the next copy.
        copied = production.copy(inbox=None)
        again = copied.copy(secrets=SECRET, store="memory://", clock=lambda: now[0])
        event = comment()
        async with TestSender(again, secrets=SECRET) as sender:
            await sender.send(event)
            now[0] += 2.9 * 86400
            (await sender.send(event, skew=-2.9 * 86400)).expect(200, "duplicate")
            now[0] += 0.2 * 86400
            (await sender.send(event, skew=-3.1 * 86400)).expect(200, "handled")
        assert len(handler.ids) == 2

    @pytest.mark.parametrize(
        ("parts", "error"),
        [
            ({"secrets": None}, SecretError),
            ({"secrets": "nothing"}, SecretError),
            ({"store": "memory://"}, ValueError),  # the memory store has no inbox
            ({"store": "ftp://nowhere"}, ValueError),
            ({"inbox": 3}, TypeError),
        ],
    )
    def test_a_copy_refuses_the_settings_that_a_receiver_refuses(
        self, production: Receiver, parts: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            production.copy(**parts)


class TestHandlers:
    async def test_a_copy_has_the_handlers_error_hooks_and_event_classes(self) -> None:
        class OwnComment(CommentReceived):
            """This application's own class for comments."""

        original = Receiver(secrets=SECRET, store="memory://")
        seen: list[object] = []

        @original.on(OwnComment, name="own")
        async def handler(event: OwnComment) -> None:
            seen.append(type(event))
            raise ValueError

        @original.on_error
        async def told(error: ExceptionGroup[Exception]) -> None:
            seen.append(type(error.exceptions[0]))

        copied = original.copy(store="memory://")
        assert copied.handlers == original.handlers
        assert copied.error_hooks == original.error_hooks
        async with TestSender(copied, secrets=SECRET) as sender:
            (await sender.send(comment())).expect(500)
        assert seen == [OwnComment, ValueError]

    def test_handlers_registered_later_belong_to_one_receiver_only(self) -> None:
        original = Receiver(secrets=SECRET, store="memory://")
        Noting(original, "both")
        copied = original.copy()
        Noting(original, "later")
        Noting(copied, "later")  # the name is free in the copy
        Noting(copied, "copy")
        original.on_error(lambda _: None)
        assert [handler.name for handler in original.handlers] == ["both", "later"]
        assert [handler.name for handler in copied.handlers] == ["both", "later", "copy"]
        assert copied.error_hooks == ()

    def test_a_copy_in_a_router_that_includes_the_original_is_not_included(self) -> None:
        outer, original = Router(), Receiver(secrets=SECRET, store="memory://")
        outer.include(original)
        Noting(original.copy(), "copy")
        assert outer.handlers == ()

    def test_the_original_does_not_keep_its_copies_alive(self) -> None:
        original = Receiver(secrets=SECRET, store="memory://")
        Noting(original)
        router = Router(original.handlers, original.error_hooks)
        copies = [weakref.ref(original.copy()), weakref.ref(original.copy(router=router))]
        gc.collect()
        assert [copied() for copied in copies] == [None, None]

    async def test_the_handlers_of_a_given_router_replace_the_originals(self) -> None:
        original = Receiver(secrets=SECRET, store="memory://")
        own = Noting(original)
        router = Router()
        other = Noting(router)
        copied = original.copy(store="memory://", router=router)
        async with TestSender(copied, secrets=SECRET) as sender:
            (await sender.send(comment())).expect(200, "handled")
        assert (len(own.ids), len(other.ids)) == (0, 1)


class TestRouterOfChangedHandlers:
    def test_a_router_of_changed_handlers_keeps_names_and_types(self) -> None:
        router = Router()
        router.on("comment.*", MessageReceived, name="one")(lambda _: None)
        router.on_unknown(name="two")(lambda _: None)
        router.on_error(lambda _: None)

        async def other(_: Event[Any]) -> None: ...

        def handler(own: Handler) -> Handler:
            return Handler(
                own.name,
                other,
                is_async=True,
                takes_context=False,
                types=own.types,
                patterns=own.patterns,
                for_unknown=own.for_unknown,
            )

        hook = ErrorHook(other, is_async=True, arguments=1)
        wrapped = Router([handler(own) for own in router.handlers], [hook])
        for event in (comment(), make_event(MessageReceived)):
            assert [found.name for found in HandlerTable(wrapped.handlers).find(event)] == ["one"]
        assert [found.name for found in wrapped.handlers] == ["one", "two"]
        assert {found.function for found in wrapped.handlers} == {other}
        assert [hook.function for hook in wrapped.error_hooks] == [other]
        assert other not in {found.function for found in router.handlers}
        assert other not in {hook.function for hook in router.error_hooks}


class Counting(Receiver):
    """A subclass with a constructor of its own, an override and an attribute."""

    def __init__(self, name: str, secrets: str) -> None:
        super().__init__(secrets=secrets, store="memory://")
        self.name = name
        self.bodies: list[bytes] = []

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        self.bodies.append(body)
        return await super().handle(body, headers, started=started)


class TestSubclasses:
    async def test_overrides_of_a_subclass_apply_in_the_copy_also_over_http(self) -> None:
        original = Counting("mine", PRODUCTION)
        Noting(original)
        copied = original.copy(secrets=SECRET, store="memory://")
        copied.bodies = []
        async with TestSender(copied, secrets=SECRET) as sender:
            (await sender.send(comment())).expect(200, "handled")
        assert isinstance(copied, Counting)
        assert copied.name == "mine"
        assert len(copied.bodies) == 1
        assert original.bodies == []

    async def test_a_copy_of_an_open_receiver_is_not_open_and_closing_it_closes_nothing_else(
        self,
    ) -> None:
        original = Receiver(secrets=SECRET, store="memory://")
        Noting(original)
        async with TestSender(original, secrets=SECRET) as sender:
            async with TestSender(original.copy(store="memory://"), secrets=SECRET) as other:
                (await other.send(comment())).expect(200, "handled")
            (await sender.send(comment())).expect(200, "handled")
            assert (await original.check()).problems == ()

    async def test_a_copy_of_a_closed_receiver_accepts_deliveries(self) -> None:
        original = Receiver(secrets=SECRET, store="memory://")
        Noting(original)
        async with TestSender(original, secrets=SECRET):
            pass
        copied = original.copy()  # the copy is used without a lifespan, which would open the store
        await TestSender(original, secrets=SECRET).send(comment())
        (await TestSender(copied, secrets=SECRET).send(comment())).expect(200, "handled")


class TestCurrentSecrets:
    def test_current_secrets_are_newest_first_for_every_kind_of_source(self) -> None:
        for given in (
            [SECRET, PRODUCTION],
            (SECRET, PRODUCTION),
            ChangingSecrets(SECRET, PRODUCTION),
        ):
            receiver = Receiver(secrets=given, store="memory://")
            assert receiver.current_secrets() == (SECRET, PRODUCTION)
        assert Receiver(secrets=SECRET, store="memory://").current_secrets() == (SECRET,)

    def test_current_secrets_asks_a_provider_at_each_call(self) -> None:
        provider = ChangingSecrets(PRODUCTION)
        receiver = Receiver(secrets=provider, store="memory://")
        provider.secrets = [SECRET, PRODUCTION]
        assert receiver.current_secrets() == (SECRET, PRODUCTION)

    def test_current_secrets_ignores_later_changes_of_a_list(self) -> None:
        given = [SECRET]
        receiver = Receiver(secrets=given, store="memory://")
        given.clear()
        assert receiver.current_secrets() == (SECRET,)

    @pytest.mark.parametrize("now", [[], ["whpk_nothing"]], ids=["none", "unusable"])
    def test_current_secrets_raises_if_a_secret_cannot_be_used(self, now: list[str]) -> None:
        provider = ChangingSecrets(SECRET)
        receiver = Receiver(secrets=provider, store="memory://")
        provider.secrets = now
        with pytest.raises(SecretError):
            receiver.current_secrets()

    def test_no_repr_shows_a_current_secret(self) -> None:
        receiver = Receiver(secrets=SECRET, store="memory://")
        assert SECRET not in repr(receiver) + repr(receiver.copy()) + str(receiver)
