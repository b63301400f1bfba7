"""A token is unique, whichever process makes it."""

import os
import sys
from subprocess import run

import pytest

from hookonce.stores import values
from hookonce.stores.values import new_token

FORKING = """
import os
from hookonce.stores.values import new_token

new_token()
read, write = os.pipe()
child = os.fork()
mine = [new_token() for _ in range(3)]
os.write(write, " ".join(mine).encode() + b" ")
os.close(write)
if child:
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        print(len(set(token[:16] for token in pipe.read().split())))
else:
    os._exit(0)
"""


def test_no_two_are_the_same() -> None:
    assert len({new_token() for _ in range(10_000)}) == 10_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_processes_that_were_forked_draw_different_ones() -> None:
    done = run([sys.executable, "-c", FORKING], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "6"


def test_a_machine_restored_from_a_snapshot_draws_other_ones_than_its_twin() -> None:
    state = values._random.getstate()
    first = new_token()
    values._random.setstate(state)
    assert new_token() != first
