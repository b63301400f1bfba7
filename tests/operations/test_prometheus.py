"""The metrics of real receivers, and the values that must never become labels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from support.servers import HttpSender, serving
from support.stores import FaultyStore
from support.waiting import until

from hookonce import Event, Receiver
from hookonce.events import EVENT_CLASSES, CommentReceived
from hookonce.operations.prometheus import PrometheusObserver, metrics_routes
from hookonce.outcome import NOT_POST, Outcome, Reason
from hookonce.receiver.receiver import note_unread
from hookonce.senders import openai
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import StoreStats
from hookonce.testing import TestSender, event_body, make_event
from hookonce.verification.secrets import verifying_key
from hookonce.watching.records import DeliveryAnswered

from .exercise import OLD_SECRET, SECRET, Sample, deliver_everything, samples, unknown_event

pytestmark = pytest.mark.anyio


class AdPublished(Event[dict[str, Any]]):
    type: Literal["ad.published"]


@pytest.fixture
def observer() -> PrometheusObserver:
    return PrometheusObserver()


def value(source: PrometheusObserver | str, name: str, **labels: str) -> float:
    """Return the sum of the samples of a metric with these labels."""
    found = found_in(samples(source), name, **labels)
    assert found, f"no metric {name} has {labels}"
    return sum(sample.value for sample in found)


def found_in(shown: list[Sample], name: str, **labels: str) -> list[Sample]:
    wanted = labels.items()
    return [s for s in shown if s.name == f"hookonce_{name}" and wanted <= s.labels.items()]


async def test_every_answer_is_counted_by_its_type_status_and_reason(
    observer: PrometheusObserver, tmp_path: Path
) -> None:
    await deliver_everything(observer, tmp_path)

    def answered(**labels: str) -> float:
        return value(observer, "deliveries_total", **labels)

    assert answered(reason="handled", status="200", event_type="comment.received") == 1
    assert answered(reason="handler_failed", status="500", event_type="comment.received") == 1
    assert answered(reason="duplicate", endpoint="inline") == 3
    assert answered(reason="unknown_type", status="200", event_type="unknown") == 1
    assert answered(reason="no_matching_signature", status="401", event_type="unread") == 1
    assert answered(reason="missing_id", status="400", event_type="unread") == 1
    assert answered(reason="stored", status="202", endpoint="queued") == 2
    assert answered() == value(observer, "answer_duration_seconds_count") == 17


async def test_handlers_are_counted_by_result(observer: PrometheusObserver, tmp_path: Path) -> None:
    await deliver_everything(observer, tmp_path)

    def runs(handler: str, result: str) -> float:
        return value(observer, "handler_duration_seconds_count", handler=handler, result=result)

    assert runs("fails-once", "failed") == runs("fails-once", "succeeded") == 1
    assert runs("asks-for-another", "retry_requested") == 1
    assert runs("rejects", "rejected") == 1
    assert runs("never-works", "failed") == 2


async def test_each_step_through_the_inbox_is_counted(
    observer: PrometheusObserver, tmp_path: Path
) -> None:
    await deliver_everything(observer, tmp_path)
    assert value(observer, "inbox_enqueues_total", result="stored") == 2
    assert value(observer, "inbox_enqueues_total", result="waiting") == 1
    assert value(observer, "inbox_fetched_total") == 4
    assert value(observer, "inbox_wait_seconds_count") == 2
    assert value(observer, "retried_events_total") == 2
    assert value(observer, "buried_events_total", reason="exhausted", endpoint="queued") == 1
    assert value(observer, "buried_events_total", reason="unreadable", event_type="unread") == 2
    assert value(observer, "store_batch_calls_sum", store="SQLiteStore") > 10


async def test_the_matches_of_each_secret_are_counted_with_the_time_of_the_last() -> None:
    now = 5000.0
    observer = PrometheusObserver(clock=lambda: now)
    receiver = Receiver(secrets=[SECRET, OLD_SECRET], store="memory://", observers=[observer])
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        await sender.send(event)
        await sender.send(event, secrets=[OLD_SECRET, SECRET])
        now = 9000.0
        await sender.send(event, secrets=OLD_SECRET, skew=70)
    matches = "secret_matches_total"
    assert value(observer, matches, secret_index="0", signatures="1") == 1
    assert value(observer, matches, secret_index="0", signatures="2") == 1
    assert value(observer, matches, secret_index="1", signatures="1") == 1
    last = "secret_last_match_timestamp_seconds"
    assert value(observer, last, secret_index="0") == 5000
    assert value(observer, last, secret_index="1") == 9000
    assert value(observer, "clock_skew_seconds") == pytest.approx(70, abs=10)


async def test_the_last_success_and_failure_leave_out_test_events_and_other_methods() -> None:
    now = 1000.0
    observer = PrometheusObserver(clock=lambda: now)
    receiver = Receiver(secrets=SECRET, store="memory://", observers=[observer])
    async with TestSender(receiver, secrets=SECRET) as sender:
        test_event = event_body("webhook.test", event_id="evt_test")
        (await sender.send(test_event)).expect(200)
        note_unread(receiver, NOT_POST, 0.0)
        assert not found_in(samples(observer), "last_success_timestamp_seconds")
        assert not found_in(samples(observer), "last_failure_timestamp_seconds")
        await sender.send(make_event(CommentReceived))
        now = 2000.0
        await sender.send(make_event(CommentReceived), tamper=True)
    assert value(observer, "last_success_timestamp_seconds") == 1000
    assert value(observer, "last_failure_timestamp_seconds") == 2000


async def test_the_types_of_the_receivers_sender_are_labels(observer: PrometheusObserver) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", sender=openai, observers=[observer])
    observer.know(receiver)
    body = b'{"id":"evt_1","type":"%s","created_at":1719168000,"data":{"id":"resp_1"}}'
    async with TestSender(receiver, secrets=SECRET, sender=openai, path="/") as sender:
        for event_type in (b"response.completed", b"a.new.type"):
            await sender.send(body % event_type, message_id=event_type.decode().replace(".", "_"))
    shown = generate_latest(observer.registry).decode()
    assert 'event_type="response.completed"' in shown
    assert "a.new.type" not in shown


async def test_registered_types_are_labels_and_all_others_are_unknown(
    observer: PrometheusObserver,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", observers=[observer])
    observer.know(receiver)

    @receiver.on(AdPublished)
    async def ad(event: AdPublished) -> None: ...

    @receiver.on("story.shared")
    async def story(event: Event[Any]) -> None: ...

    @receiver.on("channel.*")
    async def channel(event: Event[Any]) -> None: ...

    async with TestSender(receiver, secrets=SECRET) as sender:
        for event_type in ("ad.published", "story.shared", "channel.sold", "x.y"):
            await sender.send(unknown_event(event_type, f"evt_{event_type.replace('.', '_')}"))
    counted = found_in(samples(observer), "deliveries_total")
    assert sorted((s.labels["event_type"], s.value) for s in counted) == [
        ("ad.published", 1),
        ("story.shared", 1),
        ("unknown", 1),  # the handler's pattern matches this type
        ("unknown", 1),  # no handler: the event is ignored
    ]


async def test_hostile_ids_and_types_add_no_series(observer: PrometheusObserver) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", observers=[observer])
    observer.know(receiver)
    seen = set()

    @receiver.on_unknown
    async def note(event: Event[Any]) -> None:
        seen.add(event.type)

    async def deliver(numbers: range) -> None:
        for n in numbers:
            hostile = unknown_event(f'type{n}."}}\n\\{n}', f"evt_{n}")
            await sender.send(hostile)
            await sender.send(hostile, tamper=True)
            await sender.send(b"{", message_id=f'evt"{n}')

    async with TestSender(receiver, secrets=SECRET) as sender:
        await deliver(range(1))
        before = {(s.name, *s.labels.items()) for s in samples(observer)}
        await deliver(range(1, 200))
        after = {(s.name, *s.labels.items()) for s in samples(observer)}
    assert len(seen) == 200
    assert after == before
    types = {s.labels["event_type"] for s in samples(observer) if "event_type" in s.labels}
    assert types <= {*EVENT_CLASSES, "unknown", "unread"}
    kept = [*observer._metrics.deliveries, *observer._sampled, *observer._types]
    assert not [entry for entry in kept if "type1" in str(entry)]


async def test_no_secret_signature_body_or_id_is_shown(
    observer: PrometheusObserver, tmp_path: Path
) -> None:
    async def refresh(receiver: Receiver) -> None:
        observer.know(receiver)
        await observer.refresh()

    await deliver_everything(observer, tmp_path, refresh)
    shown = generate_latest(observer.registry).decode()
    for secret in (SECRET, OLD_SECRET):
        assert secret.removeprefix("whsec_") not in shown
        assert verifying_key(secret).raw.hex() not in shown
    assert re.search(r"v1,|whsec_|evt_|walnut", shown) is None


class TestStoreGauges:
    async def test_the_gauges_show_the_counts_of_the_store(
        self, observer: PrometheusObserver, tmp_path: Path
    ) -> None:
        async def refresh(receiver: Receiver) -> None:
            observer.know(receiver)
            await observer.refresh()

        await deliver_everything(observer, tmp_path, refresh)
        assert value(observer, "store_up", endpoint="queued") == 1
        assert value(observer, "workers", endpoint="queued") == 1
        assert value(observer, "inbox_events", endpoint="queued") == 0
        assert value(observer, "inbox_oldest_age_seconds", endpoint="queued") == 0
        assert value(observer, "dead_letters", endpoint="queued") == 1
        assert value(observer, "dead_letters", endpoint="inline") == 3
        assert value(observer, "secrets", endpoint="inline") == 2

    @pytest.mark.parametrize("fault", ["fails", "hangs"])
    async def test_a_store_that_does_not_answer_shows_as_down(
        self, observer: PrometheusObserver, fault: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hookonce.operations.prometheus._STATS_SECONDS", 0.01)
        store = FaultyStore(MemoryStore())
        receiver = Receiver(secrets=SECRET, store=store, observers=[observer])
        observer.know(receiver)
        await observer.refresh()
        assert value(observer, "store_up") == 1
        if fault == "fails":
            store.failures["stats"] = -1
        else:
            store.hang("stats")
        await observer.refresh()
        assert value(observer, "store_up") == 0

    async def test_unusable_secrets_are_counted_as_none(self, observer: PrometheusObserver) -> None:
        secrets = [SECRET]

        class Provider:
            def current(self) -> list[str]:
                return secrets

        receiver = Receiver(secrets=Provider(), store="memory://", observers=[observer])
        observer.know(receiver)
        await observer.refresh()
        assert value(observer, "secrets") == 1
        secrets.clear()
        await observer.refresh()
        assert value(observer, "secrets") == 0

    async def test_a_rotation_shows_whether_one_of_its_secrets_is_missing(
        self, observer: PrometheusObserver
    ) -> None:
        secrets = [OLD_SECRET]

        class Provider:
            def current(self) -> list[str]:
                return secrets

        receiver = Receiver(secrets=Provider(), store="memory://", observers=[observer])
        observer.know(receiver)
        async with TestSender(receiver, secrets=[SECRET, OLD_SECRET]) as sender:
            await observer.refresh()
            assert value(observer, "rotation_secret_missing") == 0
            for _ in range(3):
                await sender.send(make_event(CommentReceived))
            await observer.refresh()
            assert value(observer, "rotation_secret_missing") == 1

    async def test_a_task_refreshes_the_gauges_only_while_its_block_runs(
        self, observer: PrometheusObserver
    ) -> None:
        store = FaultyStore(MemoryStore())
        receiver = Receiver(secrets=SECRET, store=store, observers=[observer])
        async with observer.refreshing(receiver, every_seconds=0.001):
            await until(
                lambda: store.calls["stats"] > 2, what="the store has been asked repeatedly"
            )
        asked = store.calls["stats"]
        await asyncio.sleep(0.01)
        assert store.calls["stats"] == asked
        assert value(observer, "store_up") == 1

    async def test_the_task_survives_a_store_that_breaks_its_contract(
        self, observer: PrometheusObserver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receiver = Receiver(secrets=SECRET, store="memory://", observers=[observer])
        faults = [ZeroDivisionError("a bug")]
        answer = receiver.stats

        async def stats() -> StoreStats:
            if faults:
                raise faults.pop()
            return await answer()

        monkeypatch.setattr(receiver, "stats", stats)
        async with observer.refreshing(receiver, every_seconds=0.001):
            await until(
                lambda: (
                    found_in(samples(observer), "store_up") and value(observer, "store_up") == 1
                ),
                what="the store has been asked again",
            )


async def test_metrics_are_served_over_http_with_current_gauges(
    observer: PrometheusObserver,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", observers=[observer])
    app = Starlette(
        routes=[*receiver.routes("/webhooks"), *metrics_routes(receiver, observer)],
        lifespan=receiver.lifespan,
    )
    async with serving(app) as site, httpx2.AsyncClient(base_url=site.url) as client:
        sender = HttpSender(client, SECRET)
        await sender.send(make_event(CommentReceived))
        await client.get("/webhooks")
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert value(answer.text, "deliveries_total", reason="no_handler") == 1
        assert value(answer.text, "deliveries_total", reason="method_not_allowed") == 1
        assert value(answer.text, "store_up") == 1
        assert (await client.post("/metrics")).status_code == 405


async def test_without_the_route_there_is_no_metrics_page() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", observers=[PrometheusObserver()])
    async with serving(receiver) as site, httpx2.AsyncClient(base_url=site.url) as client:
        assert (await client.get("/metrics")).status_code == 404


def test_metrics_go_into_the_given_registry_and_not_into_the_global_one() -> None:
    registry = CollectorRegistry()
    assert PrometheusObserver(registry).registry is registry
    PrometheusObserver()
    assert b"hookonce_" not in generate_latest(REGISTRY)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


def test_an_answer_without_a_body_is_counted(observer: PrometheusObserver) -> None:
    observer.delivery_answered(DeliveryAnswered("default", Outcome(408, Reason.BODY_TIMEOUT), 5.0))
    assert value(observer, "deliveries_total", status="408", event_type="unread") == 1
