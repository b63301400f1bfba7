"""The names in the documents exist: commands, options, public names, variables, metrics."""

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import click
import pytest
import yaml
from prometheus_client import CollectorRegistry

from documents.reading import DOCUMENTS, GUIDE, ROOT, Block, blocks, commands, name_of, spans
from hookonce import Backoff, Inbox, Limits, Reason, Refusal
from hookonce.cli.commands import cli
from hookonce.cli.statuses import Status
from hookonce.events import EVENT_CLASSES
from hookonce.guide.reference import MODULES, public_names
from hookonce.operations.prometheus_metrics import Metrics

CURRENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
"""The change log also contains names that were removed."""

SOURCE = "\n".join(
    path.read_text("utf-8")
    for path in [*(ROOT / "src").rglob("*.py"), ROOT / "examples" / "prometheus_alerts.yml"]
)


@cache
def public() -> dict[str, str]:
    """Return the signature and docstring of each public name, members included."""
    return {
        name.path: f"{name.signature}\n{name.doc}"
        for module in MODULES
        for name in public_names(module)
    }


@cache
def listed(module: str) -> set[str]:
    """Return the public names of a module, including its members."""
    return {name.path for name in public_names(module)}


@cache
def metrics() -> set[str]:
    """Return the names of all metrics as Prometheus reads them."""
    registry = CollectorRegistry()
    Metrics(registry)
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry.collect()
    }


# Variables that the pages use in code formatting, each with the class of its object.
OBJECTS = {
    "receiver": "Receiver",
    "context": "Context",
    "service": "EmulatedService",
    "sender": "TestSender",
    "delivery": "VerifiedDelivery",
}


def command_of(words: list[str]) -> tuple[click.Command, list[str]] | None:
    """Return the command that these words name, and the words after it."""
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return (command, words) if words[0].startswith("-") else None
        command, words = found, words[1:]
    return command, words


def options_of(command: click.Command) -> set[str]:
    own = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    return own | {"--help", "-h"}


@cache
def all_options() -> set[str]:
    def walk(command: click.Command) -> Iterator[str]:
        yield from options_of(command)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                one = command.get_command(context, name)
                assert one is not None
                yield from walk(one)

    return set(walk(cli))


def fault_of(text: str) -> str | None:
    """Return what is wrong with the words ``hookonce …``; None if nothing is."""
    words = text.split()[1:]
    found = command_of(words)
    if found is None:
        return f"there is no command {' '.join(words[:2])!r}"
    command, rest = found
    named = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    unknown = named - options_of(command)
    return f"hookonce {command.name} has no {unknown}" if unknown else None


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_every_command_and_option_in_a_sentence_exists(path: Path) -> None:
    for span in spans(path):
        where = f"{name_of(path)}:{span.line}: `{span.text}`"
        if span.text.startswith("hookonce "):
            assert (fault := fault_of(span.text)) is None, f"{where}: {fault}"
        elif re.match(r"--[a-z]", span.text) and ROOT / "tests" not in path.parents:
            assert span.text.split()[0].partition("=")[0] in all_options(), where


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_every_command_in_a_block_exists(path: Path) -> None:
    for block in blocks(path):
        if block.language not in {"console", "sh"}:
            continue
        for line in commands(block):
            for found in re.finditer(r"(?:^|[(/; ]|&& )(hookonce [a-z][^;&|)>]*)", line):
                fault = fault_of(found[1])
                assert fault is None, f"{name_of(path)}:{block.line}: {line}: {fault}"


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_every_public_name_in_a_sentence_exists(path: Path) -> None:
    own = "\n".join(block.text for block in blocks(path))
    for span in spans(path):
        where = f"{name_of(path)}:{span.line}: `{span.text}`"
        for name in re.findall(
            r"(?<![\w./-])[A-Z][a-z]\w*[A-Z]\w*|(?<![\w./-])HOOKONCE_\w+", span.text
        ):
            assert is_known(name, own), where
        for owner, member in re.findall(r"(?<![\w.])([a-z]\w*)\.(\w+)", span.text):
            if owner in OBJECTS:
                assert is_member(OBJECTS[owner], member), where
        for owner, member in re.findall(r"(?<![\w.])([A-Z]\w+)\.([a-z]\w+)", span.text):
            if owner in public():
                assert is_member(owner, member), where
        for metric in re.findall(r"hookonce_\w+", span.text):
            assert metric in metrics(), where
        for module in re.findall(r"hookonce(?:\.(?!db\b)\w+)+", span.text):
            assert is_importable(module), where


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_names_that_a_block_imports_from_the_package_are_public(path: Path) -> None:
    for block in blocks(path):
        for module, name in imported(block):
            where = f"{name_of(path)}:{block.line}: from {module} import {name}"
            assert f"{module}.{name}" in MODULES or is_listed(module, name), where


