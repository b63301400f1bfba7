"""The inspector is imported only when it is used."""

import subprocess
import sys


def test_importing_the_package_loads_neither_the_inspector_nor_what_it_needs() -> None:
    unwanted = ("jinja2", "markupsafe", "hookonce.operations.inspector")
    code = f"import hookonce, hookonce.cli, sys; print([n for n in {unwanted} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == "[]"
