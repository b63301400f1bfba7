"""``python -m tests.chaos``: 10,000 events for each example, store and mode, as a table."""

import sys
from pathlib import Path
from runpy import run_module

# Under pytest, `pythonpath` lets tests import `support`. This command needs the same path.
sys.path.insert(0, str(Path(__file__).parents[1]))
run_module("chaos.run", run_name="__main__")
