"""With --json, standard output has only records, whatever else is printed."""

import json
from pathlib import Path

import pytest

from .dead_letters import APP, COMMENT, MESSAGE, bury
from .running import SECRET, invoke, run

LOUD = f"""
import os, sys
print("the module is imported")
{APP.replace('note(f"', 'shout(); note(f"')}

def shout() -> None:
    print("a handler has run")
    sys.__stdout__.write("so says a writer of its own")
    os.write(1, b"so does the system")
    os.system("echo and another program")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("command", "heard", "count"),
    [
        (["dead", "list", "hooks:receiver"], False, 2),
        (["dead", "replay", "hooks:receiver", "--all"], True, 2),
        (["inbox", "stats", "hooks:receiver"], False, 1),
        (["chaos", "hooks:receiver", "--events", "5", "--seed", "1"], False, 1),
    ],
    ids=["dead list", "dead replay", "inbox stats", "chaos"],
)
def test_output_of_modules_and_handlers_goes_to_standard_error(
    command: list[str], heard: bool, count: int, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(LOUD)
    bury(tmp_path, COMMENT, MESSAGE)
    done = run(*command, "--json", here=tmp_path, secrets=[SECRET])
    assert done.status == 0, done
    records = [json.loads(line) for line in done.output.splitlines()]
    assert [type(record) for record in records] == [dict] * count
    assert "the module is imported" in done.errors
    for word in ("a handler has run", "writer of its own", "the system", "another program"):
        assert (word in done.errors) is heard or not heard


def test_a_body_cannot_be_raw_and_in_a_json_record_at_once(tmp_path: Path) -> None:
    store = bury(tmp_path, COMMENT)
    done = invoke("dead", "show", store, "evt_comment", "--raw", "--json")
    assert (done.status, done.output) == (2, "")
    assert "--raw and --json exclude each other" in done.errors
