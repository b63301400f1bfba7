"""What a delivery costs over HTTP, beside an application that does nothing, and what of it must be.

Every request is signed beforehand and has an id of its own, so that each is handled. All servers
run all the time and one of them is under load, in turns. "Processor" is the time that the server's
process takes of its processor for one request: where the machine is shared it swings less than
rates do. Its ratio is the cost of a request in requests that do nothing.

At 64 at once it is also shown what the limit is made of (`ladder`): a target that even the steps
which no receiver can leave out do not meet is none that code in Python can meet on this machine.
And there a receiver stands beside those who do as much by hand, in many short rounds: the speed of
a shared machine wanders, and within seconds it changes both alike.
"""

from __future__ import annotations

import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from support.redis_servers import redis_server

from hookonce.verification.secrets import new_secret

from .apps import APPS
from .ladder import LEAST, STEPS
from .measuring import AtLeast, AtMost, Part, Result, spread
from .serving import Load, keep_beside, load, serving, write_requests

__all__ = ["PART"]

_AT_ONCE, _QUICK_AT_ONCE = (1, 16, 64, 256), (64,)
_ROUNDS, _QUICK_ROUNDS = 5, 3
_SECONDS, _QUICK_SECONDS = 3, 1
_SHORT_ROUNDS, _QUICK_SHORT_ROUNDS = 21, 9
# What does nothing comes first, and is what all others are measured by.
_BASE = next(iter(APPS))
# The targets are for the middle; one at a time or hundreds show something else.
_TARGETED = 64
_MEMORY, _SQLITE, _REDIS = AtLeast(0.75), AtLeast(0.50), AtLeast(0.65)
_RATE_TARGETS: Mapping[str, AtLeast] = {
    **dict.fromkeys(STEPS, _MEMORY),
    "receiver, memory": _MEMORY,
    **{name: _SQLITE if "SQLite" in name else _REDIS for name in LEAST},
    "receiver, SQLite": _SQLITE,
    "receiver, Redis": _REDIS,
}
_P99_TARGETS = {name: AtMost(3) for name in _RATE_TARGETS if "Redis" in name}
_LADDER = (
    *(_BASE, *STEPS, "receiver, memory"),
    *(name for name in LEAST if "SQLite" in name),
    *("receiver, SQLite inbox", "receiver, SQLite"),
    *(name for name in LEAST if "Redis" in name),
    *("receiver, Redis inbox", "receiver, Redis"),
)
_ALL_STEPS, _THEIR_RATE = ("processor", AtMost(1.25)), ("", AtLeast(1.15))
_BY_HAND = (
    ("receiver, memory", "+ and a task of its own", *_ALL_STEPS),
    ("receiver, memory", "by hand, set", *_THEIR_RATE),
    ("receiver, SQLite", "all steps, SQLite, two transactions", *_ALL_STEPS),
    ("receiver, Redis", "all steps, Redis, two calls", *_ALL_STEPS),
    ("receiver, Redis", "by hand, Redis SET NX", *_THEIR_RATE),
)
# What does nothing takes all of a processor that it has to itself.
_ALONE = 0.9
# Where the own processor is not busy all the time, something else is the limit.
_WATCHED = (_BASE, *(name for name in _RATE_TARGETS if name not in STEPS))

Loads = Mapping[str, Sequence[Load]]
"""What was measured of each subject, a round after the other."""


