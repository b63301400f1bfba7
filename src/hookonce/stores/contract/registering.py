"""Rules for the register of applications."""

from __future__ import annotations

from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application, RegisteringStore
from .bench import (
    Bench,
    about,
    with_applications,
)


def application(handlers: str, marks: str) -> Application:
    return Application(frozenset(handlers.split()), frozenset(marks.split()))


ONE, OTHER = application("shop.greet shop.answer", "s1 s2"), application("club.note", "s3")


@with_applications
async def registering_returns_all_applications_of_the_endpoint(bench: Bench) -> None:
    applications = bench.applications
    assert await applications.register("default", ONE) == (ONE,)
    bench.clock.advance(60)
    known = await applications.register("default", OTHER)
    assert known == (ONE, OTHER)
    assert known[1].seen_unix - known[0].seen_unix == about(60)
    assert await applications.register("default", ONE) == (OTHER, ONE)


@with_applications
async def applications_are_registered_for_their_endpoint(bench: Bench) -> None:
    applications = bench.applications
    await applications.register("shop", ONE)
    assert await applications.register("club", OTHER) == (OTHER,)


@with_applications
async def registering_none_only_asks(bench: Bench) -> None:
    applications = bench.applications
    assert await applications.register("default", None) == ()
    await applications.register("default", ONE)
    for _ in range(2):
        assert await applications.register("default", None) == (ONE,)


@with_applications
async def a_silent_application_is_forgotten(bench: Bench) -> None:
    applications = bench.applications
    await applications.register("default", ONE)
    bench.clock.advance(REMEMBERED_SECONDS - 1)
    assert await applications.register("default", OTHER) == (ONE, OTHER)
    bench.clock.advance(2)
    assert await applications.register("default", None) == (OTHER,)


@with_applications
async def the_last_applications_are_remembered(bench: Bench) -> None:
    applications = bench.applications
    forms = [application(f"shop.handler_{number}", "s1") for number in range(MOST_REMEMBERED + 5)]
    for form in forms:
        await applications.register("default", form)
        bench.clock.advance(1)
    assert await applications.register("default", None) == tuple(forms[5:])


@with_applications
async def two_stores_on_the_same_data_have_the_same_place(bench: Bench) -> None:
    one, other = bench.applications, bench.open()
    assert isinstance(other, RegisteringStore)
    assert one.place == one.place
    assert (one.place == other.place) is bench.shares_data