def imported(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each name that a block imports from the package, with its module."""
    if block.language == "python":
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("hookonce."):
                yield from ((str(node.module), alias.name) for alias in node.names)


def is_listed(module: str, name: str) -> bool:
    return module in MODULES and name in listed(module)


def is_known(name: str, page: str) -> bool:
    return (
        name in public()
        or hasattr(builtins, name)
        or re.search(rf"\b{name}\b", SOURCE + page) is not None
    )


def is_member(owner: str, member: str) -> bool:
    described = re.search(rf"\b{member}\b", public()[owner])
    return f"{owner}.{member}" in public() or described is not None


def is_importable(dotted: str) -> bool:
    parts = dotted.split(".")
    folder = ROOT / "src"
    for length in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            rest = parts[length:]
            return not rest or re.search(rf"\b{rest[0]}\b", file.read_text("utf-8")) is not None
    return False


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("hookonce dead list", False),
        ("hookonce --version", False),
        ("hookonce serve app:receiver --port 0", False),
        ("hookonce serve app:receiver --portt 0", True),
        ("hookonce dead lisst", True),
    ],
)
def test_the_check_finds_a_wrong_command(text: str, *, wrong: bool) -> None:
    assert (fault_of(text) is not None) is wrong


def test_the_check_finds_a_wrong_name() -> None:
    assert is_member("Receiver", "handle")
    assert not is_member("Receiver", "handel")
    assert not is_known("RecieverSettings", "")
    assert not is_importable("hookonce.http.gard")


def words_of(page: str) -> set[str]:
    return {span.text for span in spans(GUIDE / page)}


def test_every_metric_is_on_the_page_about_operations() -> None:
    assert metrics() <= words_of("operations.md")


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((ROOT / "examples" / "prometheus_alerts.yml").read_text("utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert alerts == {word for word in words_of("operations.md") if word.startswith("Hookonce")}


@pytest.mark.parametrize("reason", [*Reason, *Refusal])
def test_every_reason_is_on_the_page_about_answers(reason: str) -> None:
    assert str(reason) in words_of("answers.md")


def test_every_event_type_is_in_its_table_with_its_class() -> None:
    table = (GUIDE / "handlers.md").read_text("utf-8")
    for event_type, event_class in EVENT_CLASSES.items():
        assert f"| `{event_type}` | `{event_class.__name__}` |" in table


@pytest.mark.parametrize(
    ("settings", "page"), [(Limits, "tuning"), (Inbox, "inbox"), (Backoff, "inbox")]
)
def test_the_guide_names_every_setting(settings: type, page: str) -> None:
    text = (GUIDE / f"{page}.md").read_text("utf-8")
    assert [field.name for field in fields(settings) if field.name not in text] == []


def test_the_defaults_in_the_table_of_limits_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+)(?: (MiB))? \|", (GUIDE / "tuning.md").read_text(), re.MULTILINE
    )
    shown = {name: int(figure) * (1024**2 if unit else 1) for name, figure, unit in rows}
    assert shown == asdict(Limits())


def test_every_command_is_on_some_page() -> None:
    everything = "\n".join(path.read_text("utf-8") for path in CURRENT)
    context = click.Context(cli)
    assert [
        name for name in cli.list_commands(context) if f"hookonce {name}" not in everything
    ] == []


def test_every_line_of_the_log_that_is_explained_is_one_that_is_written() -> None:
    """``…`` replaces values; a string of the source must contain the rest of the line."""
    page = (GUIDE / "troubleshooting.md").read_text("utf-8")
    table = page.partition("## Look up a line of the log")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    assert len(lines) > 10
    texts = [text for path in (ROOT / "src").rglob("*.py") for text in texts_of(path)]
    for line in lines:
        parts = [re.escape(part.strip()) for part in line.split("…") if part.strip()]
        assert any(re.search(".*".join(parts), text) for text in texts), line


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts in a file; an f-string is one text."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )


def test_the_table_of_exit_statuses_is_that_of_the_commands() -> None:
    page = (GUIDE / "operations.md").read_text("utf-8")
    table = page.partition("## Check the exit status of a command")[2].partition("\n## ")[0]
    assert [int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*Status]
