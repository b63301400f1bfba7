"""Routing: the handlers that an event reaches, and the registrations that a router refuses."""

import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from support.type_checkers import mypy_cache

from hookonce import Context, Event, Receiver, Router
from hookonce.events import (
    EVENT_CLASSES,
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    EventClass,
    MessageReceived,
    PostTargetFailed,
    PostTargetPublished,
    UnknownEvent,
    UnknownPublishingEvent,
    WebhookTest,
)
from hookonce.resources import Resource
from hookonce.testing import event_body, make_event

OTHER_TYPES = ["invoice.paid", "channel.reconnected", "channel.sub.renamed", "post.failed", "ping"]


def named(router: Router, *events: str | EventClass, name: str = "handler") -> None:
    """Register, under a name, a handler that does nothing."""

    async def handler(_: Any) -> None: ...

    router.on(*events, name=name)(handler)


def names_for(router: Router, event: str | EventClass) -> list[str]:
    return [handler.name for handler in router._table.find(make_event(event))]


def names(router: Router) -> list[str]:
    return [handler.name for handler in router.handlers]


def reached(router: Router) -> set[str]:
    """Return the types that the router has a handler for, out of documented and other types."""
    return {name for name in [*EVENT_CLASSES, *OTHER_TYPES] if names_for(router, name)}


# Registrations for classes, type strings and patterns, and for several of them


@pytest.mark.parametrize("event_class", EVENT_CLASSES.values())
def test_a_class_reaches_its_own_type_and_no_other(event_class: EventClass) -> None:
    router = Router()
    named(router, event_class)
    [event_type] = [name for name, cls in EVENT_CLASSES.items() if cls is event_class]
    assert reached(router) == {event_type}


@pytest.mark.parametrize("event_type", [*EVENT_CLASSES, *OTHER_TYPES])
def test_a_type_string_reaches_its_own_type_and_no_other(event_type: str) -> None:
    router = Router()
    named(router, event_type)
    assert reached(router) == {event_type}


PATTERNS = {
    "channel.*": {
        "channel.unhealthy",
        "channel.disconnected",
        "channel.reconnected",
        "channel.sub.renamed",
    },
    "post.target.*": {"post.target.published", "post.target.failed"},
    "post.*": {"post.target.published", "post.target.failed", "post.failed"},
    "post.*.failed": {"post.target.failed"},
    "*.*.failed": {"post.target.failed"},
    "*.failed": {"post.failed"},
    "*.received": {"comment.received", "message.received"},
    "comment.*": {"comment.received"},
    "*": {*EVENT_CLASSES, *OTHER_TYPES} - {"webhook.test"},
    "*.*": {*EVENT_CLASSES, *OTHER_TYPES} - {"webhook.test", "ping"},
    "*.*.*": {"post.target.published", "post.target.failed", "channel.sub.renamed"},
}


@pytest.mark.parametrize(("pattern", "types"), PATTERNS.items(), ids=PATTERNS)
def test_a_star_is_one_segment_and_one_or_more_at_the_end(pattern: str, types: set[str]) -> None:
    router = Router()
    named(router, pattern)
    assert reached(router) == types


def test_characters_of_regular_expressions_are_literal_in_patterns() -> None:
    router = Router()
    named(router, "in+voice.*")
    assert names_for(router, "in+voice.paid") == ["handler"]
    assert names_for(router, "innvoice.paid") == []


def test_a_handler_of_several_types_runs_once_for_each_event() -> None:
    router = Router()
    named(router, CommentReceived, "channel.*", "comment.received", "comment.*", "invoice.paid")
    assert names_for(router, CommentReceived) == ["handler"]
    assert reached(router) == {"comment.received", "invoice.paid"} | PATTERNS["channel.*"]
    assert len(router.handlers) == 1


def test_handlers_are_found_in_the_order_of_registration() -> None:
    router = Router()
    named(router, "*", name="third of the alphabet")
    named(router, CommentReceived, name="first")
    named(router, "comment.received", name="second")
    assert names_for(router, CommentReceived) == ["third of the alphabet", "first", "second"]


def test_a_handler_registered_after_the_first_look_up_is_found() -> None:
    router = Router()
    assert names_for(router, CommentReceived) == []
    named(router, CommentReceived)
    assert names_for(router, CommentReceived) == ["handler"]


