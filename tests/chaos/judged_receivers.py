"""Runs ``hookonce chaos --url`` against hand-written receivers and a receiver with hookonce."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

from support.needs import needed
from support.redis_servers import free_port, redis_server

from hookonce.verification.secrets import new_secret

__all__ = ["FOLDER", "RECEIVERS", "judged"]

FOLDER = Path(__file__).parent / "receivers"

RECEIVERS = {
    "without_memory.py": "verifies, and handles every delivery",
    "marked_before.py": "`SET NX` in Redis, then handles",
    "recorded_after.py": "looks into a table, handles, then inserts",
    "answered_first.mjs": "Node: answers, then handles; verifies by hand",
    "with_hookonce.py": "hookonce, with SQLite",
}
"""What each receiver does, by the name of its file."""


def judged(name: str, *options: str, **environment: str) -> dict[str, Any]:
    """Run ``hookonce chaos --url`` against a receiver, and return the report.

    Args:
        options: more options of the command.
        environment: more variables for the receiver.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        environment |= {
            "PORT": str(free_port()),
            "HOOKONCE_SECRETS": new_secret(),
            "HOOKONCE_STORE": f"sqlite:///{folder}/hookonce.db",
            "DATABASE": f"{folder}/handled.db",
        }
        if name == "marked_before.py":
            environment["REDIS_URL"] = stack.enter_context(redis_server()).url
        program = needed("node", package="nodejs") if name.endswith(".mjs") else sys.executable
        command = [
            *(str(Path(sys.executable).with_name("hookonce")), "chaos", "--json"),
            *("--url", f"http://127.0.0.1:{environment['PORT']}/webhooks"),
            *("--run", f"exec {quote(program)} {quote(str(FOLDER / name))} 2>{folder}/log >&2"),
            *options,
        ]
        ended = subprocess.run(
            command,
            env=os.environ | environment,
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode in {0, 1}, ended.stderr + Path(folder, "log").read_text()
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert report["passed"] is (ended.returncode == 0)
    return report
