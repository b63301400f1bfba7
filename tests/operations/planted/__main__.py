"""``python -m tests.operations.planted``: the step to the cause of each fault, as a table."""

import sys
from pathlib import Path
from runpy import run_module

# Tests share `support` as a top-level package, as pytest's `pythonpath` has it.
sys.path.insert(0, str(Path(__file__).parents[2]))
run_module("operations.planted.run", run_name="__main__")
