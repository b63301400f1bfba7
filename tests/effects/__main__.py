"""``python -m tests.effects [--events N]``: kill workers, and count their effects."""

import sys
from pathlib import Path
from runpy import run_module

# Under pytest, `pythonpath` lets tests import `support`. This command needs the same path.
sys.path.insert(0, str(Path(__file__).parents[1]))
run_module("effects.run", run_name="__main__")
