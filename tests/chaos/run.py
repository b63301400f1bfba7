"""The command: simulates each combination at full size, and prints tables of the results."""

from __future__ import annotations

import argparse
import sys
import time

from chaos.channels import PLACES, Channels
from chaos.combinations import COMBINATIONS, store_url
from hookonce.simulation import SimulationReport

HEADING = "| Example, store, mode | Events | Requests | Handler calls | Restarts | Lost | Other |"
RULE = "|---|---|---|---|---|---|---|"

CHANNELS_HEADING = (
    "| Channels, store, mode | Events of channels | Requests | Skipped | Not the newest | Other |"
)
CHANNELS_RULE = "|---|---|---|---|---|---|"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="for each combination")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="skip other names")
    arguments = parser.parse_args()
    started = time.monotonic()
    wrong = _examples(arguments.events, arguments.seed, arguments.only)
    wrong += _channels(arguments.events, arguments.seed, arguments.only)
    print(f"seed {arguments.seed}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if wrong else 0


def _examples(events: int, seed: int, only: str) -> int:
    """Simulate the examples, and return the number of findings."""
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


def _print_findings(report: SimulationReport) -> None:
    for finding in report.findings[:3]:
        print(finding.breach, finding.event_id, *finding.story, sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