def test_registration_gives_the_function_back_unchanged() -> None:
    router = Router()

    handler, unknown = _another(), _another()
    assert router.on(CommentReceived, name="handler")(handler) is handler
    assert router.on_unknown(unknown) is unknown
    assert router.on_unknown(name="named")(unknown) is unknown
    assert router.on_error(unknown) is unknown


def _another() -> Callable[[Any], None]:
    def another(_: Any) -> None: ...

    return another


def test_one_function_can_be_registered_under_several_names() -> None:
    router = Router()

    async def handler(_: PostTargetFailed | CommentReceived) -> None: ...

    router.on(CommentReceived, name="comments")(handler)
    router.on(PostTargetFailed, name="failures")(handler)

    assert names_for(router, CommentReceived) == ["comments"]
    assert names_for(router, PostTargetFailed) == ["failures"]


# Events of unknown types


def test_on_unknown_reaches_every_type_without_a_model_and_no_other() -> None:
    router = Router()
    router.on_unknown(name="unknown")(_another())
    assert reached(router) == set(OTHER_TYPES)


def test_a_type_that_gets_a_class_is_no_longer_unknown() -> None:
    class Ping(Event[dict[str, Any]]):
        type: Literal["ping"]

    router = Router()
    router.on_unknown(name="unknown")(_another())
    named(router, Ping, name="ping")
    event = router._table.parser.parse(event_body("ping"))
    assert isinstance(event, Ping)
    assert [handler.name for handler in router._table.find(event)] == ["ping"]


def test_an_unknown_type_that_a_handler_names_is_still_an_unknown_event() -> None:
    router = Router()
    named(router, "ping", name="by name")
    router.on_unknown(name="unknown")(_another())
    event = router._table.parser.parse(event_body("ping"))
    assert type(event) is UnknownPublishingEvent
    assert [handler.name for handler in router._table.find(event)] == ["by name", "unknown"]


def test_unknown_types_leave_no_trace_however_many_come() -> None:
    router = Router()
    named(router, "*")
    for number in range(1_000):
        assert names_for(router, f"made.up{number}") == ["handler"]
    assert len(router._table._found) <= len(EVENT_CLASSES)


# Routers that include routers


def test_an_included_router_adds_its_handlers_even_those_registered_later() -> None:
    receiver, posts = Router(), Router()
    named(receiver, CommentReceived, name="own")
    named(posts, PostTargetFailed, name="early")
    receiver.include(posts)
    named(posts, PostTargetFailed, name="late")
    posts.on_unknown(name="unknown")(_another())
    assert names_for(receiver, PostTargetFailed) == ["early", "late"]
    assert names_for(receiver, "ping") == ["unknown"]
    assert names_for(receiver, CommentReceived) == ["own"]
    assert names_for(posts, CommentReceived) == []


def test_inclusion_is_transitive_in_either_order() -> None:
    outer, middle, inner = Router(), Router(), Router()
    outer.include(middle)
    middle.include(inner)
    named(inner, CommentReceived, name="late")
    assert names_for(outer, CommentReceived) == ["late"]
    above = Router()
    above.include(outer)
    assert names_for(above, CommentReceived) == ["late"]


def test_an_included_router_adds_its_error_hooks_even_those_registered_later() -> None:
    receiver, posts = Router(), Router()
    first, second = _another(), _another()
    posts.on_error(first)
    receiver.include(posts)
    posts.on_error(second)
    assert [hook.function for hook in receiver.error_hooks] == [first, second]


def test_an_included_router_brings_its_event_classes() -> None:
    class Ping(Event[dict[str, Any]]):
        type: Literal["ping"]

    receiver, early, late = Router(), Router(), Router()
    named(early, Ping, name="early")
    receiver.include(early)
    assert isinstance(receiver._table.parser.parse(event_body("ping")), Ping)

    class Pong(Event[dict[str, Any]]):
        type: Literal["pong"]

    receiver.include(late)
    named(late, Pong, name="late")
    assert isinstance(receiver._table.parser.parse(event_body("pong")), Pong)
    assert isinstance(early._table.parser.parse(event_body("pong")), UnknownEvent)


