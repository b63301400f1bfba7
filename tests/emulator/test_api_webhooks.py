"""The webhook operations, one test for each rule of the interface (v1)."""

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest
from support.servers import serving
from support.service_api import PUBLIC_URL, calling, checked_error, create, wanted

from hookonce import Receiver
from hookonce.emulator import DisabledReason, EmulatedService, VirtualClock
from hookonce.events import CommentReceived
from hookonce.resources import WebhookDelivery, WebhookEndpoint
from hookonce.verification.secrets import new_secret, verifying_key

pytestmark = pytest.mark.anyio

NO_ROW = "wh_0000"
NOBODY = "http://127.0.0.1:9/"
"""Where nobody listens, so that every attempt fails at once."""


@pytest.fixture
async def service() -> AsyncIterator[EmulatedService]:
    async with EmulatedService(clock=VirtualClock()) as service:
        yield service


@pytest.fixture
async def api(service: EmulatedService) -> AsyncIterator[httpx2.AsyncClient]:
    async with calling(service) as client:
        yield client


async def test_an_endpoint_is_created_with_a_secret(api: httpx2.AsyncClient) -> None:
    """Interface, Endpoints, Webhooks: POST answers "the endpoint including its `secret`"."""
    data = await create(api, description="für uns")
    assert verifying_key(data["secret"]).is_shared
    assert data["secret"].startswith("whsec_")
    assert (data["url"], data["events"]) == (PUBLIC_URL, ["comment.received"])
    assert (data["description"], data["status"]) == ("für uns", "active")


async def test_an_endpoint_has_the_documented_fields_and_no_others(api: httpx2.AsyncClient) -> None:
    """Interface, Resources, Webhook endpoint: its fields."""
    data = await create(api)
    assert set(data) == {
        "id",
        "url",
        "description",
        "events",
        "status",
        "disabledReason",
        "secretPrefix",
        "consecutiveFailures",
        "lastSuccessAt",
        "lastFailureAt",
        "createdAt",
        "secret",
    }
    assert WebhookEndpoint.model_validate(data).consecutive_failures == 0
    assert data["secret"].startswith(data["secretPrefix"])
    assert len(data["secretPrefix"]) < len(data["secret"]) / 2


async def test_every_endpoint_has_a_secret_and_an_id_of_its_own(api: httpx2.AsyncClient) -> None:
    created = [await create(api) for _ in range(3)]
    assert len({data["secret"] for data in created}) == len({data["id"] for data in created}) == 3


async def test_a_secret_is_shown_once(api: httpx2.AsyncClient, service: EmulatedService) -> None:
    """Interface, Resources, Webhook endpoint: "present only in the answer to creation and
    rotation".
    """
    created = await create(api, url=NOBODY)
    path = f"/v1/webhooks/{created['id']}"
    for response in (
        await api.patch(path, json={"enabled": True}),
        await api.post(f"{path}/test"),
        await api.get(f"{path}/deliveries"),
    ):
        assert response.status_code == 200
        assert created["secret"] not in response.text
        assert '"secret"' not in response.text
    assert created["secret"] not in repr(service.workspace) + repr(service.api) + repr(service)


async def test_a_missing_required_field_is_named(api: httpx2.AsyncClient) -> None:
    """Interface, Errors: "422: The body did not validate"; url and events are required."""
    error = checked_error(await api.post("/v1/webhooks", json={}), 422, "validation.failed")
    assert {issue["field"] for issue in error["details"]["issues"]} == {"url", "events"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"events": ["webhook.test"]}, "events.0"),
        ({"events": ["comment.received", "comment.liked"]}, "events.1"),
        ({"events": []}, "events"),
    ],
)
async def test_only_documented_types_can_be_subscribed_to_and_the_test_event_cannot(
    api: httpx2.AsyncClient, changes: dict[str, object], field: str
) -> None:
    """Interface, Events, Event types: webhook.test "cannot be subscribed to"."""
    response = await api.post("/v1/webhooks", json=wanted(**changes))
    error = checked_error(response, 422, "validation.failed")
    assert [issue["field"] for issue in error["details"]["issues"]] == [field]


async def test_all_documented_types_can_be_subscribed_to(api: httpx2.AsyncClient) -> None:
    """Interface, Events, Event types."""
    types = [
        "post.target.published",
        "post.target.failed",
        "comment.received",
        "message.received",
        "channel.unhealthy",
        "channel.disconnected",
    ]
    assert (await create(api, events=types))["events"] == types