def _run(is_quick: bool) -> list[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        print("wrk is not installed, and nothing can be measured (package `wrk`)")
        return []
    if not Path("/proc/self/stat").exists():
        print("processor times are read from /proc, which this system does not have")
        return []
    results: list[Result] = []
    for at_once in _QUICK_AT_ONCE if is_quick else _AT_ONCE:
        with_ladder = at_once == _TARGETED
        names = [*APPS, *STEPS, *LEAST] if with_ladder else list(APPS)
        rounds, seconds = (_QUICK_ROUNDS, _QUICK_SECONDS) if is_quick else (_ROUNDS, _SECONDS)
        loads = _loads(wrk, names, at_once, rounds, seconds)
        results += _compared(f"{at_once} at once", loads, APPS, with_targets=with_ladder)
        if with_ladder:
            results += _limit(loads)
            _warn_if_shared(loads)
    rounds = _QUICK_SHORT_ROUNDS if is_quick else _SHORT_ROUNDS
    names = list(dict.fromkeys(name for pair in _BY_HAND for name in pair[:2]))
    return results + _beside_by_hand(_loads(wrk, names, _TARGETED, rounds, _QUICK_SECONDS))


def _warn_if_shared(loads: Loads) -> None:
    share = statistics.median(load.busy for load in loads[_BASE])
    if share < _ALONE:
        print(
            f"others were at work on this machine: {_BASE} had {share:.0%} of its processor under"
            " full load, so rates and their ratios say little here, and processor times more"
        )


def _loads(wrk: str, names: Sequence[str], at_once: int, rounds: int, seconds: int) -> Loads:
    loads: defaultdict[str, list[Load]] = defaultdict(list)
    secret = new_secret()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hookonce-benchmark-")))
        redis = stack.enter_context(redis_server())
        assert redis.process is not None
        redis_pid = redis.process.pid
        keep_beside(redis_pid)
        environment = {
            "BENCHMARK_SECRET": secret,
            "BENCHMARK_FOLDER": str(folder),
            "BENCHMARK_REDIS": redis.url,
        }
        servers = {
            name: stack.enter_context(serving(name, environment)) for name in {_BASE, *names}
        }

        file = folder / "requests"

        def measured(name: str, seconds: int) -> Load:
            # What handles nothing, or a set that has seen it all, may be given a request twice.
            may_repeat = name not in APPS or name.startswith("null")
            return load(
                wrk,
                servers[name],
                file,
                at_once=at_once,
                seconds=seconds,
                may_repeat=may_repeat,
                beside=redis_pid,
            )

        write_requests(file, secret, 1)
        first = measured(_BASE, 1)
        # One file for all, since each has a store of its own. What handles a delivery is slower
        # than what does nothing with it; twice as many are enough on a busy machine, too.
        enough = int(2 * seconds * first.per_second)
        for number in range(rounds):
            write_requests(file, secret, enough)
            for name in names if number % 2 else reversed(names):
                loads[name].append(measured(name, seconds))
    return loads


def _compared(
    case: str, loads: Loads, names: Collection[str], *, with_targets: bool = False
) -> list[Result]:
    rates = [
        _result(case, name, "", loads, _RATE_TARGETS.get(name) if with_targets else None)
        for name in names
    ]
    return rates + [
        _result(case, name, what, loads, _P99_TARGETS.get(name) if is_targeted else None)
        for name in names
        for what, is_targeted in (("p50", False), ("p99", with_targets), ("processor", False))
    ]


def _limit(loads: Loads) -> list[Result]:
    """Show what the limit is made of, and that it is not what sends the requests."""
    case = f"what the limit is made of, {_TARGETED} at once"
    busy = f"how busy the processors are, {_TARGETED} at once"
    return [
        *(_result(case, name, "", loads, _RATE_TARGETS.get(name)) for name in _LADDER),
        *(_result(case, name, "processor", loads) for name in _LADDER),
        *(
            _result(case, name, "p99", loads, _P99_TARGETS[name])
            for name in LEAST
            if "Redis" in name
        ),
        *(
            _result(busy, name, what, loads)
            for name in _WATCHED
            for what in ("own processor", "the other")
        ),
    ]


def _beside_by_hand(loads: Loads) -> list[Result]:
    return [
        _result(f"beside {base}, {_TARGETED} at once", subject, what, loads, its_target, base)
        for name, base, what, target in _BY_HAND
        for subject, its_target in ((base, None), (name, target))
    ]


class _Measure(NamedTuple):
    of: Callable[[Load], float]
    unit: str
    has_ratio: bool = True


_MEASURES = {
    "": _Measure(attrgetter("per_second"), "/s"),
    "p50": _Measure(attrgetter("p50_ms"), "ms"),
    "p99": _Measure(attrgetter("p99_ms"), "ms"),
    "processor": _Measure(attrgetter("cpu_us"), "µs"),
    "own processor": _Measure(lambda load: load.busy * 100, "%", has_ratio=False),
    "the other": _Measure(lambda load: load.busy_beside * 100, "%", has_ratio=False),
}


def _result(
    case: str,
    name: str,
    what: str,
    loads: Loads,
    target: AtLeast | AtMost | None = None,
    base: str = _BASE,
) -> Result:
    measure = _MEASURES[what]
    own, its_base = ([measure.of(load) for load in loads[which]] for which in (name, base))
    ratio = statistics.median(a / b for a, b in zip(own, its_base, strict=True))
    return Result(
        case,
        f"{name}, {what}" if what else name,
        statistics.median(own),
        measure.unit,
        spread(own),
        ratio if measure.has_ratio else None,
        target,
    )


PART = Part("intake", "deliveries over HTTP, each with an id of its own, by store", _run)
