"""Without httpx2 the client says what to install."""

import subprocess
import sys


def test_a_client_without_its_library_names_the_extra() -> None:
    code = "import sys; sys.modules['httpx2'] = None; import hookonce.client"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: the client needs httpx2: pip install 'hookonce[client]'"
    )