def test_an_included_router_brings_the_class_a_handler_of_a_pattern_is_annotated_with() -> None:
    class Ping(Event[dict[str, Any]]):
        type: Literal["ping.sent"]

    def handler(_: Ping) -> None: ...

    receiver, pings = Router(), Router()
    pings.on("ping.*", name="handler")(handler)
    receiver.include(pings)
    assert isinstance(receiver._table.parser.parse(event_body("ping.sent")), Ping)
    assert isinstance(Router(receiver.handlers)._table.parser.parse(event_body("ping.sent")), Ping)


def test_a_router_can_be_included_by_several() -> None:
    first, second, shared = Router(), Router(), Router()
    first.include(shared)
    second.include(shared)
    named(shared, CommentReceived)
    assert names_for(first, CommentReceived) == names_for(second, CommentReceived) == ["handler"]


def test_a_router_cannot_include_itself_directly_or_through_others() -> None:
    outer, middle, inner = Router(), Router(), Router()
    outer.include(middle)
    middle.include(inner)
    for including, included in ((outer, outer), (middle, outer), (inner, outer), (inner, middle)):
        with pytest.raises(ValueError, match="cannot include itself"):
            including.include(included)


def test_a_router_cannot_be_included_twice() -> None:
    outer, middle, inner = Router(), Router(), Router()
    outer.include(middle)
    middle.include(inner)
    for including, included in ((outer, middle), (middle, inner), (outer, inner)):
        with pytest.raises(ValueError, match="included already"):
            including.include(included)


def diamond() -> tuple[Router, Router]:
    """Return a router that includes two routers, and a router that both of these include."""
    top, left, right, bottom = Router(), Router(), Router(), Router()
    top.include(left)
    top.include(right)
    left.include(bottom)
    right.include(bottom)
    return top, bottom


def test_a_router_included_along_two_ways_brings_its_handlers_once() -> None:
    top, bottom = diamond()
    named(bottom, CommentReceived)
    assert names_for(top, CommentReceived) == ["handler"]


def test_a_router_included_along_two_ways_brings_its_error_hooks_once() -> None:
    top, bottom = diamond()
    bottom.on_error(_another())
    assert len(top.error_hooks) == 1


def test_an_inclusion_that_is_refused_changes_nothing() -> None:
    receiver, posts = Router(), Router()
    named(receiver, CommentReceived, name="taken")
    named(posts, PostTargetFailed, name="free")
    named(posts, PostTargetFailed, name="taken")
    with pytest.raises(ValueError, match="'taken' is registered already"):
        receiver.include(posts)
    named(posts, PostTargetFailed, name="later")
    assert names(receiver) == ["taken"]


def test_a_registration_that_an_including_router_refuses_changes_no_router() -> None:
    receiver, posts = Router(), Router()
    named(receiver, CommentReceived, name="taken")
    receiver.include(posts)
    with pytest.raises(ValueError, match="'taken' is registered already"):
        named(posts, PostTargetFailed, name="taken")
    assert names(posts) == []
    assert names_for(receiver, PostTargetFailed) == []


# Names of handlers


async def module_level(event: CommentReceived) -> None: ...


class Class:
    async def method(self, event: CommentReceived) -> None: ...

    async def __call__(self, event: CommentReceived) -> None: ...

    @staticmethod
    async def static(event: CommentReceived) -> None: ...

    @classmethod
    async def of_class(cls, event: CommentReceived) -> None: ...


@pytest.mark.parametrize(
    ("function", "ending"),
    [
        (module_level, "test_routing.module_level"),
        (Class().method, "test_routing.Class.method"),
        (Class.static, "test_routing.Class.static"),
        (Class.of_class, "test_routing.Class.of_class"),
    ],
)
def test_a_handler_is_named_after_its_module_and_qualified_name(
    function: Callable[..., Any], ending: str
) -> None:
    router = Router()
    router.on(CommentReceived)(function)
    [handler] = router.handlers
    assert handler.name.endswith(ending)
    assert handler.name.startswith(__name__)


