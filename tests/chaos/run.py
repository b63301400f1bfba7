"""Simulates each example with each store at full size, and prints tables of the results."""

from __future__ import annotations

import argparse
import sys
import time

from chaos.channels import PLACES, Channels
from chaos.combinations import COMBINATIONS, store_url
from chaos.four_endpoints import ENDPOINTS, simulate_drawn, simulate_to_the_last_attempt
from chaos.judged_receivers import RECEIVERS, judged
from hookonce.simulation import Breach, SimulationReport

HEADING = "| Example, store, mode | Events | Requests | Handler calls | Restarts | Lost | Other |"
RULE = "|---|---|---|---|---|---|---|"

CHANNELS_HEADING = (
    "| Channels, store, mode | Events of channels | Requests | Skipped | Not the newest | Other |"
)
CHANNELS_RULE = "|---|---|---|---|---|---|"

ENDPOINTS_HEADING = (
    "| Endpoint, store, mode | Events | Requests | Handler calls | Restarts | Hours | Lost | Twice"
    " | Forged | Other |"
)
ENDPOINTS_RULE = "|---|---|---|---|---|---|---|---|---|---|"
# Each of the four endpoints gets a tenth of the events.
ENDPOINTS_SHARE = 10

RECEIVERS_HEADING = (
    "| Receiver | What it does | Requests | Kills | Lost | Done twice | Answered late"
    " | Wrongly accepted | Seconds |"
)
RECEIVERS_RULE = "|---|---|---|---|---|---|---|---|---|"

# Use fewer events here, because these receivers run in real time, one after the other.
_MOST_RECEIVER_EVENTS = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="for each combination")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="skip other names")
    arguments = parser.parse_args()
    started = time.monotonic()
    wrong = _examples(arguments.events, arguments.seed, arguments.only)
    wrong += _channels(arguments.events, arguments.seed, arguments.only)
    share = max(1, arguments.events // ENDPOINTS_SHARE)
    wrong += _endpoints(share, arguments.seed, arguments.only)
    wrong += _receivers(arguments.events, arguments.seed, arguments.only)
    print(f"seed {arguments.seed}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if wrong else 0


def _examples(events: int, seed: int, only: str) -> int:
    """Simulate the examples, and return how many broken promises were found."""
    wrong = 0
    print(HEADING, RULE, sep="\n", flush=True)
    for combination in COMBINATIONS:
        if only not in str(combination):
            continue
        with store_url(combination.store) as url:
            report = combination.simulate(url, events=events, seed=seed)
        lost = sum(finding.breach == "lost" for finding in report.findings)
        print(
            f"| {combination} | {report.events:,} | {report.requests:,} | {report.calls:,}"
            f" | {report.restarts} | {lost} | {len(report.findings) - lost} |",
            flush=True,
        )
        _print_findings(report)
        wrong += len(report.findings)
    return wrong


def _channels(events: int, seed: int, only: str) -> int:
    """Simulate a receiver of channel events, and return the number of mistakes."""
    wrong = 0
    print(CHANNELS_HEADING, CHANNELS_RULE, sep="\n", flush=True)
    for place in PLACES:
        name = f"channels, {place}"
        if only not in name:
            continue
        with store_url(place.store) as url:
            channels = Channels(place, url, events=events, seed=seed)
        report, outdated = channels.report, channels.wrong()
        print(
            f"| {name} | {channels.count:,} | {report.requests:,} | {report.stale:,}"
            f" | {len(outdated)} | {len(report.findings)} |",
            flush=True,
        )
        _print_findings(report)
        wrong += len(outdated) + len(report.findings)
    return wrong


def _endpoints(events: int, seed: int, only: str) -> int:
    """Simulate an application with four endpoints; return how many broken promises were found."""
    wrong = 0
    print(ENDPOINTS_HEADING, ENDPOINTS_RULE, sep="\n", flush=True)
    for place in (*ENDPOINTS, None):
        name = f"four endpoints, {place or 'sqlite, to the last attempt'}"
        if only not in name:
            continue
        if place is None:
            with store_url("sqlite") as url:
                reports = simulate_to_the_last_attempt(url, events=max(4, events // 10), seed=seed)
        else:
            with store_url(place.store) as url:
                reports = simulate_drawn(place, url, events=events, seed=seed)
        for sender, report in reports.items():
            found = [report.count(one) for one in (Breach.LOST, Breach.TWICE, Breach.FORGED)]
            print(
                f"| {name}: {sender} | {report.events:,} | {report.requests:,} | {report.calls:,}"
                f" | {report.restarts} | {report.hours:.1f} | {' | '.join(map(str, found))}"
                f" | {len(report.findings) - sum(found)} |",
                flush=True,
            )
            _print_findings(report)
            wrong += len(report.findings)
    return wrong


def _receivers(events: int, seed: int, only: str) -> int:
    """Test the receivers over HTTP; return 1 if the receiver with hookonce has failed, else 0."""
    wrong = 0
    print(RECEIVERS_HEADING, RECEIVERS_RULE, sep="\n", flush=True)
    for file, what in RECEIVERS.items():
        if only not in f"receivers, {file}":
            continue
        count = min(events, _MOST_RECEIVER_EVENTS)
        report = judged(file, "--events", str(count), "--seed", str(seed))
        print(
            f"| [{file}](receivers/{file}) | {what} | {report['requests']:,}"
            f" | {report['restarts']} | {report['lost']} | {report['handled_twice']}"
            f" | {report['answered_late']} | {report['accepted_forgery']}"
            f" | {report['seconds']:.0f} |",
            flush=True,
        )
        wrong += file == "with_hookonce.py" and not report["passed"]
    return wrong


def _print_findings(report: SimulationReport) -> None:
    for finding in report.findings[:3]:
        print(finding.breach, finding.event_id, *finding.story, sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
