"""The emulator does not import the simulation, so that the emulator starts faster."""

import subprocess
import sys


def test_importing_the_emulator_loads_no_simulation() -> None:
    code = "import sys, hookonce.emulator; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(ended.stdout.split())
    assert "hookonce.emulator" in names
    assert not [name for name in names if name.startswith("hookonce.simulation")]
