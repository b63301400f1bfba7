"""The cost of a delivery over HTTP, beside an application that does nothing, and its lower bound.

Every request is signed in advance and has its own id, so the receiver handles each. All servers
run all the time, but only one at a time is under load. "Processor" is the processor time of the
server's process for one request; on a shared machine it varies less than rates do. Its ratio is to
the application that does nothing. "Server's processor" is the time of the Redis and PostgreSQL
servers.

With 64 requests at once, the benchmark also measures the steps that no receiver can leave out
(`ladder`): if these steps alone miss a target, no Python code can meet this target on this machine.
It also compares a receiver with hand-written code that does as much. For this it uses many short
rounds: the speed of a shared machine varies, but within seconds it changes equally for both.
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
from typing import NamedTuple, TypeAlias

from support.postgres import postgres_server
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
# The first application does nothing; the benchmark compares all others with it.
_BASE = next(iter(APPS))
# Targets apply only to this number of parallel requests; other numbers measure something else.
_TARGETED = 64
_MEMORY, _SQLITE, _REDIS = AtLeast(0.75), AtLeast(0.50), AtLeast(0.65)
_RATE_TARGETS: Mapping[str, AtLeast] = {
    **dict.fromkeys(STEPS, _MEMORY),
    "receiver, memory": _MEMORY,
    **{name: _SQLITE for name in LEAST if "SQLite" in name},
    **{name: _REDIS for name in LEAST if "Redis" in name},
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
    *(name for name in LEAST if "PostgreSQL" in name),
    *("receiver, PostgreSQL inbox", "receiver, PostgreSQL"),
)
_ALL_STEPS, _THEIR_RATE = ("processor", AtMost(1.25)), ("", AtLeast(1.15))
_ON_POSTGRES: Sequence[tuple[str, AtLeast | AtMost | None]] = (
    ("", AtLeast(3)),
    ("p99", AtMost(1)),
    ("processor", None),
    ("server's processor", None),
)
_Pair: TypeAlias = tuple[str, str, str, AtLeast | AtMost | None]
_BY_HAND: Sequence[_Pair] = (
    ("receiver, memory", "+ and a task of its own", *_ALL_STEPS),
    ("receiver, memory", "by hand, set", *_THEIR_RATE),
    ("receiver, SQLite", "all steps, SQLite, two transactions", *_ALL_STEPS),
    ("receiver, Redis", "all steps, Redis, two calls", *_ALL_STEPS),
    ("receiver, Redis", "by hand, Redis SET NX", *_THEIR_RATE),
    ("receiver, PostgreSQL", "all steps, PostgreSQL, two calls", *_ALL_STEPS),
    *(("receiver, PostgreSQL", "by hand, PostgreSQL INSERT", *one) for one in _ON_POSTGRES),
    *(
        ("receiver, PostgreSQL inbox", "by hand, PostgreSQL INSERT with the body", *one)
        for one in _ON_POSTGRES
    ),
)
# Print a notice if the application that does nothing gets less than this share of its processor:
# other work on the machine then limits the rates.
_ALONE = 0.9
# The table shows how busy the processors of these applications are: if an application's processor
# is not always busy, something else limits the application.
_WATCHED = (_BASE, *(name for name in _RATE_TARGETS if name not in STEPS), "receiver, PostgreSQL")

Loads = Mapping[str, Sequence[Load]]
"""The measurements of each subject, in the order of the rounds."""


def _run(is_quick: bool, store: str | None) -> list[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        print("wrk is not installed, and nothing can be measured (package `wrk`)")
        return []
    if not Path("/proc/self/stat").exists():
        print("processor times are read from /proc, which this system does not have")
        return []
    results: list[Result] = []
    # Without a selected store, compare all stores with the application that does nothing first.
    numbers = _QUICK_AT_ONCE if is_quick else _AT_ONCE
    for at_once in numbers if store is None else ():
        with_ladder = at_once == _TARGETED
        names = [*APPS, *STEPS, *LEAST] if with_ladder else list(APPS)
        rounds, seconds = (_QUICK_ROUNDS, _QUICK_SECONDS) if is_quick else (_ROUNDS, _SECONDS)
        loads = _loads(wrk, names, at_once, rounds, seconds)
        results += _compared(f"{at_once} at once", loads, APPS, with_targets=with_ladder)
        if with_ladder:
            results += _limit(loads)
            _warn_if_shared(loads)
    rounds = _QUICK_SHORT_ROUNDS if is_quick else _SHORT_ROUNDS
    pairs = [pair for pair in _BY_HAND if store is None or store in pair[0]]
    names = list(dict.fromkeys(name for pair in pairs for name in pair[:2]))
    return results + _beside_by_hand(pairs, _loads(wrk, names, _TARGETED, rounds, _QUICK_SECONDS))


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
        postgres = stack.enter_context(postgres_server(fsync="on", shared_buffers="128MB"))
        assert redis.process is not None
        assert postgres.process is not None
        beside = redis.process.pid, postgres.process.pid
        for pid in beside:
            keep_beside(pid)
        environment = {
            "BENCHMARK_SECRET": secret,
            "BENCHMARK_FOLDER": str(folder),
            "BENCHMARK_REDIS": redis.url,
            "BENCHMARK_POSTGRES": postgres.url,
        }
        servers = {
            name: stack.enter_context(serving(name, environment)) for name in {_BASE, *names}
        }

        file = folder / "requests"

        def measured(name: str, seconds: int) -> Load:
            # These applications handle nothing, or only look up the id in a set, so requests may be
            # repeated.
            may_repeat = name not in APPS or name.startswith("null")
            return load(
                wrk,
                servers[name],
                file,
                at_once=at_once,
                seconds=seconds,
                may_repeat=may_repeat,
                beside=beside,
            )

        write_requests(file, secret, 1)
        first = measured(_BASE, 1)
        # All applications can use the same file of requests, since each has its own store. No
        # application is faster than the one that does nothing. Write twice as many requests as that
        # application answers, because the machine may have been busy during this first measurement.
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
    """Return the rate at each step, and the figures that show that wrk is not the limit."""
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


def _beside_by_hand(pairs: Sequence[_Pair], loads: Loads) -> list[Result]:
    return [
        _result(f"beside {base}, {_TARGETED} at once", subject, what, loads, its_target, base)
        for name, base, what, target in pairs
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
    "server's processor": _Measure(attrgetter("beside_us"), "µs"),
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


PART = Part(
    "intake",
    "deliveries over HTTP, each with an id of its own, by store",
    lambda is_quick: _run(is_quick, None),
    _run,
)