@pytest.mark.parametrize(
    "function",
    [
        lambda _: None,
        functools.partial(module_level),
        functools.partial(Class().method),
        Class(),
    ],
    ids=["lambda", "partial", "partial method", "object"],
)
def test_a_function_without_a_stable_name_needs_a_name(function: Callable[..., Any]) -> None:
    router = Router()
    with pytest.raises(ValueError, match="register it with name="):
        router.on(CommentReceived)(function)
    assert names(router) == []
    router.on(CommentReceived, name="mine")(function)
    assert names(router) == ["mine"]


def test_two_handlers_cannot_have_one_name() -> None:
    router = Router()
    named(router, CommentReceived, name="sync")
    for again in (CommentReceived, "channel.*"):
        with pytest.raises(ValueError, match="'sync' is registered already"):
            named(router, again, name="sync")
    with pytest.raises(ValueError, match="'sync' is registered already"):
        router.on_unknown(name="sync")(_another())
    assert len(router.handlers) == 1


@pytest.mark.parametrize("name", ["", "two\nlines", "nul\0", "\ud83d"])
def test_a_name_is_printable_text(name: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        named(Router(), CommentReceived, name=name)


# Signatures of handlers


def takes_nothing() -> None: ...
def takes_three(one: Any, two: Any, three: Any) -> None: ...
def takes_keyword(event: Any, *, needed: int) -> None: ...
def generator(_: Any) -> Iterator[int]:
    yield 1


async def async_generator(_: Any) -> AsyncIterator[int]:
    yield 1


class GeneratorObject:
    def __call__(self, _: Any) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    "function",
    [
        takes_nothing,
        takes_three,
        takes_keyword,
        generator,
        async_generator,
        functools.partial(generator),
        GeneratorObject(),
        Class,
        CommentReceived,
        "a string",
        None,
        42,
        sys,
    ],
    ids=lambda function: re.sub(" at 0x[0-9a-f]+", "", repr(function)),
)
def test_an_object_that_cannot_be_a_handler_is_refused_when_registered(function: Any) -> None:
    router = Router()
    for register in (router.on(CommentReceived, name="x"), router.on_unknown(name="y")):
        with pytest.raises(TypeError):
            register(function)
    assert names(router) == []


def test_the_refusal_of_a_signature_says_what_is_expected() -> None:
    with pytest.raises(TypeError, match=re.escape("callable as (event) or (event, context)")):
        Router().on(CommentReceived)(takes_three)  # type: ignore[arg-type]  # the test passes a wrong handler


@pytest.mark.parametrize("function", [takes_nothing, takes_keyword, Class, None, "text"])
def test_an_object_that_cannot_be_an_error_hook_is_refused_when_registered(function: Any) -> None:
    router = Router()
    with pytest.raises(TypeError):
        router.on_error(function)
    assert router.error_hooks == ()


def _context_handlers() -> Iterator[tuple[str, Callable[..., Any], bool]]:
    def one(event: Any) -> None: ...
    def two(event: Any, anything: Any) -> None: ...
    def annotated(event: Any, told: Context = None) -> None: ...  # type: ignore[assignment]  # users forget the "| None"
    def in_quotes(event: Any, told: "Context" = None) -> None: ...  # type: ignore[assignment]  # users forget the "| None"
    def by_name(event: Any, context: Any = None) -> None: ...
    def optional(event: Any, retries: int = 3) -> None: ...
    def rest(*anything: Any) -> None: ...
    def keyword(event: Any, *, context: Any = None) -> None: ...
    def positional(event: Any, context: Context, /) -> None: ...

    yield from (("one", one, False), ("two", two, True), ("annotated", annotated, True))
    yield from (("in quotes", in_quotes, True), ("by name", by_name, True))
    yield from (("optional", optional, False), ("rest", rest, False), ("keyword", keyword, False))
    yield ("positional", positional, True)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(function, expected) for _, function, expected in _context_handlers()],
    ids=[name for name, _, _ in _context_handlers()],
)
def test_a_handler_gets_the_context_if_it_asks_for_one(
    function: Callable[..., Any], expected: bool
) -> None:
    router = Router()
    router.on(CommentReceived)(function)
    assert router.handlers[0].takes_context is expected


# Annotations of handlers