@pytest.mark.parametrize(
    "changes",
    [
        {"url": 5},
        {"url": None},
        {"events": "comment.received"},
        {"events": [5]},
        {"events": {"comment.received": True}},
        {"description": 5},
        {"description": None},
    ],
    ids=str,
)
async def test_a_body_with_a_wrong_type_is_refused_and_nothing_is_created(
    api: httpx2.AsyncClient, service: EmulatedService, changes: dict[str, object]
) -> None:
    """Interface, Errors: "422: The body did not validate"."""
    response = await api.post("/v1/webhooks", json=wanted(**changes))
    checked_error(response, 422, "validation.failed")
    assert service.endpoints == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"url": "\\ud800"}'],
    ids=lambda body: repr(body[:8]),
)
async def test_a_body_that_is_no_json_object_is_refused(
    api: httpx2.AsyncClient, body: bytes
) -> None:
    """Interface, What the service does: "Requests and responses are JSON"; Errors: 422."""
    path = f"/v1/webhooks/{(await create(api))['id']}"
    checked_error(await api.post("/v1/webhooks", content=body), 422, "validation.failed")
    checked_error(await api.patch(path, content=body), 422, "validation.failed")


async def test_unknown_fields_are_ignored(api: httpx2.AsyncClient) -> None:
    assert "color" not in await create(api, color="red", secret="whsec_mine")


