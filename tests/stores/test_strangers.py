"""Applications at one endpoint are strangers if they share no handler and no secret."""

from __future__ import annotations

import pytest

from hookonce.stores.applications import Application, strangers


def application(handlers: str, marks: str) -> Application:
    return Application(frozenset(handlers.split()), frozenset(marks.split()))


ONE, OTHER = application("shop.greet shop.answer", "s1 s2"), application("club.note", "s3")


def test_applications_with_nothing_in_common_are_strangers() -> None:
    assert strangers(ONE, [ONE, OTHER]) == (OTHER,)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(application("shop.greet", "s9"), id="a handler"),
        pytest.param(application("shop.renamed", "s2 s9"), id="a secret"),
    ],
)
def test_applications_with_one_thing_in_common_are_no_strangers(form: Application) -> None:
    assert strangers(ONE, [form]) == ()


def test_an_application_that_changed_bit_by_bit_is_no_stranger_to_its_first_form() -> None:
    rotating = application("shop.greet shop.renamed", "s2 s9")
    last = application("shop.renamed", "s9 s10")
    assert strangers(last, [ONE, rotating, OTHER]) == (OTHER,)