async def wants_failure(event: PostTargetFailed) -> None: ...
async def wants_either(event: PostTargetFailed | CommentReceived) -> None: ...
async def wants_any(event: Event[Any]) -> None: ...
async def wants_unreadable(event: "NoSuchName") -> None: ...  # type: ignore[name-defined] # noqa: F821 - the test needs an unknown name


def test_a_handler_annotated_with_another_events_class_is_refused() -> None:
    router = Router()
    with pytest.raises(TypeError, match="expects PostTargetFailed, but is registered for"):
        router.on(CommentReceived)(wants_failure)  # type: ignore[arg-type]  # the test passes a wrong handler
    with pytest.raises(TypeError, match="whose events are CommentReceived"):
        router.on(PostTargetFailed, CommentReceived)(wants_failure)  # type: ignore[arg-type]  # the test passes a wrong handler
    assert names(router) == []


def test_a_handler_of_a_type_string_annotated_with_another_events_class_is_refused() -> None:
    with pytest.raises(TypeError, match="expects PostTargetFailed, but is registered for"):
        Router().on("comment.received")(wants_failure)  # type: ignore[arg-type]  # the test passes a wrong handler


async def wants_a_channel(event: ChannelUnhealthy | ChannelDisconnected) -> None: ...


@pytest.mark.parametrize(
    ("events", "function", "words"),
    [
        (["channel.*"], wants_failure, "'channel.unhealthy', whose events are ChannelUnhealthy"),
        (["*"], wants_failure, "expects PostTargetFailed, but is registered for"),
        (["post.*.failed", "comment.*"], wants_failure, "'comment.received'"),
        (["channel.*"], wants_either, "expects PostTargetFailed | CommentReceived, but is"),
        (["comment.received"], wants_a_channel, "whose events are CommentReceived"),
        (["post.*"], wants_a_channel, "'post.target.published'"),
    ],
)
def test_a_handler_of_a_pattern_or_union_is_refused_where_another_event_could_come(
    events: list[str], function: Any, words: str
) -> None:
    router = Router()
    with pytest.raises(TypeError, match=re.escape(words)):
        router.on(*events)(function)
    assert names(router) == []


@pytest.mark.parametrize(
    ("events", "function"),
    [
        (["channel.*"], wants_a_channel),
        (["post.*.failed"], wants_failure),
        (["post.target.failed", "comment.*"], wants_either),
        (["*"], wants_any),
    ],
)
def test_a_handler_of_a_pattern_is_accepted_with_a_class_that_suits_all(
    events: list[str], function: Any
) -> None:
    router = Router()
    router.on(*events)(function)
    assert len(router.handlers) == 1


def test_a_handler_of_a_pattern_gets_the_users_class_of_a_matching_type() -> None:
    class AdPublished(Event[dict[str, Any]]):
        type: Literal["ad.published"]

    async def ads(event: AdPublished) -> None: ...

    router = Router()
    router.on("ad.*", name="ads")(ads)
    assert type(router._table.parser.parse(event_body("ad.published"))) is AdPublished


def test_a_handler_of_unknown_types_annotated_with_a_known_class_is_refused() -> None:
    with pytest.raises(TypeError, match="'every unknown type', whose events are UnknownEvent"):
        Router().on_unknown(wants_failure)


def test_a_base_of_several_event_classes_names_no_type_but_fits_as_an_annotation() -> None:
    class Ad(Event[dict[str, Any]]):
        pass

    class AdPaid(Ad):
        type: Literal["ad.paid"]

    async def wants_ads(event: Ad) -> None: ...

    router = Router()
    router.on(AdPaid, name="paid")(wants_ads)
    router.on("ad.*", name="all")(wants_ads)
    with pytest.raises(TypeError, match="whose events are ChannelUnhealthy"):
        router.on("channel.*")(wants_ads)


@pytest.mark.parametrize("function", [wants_either, wants_any, wants_unreadable, _another()])
def test_annotations_that_fit_or_cannot_be_read_are_accepted(function: Any) -> None:
    router = Router()
    router.on(PostTargetFailed, CommentReceived)(function)
    assert len(router.handlers) == 1


# Type strings that no event can have


@pytest.mark.parametrize(
    "pattern",
    ["po*st.failed", "channel.**", "**", "channel..*", ".*", "*.", "channel.* ", "chan nel.*"],
)
def test_a_pattern_that_can_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="can match nothing"):
        named(Router(), pattern)


