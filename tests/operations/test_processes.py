"""Several processes show common metrics, and ``hookonce serve --metrics`` serves them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import httpx2
import pytest
from prometheus_client.multiprocess import mark_process_dead
from support.processes import ServedProcess, served_process
from support.servers import HttpSender, serving

from hookonce import Receiver
from hookonce.cli.metrics import check_path, metrics_of
from hookonce.events import CommentReceived
from hookonce.http.app import application
from hookonce.testing import make_event

from .exercise import SECRET, Sample, samples

SCRIPT = """
from starlette.applications import Starlette
from hookonce.operations.prometheus import PrometheusObserver, metrics_routes

observer = PrometheusObserver()
receiver = Receiver(secrets=secret, store=f"sqlite:///{here}/hooks.db", observers=[observer])

@receiver.on(CommentReceived, name="comments")
async def comments(event): ...

serve(Starlette(
    routes=[*receiver.routes("/webhooks"), *metrics_routes(receiver, observer)],
    lifespan=receiver.lifespan,
))
"""


async def read(process: ServedProcess) -> list[Sample]:
    answer = await process.sender.client.get("/metrics")
    assert answer.status_code == 200
    return [s for s in samples(answer.text) if not s.name.endswith("_bucket")]


def value(shown: list[Sample], name: str, **labels: str) -> float:
    """Return the value of the one sample of this name that has these labels."""
    [found] = [
        s for s in shown if s.name == f"hookonce_{name}" and labels.items() <= s.labels.items()
    ]
    return found.value


@asynccontextmanager
async def two_processes(here: Path) -> AsyncIterator[tuple[ServedProcess, ServedProcess]]:
    async with (
        served_process(here, SCRIPT, SECRET) as first,
        served_process(here, SCRIPT, SECRET) as second,
    ):
        yield first, second


@pytest.mark.anyio
@pytest.mark.full("1 s")
async def test_every_process_shows_the_metrics_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    async with two_processes(tmp_path) as (first, second):
        event = make_event(CommentReceived)
        (await first.sender.send(event)).expect(200, "handled")
        (await second.sender.send(event)).expect(200, "duplicate")
        (await second.sender.send(make_event(CommentReceived))).expect(200, "handled")
        (await first.sender.send(b"{", message_id="evt_bad")).expect(202, "quarantined")
        for shown in (await read(first), await read(second)):
            assert value(shown, "deliveries_total", reason="handled") == 2
            assert value(shown, "deliveries_total", reason="duplicate") == 1
            assert value(shown, "answer_duration_seconds_count") == 4
            assert value(shown, "handler_duration_seconds_count", handler="comments") == 2
            # All processes share the store, so its gauges are not summed, and have no process
            # label.
            assert value(shown, "dead_letters") == 1
            assert value(shown, "secrets") == 1
        before = value(await read(second), "last_success_timestamp_seconds")
        await first.kill()
        # Servers call this when a worker process has ended.
        mark_process_dead(first.process.pid, str(folder))  # type: ignore[no-untyped-call]
        after = await read(second)
        assert value(after, "deliveries_total", reason="handled") == 2
        assert value(after, "last_success_timestamp_seconds") == before
        assert not [s for s in after if "pid" in s.labels]


@pytest.mark.anyio
async def test_the_option_adds_the_metrics_route_to_a_loaded_receiver() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    routes = [*receiver.routes("/webhooks"), *metrics_of([receiver])[1]]
    app = application(routes, receiver.lifespan)
    async with serving(app) as site, httpx2.AsyncClient(base_url=site.url) as client:
        await HttpSender(client, SECRET).send(make_event(CommentReceived))
        shown = samples((await client.get("/metrics")).text)
    assert value(shown, "deliveries_total", reason="no_handler", event_type="comment.received") == 1


def test_the_option_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("hookonce.operations.prometheus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(click.ClickException, match=r"pip install 'hookonce\[prometheus\]'"):
        metrics_of([Receiver(secrets=SECRET, store="memory://")])


def test_deliveries_cannot_use_the_path_of_the_metrics() -> None:
    with pytest.raises(click.BadParameter, match="/metrics"):
        check_path("/metrics/")
