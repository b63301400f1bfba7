"""Findings from the readiness report of a running server."""

import pytest

from hookonce.operations.doctor import Finding, Level
from hookonce.operations.doctor.readiness import readiness_findings

URL = "https://hooks.example.com/readyz"

READY = {"ready": True, "problems": [], "warnings": [], "secrets": []}


def test_every_problem_is_a_fault_and_every_warning_a_warning() -> None:
    said = {**READY, "ready": False, "problems": ["no store"], "warnings": ["old secret", "late"]}
    found = [(one.level, one.found) for one in readiness_findings(URL, said)]
    assert found == [
        (Level.FAULT, "no store"),
        (Level.WARNING, "old secret"),
        (Level.WARNING, "late"),
    ]


def test_the_words_behind_the_last_semicolon_are_the_fix() -> None:
    said = {**READY, "warnings": ["old; worn; replace it", "odd"]}
    first, second = readiness_findings(URL, said)
    assert (first.found, first.fix) == ("old; worn", "replace it")
    assert "hookonce guide" in second.fix


def test_a_problem_that_another_check_has_found_is_not_repeated() -> None:
    known = Finding("store.settings", Level.FAULT, "evicts", "set noeviction")
    said = {**READY, "warnings": ["evicts; set noeviction", "late"]}
    assert [one.found for one in readiness_findings(URL, said, [known])] == ["late"]
    assert readiness_findings(URL, {**READY, "warnings": ["evicts; set noeviction"]}, [known]) == []


def test_a_ready_server_without_warnings_is_fine() -> None:
    [found] = readiness_findings(URL, READY)
    assert found.level is Level.OK


@pytest.mark.parametrize(("count", "warns"), [(3, False), (4, True), (19, True)])
def test_four_refused_deliveries_are_a_warning_for_a_person_who_looks(
    count: int, warns: bool
) -> None:
    refused = {"count": count, "warning": "refused; synchronise the clock"}
    [found] = readiness_findings(URL, {**READY, "refused": refused})
    assert found.level is (Level.WARNING if warns else Level.OK)
    if warns:
        assert (found.found, found.fix) == ("refused", "synchronise the clock")


def test_twenty_refused_deliveries_are_reported_once() -> None:
    refused = {"count": 20, "warning": "the last 20 deliveries were refused"}
    said = {**READY, "warnings": ["the last 20 deliveries were refused"], "refused": refused}
    assert len(readiness_findings(URL, said)) == 1


@pytest.mark.parametrize("said", [None, [], {}, {"ready": "yes"}, "ready"])
def test_an_answer_that_is_no_readiness_report_is_a_note_that_names_the_option(
    said: object,
) -> None:
    [found] = readiness_findings(URL, said)
    assert found.level is Level.NOTE
    assert "--health-url" in found.fix


@pytest.mark.parametrize(("ready", "level"), [(True, Level.NOTE), (False, Level.FAULT)])
def test_a_server_that_hides_its_reasons_needs_the_token(ready: bool, level: Level) -> None:
    [found] = readiness_findings(URL, {"ready": ready})
    assert found.level is level
    assert "HOOKONCE_HEALTH_TOKEN" in found.fix
