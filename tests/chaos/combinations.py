"""Each example with each store; handlers run inside the request or in workers."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from support.postgres import postgres_server
from support.redis_servers import redis_server

from hookonce import Receiver
from hookonce.cli.loading import stand_in_secrets
from hookonce.simulation import Mode, SimulationReport, simulate

__all__ = ["COMBINATIONS", "EXAMPLES", "STORES", "Combination", "example", "silence", "store_url"]

FOLDER = Path(__file__).resolve().parents[2] / "examples"

EXAMPLES = ("fastapi_app", "inbox_app", "starlette_app")
STORES = ("memory", "sqlite", "valkey", "postgresql")


@dataclass(frozen=True, slots=True)
class Combination:
    """An example, the kind of its store, and where its handlers run."""

    example: str
    store: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.example}, {self.store}, {self.mode.value}"

    def simulate(self, url: str, *, events: int, seed: int) -> SimulationReport:
        """Run the simulation; hide the output of handlers and the log."""
        with silence():
            return simulate(
                example(self.example), events=events, seed=seed, store=url, mode=self.mode
            )


COMBINATIONS = tuple(
    Combination(example, store, mode)
    for example in EXAMPLES
    for store in STORES
    for mode in (Mode.INLINE, Mode.INBOX)
    if not (store == "memory" and mode is Mode.INBOX)  # the memory store has no inbox
)


def example(name: str) -> Receiver:
    """Import an example again, without its earlier state; return its receiver."""
    spec = spec_from_file_location(f"examples.{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    with stand_in_secrets():
        spec.loader.exec_module(module)
    receiver = module.receiver
    assert isinstance(receiver, Receiver)
    return receiver


@contextmanager
def store_url(kind: str) -> Iterator[str]:
    """Yield the URL of a new store."""
    match kind:
        case "memory":
            yield "memory://"
        case "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                yield f"sqlite:///{Path(folder, 'chaos.db')}"
        case "postgresql":
            with postgres_server() as server:
                yield server.url
        case _:
            with redis_server() as server:
                yield server.url


@contextmanager
def silence() -> Iterator[None]:
    """Hide the output of handlers and the log."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(disabled)
