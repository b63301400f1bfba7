"""Writes a test for pytest that replays a scenario."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pprint import pformat

from ..emulator.chaos import RequestFault
from .faults import HandlerFault
from .report import SimulationReport, recorded
from .scenario import PlannedEvent, PlannedFault, Restart, Scenario
from .simulation import Mode
from .timeline import timeline

_WIDTH = 88
_WITHOUT_PASSWORD = ("memory:", "sqlite:")


def written_test(
    report: SimulationReport,
    receiver: str,
    *,
    check: str | None = None,
    store: str | None = None,
    mode: Mode = Mode.AS_IT_IS,
    needs_secrets: bool = False,
) -> str:
    """Return the text of a test file that replays the scenario of a report.

    The test fails as long as the receiver breaks a rule in this scenario. Its docstring is the
    timeline of the report.

    Args:
        report: a report of ``simulate``, ``replay`` or ``reduced``.
        receiver: the receiver, or the function that makes it, as ``MODULE:NAME``.
        check: the function that checks the effects, as ``MODULE:NAME``.
        store: the URL of a store; by default SQLite in a temporary folder. The URL of a server may
            contain a password, so the test reads it from the variable HOOKONCE_STORE instead.
        mode: where handlers run.
        needs_secrets: whether the module needs secrets in the environment when it is imported.

    Raises:
        TypeError: the report is from another source.
    """
    scenario = recorded(report).scenario
    arguments = [_expression(receiver), "SCENARIO"]
    reads_store = store is not None and not store.lower().startswith(_WITHOUT_PASSWORD)
    if store is not None:
        given = 'os.environ["HOOKONCE_STORE"]' if reads_store else _text(store)
        arguments.append(f"store={given}")
    if mode is not Mode.AS_IT_IS:
        arguments.append(f"mode=Mode.{mode.name}")
    if check is not None:
        arguments.append(f"check={_expression(check)}")
    lines = [_docstring(timeline(report)), ""]
    if needs_secrets or reads_store:
        lines += ["import os", ""]
    lines += _imports(scenario, uses_mode=mode is not Mode.AS_IT_IS)
    if needs_secrets:
        lines += [
            "from hookonce.verification.secrets import new_secret",
            "",
            "# The module reads its secrets when it is imported; the replay does not use them.",
            'os.environ.setdefault("HOOKONCE_SECRETS", new_secret())',
            "",
        ]
    else:
        lines.append("")
    late = "  # noqa: E402" if needs_secrets else ""
    names = dict.fromkeys(_imported(one) for one in (receiver, check) if one is not None)
    lines += [f"{name}{late}" for name in names]
    lines += ["", f"SCENARIO = {_scenario(scenario)}", "", ""]
    lines += [
        "def test_the_receiver_breaks_no_rule_in_this_scenario() -> None:",
        f"    report = replay({', '.join(arguments)})",
        "    assert report.passed, timeline(report)",
    ]
    return "\n".join(lines) + "\n"


def _docstring(text: str) -> str:
    safe = text.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""Written by hookonce chaos, which found this:\n\n{safe}\n"""'


def _imports(scenario: Scenario, *, uses_mode: bool) -> Iterator[str]:
    """Yield the imports from hookonce."""
    kinds = {type(fault) for fault in scenario.faults}
    if RequestFault in kinds:
        yield "from hookonce.emulator import Disturbance, RequestFault"
    names = {"PlannedEvent", "Scenario", "replay", "timeline"}
    names |= {"Fault", "HandlerFault"} if HandlerFault in kinds else set()
    names |= {"Restart"} if Restart in kinds else set()
    names |= {"Mode"} if uses_mode else set()
    # Sort the names as isort does: classes before functions.
    yield f"from hookonce.simulation import {', '.join(sorted(names))}"


def _imported(name: str) -> str:
    module, _, path = name.partition(":")
    return f"from {module} import {path.partition('.')[0]}"


def _expression(name: str) -> str:
    return name.partition(":")[2]


def _scenario(scenario: Scenario) -> str:
    lines = ["Scenario(", "    events=["]
    lines += [f"        {_event(event)}," for event in scenario.events]
    lines.append("    ],")
    if scenario.faults:
        lines.append("    faults=[")
        lines += [f"        {_fault(fault)}," for fault in scenario.faults]
        lines.append("    ],")
    lines.append(f"    seed={scenario.seed},")
    if scenario.channels is not None:
        lines.append(f"    channels={scenario.channels},")
    return "\n".join([*lines, ")"])


def _event(event: PlannedEvent) -> str:
    given = [_text(event.id), _text(event.type)]
    if event.at:
        given.append(f"at={event.at!r}")
    if event.data:
        given.append(f"data={_value(event.data)}")
    return f"PlannedEvent({', '.join(given)})"


def _value(data: Mapping[str, object]) -> str:
    return pformat(dict(data), width=_WIDTH, sort_dicts=False).replace("\n", "\n" + " " * 12)


def _fault(fault: PlannedFault) -> str:
    match fault:
        case RequestFault(event_id, attempt, kind, amount):
            return _call("RequestFault", [_text(event_id), repr(attempt), _name(kind)], amount)
        case HandlerFault(event_id, handler, call, kind, seconds):
            named = [_text(event_id), _text(handler), repr(call), _name(kind)]
            return _call("HandlerFault", named, seconds)
        case Restart(at):
            return f"Restart({at!r})"


def _call(name: str, given: Sequence[str], size: float) -> str:
    return f"{name}({', '.join([*given, *([repr(size)] if size else [])])})"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _name(member: Enum) -> str:
    return f"{type(member).__name__}.{member.name}"
