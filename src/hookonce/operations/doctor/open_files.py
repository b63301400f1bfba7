"""Processes that still have a file open which is not at its path any more, as Linux knows it."""

from __future__ import annotations

import os
from pathlib import Path

from .findings import Finding, fault

PROCESSES = Path("/proc")
"""Where Linux says what each process has open; of others' processes only to the administrator."""


def deleted_file_findings(database: Path, processes: Path = PROCESSES) -> list[Finding]:
    """Return which processes go on with a database that was deleted or replaced under them."""
    gone = {f"{database}{suffix} (deleted)" for suffix in ("", "-wal")}
    holders: dict[str, Path] = {}
    for folder in processes.glob("[0-9]*/fd"):
        for link in _links_in(folder):
            try:
                if os.readlink(link) in gone:
                    holders.setdefault(folder.parent.name, link)
            except OSError:  # closed meanwhile, or another's
                continue
    return [
        fault(
            "store.file",
            f"process {holder} has a file open that was at {database} and was deleted or replaced:"
            " what it holds is in no file that a restart would open",
            f"put the right file there, and restart the process; {link} still is the lost one",
        )
        for holder, link in sorted(holders.items())
    ]


def _links_in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended, or is another's
        return []
