"""``python -m tests.faults [--full]``: run the scenarios and print their figures."""

import sys
from pathlib import Path
from runpy import run_module

# Under pytest, `pythonpath` lets tests import `support`. This command needs the same path.
sys.path.insert(0, str(Path(__file__).parents[1]))
run_module("faults.run", run_name="__main__")
