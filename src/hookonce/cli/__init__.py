"""The command line: the only part that exits, prints or reads arguments.

It needs the extra ``cli``; without it the command says so.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper

__all__ = ["main"]


def main() -> None:
    """Run the command ``hookonce``."""
    missing = [name for name in ("click", "httpx2", "rich", "uvicorn") if find_spec(name) is None]
    if missing:
        needs = f"the command line needs {', '.join(missing)}: pip install 'hookonce[cli]'"
        print(needs, file=sys.stderr)
        sys.exit(2)  # as in `statuses`, which needs click
    if isinstance(sys.stdout, TextIOWrapper):  # what its encoding cannot hold is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    import_module(".commands", __name__).cli()
