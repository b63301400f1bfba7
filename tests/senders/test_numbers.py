"""A sender's limits are fields of its `Rules`; no other file repeats their values."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from hookonce.senders import Rules, openai, publishing, standard, svix

SOURCE = Path(__file__).parents[2] / "src" / "hookonce"
BUILT_IN = (publishing, standard, svix, openai)

# These files may repeat the publishing service's values: they are part of this service, or
# commands for its users. `Limits` needs a default answer time before it knows the sender.
OF_THE_SERVICE = (
    *("senders/", "emulator/", "simulation/", "delivery/limits.py"),
    *("cli/attempts.py", "cli/demo.py", "cli/rotate.py", "cli/send.py", "cli/verify.py"),
)
# These files list every event type: as a class, as a Literal, or as a sample.
LISTS_EVENT_TYPES = ("events/publishing.py", "routing/router.py", "samples/events.py")
# These names equal the name of a rule, but mean something else.
NAMESAKES = {
    ("client/client.py", "answer_seconds"): "how long the client waits for the service's answer",
    ("emulator/publishing.py", "_RETRY_SECONDS"): "when the service tries again to publish a post",
    ("emulator/records.py", "attempts"): "how often a delivery was attempted",
    ("stores/contract/dead_letters.py", "attempts"): "how often an event was attempted",
}

RULE_NAMES = {one.name for one in fields(Rules)} | {"tolerance_seconds"}
SCHEDULES = [sender.rules.retry_seconds for sender in BUILT_IN if sender.rules.retry_seconds]
DAY = 86_400.0
SPANS = {
    value
    for rules in (sender.rules for sender in BUILT_IN)
    for value in (rules.span_seconds, *(getattr(rules, name.name) for name in fields(rules)))
    if isinstance(value, float) and value > DAY
}
IN_WORDS = re.compile(
    r"\b(nine (attempts|times)|(24|72|75|three) hours|14 days|gives up (at|after) 10)\b"
)
UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": DAY}


def number_of(node: ast.expr | None) -> float | None:
    """Return the value of a number, a product of numbers or a timedelta; None for other code."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factors = number_of(left), number_of(right)
            return None if None in factors else (factors[0] or 0.0) * (factors[1] or 0.0)
        case ast.Call(func=ast.Name(id="timedelta"), keywords=[ast.keyword() as span]):
            amount = number_of(span.value)
            return None if amount is None else amount * UNITS.get(span.arg or "", 0.0)
    return None


def named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the name and the value of each assignment, default and keyword argument."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            yield name, value
        case ast.keyword(arg=str(name), value=value):
            yield name, value
        case ast.arguments():
            positional = [*node.posonlyargs, *node.args][::-1]
            for argument, default in zip(positional, node.defaults[::-1], strict=False):
                yield argument.arg, default
            for argument, default_or_none in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                yield argument.arg, default_or_none


def is_schedule(node: ast.AST) -> bool:
    if not isinstance(node, ast.Tuple | ast.List):
        return False
    numbers = [number_of(one) for one in node.elts]
    return any(
        list(waits[at : at + 3]) == numbers[start : start + 3]
        for waits in SCHEDULES
        for at in range(len(waits) - 2)
        for start in range(len(numbers) - 2)
    )


def docstrings_of(tree: ast.AST) -> set[int]:
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def found_in(file: str, source: str) -> Iterator[str]:
    """Yield each place where a file repeats a value that it should read from a sender's rules."""
    tree = ast.parse(source)
    docstrings = docstrings_of(tree)
    is_of_the_service = file.startswith(OF_THE_SERVICE)
    for node in ast.walk(tree):
        place = f"{file}:{getattr(node, 'lineno', '')}"
        for name, value in named_values(node):
            is_rule = name.strip("_").lower() in RULE_NAMES and (file, name) not in NAMESAKES
            if is_rule and number_of(value) is not None:
                yield f"{place}: a number for {name}"
        if is_schedule(node):
            yield f"{place}: the schedule of a sender"
        if isinstance(node, ast.expr) and number_of(node) in SPANS:
            yield f"{place}: {number_of(node):g} seconds"
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                if text == publishing.rules.test_type and file not in LISTS_EVENT_TYPES:
                    yield f"{place}: the type of the test event"
                if IN_WORDS.search(text) and not is_of_the_service:
                    yield f"{place}: {text!r}"
            case ast.Attribute(value=ast.Name(id=name), attr="rules" | "tolerance_seconds"):
                if name in {sender.name for sender in BUILT_IN} and not is_of_the_service:
                    yield f"{place}: the rules of {name}, not of the receiver's sender"


def test_the_numbers_of_a_sender_are_written_only_in_its_rules() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE / "senders"]
    assert len(files) > 300
    assert not [
        one
        for path in files
        for one in found_in(path.relative_to(SOURCE).as_posix(), path.read_text("utf-8"))
    ]


@pytest.mark.parametrize(
    "source",
    [
        "ANSWER_SECONDS = 10.0",
        "_ATTEMPTS: int = 9",
        "def wait(answer_seconds: float = 10): ...",
        "def wait(*, retry_jitter=0.1): ...",
        "give_up(disabling_failures=10)",
        "waits = (30.0, 2 * 60, 10 * 60, 1800)",
        "disabled = since > 72 * 3600",
        "log = timedelta(days=14)",
        "test = 'webhook.test'",
        "print(f'{name}: the sender gives up after 10 s')",
        "print('after 72 hours the sender disables the endpoint')",
        "patience = publishing.rules.patience_seconds",
        "tolerance = standard.tolerance_seconds",
    ],
)
def test_the_search_finds_a_number_of_a_sender(source: str) -> None:
    assert list(found_in("watching/example.py", source))


@pytest.mark.parametrize(
    "source",
    [
        "answer_seconds = receiver.sender.rules.answer_seconds",
        "attempts = len(waits) + 1",
        "day = 86_400.0",
        '"""The publishing service disables an endpoint after 72 hours."""',
    ],
)
def test_the_search_finds_no_number_that_belongs_to_no_sender(source: str) -> None:
    assert not list(found_in("watching/example.py", source))
