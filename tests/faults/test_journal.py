"""The check of a journal finds lost events, and repeated runs with and without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from .journal import Line, Note, Verdict, Writer, judge, read_journal

ONE, OTHER = 101, 102


def line(at: int, pid: int, note: Note, attempt: int = 1) -> Line:
    return Line(at, pid, note, "evt_1", "slow", attempt)


BEGUN = line(10, ONE, "begin")
AGAIN = [line(50, OTHER, "begin", 2), line(60, OTHER, "end", 2), line(70, OTHER, "done", 2)]


def verdict_on(
    *lines: Line, killed: tuple[int, int] | None = None, stalled: tuple[int, int] | None = None
) -> Verdict:
    return judge(
        lines,
        ["evt_1"],
        ["slow"],
        kills={ONE: [killed]} if killed else {},
        stalls={ONE: [stalled]} if stalled else {},
    )


def test_an_event_that_was_handled_once_is_neither_lost_nor_run_again() -> None:
    verdict = verdict_on(BEGUN, line(20, ONE, "end"), line(30, ONE, "done"))
    assert (verdict.lost, verdict.again, verdict.unexplained) == ([], {}, [])


@pytest.mark.parametrize(
    "lines", [pytest.param([], id="never begun"), pytest.param([BEGUN], id="never ended")]
)
def test_an_acknowledged_event_that_no_handler_has_finished_is_lost(lines: list[Line]) -> None:
    assert verdict_on(*lines).lost == ["evt_1"]


def test_an_event_that_one_of_its_handlers_has_not_finished_is_lost() -> None:
    verdict = judge([BEGUN, line(20, ONE, "end")], ["evt_1"], ["slow", "quick"])
    assert verdict.lost == ["evt_1"]


def test_a_second_run_is_explained_by_the_kill_of_the_first_ones_process() -> None:
    verdict = verdict_on(BEGUN, *AGAIN, killed=(30, 31))
    assert (verdict.again, verdict.unexplained) == ({"killed": 1}, [])


def test_a_run_may_begin_between_the_kill_and_the_death_of_its_process() -> None:
    assert verdict_on(BEGUN, *AGAIN, killed=(9, 11)).again == {"killed": 1}


def test_a_stall_or_a_failure_before_a_second_run_explains_it() -> None:
    assert verdict_on(BEGUN, *AGAIN, stalled=(30, 65)).again == {"stalled": 1}
    assert verdict_on(BEGUN, line(20, ONE, "fail"), *AGAIN).again == {"failed": 1}


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_process_that_stops_while_it_holds_the_stores_lock_explains_a_second_run(
    has_lock: bool,
) -> None:
    stopped = {OTHER + 1: [(30, 45)]}
    verdict = judge([BEGUN, *AGAIN], ["evt_1"], ["slow"], stalls=stopped, has_lock=has_lock)
    assert verdict.again == ({"stalled": 1} if has_lock else {})


def test_a_stall_explains_no_second_run_in_the_same_process() -> None:
    again = [line(50, ONE, "begin", 2), line(60, ONE, "end", 2)]
    assert len(verdict_on(BEGUN, *again, stalled=(30, 45)).unexplained) == 1


def test_a_stall_between_claim_and_run_explains_the_run_that_came_before() -> None:
    late = [line(45, ONE, "begin", 1), line(60, ONE, "end", 1)]
    earlier = [line(40, OTHER, "begin", 2), line(70, OTHER, "end", 2)]
    assert verdict_on(*earlier, *late, stalled=(10, 44)).again == {"stalled": 1}
    assert len(verdict_on(*earlier, *late, stalled=(46, 50)).unexplained) == 1


@pytest.mark.parametrize(
    "killed", [pytest.param((55, 56), id="killed too late"), pytest.param((5, 6), id="too early")]
)
def test_a_kill_at_another_time_explains_nothing(killed: tuple[int, int]) -> None:
    assert len(verdict_on(BEGUN, *AGAIN, killed=killed).unexplained) == 1


def test_nothing_explains_a_second_run_of_an_event_recorded_as_done() -> None:
    done = line(25, ONE, "done")
    verdict = verdict_on(BEGUN, line(20, ONE, "end"), done, *AGAIN, killed=(30, 31))
    assert len(verdict.unexplained) == 1


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write("begin", "evt_1", "slow", 3)
    writer.write("end", "evt_1", "slow", 3)
    assert [(entry.note, entry.attempt) for entry in read_journal(tmp_path)] == [
        ("begin", 3),
        ("end", 3),
    ]


def test_a_run_that_waited_for_its_key_may_have_been_claimed_before_the_record() -> None:
    recorded = [BEGUN, line(40, ONE, "done"), *AGAIN]
    for wait_ns, again in ((0, {}), (5, {}), (15, {"stalled": 1})):
        verdict = judge(recorded, ["evt_1"], ["slow"], stalls={ONE: [(20, 35)]}, wait_ns=wait_ns)
        assert verdict.again == again
