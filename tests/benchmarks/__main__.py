"""Measure and print: ``python -m tests.benchmarks [part …] [--quick] [--store NAME] …``.

The parts and options are those of `run`.
"""

import signal
import sys
from pathlib import Path
from runpy import run_module

# Tests import `support` as a top-level package, as pytest's `pythonpath` does.
sys.path.insert(0, str(Path(__file__).parents[1]))
# Exit by an exception, so that each part's `finally` ends the processes that it has started.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
run_module("benchmarks.run", run_name="__main__")
