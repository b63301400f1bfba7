"""Measures the parts of the benchmark in interleaved rounds; prints medians and ratios.

A round calls every subject in turn, so a machine that slows down for a while slows all of them, and
it is the processor's time that counts, so that others who wait for it do not.
A ratio is the median over the rounds of the subject's time through that of its base in the same
round.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import ssl
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "AtLeast",
    "AtMost",
    "Part",
    "Result",
    "Subject",
    "as_json",
    "compare",
    "installed",
    "machine",
    "pinned",
    "print_results",
    "spread",
]

Subject: TypeAlias = Callable[[], object]

_ROUNDS, _QUICK_ROUNDS = 51, 21
# A turn is long enough for the clock's precision, and short enough that the system seldom
# interrupts it.
_TURN_SECONDS, _QUICK_TURN_SECONDS = 0.004, 0.001


class AtMost(NamedTuple):
    """A target for a ratio that should be small."""

    bound: float

    def __str__(self) -> str:
        return f"<= {self.bound:g}"

    def is_met_by(self, ratio: float) -> bool:
        return ratio <= self.bound


class AtLeast(NamedTuple):
    """A target for a ratio that should be large."""

    bound: float

    def __str__(self) -> str:
        return f">= {self.bound:g}"

    def is_met_by(self, ratio: float) -> bool:
        return ratio >= self.bound


class Result(NamedTuple):
    """One line of a table.

    Attributes:
        case: what all compared subjects have in common, for example ``2 KB``.
        subject: what was measured.
        value: the median.
        unit: of the value.
        spread: half the distance between the quartiles, as a part of the median.
        ratio: the value divided by the value of the case's base; None without a base.
        target: for the ratio, or None.

    """

    case: str
    subject: str
    value: float
    unit: str
    spread: float = 0.0
    ratio: float | None = None
    target: AtMost | AtLeast | None = None


class Part(NamedTuple):
    """A part of the benchmark.

    Attributes:
        name: its name on the command line.
        summary: what it shows, in a line.
        run: measures; the argument says whether to be quick.
        of_store: measures only the subjects of one store, if the part can do that; the arguments
            are whether to be quick, and the store's name.

    """

    name: str
    summary: str
    run: Callable[[bool], list[Result]]
    of_store: Callable[[bool, str], Sequence[Result]] | None = None


@contextmanager
def pinned() -> Iterator[None]:
    """Keep the process on the last processor that it may use, if the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(
    case: str,
    subjects: Mapping[str, Subject],
    targets: Mapping[str, AtMost | AtLeast] | None = None,
    *,
    is_quick: bool,
) -> list[Result]:
    """Return each subject's microseconds per call, and their ratio to the first subject's."""
    turn_seconds = _QUICK_TURN_SECONDS if is_quick else _TURN_SECONDS
    with pinned():
        calls = {name: _calls_in(turn_seconds, call) for name, call in subjects.items()}
        times: dict[str, list[float]] = {name: [] for name in subjects}
        gc.collect()
        gc.disable()  # do not collect the garbage of one subject in the turn of another
        try:
            for _ in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
                for name, call in subjects.items():
                    times[name].append(_seconds(call, calls[name]) / calls[name] * 1e6)
        finally:
            gc.enable()
    base = next(iter(times.values()))
    return [
        Result(
            case,
            name,
            statistics.median(own),
            "µs",
            spread(own),
            statistics.median(a / b for a, b in zip(own, base, strict=True)),
            (targets or {}).get(name),
        )
        for name, own in times.items()
    ]


def _calls_in(seconds: float, call: Subject) -> int:
    for _ in range(10):  # do not measure the first call, which builds and caches things
        call()
    calls = 1
    while (taken := _seconds(call, calls)) < seconds / 4:
        calls *= 2
    return max(1, round(calls * seconds / taken))


def _seconds(call: Subject, calls: int) -> float:
    turns = repeat(None, calls)
    started = time.thread_time()
    for _ in turns:
        call()
    return time.thread_time() - started


def spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


@cache  # print the line only once
def installed(module: str) -> Any:
    """Return the module of an optional package; print a notice and return None without it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        print(f"{module} is not installed, and left out (extra `bench`)")
        return None


_NAMED = (
    *("hookonce", "pydantic", "pydantic-core"),
    *("standardwebhooks", "svix", "stripe", "slack-sdk", "openai"),
)


def machine() -> dict[str, str]:
    """Return the properties of the machine that the figures depend on."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    # Report profile-guided optimisation, because it saves about a sixth of the time. Some builds of
    # Python use it without this option, and then the report cannot show it.
    build = " --enable-optimizations" if "--enable-optimizations" in options else ""
    packages = []
    for name in _NAMED:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{_processor()}, {os.cpu_count()} processors, {platform.system()}",
        "python": f"{platform.python_implementation()} {platform.python_version()},"
        f" {platform.python_compiler()}{build}",
        "openssl": ssl.OPENSSL_VERSION,
        "packages": ", ".join(packages),
    }


def _processor() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in facts.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def print_results(results: Sequence[Result]) -> None:
    """Print a table with a blank line between cases."""
    case = None
    for result in results:
        if result.case != case:
            case = result.case
            print(f"\n  {case}")
        ratio = "" if result.ratio is None else f"{result.ratio:7.2f} x"
        print(
            f"    {result.subject:44} {result.value:9.2f} {result.unit} ±{result.spread:4.0%}"
            f" {ratio:9} {_verdict(result)}".rstrip()
        )


def _verdict(result: Result) -> str:
    if result.target is None or result.ratio is None:
        return ""
    return f"{result.target}  {'met' if result.target.is_met_by(result.ratio) else 'MISSED'}"


def as_json(facts: Mapping[str, str], results: Mapping[str, Sequence[Result]]) -> str:
    """Return a whole run as JSON, so that a later run can be compared with it."""
    shown = {
        name: [
            {
                **result._asdict(),
                "target": None if result.target is None else str(result.target),
                "met": None
                if result.target is None or result.ratio is None
                else result.target.is_met_by(result.ratio),
            }
            for result in part
        ]
        for name, part in results.items()
    }
    return json.dumps({"machine": facts, "parts": shown}, indent=1, ensure_ascii=False) + "\n"
