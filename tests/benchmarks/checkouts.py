"""The cost of a delivery in one checkout, beside another checkout.

``python tests/benchmarks/checkouts.py OLD NEW`` takes two folders with a ``src/hookonce``. In each
pair both checkouts are measured, each in a new process on the same processor with the same seed of
hashes; the next pair has the opposite order. The result is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from hookonce import Receiver, Verifier, sign, unwrap, verify
from hookonce.events import CommentReceived
from hookonce.testing import event_body

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_BATCH = 128
# The first batches also fill caches.
_WARM_UP = 8


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers as an ASGI server passes them on, with those of a client and a sender."""
    return [
        (b"host", b"hooks.example.com"),
        (b"user-agent", b"Acme/1"),
        (b"content-type", b"application/json"),
        (b"content-length", b"900"),
        *((name.encode(), value.encode()) for name, value in headers.items()),
        (b"acme-event-type", b"comment.received"),
        (b"acme-delivery-attempt", b"1"),
    ]


def _least(call: Callable[[], object], count: int) -> float:
    """Return the microseconds of a call in the quickest of many short batches."""
    batches = []
    for _ in range(70):
        began = time.process_time()
        for _ in range(count):
            call()
        batches.append((time.process_time() - began) / count)
    return min(batches) * 1e6


async def _handled(store: str, *, batches: int, at_once: int) -> float:
    """Return the microseconds of a delivery: the lower quartile of short batches.

    Other work on the machine disturbs only some of the batches.
    """
    receiver = Receiver(secrets=_SECRET, store=store)

    @receiver.on(CommentReceived, name="nothing")
    async def nothing(event: CommentReceived) -> None: ...

    event, times = json.loads(event_body("comment.received")), []
    async with receiver:
        for batch in range(batches + _WARM_UP):
            requests = []
            for number in range(_BATCH):
                event["id"] = f"evt_{batch}_{number:020}"
                body = json.dumps(event).encode()
                requests.append((body, _raw(sign(_SECRET, event["id"], body))))
            began = time.process_time()
            for first in range(0, _BATCH, at_once):
                some = requests[first : first + at_once]
                await asyncio.gather(*(receiver.handle(*request) for request in some))
            times.append((time.process_time() - began) / _BATCH)
    return statistics.quantiles(times[_WARM_UP:], n=4)[0] * 1e6


def _measure() -> dict[str, float]:
    """Measure the hookonce that this process imports; return microseconds by name."""
    body = event_body("comment.received")
    headers = sign(_SECRET, json.loads(body)["id"], body)
    raw, verifier = _raw(headers), Verifier(_SECRET)
    with tempfile.TemporaryDirectory() as folder:
        return {
            "Verifier.verify, raw headers": _least(lambda: verifier.verify(body, raw), 2_000),
            "verify, a dict": _least(lambda: verify(body, headers, _SECRET), 2_000),
            "unwrap, a dict": _least(lambda: unwrap(body, headers, _SECRET), 800),
            "handle, memory": asyncio.run(_handled("memory://", batches=100, at_once=1)),
            "handle, memory, 64 at once": asyncio.run(
                _handled("memory://", batches=100, at_once=64)
            ),
            "handle, SQLite, 64 at once": asyncio.run(
                _handled(f"sqlite:///{folder}/hooks.db", batches=50, at_once=64)
            ),
        }


def _measured(checkout: Path, *, seed: int, processor: int) -> dict[str, float]:
    """Measure a checkout in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {processor}),
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main(arguments: Sequence[str]) -> None:
    """Compare two checkouts, and print a line for each call."""
    parser = argparse.ArgumentParser(description="Compare the costs of two checkouts.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--pairs", type=int, default=30)
    asked = parser.parse_args(arguments)
    old, new = asked.old.resolve(), asked.new.resolve()
    processors = sorted(os.sched_getaffinity(0))
    ratios: dict[str, list[float]] = defaultdict(list)
    for pair in range(asked.pairs):
        processor = processors[pair // 2 % len(processors)]
        order = (old, new) if pair % 2 == 0 else (new, old)
        costs = {one: _measured(one, seed=pair + 1, processor=processor) for one in order}
        for name, cost in costs[old].items():
            ratios[name].append(costs[new][name] / cost)
    for name, values in ratios.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{name:30} {median:.3f}  (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(_measure()))
    else:
        main(sys.argv[1:])
