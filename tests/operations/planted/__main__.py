"""``python -m tests.operations.planted``: print which step shows the cause of each fault."""

import sys
from pathlib import Path
from runpy import run_module

# Tests import `support` as a top-level package, as pytest's `pythonpath` does.
sys.path.insert(0, str(Path(__file__).parents[2]))
run_module("operations.planted.run", run_name="__main__")