async def test_an_endpoint_receives_what_it_subscribed_to_and_nothing_else(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, Events, rule 1."""
    created = await create(api, url=NOBODY, events=["channel.unhealthy"])
    await service.emit("comment.received")
    subscribed = await service.emit("channel.unhealthy")
    log = service.deliveries(created["id"])
    assert [delivery.event_id for delivery in log] == [subscribed.id]


async def test_a_disabled_endpoint_is_turned_back_on(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, States: disabled, "PATCH with enabled true", active."""
    created = await create(api)
    path = f"/v1/webhooks/{created['id']}"
    service.workspace.endpoints[created["id"]].count_failure(service.now.timestamp())
    service.disable(created["id"])
    data = (await api.patch(path, json={"enabled": True})).json()["data"]
    assert (data["status"], data["disabledReason"]) == ("active", None)
    assert data["consecutiveFailures"] == 0


async def test_enabling_an_active_endpoint_changes_nothing(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    created = await create(api)
    service.workspace.endpoints[created["id"]].count_failure(service.now.timestamp())
    response = await api.patch(f"/v1/webhooks/{created['id']}", json={"enabled": True})
    assert response.json()["data"]["consecutiveFailures"] == 1


async def test_an_endpoint_disabled_by_hand_receives_nothing_more(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, Resources, Gaps: the interface shows the reason "manual", but not the step that
    sets it.
    """
    created = await create(api, url=NOBODY)
    await service.emit(CommentReceived)
    response = await api.patch(f"/v1/webhooks/{created['id']}", json={"enabled": False})
    assert response.status_code == 200
    data = response.json()["data"]
    assert (data["status"], data["disabledReason"]) == ("disabled", "manual")
    await service.emit(CommentReceived)
    assert [delivery.status for delivery in service.deliveries()] == ["failed"]


async def test_a_disabled_endpoint_keeps_its_reason(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    created = await create(api)
    path = f"/v1/webhooks/{created['id']}"
    service.workspace.endpoints[created["id"]].disable(DisabledReason.GONE)
    data = (await api.patch(path, json={"enabled": False})).json()["data"]
    assert data["disabledReason"] == "gone"


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://8.8.4.4/"},
        {"events": ["message.received", "comment.received"]},
        {"description": ""},
        {},
    ],
    ids=str,
)
async def test_a_change_affects_only_the_fields_it_sends(
    api: httpx2.AsyncClient, change: dict[str, object]
) -> None:
    """Interface, Endpoints, Webhooks: PATCH takes "JSON including `enabled`" and answers "the
    endpoint".
    """
    created = await create(api)
    secret = created.pop("secret")
    response = await api.patch(f"/v1/webhooks/{created['id']}", json=change)
    assert response.status_code == 200
    assert response.json() == {"data": created | change}
    assert secret not in response.text


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"enabled": "true"}, "validation.failed"),
        ({"enabled": 1}, "validation.failed"),
        ({"enabled": None}, "validation.failed"),
        ({"url": None}, "validation.failed"),
        ({"url": "https://10.0.0.1/"}, "webhook.url_private"),
        ({"events": ["webhook.test"]}, "validation.failed"),
        ({"events": None}, "validation.failed"),
        ({"description": []}, "validation.failed"),
    ],
    ids=str,
)
async def test_a_change_that_does_not_validate_changes_nothing(
    api: httpx2.AsyncClient, service: EmulatedService, change: dict[str, object], code: str
) -> None:
    """Interface, Errors: "422: The body did not validate"; the service applies a change completely
    or not at all.
    """
    created = await create(api)
    before = service.endpoint()
    body = {"description": "other", "enabled": False, **change}
    checked_error(await api.patch(f"/v1/webhooks/{created['id']}", json=body), 422, code)
    assert service.endpoint() == before


async def test_a_test_event_is_delivered_at_once(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, POST /v1/webhooks/{webhookId}/test: "delivers a webhook.test event at once"."""
    created = await create(api, url=NOBODY)
    response = await api.post(f"/v1/webhooks/{created['id']}/test")
    assert response.status_code == 200
    delivery = WebhookDelivery.model_validate(response.json()["data"])
    assert (delivery.event_type, delivery.is_test, delivery.attempts) == ("webhook.test", True, 1)
    assert [delivery] == service.deliveries()


async def test_a_disabled_endpoint_can_be_tested(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    created = await create(api, url=NOBODY)
    service.disable()
    response = await api.post(f"/v1/webhooks/{created['id']}/test")
    assert response.json()["data"]["attempts"] == 1
    assert service.endpoint().status == "disabled"


async def test_if_time_flows_the_answer_to_a_test_does_not_wait_for_the_attempt() -> None:
    async with EmulatedService(speed=1) as service, calling(service) as api:
        created = await create(api, url=NOBODY)
        response = await api.post(f"/v1/webhooks/{created['id']}/test")
        assert response.json()["data"]["status"] == "pending"
        await service.settle()
        assert service.deliveries()[0].attempts == 1


async def test_a_second_rotation_drops_the_oldest_secret(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    created = await create(api)
    path = f"/v1/webhooks/{created['id']}/rotate-secret"
    second, third = [(await api.post(path)).json()["data"]["secret"] for _ in range(2)]
    row = service.workspace.endpoints[created["id"]]
    assert row.secrets(service.now.timestamp()) == (third, second)


async def test_a_rotation_gives_another_secret_and_two_signatures_for_24_hours(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, Endpoints, Webhooks: rotate-secret answers "Webhook endpoint with the new
    `secret`".

    Events, Delivery behaviour: "for 24 hours every event carries two signatures".
    """
    created = await create(api)
    response = await api.post(f"/v1/webhooks/{created['id']}/rotate-secret")
    assert response.status_code == 200
    rotated = response.json()["data"]
    assert rotated["secret"] != created["secret"]
    assert rotated["secret"].startswith(rotated["secretPrefix"])
    changed = {"secret", "secretPrefix"}
    assert {k: v for k, v in rotated.items() if k not in changed} == {
        k: v for k, v in created.items() if k not in changed
    }
    row = service.workspace.endpoints[created["id"]]
    await service.advance(hours=24, seconds=-1)
    assert row.secrets(service.now.timestamp()) == (rotated["secret"], created["secret"])
    await service.advance(timedelta(seconds=1, microseconds=1))  # more, because `now` is rounded
    assert row.secrets(service.now.timestamp()) == (rotated["secret"],)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", f"/v1/webhooks/{NO_ROW}"),
        ("POST", f"/v1/webhooks/{NO_ROW}/test"),
        ("GET", f"/v1/webhooks/{NO_ROW}/deliveries"),
        ("POST", f"/v1/webhooks/{NO_ROW}/rotate-secret"),
    ],
)
async def test_an_unknown_endpoint_is_answered_404(
    api: httpx2.AsyncClient, method: str, path: str
) -> None:
    """Interface, Errors: "404: No such row in this workspace"."""
    error = checked_error(await api.request(method, path), 404, "webhook.not_found")
    assert error["kind"] == "not_found"


async def test_a_receiver_is_registered_tested_rotated_and_its_log_read_over_http() -> None:
    """A client calls every webhook operation in turn, over real HTTP."""
    handled: list[str] = []
    async with EmulatedService() as service, serving(service.api) as site:
        key = service.new_key()
        async with httpx2.AsyncClient(base_url=site.url, headers={"x-api-key": key}) as api:
            secrets = Configuration()
            receiver = Receiver(secrets=secrets, store="memory://")

            @receiver.on(CommentReceived)
            async def note(event: CommentReceived) -> None:
                handled.append(event.id)

            async with serving(receiver) as receiving:
                created = await create(api, url=f"{receiving.url}/webhooks")
                path = f"/v1/webhooks/{created['id']}"
                secrets.known = [created["secret"]]
                first = await service.emit(CommentReceived)

                rotated = (await api.post(f"{path}/rotate-secret")).json()["data"]
                # The service signs with both secrets; the receiver knows only the old one.
                second = await service.emit(CommentReceived)
                secrets.known = [rotated["secret"]]
                third = await service.emit(CommentReceived)
                test = (await api.post(f"{path}/test")).json()["data"]
                page = (await api.get(f"{path}/deliveries")).json()
    assert handled == [first.id, second.id, third.id]
    assert [delivery["eventId"] for delivery in page["data"]] == [
        test["eventId"],
        third.id,
        second.id,
        first.id,
    ]
    assert {delivery["status"] for delivery in page["data"]} == {"delivered"}
    assert {delivery["responseStatus"] for delivery in page["data"]} == {200}
    assert page["nextCursor"] is None


class Configuration:
    """The secrets that an operator has configured at the receiver."""

    def __init__(self) -> None:
        self.known = [new_secret()]  # the secret from before the rotation

    def current(self) -> list[str]:
        return self.known
