"""The command ``hookonce``: the only package that prints, reads arguments and exits.

It needs the extra ``cli``.
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
        sys.exit(2)  # Status.CANNOT_BEGIN; the import of its module would need click
    if find_spec("fcntl") is None:
        print(
            "the command line needs Linux or macOS: on Windows run it in WSL, or use hookonce as a"
            " library",
            file=sys.stderr,
        )
        sys.exit(2)
    # Print escapes of characters that the terminal's encoding cannot represent.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    import_module(".commands", __name__).cli()