@pytest.mark.parametrize("pattern", ["webhook.*", "*.test", "web*hook.*"])
def test_a_pattern_for_test_events_alone_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="can match nothing"):
        named(Router(), pattern)


@pytest.mark.parametrize("text", ["", ".", "comment.", ".received", "comment..received", "a b"])
def test_a_string_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no event type"):
        named(Router(), text)


class Untyped(Event[dict[str, Any]]):
    """An event class that names no type."""


@pytest.mark.parametrize("event", [Event, Untyped, UnknownEvent, Resource, int, None, 3])
def test_an_event_class_without_a_type_is_refused(event: Any) -> None:
    with pytest.raises(TypeError):
        named(Router(), event)


def test_a_registration_for_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="at least one"):
        Router().on()


# Event classes that a user defines


class OwnComment(CommentReceived):
    """A comment with a field this package does not know."""

    sentiment: str = "neutral"


class UnrelatedComment(Event[dict[str, Any]]):
    type: Literal["comment.received"]


class AdEvent(Event[dict[str, Any]]):
    type: Literal["ad.published", "ad.failed"]


def test_a_class_of_the_users_own_takes_the_place_of_the_documented_one() -> None:
    router = Router()
    named(router, "comment.received", name="by type")
    named(router, OwnComment, name="by own class")
    event = router._table.parser.parse(event_body("comment.received"))
    assert type(event) is OwnComment
    assert [handler.name for handler in router._table.find(event)] == ["by type", "by own class"]


@pytest.mark.parametrize("order", [(CommentReceived, OwnComment), (OwnComment, CommentReceived)])
def test_handlers_of_a_class_and_its_subclass_both_get_the_subclass(
    order: tuple[EventClass, EventClass],
) -> None:
    router = Router()
    for cls in order:
        named(router, cls, name=cls.__name__)
    assert type(router._table.parser.parse(event_body("comment.received"))) is OwnComment


@pytest.mark.parametrize(
    "order", [(CommentReceived, UnrelatedComment), (UnrelatedComment, CommentReceived)]
)
def test_two_unrelated_classes_for_one_type_are_refused(
    order: tuple[EventClass, EventClass],
) -> None:
    router = Router()
    named(router, order[0], name="first")
    with pytest.raises(ValueError, match="neither a subclass nor a base"):
        named(router, order[1], name="second")
    assert names(router) == ["first"]
    assert type(router._table.parser.parse(event_body("comment.received"))) is order[0]


def test_a_handler_without_an_annotation_accepts_any_class_of_its_type() -> None:
    router = Router()
    router.on("comment.received", name="plain")(lambda _: None)
    named(router, UnrelatedComment, name="own")
    assert router._table.parser.classes["comment.received"] is UnrelatedComment


def test_a_type_without_a_class_is_an_unknown_event() -> None:
    async def greet(event: CommentReceived) -> None: ...

    with pytest.raises(TypeError, match=r"greet .*'ad\.seen', whose events are UnknownEvent"):
        Router().on("ad.seen")(greet)


def test_an_unrelated_class_is_refused_across_an_inclusion() -> None:
    receiver, posts = Router(), Router()
    named(receiver, CommentReceived, name="first")
    receiver.include(posts)
    with pytest.raises(ValueError, match="neither a subclass nor a base"):
        named(posts, UnrelatedComment, name="second")
    assert names(posts) == []


def test_an_unrelated_class_does_not_take_away_the_class_a_handler_is_annotated_with() -> None:
    router = Router()

    @router.on("comment.received", name="annotated")
    async def annotated(event: CommentReceived) -> None: ...

    with suppress(ValueError):  # the router may also refuse this class
        named(router, UnrelatedComment, name="unrelated")
    event = router._table.parser.parse(event_body("comment.received"))
    assert isinstance(event, CommentReceived)


def test_an_event_class_may_have_several_types() -> None:
    router = Router()
    named(router, AdEvent)
    for name in ("ad.published", "ad.failed"):
        assert isinstance(router._table.parser.parse(event_body(name)), AdEvent)
        assert names_for(router, name) == ["handler"]


# Results of a type checker


class Line(NamedTuple):
    kind: Literal["note", "error"]
    text: str


