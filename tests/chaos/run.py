"""The command: each combination at full size, and a table of what it came to."""

from __future__ import annotations

import argparse
import sys
import time

from chaos.combinations import COMBINATIONS, store_url

HEADING = "| Example, store, mode | Events | Requests | Handler runs | Restarts | Lost | Other |"
RULE = "|---|---|---|---|---|---|---|"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="for each combination")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="those that have it in the name")
    arguments = parser.parse_args()
    wrong = 0
    started = time.monotonic()
    print(HEADING, RULE, sep="\n", flush=True)
    for combination in COMBINATIONS:
        if arguments.only not in str(combination):
            continue
        with store_url(combination.store) as url:
            report = combination.rehearse(url, events=arguments.events, seed=arguments.seed)
        lost = sum(finding.breach == "lost" for finding in report.findings)
        print(
            f"| {combination} | {report.events:,} | {report.requests:,} | {report.runs:,}"
            f" | {report.restarts} | {lost} | {len(report.findings) - lost} |",
            flush=True,
        )
        for finding in report.findings[:3]:
            print(finding.breach, finding.event_id, *finding.story, sep="\n  ", file=sys.stderr)
        wrong += len(report.findings)
    print(f"seed {arguments.seed}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
