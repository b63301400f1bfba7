"""Operations follow the rules of the receiver's sender, whatever values these rules have."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import httpx2
import pytest
from support.servers import serving

from hookonce import Event, Receiver
from hookonce.client import Client
from hookonce.clock import ManualClock, system_clock, utc
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.emulator.over_http import OverHttp
from hookonce.events.standard import StandardEvent
from hookonce.operations.doctor import Finding, Level, Subject, examine
from hookonce.operations.doctor.site import examine_site
from hookonce.operations.prometheus import PrometheusObserver
from hookonce.receiver.reconcile import beginning
from hookonce.senders import Rules, Sender, publishing, standard, svix
from hookonce.stores.memory import MemoryStore
from hookonce.testing import TestSender
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
DAY = 86_400.0


class Ping(StandardEvent[dict[str, Any]]):
    type: Literal["ping"]


class OrderPaid(StandardEvent[dict[str, Any]]):
    type: Literal["order.paid"]


# Each value of this sender differs from the values of the built-in senders.
acme = Sender(
    name="acme",
    headers=("acme",),
    event_classes=(Ping, OrderPaid),
    rules=Rules(
        answer_seconds=60.0,
        retry_seconds=(10 * DAY, 10 * DAY),
        retry_jitter=0.0,
        attempts=3,
        log_seconds=30 * DAY,
        test_type="ping",
    ),
    tolerance_seconds=900.0,
)


class Noted:
    """A receiver that notes the types of the events that it handles."""

    def __init__(self, sender: Sender, **arguments: Any) -> None:
        self.types: list[str] = []
        store = MemoryStore(retention=arguments.pop("retention", timedelta(days=40)))
        self.receiver = Receiver(sender=sender, secrets=SECRET, store=store, **arguments)

        @self.receiver.on("*", name="business")
        async def note(event: Event[Any]) -> None:
            self.types.append(event.type)

    @property
    def subject(self) -> Subject:
        return Subject(self.receiver, self.receiver, "/webhooks")


def only(findings: list[Finding], check: str) -> Finding:
    [found] = [finding for finding in findings if finding.check == check]
    return found


async def test_the_doctor_judges_a_receiver_by_the_rules_of_its_sender() -> None:
    short = Noted(acme, retention=timedelta(days=21), tolerance=30)
    findings = await examine(short.subject)
    assert "shorter than the 31 days" in only(findings, "retention").found
    assert only(findings, "tolerance").level is Level.FAULT
    assert "900 s of the sender 'acme'" in only(findings, "tolerance").fix
    assert only(findings, "handlers").level is Level.OK
    assert only(findings, "application.answer").found.startswith("/webhooks answers 200 no_handler")
    assert short.types == [], "no pattern matches the test event of the sender"


async def test_the_doctor_delivers_the_senders_own_test_event() -> None:
    noted = Noted(acme)

    @noted.receiver.on(Ping, name="test")
    async def test(event: Ping) -> None:
        noted.types.append(event.type)

    findings = await examine(noted.subject)
    assert "200 handled" in only(findings, "application.answer").found
    assert only(findings, "application.body").level is Level.OK
    assert noted.types == ["ping"]


async def test_the_doctor_judges_no_type_of_a_sender_without_event_classes() -> None:
    noted = Noted(standard)
    noted.receiver.on(OrderPaid, name="paid")(lambda _: None)
    noted.receiver.on("order.void", name="like the type of a class")(lambda _: None)
    noted.receiver.on("refund.*", name="like no type")(lambda _: None)
    findings = await examine(noted.subject)
    assert not [finding for finding in findings if finding.check == "event_types"]


@pytest.mark.parametrize("sender", [standard, svix])
async def test_without_a_test_event_the_doctor_delivers_nothing_genuine(sender: Sender) -> None:
    noted = Noted(sender)
    findings = await examine(noted.subject)
    assert "no test event" in only(findings, "application.answer").found
    assert only(findings, "application.body").level is Level.OK
    bad = {finding.check for finding in findings if finding.level in {Level.WARNING, Level.FAULT}}
    assert bad == {"store.durability"}, "the store is memory"

    served = Noted(sender)
    async with serving(served.receiver) as site, OverHttp() as transport:
        findings = await examine_site(noted.subject, f"{site.url}/webhooks", transport)
        stats = await served.receiver.stats()
    assert "no test event" in only(findings, "url.answer").found
    assert "401" in only(findings, "url.forgery").found
    assert (noted.types, served.types, stats.dead) == ([], [], 0)


def test_reconcile_looks_back_as_far_as_the_senders_log_reaches() -> None:
    now = utc(1_800_000_000.0)
    for days in (2, 30):
        rules, reach = Rules(log_seconds=days * DAY), timedelta(days=days)
        assert beginning(None, now=now, rules=rules) == now - reach
        assert beginning(timedelta(days=99), now=now, rules=rules) == now - reach


async def test_reconcile_relies_on_no_log_that_the_sender_does_not_describe() -> None:
    clock = VirtualClock()
    silent = replace(publishing, rules=replace(publishing.rules, log_seconds=None))
    brief = replace(publishing, rules=replace(publishing.rules, log_seconds=2 * DAY))
    receivers = {
        sender.rules.log_seconds: Receiver(
            secrets=SECRET, store="memory://", sender=sender, clock=clock
        )
        for sender in (silent, brief)
    }
    async with EmulatedService(receivers[2 * DAY], secret=SECRET, clock=clock) as service:
        transport = httpx2.ASGITransport(service.api)
        async with Client("https://service.test", service.new_key(), transport=transport) as client:
            webhook_id = service.endpoint().id
            found = await receivers[2 * DAY].reconcile(client, webhook_id)
            assert found.since == utc(clock()) - timedelta(days=2)
            with pytest.raises(ValueError, match="does not say how long it keeps its log"):
                await receivers[None].reconcile(client, webhook_id, since=timedelta(hours=1))


async def test_a_failed_test_event_of_the_sender_is_no_failure_in_the_metrics() -> None:
    clock = ManualClock(1_800_000_000.0)
    observer = PrometheusObserver(clock=clock)
    receiver = Noted(acme, observers=[observer], clock=clock).receiver
    observer.know(receiver)

    @receiver.on(Ping, OrderPaid, name="failing")
    async def fail(_: Ping | OrderPaid) -> None:
        raise RuntimeError("not now")

    def last_failure() -> float | None:
        name = "hookonce_last_failure_timestamp_seconds"
        return observer.registry.get_sample_value(name, {"endpoint": "default"})

    async with receiver, TestSender(receiver, secrets=SECRET) as sending:
        for event_type, expected in (("ping", None), ("order.paid", clock())):
            body = f'{{"type": "{event_type}", "timestamp": "2027-01-15T00:00:00Z", "data": {{}}}}'
            skew = system_clock() - clock()
            answer = await sending.send(
                body.encode(), message_id=event_type.replace(".", "_"), skew=skew
            )
            assert answer.status == 500
            assert last_failure() == expected
