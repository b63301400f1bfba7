"""``hookonce chaos --url`` names the faults of typical hand-written receivers."""

from __future__ import annotations

import pytest

from .judged_receivers import judged
from .receivers.quick import PATIENCE_SECONDS

pytestmark = pytest.mark.sample(1, of="file")

QUICK = ("--sender", "quick:sender", "--speed", "4000", "--settle", "1s", "--seed", "11")

# Late answers are not in this list: on an overloaded machine, any receiver answers late.
FAULTS = ("lost", "handled_twice", "accepted_forgery", "punished_answer", "unfinished")


def faults_of(name: str, *options: str) -> set[str]:
    report = judged(name, *QUICK, *options, PATIENCE_SECONDS=str(PATIENCE_SECONDS))
    assert report["restarts"] or "--chaos" in options
    return {fault for fault in FAULTS if report[fault]}


@pytest.mark.costs("3 s: processes that are killed")
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("without_memory.py", {"handled_twice"}),
        ("marked_before.py", {"lost"}),
        ("recorded_after.py", {"handled_twice"}),
        ("answered_first.mjs", {"lost", "accepted_forgery"}),
    ],
)
def test_the_fault_of_each_receiver_is_found(name: str, faults: set[str]) -> None:
    assert faults_of(name, "--events", "60") == faults


@pytest.mark.costs("4 s: processes that are killed")
def test_a_receiver_with_hookonce_does_every_effect_once_although_it_is_killed() -> None:
    assert faults_of("with_hookonce.py", "--events", "60") == set()


def test_without_chaos_even_a_receiver_without_memory_passes() -> None:
    assert faults_of("without_memory.py", "--events", "5", "--chaos", "0") == set()
