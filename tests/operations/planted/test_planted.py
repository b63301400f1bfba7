"""For each planted fault, the operator finds the cause and the remedy in one or two steps."""

import pytest

from .faults import COMMANDS, FAULTS
from .walk import Row, rows, walk

pytestmark = [pytest.mark.costs("3 s each"), pytest.mark.sample(1, of="file", full=8)]

# In these faults the servers are healthy, so the doctor finds nothing wrong with them.
SOUND_SERVERS = {"hookonce's body limit", "wrong API URL"}


def test_the_guide_has_a_row_for_each_planted_fault_and_no_other() -> None:
    assert sorted(row.fault for row in rows()) == sorted(FAULTS)
    for row in rows():
        assert 1 <= len(row.steps) <= 2, row
        assert set(row.steps) <= {"log", "doctor", *COMMANDS}, row


@pytest.mark.parametrize("row", rows(), ids=[row.fault for row in rows()])
def test_the_step_in_the_guide_names_the_cause_and_what_to_do(row: Row) -> None:
    walked = walk(row)
    assert walked.step == row.steps[-1], walked.said
    if walked.is_served and row.fault not in SOUND_SERVERS:
        assert "0 faults, 0 warnings" not in walked.said["doctor"], "an all-clear misleads"
