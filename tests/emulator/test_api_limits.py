"""The limits of the API: Limits (interface v1), rule by rule."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from freezegun import freeze_time
from support.service_api import calling, checked_error, create, wanted

from hookonce.emulator import EmulatedService, VirtualClock

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 22, tzinfo=UTC).timestamp()


def rate(response: httpx2.Response) -> tuple[int, int, int]:
    limit, remaining, reset = (
        int(response.headers[f"x-ratelimit-{name}"]) for name in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset


async def use_up(api: httpx2.AsyncClient, count: int) -> None:
    for _ in range(count):
        assert (await api.get("/v1/nothing")).status_code == 404


@pytest.mark.parametrize(
    ("plan", "limit"), [("starter", 1_000), ("pro", 10_000), ("agency", 50_000)]
)
async def test_requests_per_day_follow_the_plan(plan: str, limit: int) -> None:
    """Interface, Limits: "Requests per day, starter"; "Requests per day, premium".

    "Requests per day, agency"; rule 1: the three headers.
    """
    service = EmulatedService(plan=plan, clock=VirtualClock(NOON))
    async with calling(service) as api:
        response = await api.post("/v1/webhooks", json=wanted())
        assert rate(response) == (limit, limit - 1, int(MIDNIGHT))


async def test_every_authenticated_response_carries_the_rate_headers() -> None:
    """Interface, Limits, rule 1: "Every authenticated response", also a response that refuses the
    request.
    """
    async with EmulatedService(clock=VirtualClock(NOON)) as service, calling(service) as api:
        path = f"/v1/webhooks/{(await create(api, url='http://127.0.0.1:9/'))['id']}"
        viewer = {"authorization": f"Bearer {service.new_key('viewer')}"}
        responses = [
            await api.get(f"{path}/deliveries"),
            await api.patch(path, json={"description": "x"}),
            await api.post(f"{path}/test"),
            await api.post(f"{path}/rotate-secret"),
            await api.post("/v1/webhooks", json={}),
            await api.delete(path),
            await api.get("/v1/nothing"),
            await api.patch(path, headers=viewer),
        ]
    statuses = [response.status_code for response in responses]
    assert statuses == [200, 200, 200, 200, 422, 405, 404, 403]
    assert [rate(response)[1] for response in responses] == list(range(49_998, 49_990, -1))


async def test_a_response_without_a_valid_key_carries_no_rate_headers() -> None:
    """Interface, Limits, rule 1: only authenticated responses; a request without a valid key has no
    workspace, and so no quota.
    """
    service = EmulatedService()
    async with calling(service, "example_sk_unknown") as api:
        response = await api.get("/v1/nothing")
    checked_error(response, 401, "api.unauthorized")
    assert not [name for name in response.headers if name.startswith("x-ratelimit")]


async def test_a_plan_without_api_access_has_a_quota_of_0() -> None:
    """Interface, Limits: "Requests per day, free: no API access"."""
    service = EmulatedService(plan="free", clock=VirtualClock(NOON))
    async with calling(service) as api:
        response = await api.get("/v1/nothing")
    checked_error(response, 402, "api.not_on_plan")
    assert rate(response) == (0, 0, int(MIDNIGHT))


async def test_the_keys_of_a_workspace_share_a_quota_that_ends_with_429() -> None:
    """Interface, Limits: "per workspace, shared by all its keys"; rule 2: `retry-after` in
    seconds.
    """
    service = EmulatedService(plan="starter", clock=VirtualClock(NOON))
    async with calling(service) as one, calling(service) as two:
        await use_up(one, 999)
        assert rate(await two.post("/v1/webhooks", json=wanted()))[1] == 0
        for api in (one, two):
            response = await api.post("/v1/webhooks", json=wanted())
            assert checked_error(response, 429, "api.quota_exceeded")["kind"] == "limit"
            assert response.headers["retry-after"] == str(12 * 3600)
            assert rate(response) == (1_000, 0, int(MIDNIGHT))
    assert len(service.endpoints) == 1


async def test_the_quota_is_whole_again_after_retry_after() -> None:
    """Interface, Limits, rule 2; Gaps: the interface does not say when the quota is reset."""
    service = EmulatedService(plan="starter", clock=VirtualClock(NOON + 0.25))
    async with calling(service) as api:
        await use_up(api, 1_000)
        response = await api.get("/v1/nothing")
        await service.advance(seconds=int(response.headers["retry-after"]) - 1)
        assert (await api.get("/v1/nothing")).headers["retry-after"] == "1"
        await service.advance(seconds=1)
        assert rate(await api.get("/v1/nothing")) == (1_000, 999, int(MIDNIGHT) + 86_400)


async def test_the_quota_follows_a_clock_that_freezegun_moves() -> None:
    """Interface, Limits: requests per day, by the service's time."""
    with freeze_time("2026-11-21T23:59:59Z") as frozen:
        service = EmulatedService(plan="starter", clock=frozen)
        async with calling(service) as api:
            await use_up(api, 1_000)
            checked_error(await api.get("/v1/nothing"), 429, "api.quota_exceeded")
            frozen.tick(1)
            await use_up(api, 1)


async def test_requests_over_the_quota_do_not_count() -> None:
    service = EmulatedService(plan="starter", clock=VirtualClock(NOON))
    async with calling(service) as api:
        await use_up(api, 1_000)
        await api.get("/v1/nothing")
        service.workspace.plan = "pro"
        assert rate(await api.get("/v1/nothing"))[1] == 10_000 - 1_001


@pytest.mark.parametrize(("plan", "most"), [("starter", 3), ("pro", 10), ("agency", 30)])
async def test_endpoints_per_workspace_follow_the_plan(plan: str, most: int) -> None:
    """Interface, Limits: "Webhook endpoints per workspace"; the interface does not give the status
    for one endpoint too many.
    """
    service = EmulatedService(plan=plan)
    async with calling(service) as api:
        for _ in range(most):
            await create(api)
        error = checked_error(
            await api.post("/v1/webhooks", json=wanted()), 409, "webhook.limit_reached"
        )
    assert error["kind"] == "limit"
    assert len(service.endpoints) == most


async def test_simultaneous_requests_do_not_exceed_the_limit_of_endpoints() -> None:
    """Interface, Limits: "Webhook endpoints per workspace", starter 3."""
    service = EmulatedService(plan="starter")
    async with calling(service) as api:
        responses = await asyncio.gather(
            *(api.post("/v1/webhooks", json=wanted()) for _ in range(6))
        )
    assert sorted(response.status_code for response in responses) == [201] * 3 + [409] * 3
    assert len(service.endpoints) == 3


@pytest.mark.parametrize(
    ("plan", "most"), [("free", 1), ("starter", 3), ("pro", 10), ("agency", 30)]
)
def test_keys_per_workspace_follow_the_plan(plan: str, most: int) -> None:
    """Interface, Limits: "Keys per workspace"; Authentication 9: one key for the free plan."""
    service = EmulatedService(plan=plan)
    expired = service.now - timedelta(seconds=1)  # expired keys count toward the limit
    keys = [service.new_key(expires_at=expired) for _ in range(most)]
    assert len(set(keys)) == most
    with pytest.raises(ValueError, match=f"the plan allows {most} keys"):
        service.new_key()
    service.revoke_key(keys[0])
    assert service.new_key() not in keys
