"""``python -m tests.benchmarks [part …] [--quick] [--json FILE]``: measure and print."""

import sys
from pathlib import Path
from runpy import run_module

# Tests share `support` as a top-level package, as pytest's `pythonpath` has it.
sys.path.insert(0, str(Path(__file__).parents[1]))
run_module("benchmarks.run", run_name="__main__")
