"""``python -m tests.benchmarks [part …] [--quick] [--json FILE] [--plot FILE]``: measure and print.

The parts and options are those of `run`.
"""

import signal
import sys
from pathlib import Path
from runpy import run_module

# Tests share `support` as a top-level package, as pytest's `pythonpath` has it.
sys.path.insert(0, str(Path(__file__).parents[1]))
# An exit by exception, so that whatever a part has started is ended by its `finally`.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
run_module("benchmarks.run", run_name="__main__")
