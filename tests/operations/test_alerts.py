"""The alert rules and the dashboard use only metrics that a real receiver shows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.needs import needed

from hookonce import Receiver, Refusal
from hookonce.cli.requests import RequestKind
from hookonce.events import EVENT_CLASSES
from hookonce.operations.prometheus import PrometheusObserver
from hookonce.outcome import Reason

from .exercise import Sample, deliver_everything, samples

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"

_SELECTOR = re.compile(r"\b(hookonce_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")

NAMES = {
    "reason": {*Reason, *Refusal},
    "event_type": {*EVENT_CLASSES, "unknown", "unread"},
    "kind": set(RequestKind),
    "result": {"succeeded", "failed", "rejected", "retry_requested"}
    | {"stored", "waiting", "done", "dead", "full"},
}
"""The possible values of the labels whose values this package defines."""


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((EXAMPLES / "prometheus_alerts.yml").read_text("utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (EXAMPLES / "grafana_dashboard.json").read_text("utf-8")
    )["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the name of each alert or panel with its expression."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


@pytest.fixture
async def shown(tmp_path: Path) -> list[Sample]:
    """Return the metrics of real receivers, during and after their work."""
    observer = PrometheusObserver()

    async def refresh(receiver: Receiver) -> None:
        observer.know(receiver)
        await observer.refresh()

    await deliver_everything(observer, tmp_path, refresh)
    observer.count_request(RequestKind.RECEIVER, 200)  # `hookonce serve` calls this method
    return samples(observer)


async def test_every_named_metric_and_label_exists(shown: list[Sample]) -> None:
    labels: dict[str, set[str]] = {}
    for sample in shown:
        labels.setdefault(sample.name, set()).update(sample.labels)
    for place, expression in expressions():
        named = _SELECTOR.findall(expression)
        assert named, place
        available: set[str] = set()
        for metric, matchers in named:
            assert metric in labels, f"{place}: no metric is called {metric}"
            available |= labels[metric]
            matched = {name for name, _, _ in _MATCHER.findall(matchers)}
            assert matched <= labels[metric], f"{place}: {metric} has no {matched}"
        for grouping in _GROUPING.findall(expression):
            grouped = {name.strip() for name in grouping.split(",")}
            assert grouped <= available, f"{place}: nothing there has {grouped}"


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_a_label_is_compared_with_possible_values(place: str, expression: str) -> None:
    for name, operator, value in _MATCHER.findall(expression):
        if name not in NAMES:
            continue
        for word in value.split("|") if "~" in operator else [value]:
            assert word in NAMES[name], f"{place}: no {name} is {word!r}"


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_the_text_of_an_alert_uses_labels_that_its_result_has(rule: dict[str, Any]) -> None:
    text = " ".join(rule["annotations"].values())
    grouped = {
        name.strip() for names in _GROUPING.findall(rule["expr"]) for name in names.split(",")
    }
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= grouped - {"le"}
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_every_metric_is_on_the_dashboard() -> None:
    observer = PrometheusObserver()
    drawn = " ".join(expression for place, expression in expressions() if place[:8] != "Hookonce")
    for family in observer.registry.collect():
        assert family.name in drawn, family.name


def test_the_panels_of_the_dashboard_do_not_cover_each_other() -> None:
    occupied: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & occupied, panel["title"]
        assert place["x"] + place["w"] <= 24
        occupied |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.full("promtool: 5 s")
def test_alerts_fire_only_when_they_should() -> None:
    ended = subprocess.run(
        [needed("promtool", package="prometheus"), "test", "rules", HERE / "alerts_test.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
