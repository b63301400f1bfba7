"""``python -m tests.versions 0.1.0``: write the files of a release; see ``write``."""

import sys
from pathlib import Path
from runpy import run_module

# Tests share `support` as a top-level package, as pytest's `pythonpath` has it.
sys.path.insert(0, str(Path(__file__).parents[1]))
run_module("versions.write", run_name="__main__")