SNIPPET = """
from typing import Any, Literal

from hookonce import Context, Event, Receiver, Router
from hookonce.events import (
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    PostTargetFailed,
    PostTargetPublished,
)
from hookonce.resources import Channel, Resource

receiver = Receiver(secrets="whsec_")


class AdPublished(Event[dict[str, Any]]):
    type: Literal["ad.published"]


reveal_type(receiver.on(PostTargetFailed))  # 1
reveal_type(receiver.on(AdPublished, name="ads"))  # 2
reveal_type(receiver.on(PostTargetFailed, PostTargetPublished))  # 3
reveal_type(receiver.on(PostTargetFailed, ChannelUnhealthy, ChannelDisconnected))  # 4
reveal_type(receiver.on("post.target.published"))  # 5
reveal_type(receiver.on("post.target.failed"))  # 6
reveal_type(receiver.on("comment.received"))  # 7
reveal_type(receiver.on("message.received"))  # 8
reveal_type(receiver.on("channel.unhealthy"))  # 9
reveal_type(receiver.on("channel.disconnected"))  # 10
reveal_type(receiver.on("webhook.test"))  # 11
reveal_type(receiver.on("channel.*"))  # 12
reveal_type(receiver.on("invoice.paid", CommentReceived))  # 13
reveal_type(Router().on(CommentReceived))  # 14


@receiver.on(CommentReceived)
async def good(event: CommentReceived) -> None:
    reveal_type(event.data.post_id)  # 15


@receiver.on("comment.received")
def good_with_context(event: CommentReceived, context: Context) -> int:
    return context.attempt


@receiver.on(PostTargetFailed, PostTargetPublished)
async def good_union(event: PostTargetFailed | PostTargetPublished) -> None: ...


@receiver.on(PostTargetFailed)
async def good_base(event: Event[Any]) -> None: ...


@receiver.on("channel.*", name="patterns")
async def good_pattern(event: Event[Any], context: Context) -> None: ...


@receiver.on_unknown
async def good_unknown(event: Event[Any]) -> None: ...


@receiver.on_error
async def good_hook(error: ExceptionGroup[Exception], event: Event[Any], context: Context) -> None:
    ...


reveal_type(good)  # 16


@receiver.on(CommentReceived)  # 17
async def wrong_class(event: PostTargetFailed) -> None: ...


@receiver.on("comment.received")  # 18
async def wrong_class_for_string(event: PostTargetFailed) -> None: ...


@receiver.on(CommentReceived, PostTargetFailed)  # 19
async def one_of_two(event: PostTargetFailed) -> None: ...


@receiver.on(CommentReceived)  # 20
async def no_event() -> None: ...


@receiver.on(CommentReceived)  # 21
async def too_many(event: CommentReceived, context: Context, more: int) -> None: ...


@receiver.on(CommentReceived)  # 22
async def no_context(event: CommentReceived, context: int) -> None: ...


@receiver.on(CommentReceived)
async def wrong_field(event: CommentReceived) -> None:
    event.data.no_such_field  # 23


receiver.on(int)  # 24
Receiver()  # 25


def told(event: Event[object]) -> str:
    match event:
        case CommentReceived():
            return event.data.text
        case PostTargetFailed(data=target):
            return target.username
        case AdPublished():
            return str(event.data)
        case _:
            return event.type


@receiver.on(CommentReceived, AdPublished)
async def good_object(event: Event[object]) -> None:
    told(event)


async def narrow(event: Event[Channel], events: list[ChannelUnhealthy]) -> None:
    told(event)
    [told(one) for one in events]
    about: Event[Resource] = events[0]
    wrong: Event[str] = about  # 26
"""


@pytest.fixture
def checked(request: pytest.FixtureRequest, tmp_path: Path) -> dict[int, Line]:
    """Return mypy's messages about the snippet, by the number at the end of each line."""
    folder = tmp_path
    (folder / "snippet.py").write_text(SNIPPET)
    cache = mypy_cache(request.config, folder)
    arguments = ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary"]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, "snippet.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stderr == ""
    source = SNIPPET.splitlines()
    lines: dict[int, Line] = {}
    for match in re.finditer(r"snippet\.py:(\d+): (note|error): (.*)", said.stdout):
        number = re.search(r"# (\d+)$", source[int(match[1]) - 1])
        assert number, f"mypy says more than expected: {match[0]}"
        kind: Literal["note", "error"] = "note" if match[2] == "note" else "error"
        if int(number[1]) not in lines or kind == "error":
            lines[int(number[1])] = Line(kind, match[3])
    return lines


