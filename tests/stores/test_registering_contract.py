"""Every backend's register of the applications that receive under an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from hookonce.stores.applications import (
    MOST_REMEMBERED,
    REMEMBERED_SECONDS,
    Application,
    RegisteringStore,
    strangers,
)
from hookonce.stores.protocols import Store

pytestmark = pytest.mark.anyio

PassTime = Callable[[float], None]


def application(handlers: str, marks: str) -> Application:
    return Application(frozenset(handlers.split()), frozenset(marks.split()))


ONE, OTHER = application("shop.greet shop.answer", "s1 s2"), application("club.note", "s3")


class _Both(Store, RegisteringStore, Protocol):
    """A store that registers."""


@pytest.fixture
def register(store: _Both) -> _Both:
    assert isinstance(store, RegisteringStore)
    return store


async def test_who_registers_is_told_of_all_who_have(
    register: RegisteringStore, pass_time: PassTime
) -> None:
    assert await register.register("default", ONE) == (ONE,)
    pass_time(60)
    known = await register.register("default", OTHER)
    assert known == (ONE, OTHER)
    assert known[1].seen_unix - known[0].seen_unix == pytest.approx(60)
    assert await register.register("default", ONE) == (OTHER, ONE)


async def test_endpoints_know_nothing_of_each_other(register: RegisteringStore) -> None:
    await register.register("shop", ONE)
    assert await register.register("club", OTHER) == (OTHER,)


async def test_looking_notes_nothing(register: RegisteringStore) -> None:
    assert await register.register("default", None) == ()
    await register.register("default", ONE)
    for _ in range(2):
        assert await register.register("default", None) == (ONE,)


async def test_one_that_is_not_heard_of_is_forgotten_after_a_week(
    register: RegisteringStore, pass_time: PassTime
) -> None:
    await register.register("default", ONE)
    pass_time(REMEMBERED_SECONDS - 1)
    assert await register.register("default", OTHER) == (ONE, OTHER)
    pass_time(2)
    assert await register.register("default", None) == (OTHER,)


async def test_of_many_the_last_are_remembered(
    register: RegisteringStore, pass_time: PassTime
) -> None:
    forms = [application(f"shop.handler_{number}", "s1") for number in range(MOST_REMEMBERED + 5)]
    for form in forms:
        await register.register("default", form)
        pass_time(1)
    assert await register.register("default", None) == tuple(forms[5:])


async def test_two_objects_for_one_place_are_known_as_such(
    make_store: Callable[..., Store],
) -> None:
    one, other = make_store(), make_store()
    assert isinstance(one, RegisteringStore)
    assert isinstance(other, RegisteringStore)
    assert one.place == one.place
    assert (one.place == other.place) is one.keeps_bodies  # a store in memory is its object
    await one.aclose()
    await other.aclose()


class TestStrangers:
    def test_two_with_nothing_in_common_are(self) -> None:
        assert strangers(ONE, [ONE, OTHER]) == (OTHER,)

    @pytest.mark.parametrize(
        "form",
        [
            pytest.param(application("shop.greet", "s9"), id="a handler"),
            pytest.param(application("shop.renamed", "s2 s9"), id="a secret"),
        ],
    )
    def test_who_shares_one_thing_is_none(self, form: Application) -> None:
        assert strangers(ONE, [form]) == ()

    def test_an_application_that_changed_bit_by_bit_is_none_to_its_first_form(self) -> None:
        rotating = application("shop.greet shop.renamed", "s2 s9")
        last = application("shop.renamed", "s9 s10")
        assert strangers(last, [ONE, rotating, OTHER]) == (OTHER,)
