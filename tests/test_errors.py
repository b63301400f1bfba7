"""Error classes name the fault, refuse impossible arguments, and always have a repr."""

import importlib
import inspect
import pkgutil
from datetime import timedelta
from typing import Any

import pytest

import hookonce
from hookonce import Retry, Verifier
from hookonce.delivery.limits import Limits
from hookonce.errors import WebhookError
from hookonce.outcome import Outcome

MONTH = timedelta(days=31)


@pytest.mark.parametrize(
    "after",
    [
        *(1e12, MONTH.total_seconds() + 1, -1, -1e-9, float("nan"), float("inf"), -float("inf")),
        *(MONTH + timedelta(seconds=1), timedelta(seconds=-1), timedelta.max),
    ],
)
def test_a_wait_that_nobody_can_mean_is_refused_with_what_to_give(after: Any) -> None:
    with pytest.raises(ValueError, match=r"takes (a finite number|at most 31 days)"):
        Retry(after=after)


@pytest.mark.parametrize("after", ["60", True, b"60", object()])
def test_a_wait_that_is_neither_seconds_nor_a_timedelta_is_refused(after: Any) -> None:
    with pytest.raises(TypeError, match="takes seconds or a timedelta"):
        Retry(after=after)


@pytest.mark.parametrize(
    ("after", "seconds"),
    [(None, None), (0, 0), (0.5, 0.5), (MONTH, 2_678_400), (2_678_400.0, 2_678_400)],
)
def test_a_wait_of_a_month_at_most_is_kept(after: Any, seconds: float | None) -> None:
    assert Retry(after=after).after_seconds == seconds


def half_built() -> list[Any]:
    """Return an unfinished object of each error class, and of public values."""
    classes: set[Any] = {Limits, Outcome, Verifier}
    for module in pkgutil.walk_packages(hookonce.__path__, "hookonce."):
        if module.name.endswith("__main__"):
            continue
        for one in vars(importlib.import_module(module.name)).values():
            own = inspect.isclass(one) and one.__module__ == module.name
            if own and issubclass(one, WebhookError):
                classes.add(one)
    return [one.__new__(one) for one in sorted(classes, key=lambda one: one.__name__)]


@pytest.mark.parametrize("thing", half_built(), ids=lambda thing: type(thing).__name__)
def test_an_object_whose_constructor_has_failed_can_be_shown(thing: Any) -> None:
    assert type(thing).__name__ in repr(thing)
    assert isinstance(str(thing), str)


def test_a_retry_that_was_refused_can_be_shown() -> None:
    with pytest.raises(ValueError, match="Retry") as caught:
        Retry(after=-1)
    frame = caught.tb.tb_next
    assert frame is not None
    assert "Retry" in repr(frame.tb_frame.f_locals["self"])
    assert "Retry" in str(frame.tb_frame.f_locals["self"])
