"""Which tests a run takes, in which order, and what it says at its end.

A run without ``-m`` leaves out what is marked ``full``, and of a large parametrised test marked
``sample`` all but some cases drawn by the seed; with ``of="file"`` so of the tests of a file. A
test that is named with ``::`` is always run.
``-m full`` runs the rest. The order and the samples come from pytest-randomly's seed, which is
printed at the head of the run: ``--randomly-seed=…`` repeats it.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = [
    "UNMARKED_CPU_SECONDS",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_terminal_summary",
    "pytest_xdist_auto_num_workers",
]

UNMARKED_CPU_SECONDS = 2.0
"""What a test may cost before it has to be marked ``full``, or ``costs``."""

_CORES = len(os.sched_getaffinity(0))
_COSTS = pytest.StashKey[tuple[float, float]]()
_SPENT = pytest.StashKey[float]()
_IS_LAST = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        type=Path,
        metavar="FILE",
        help="write a line for each test: seconds of processor time, seconds in all, its name",
    )


def pytest_configure(config: pytest.Config) -> None:
    pytest.register_assert_rewrite("hookonce.stores.contract")  # a failed rule shows its values
    # Without byte code on the disk each of the processes that tests start compiles hookonce anew.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    gc.disable()  # until the tests are collected: they are all kept, so there is nothing to find
    for line in (
        "full(cost): runs only with -m full, or when it is named; says what it costs",
        "costs(cost): runs always, though it costs that",
        "sample(count, of='test'): so many of its cases, or, of='file', of its tests",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(optionalhook=True)  # without xdist there is nobody to ask
def pytest_xdist_auto_num_workers() -> int:
    """Two processes for each core: many tests wait for others, which costs no processor time."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or 2 * _CORES)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each process of xdist begin with another folder of the suite.

    Pytest rewrites the asserts of a file that has changed, which takes as long as everything else
    before the first test. So each process does it for a part, and finds what the others have done.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and isinstance(collector, pytest.Directory) and report.passed:
        own = int(worker["workerid"].removeprefix("gw")) * len(report.result)
        first = own // worker["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(tryfirst=True)  # before -m is applied, which has to find the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path)  # xdist wants one order of all its processes
    _draw_samples(config, items)
    if config.option.markexpr:
        return
    named = [argument for argument in config.args if "::" in argument]
    taken, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_rest = item.get_closest_marker("full") and not any(_is_named(item, one) for one in named)
        (left_out if is_rest else taken).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = taken


def pytest_collection_finish() -> None:
    gc.freeze()  # a collection within a test looks at what that test has made
    gc.enable()


def _draw_samples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark ``full`` what is not drawn of each test, and of each file, that is sampled."""
    seed = getattr(config.option, "randomly_seed", 0)  # 0 with -p no:randomly
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    counts: dict[str, int] = {}
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark and not item.get_closest_marker("full"):
            whole = "::" if mark.kwargs == {"of": "file"} else "["
            test = item.nodeid.partition(whole)[0]
            cases[test].append(item)
            [counts[test]] = mark.args
    for test, found in cases.items():
        # By name, not by place: the order is shuffled, and a part of the suite draws as the whole.
        found.sort(key=lambda item: item.nodeid)
        draw = random.Random(f"{seed} {test}")
        drawn = set(draw.sample(found, min(counts[test], len(found))))
        for item in found:
            if item not in drawn:
                item.add_marker(pytest.mark.full("not drawn by this run's seed"))


def _is_named(item: pytest.Item, argument: str) -> bool:
    path, _, test = argument.partition("::")
    name = item.nodeid.partition("::")[2]
    is_it = name == test or name.startswith((f"{test}[", f"{test}::"))
    return is_it and item.path == Path(path).resolve()


def _cpu_seconds() -> float:
    """Return what this process has used, with those of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    item.stash[_COSTS] = _cpu_seconds(), time.perf_counter()
    item.stash[_IS_LAST] = nextitem is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hand on what a test has cost, from the beginning of its setup to the end of its teardown."""
    report = yield
    # With the last test end the servers that all have shared, and what these have used.
    if call.when != "teardown" or not item.stash[_IS_LAST]:
        item.stash[_SPENT] = _cpu_seconds()
    if call.when == "teardown":
        cpu, began = item.stash[_COSTS]
        seconds = time.perf_counter() - began
        # So does a server that the tests of a file shared; no test uses more than there is.
        cost = (min(item.stash[_SPENT] - cpu, seconds * _CORES), seconds)
        is_marked = any(item.get_closest_marker(name) for name in ("full", "costs"))
        report.user_properties.append(("cost", (*cost, is_marked)))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    _say_what_was_skipped(terminalreporter)
    costs = [
        (*values, report.nodeid)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, values in getattr(report, "user_properties", ())
        if name == "cost" and report.when == "teardown"
    ]
    costs.sort(reverse=True)
    if config.option.costs:
        lines = [f"{cpu:.3f}\t{seconds:.3f}\t{name}\n" for cpu, seconds, _, name in costs]
        config.option.costs.write_text("".join(lines))
    over = [
        (cpu, name)
        for cpu, _, is_marked, name in costs
        if cpu > UNMARKED_CPU_SECONDS and not is_marked
    ]
    if over:
        terminalreporter.section(f"over {UNMARKED_CPU_SECONDS:g} s of processor time, not marked")
        for cpu, name in over:
            terminalreporter.write_line(f"{cpu:.1f} s {name}")


def _say_what_was_skipped(terminalreporter: pytest.TerminalReporter) -> None:
    """Say each reason once, and for how many tests."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
