"""The selection and the order of tests, and the text at the end of a run.

A run without ``-m`` leaves out the tests that are marked ``full``. If a large parametrised test is
marked ``sample``, the run chooses some of its cases at random, and leaves out the others. With
``of="file"`` it chooses from all tests of the file. A test that is named with ``::`` always runs.
``-m full`` runs the tests marked ``full``, and a third of the cases that each sample has left out;
with ``sample(40, full=80)`` 80 of them. If a test is marked ``full(…, draw=8)``, it runs only 8 of
the cases. All other cases run with ``-m "full or undrawn"``. The order and the chosen cases depend
on pytest-randomly's seed, which the run prints first: ``--randomly-seed=…`` repeats them.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from functools import cache
from pathlib import Path

import httpcore2
import pytest
from hypothesis import strategies as st

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
    "pytest_xdist_setupnodes",
]

UNMARKED_CPU_SECONDS = 2.0
"""A test that costs more must be marked ``full`` or ``costs``."""

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
    pytest.register_assert_rewrite("hookonce.stores.contract")  # to show the values of failed rules
    # Write byte code: without it, each process that a test starts compiles hookonce again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Do not use the file of certificates: each HTTP client would parse all of it. A client reads
    # the folder of certificates only for HTTPS. Clients without the environment share one context.
    if os.environ.get("SSL_CERT_DIR"):
        os.environ.pop("SSL_CERT_FILE", None)
    httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)
    # Garbage collection would free nothing while pytest collects tests, because pytest keeps all
    # new objects.
    gc.disable()
    for line in (
        "full(cost, draw=None): runs only with -m full, or if named; draw=8 runs 8 of its cases",
        "undrawn: runs only with -m undrawn, or when it is named",
        "costs(cost): runs always, though it costs that",
        "sample(count, of='test', full=a third): runs only so many cases, or tests of the file",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such setting
def pytest_xdist_auto_num_workers() -> int:
    """Run more processes than there are cores, because many tests wait for other processes."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or 2 * _CORES + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Let Hypothesis write its table of UTF-8 once, while the other processes collect tests.

    In a new checkout each process would compute it, which takes one and a half seconds.
    """
    threading.Thread(target=st.text().validate, daemon=True).start()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each process of xdist collect a different folder of the suite first.

    Pytest rewrites the asserts of each file that has changed, which takes long. So each process
    rewrites some of the files, and then uses the results of the other processes.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and isinstance(collector, pytest.Directory) and report.passed:
        own = int(worker["workerid"].removeprefix("gw")) * len(report.result)
        first = own // worker["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m, which needs the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path)  # xdist wants the same order in all its processes
    _draw_samples(config, items)
    wanted = config.option.markexpr
    left_out_mark = "undrawn" if wanted else "full"
    if left_out_mark in wanted:
        return
    named = [argument for argument in config.args if "::" in argument]
    taken, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_marked = item.get_closest_marker(left_out_mark)
        is_left_out = is_marked and not any(_is_named(item, one) for one in named)
        (left_out if is_left_out else taken).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = taken


def pytest_collection_finish() -> None:
    # Hypothesis asks the garbage collector for the objects that refer to its source of random
    # numbers, and warns if it finds none. On Python 3.15, freezing would hide these objects.
    if sys.version_info < (3, 15):
        gc.freeze()  # later collections then check only objects of the tests
    gc.enable()


def _draw_samples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that this run leaves out: as ``full``, or as ``undrawn`` in a full run."""
    seed = getattr(config.option, "randomly_seed", 0)  # the seed is 0 with -p no:randomly
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    counts: dict[tuple[str, str], tuple[int, int | None]] = {}
    for item in items:
        full, sample = item.get_closest_marker("full"), item.get_closest_marker("sample")
        if full:
            count, more, whole, left_out_mark = full.kwargs.get("draw"), None, "[", "undrawn"
        elif sample:
            count, more = sample.args[0], sample.kwargs.get("full")
            whole, left_out_mark = "::" if sample.kwargs.get("of") == "file" else "[", "full"
        else:
            continue
        if count is not None:
            drawn_from = item.nodeid.partition(whole)[0], left_out_mark
            cases[drawn_from].append(item)
            counts[drawn_from] = count, more
    for drawn_from, found in cases.items():
        test, left_out_mark = drawn_from
        count, more = counts[drawn_from]
        # Sort the names before the choice, because the order of tests is random. A run of only some
        # tests must choose the same cases.
        found.sort(key=lambda item: item.nodeid)
        drawn = random.Random(f"{seed} {test}").sample(found, len(found))
        left_out = drawn[count:]
        for item in left_out:
            item.add_marker(getattr(pytest.mark, left_out_mark)("not drawn by this run's seed"))
        if left_out_mark == "full":
            for item in left_out[(len(left_out) + 2) // 3 if more is None else more :]:
                item.add_marker(pytest.mark.undrawn("not drawn by this run's seed"))


def _is_named(item: pytest.Item, argument: str) -> bool:
    path, _, test = argument.partition("::")
    name = item.nodeid.partition("::")[2]
    is_it = name == test or name.startswith((f"{test}[", f"{test}::"))
    return is_it and item.path == Path(path).resolve()


def _cpu_seconds() -> float:
    """Return the processor time of this process, and of its children that have ended."""
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
    """Report the cost of a test, from the beginning of its setup to the end of its teardown."""
    report = yield
    # The last test also ends the shared servers, and only then is their processor time counted.
    if call.when != "teardown" or not item.stash[_IS_LAST]:
        item.stash[_SPENT] = _cpu_seconds()
    if call.when == "teardown":
        cpu, began = item.stash[_COSTS]
        seconds = time.perf_counter() - began
        # The processor time includes shared servers, which other tests have used. So limit the cost
        # to the time that all processors have during the test.
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
    """Say in one line how many tests were skipped, and each reason once with its count."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        counted = " | ".join(f"{count} because {why}" for why, count in reasons.most_common())
        terminalreporter.write_line(f"skipped {reasons.total()}: {counted}")