DECORATOR = "hookonce.routing.handler.HandlerDecorator[{}, None]"
REVEALED = {
    1: "hookonce.events.publishing.PostTargetFailed",
    2: "snippet.AdPublished",
    3: "hookonce.events.publishing.PostTargetFailed"
    " | hookonce.events.publishing.PostTargetPublished",
    4: "hookonce.events.publishing.PostTargetFailed | hookonce.events.publishing.ChannelUnhealthy"
    " | hookonce.events.publishing.ChannelDisconnected",
    5: "hookonce.events.publishing.PostTargetPublished",
    6: "hookonce.events.publishing.PostTargetFailed",
    7: "hookonce.events.publishing.CommentReceived",
    8: "hookonce.events.publishing.MessageReceived",
    9: "hookonce.events.publishing.ChannelUnhealthy",
    10: "hookonce.events.publishing.ChannelDisconnected",
    11: "hookonce.events.publishing.WebhookTest",
    12: "Any",
    13: "Any",
    14: "hookonce.events.publishing.CommentReceived",
}


REFUSED = range(17, 27)


@pytest.mark.full("4 s")
def test_a_type_checker_infers_event_classes_and_refuses_what_registration_would_refuse(
    checked: dict[int, Line],
) -> None:
    for number, event in REVEALED.items():
        said = f'Revealed type is "{DECORATOR.format(event)}"'
        assert checked[number] == Line("note", said)
    assert checked[15].text == 'Revealed type is "str | None"', "the field of an event"
    assert "CommentReceived" in checked[16].text, "registration leaves the handler as it is"
    assert "Coroutine[Any, Any, None]" in checked[16].text
    assert [number for number in REFUSED if checked[number].kind != "error"] == []


def test_the_typing_snippet_is_checked_against_this_tree() -> None:
    import hookonce

    assert Path(hookonce.__file__ or "").with_name("py.typed").exists()
    assert textwrap.dedent(SNIPPET) == SNIPPET


def test_a_receiver_shows_its_endpoint_and_handlers_and_no_secret(webhook_secret: str) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://", endpoint="bakery")
    named(receiver, MessageReceived, ChannelUnhealthy, ChannelDisconnected, PostTargetPublished)
    named(receiver, WebhookTest, name="tests")
    assert repr(receiver) == "Receiver(endpoint='bakery', 2 handlers)"


def test_a_refusal_says_what_to_do() -> None:
    router, other = Router(), Router()
    named(router, CommentReceived, name="taken")
    other.include(included := Router())

    async def hook(*, error: Exception) -> None: ...

    plain: Any = succeed_plainly
    refusals: list[tuple[Callable[[], object], str]] = [
        (router.on, "on() takes at least one event class, type string or pattern"),
        (
            lambda: router.on(plain),
            (
                "on() takes the events of the handler, not the handler:"
                " @receiver.on(CommentReceived), or a type string"
            ),
        ),
        (
            lambda: router.on_error(hook),
            (
                f"{hook.__qualname__} must be callable as (error), (error, event) or (error, event,"
                " context)"
            ),
        ),
        (
            lambda: named(router, PostTargetFailed, name="taken"),
            (
                "a handler named 'taken' is registered already; give one of them another name=…, or"
                " pass several events to one on()"
            ),
        ),
        (
            lambda: named(router, UnrelatedComment),
            (
                "'comment.received' is handled as CommentReceived already, and UnrelatedComment is"
                " neither a subclass nor a base of CommentReceived; derive one class from the other"
            ),
        ),
        (lambda: router.include(router), "a router cannot include itself"),
        (lambda: other.include(included), "this router is included already"),
    ]
    for refused, text in refusals:
        with pytest.raises((TypeError, ValueError)) as caught:
            refused()
        assert str(caught.value) == text
    assert names(router) == ["taken"]


def succeed_plainly(_: object) -> None: ...
