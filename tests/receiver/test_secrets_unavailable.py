"""If a provider of secrets raises an error, the receiver logs it and lets the sender retry."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from support.servers import serving
from support.waiting import until_async

from hookonce import FileSecrets, Inbox, Receiver, SecretError, Verifier, sign, verify
from hookonce.events import CommentReceived
from hookonce.http.app import application, elsewhere
from hookonce.operations.prometheus import PrometheusObserver, metrics_routes
from hookonce.testing import TestSender, make_event
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()


class Source:
    """A provider whose source can break."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.given: Any = (SECRET,)

    def current(self) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        given: Sequence[str] = self.given
        return given


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS = [
    ConnectionError("vault is sealed"),
    ValueError(SECRET),
    TimeoutError(),
    RecursionError(),
    SystemExit(1),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(),
    OddError(),
    ExceptionGroup("several", [OSError()]),
    SecretError("rotated away"),
]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("has_inbox", [False, True])
async def test_whatever_a_provider_raises_the_delivery_is_left_to_a_retry_and_the_error_is_logged(
    source: Source,
    error: BaseException,
    tmp_path: Path,
    has_inbox: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = f"sqlite:///{tmp_path}/hooks.db" if has_inbox else "memory://"
    inbox = Inbox() if has_inbox else None
    observer = PrometheusObserver(registry=CollectorRegistry())
    receiver = Receiver(secrets=source, store=store, inbox=inbox, observers=[observer])
    receiver.on(CommentReceived, name="handle")(lambda _: None)
    async with TestSender(receiver, secrets=SECRET) as sender:
        assert (await sender.send(make_event(CommentReceived))).status in {200, 202}
        assert receiver.failing is None
        source.error = error
        event = make_event(CommentReceived)
        for count in (1, 2):
            (await sender.send(event)).expect(500, "secrets_unavailable")
            assert receiver.failing is not None
            assert (receiver.failing.attempts, receiver.failing.refused) == (count, 0)
        readiness = await receiver.check()
        assert not readiness.ready
        assert "no delivery can be verified" in readiness.problems[0]
        source.error = None
        assert (await sender.send(event)).status in {200, 202}
        assert receiver.failing is None
        assert (await receiver.check()).ready
    assert SECRET not in caplog.text
    assert "vault is sealed" not in caplog.text, "it might as well have been a secret"


@pytest.mark.parametrize("given", [None, 5, (), "", [None], [b"x"], "null", [[]]])
async def test_a_value_that_is_no_secret_is_reported_like_an_error(
    source: Source, given: Any
) -> None:
    receiver = Receiver(secrets=source, store="memory://")
    async with TestSender(receiver, secrets=SECRET) as sender:
        source.given = given
        (await sender.send(make_event(CommentReceived))).expect(500, "secrets_unavailable")
        assert not (await receiver.check()).ready


async def test_one_secret_by_itself_is_one_secret(source: Source) -> None:
    source.given = SECRET
    assert Verifier(source).verify(b"", sign(SECRET, "evt_1", b"")).secret_index == 0


async def test_health_and_metrics_report_unavailable_secrets(source: Source) -> None:
    observer = PrometheusObserver(registry=CollectorRegistry())
    receiver = Receiver(secrets=source, store="memory://", observers=[observer])
    token = "a token for those who may know"
    routes = [
        *receiver.routes("/webhooks"),
        *receiver.health_routes(token=token),
        *metrics_routes(receiver, observer),
    ]
    async with (
        serving(application(routes, receiver.lifespan, elsewhere)) as site,
        httpx2.AsyncClient(base_url=site.url) as visitor,
    ):
        assert (await visitor.get("/readyz")).status_code == 200
        assert 'hookonce_secrets{endpoint="default"} 1.0' in (await visitor.get("/metrics")).text
        source.error = ConnectionError("sealed")

        async def is_unready() -> bool:  # the receiver caches the result of a check for a moment
            return (await visitor.get("/readyz")).status_code == 503

        await until_async(is_unready)
        answer = await visitor.get("/readyz", headers={"authorization": f"Bearer {token}"})
        assert "Source.current() raised ConnectionError" in answer.text
        answer = await visitor.get("/metrics")
        assert answer.status_code == 200
        assert 'hookonce_secrets{endpoint="default"} 0.0' in answer.text
        assert (await visitor.get("/livez")).status_code == 200


async def test_the_receiver_is_unready_during_a_rotation_too(source: Source) -> None:
    new = new_secret()
    source.given = (new, SECRET)
    receiver = Receiver(secrets=source, store="memory://")
    async with TestSender(receiver, secrets=[new, SECRET]) as sender:
        await sender.send(make_event(CommentReceived))
        assert receiver.rotation is not None
        source.error = OSError()
        assert not (await receiver.check()).ready


async def test_the_cause_of_the_error_is_the_providers_error(source: Source) -> None:
    cause = source.error = ConnectionError("sealed")
    calls: list[Callable[[], object]] = [
        lambda: verify(b"", sign(SECRET, "evt_1", b""), source),
        lambda: Receiver(secrets=source, store="memory://"),
        lambda: Verifier(source),
    ]
    for call in calls:
        with pytest.raises(SecretError, match="raised ConnectionError") as caught:
            call()
        assert caught.value.__cause__ is cause


async def test_an_interrupt_is_not_the_providers_and_passes(source: Source) -> None:
    verifier = Verifier(source)
    source.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        verifier.verify(b"", sign(SECRET, "evt_1", b""))


async def test_a_file_that_is_unusable_leaves_the_last_good_secrets_and_deliveries_handled(
    tmp_path: Path,
) -> None:
    file = tmp_path / "secrets"
    file.write_text(SECRET)
    receiver = Receiver(secrets=FileSecrets(file), store="memory://")
    async with TestSender(receiver, secrets=SECRET) as sender:
        for content in (b"null", b"\xff\xfe", b"", b"whsec_short"):
            file.write_bytes(content)
            (await sender.send(make_event(CommentReceived))).expect(200)
        file.unlink()
        file.mkdir()
        (await sender.send(make_event(CommentReceived))).expect(200)
        assert receiver.failing is None


def test_an_invalid_path_is_a_secret_error() -> None:
    with pytest.raises(SecretError, match="cannot read"):
        FileSecrets("a\0b")
