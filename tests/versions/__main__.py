"""``python -m tests.versions 0.1.0``: write the files of a release with ``write``."""

import sys
from pathlib import Path
from runpy import run_module

# Under pytest, `pythonpath` lets tests import `support`. This command needs the same path.
sys.path.insert(0, str(Path(__file__).parents[1]))
run_module("versions.write", run_name="__main__")
