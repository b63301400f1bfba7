"""The delivery log over the API: Endpoints, Webhooks and Pagination (interface v1)."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from support.service_api import calling, checked_error, create

from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.events import CommentReceived
from hookonce.resources import WebhookDelivery

pytestmark = [pytest.mark.anyio, pytest.mark.sample(17, of="file")]


@pytest.fixture
async def service() -> AsyncIterator[EmulatedService]:
    async with EmulatedService(clock=VirtualClock(), seed=1) as service:
        yield service


@pytest.fixture
async def api(service: EmulatedService) -> AsyncIterator[httpx2.AsyncClient]:
    async with calling(service) as client:
        yield client


@pytest.fixture
async def path(api: httpx2.AsyncClient) -> str:
    created = await create(api, url="http://127.0.0.1:9/")
    return f"/v1/webhooks/{created['id']}/deliveries"


async def emit(service: EmulatedService, count: int, *, seconds_apart: float = 0) -> list[str]:
    """Emit events, and return their ids, newest first."""
    ids = []
    for _ in range(count):
        ids.append((await service.emit(CommentReceived)).id)
        await service.advance(seconds=seconds_apart)
    return ids[::-1]


async def listed(api: httpx2.AsyncClient, path: str, **query: str | int) -> dict[str, Any]:
    response = await api.get(path, params=query)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    assert set(page) == {"data", "nextCursor"}
    return page


def event_ids(page: dict[str, Any]) -> list[str]:
    return [delivery["eventId"] for delivery in page["data"]]


async def test_an_empty_log_is_one_page(api: httpx2.AsyncClient, path: str) -> None:
    """Interface, What the service does, rule 4: `data` (array) plus `nextCursor`."""
    assert await listed(api, path) == {"data": [], "nextCursor": None}


async def test_the_log_is_newest_first(
    api: httpx2.AsyncClient, service: EmulatedService, path: str
) -> None:
    """Interface, Endpoints, Webhooks: "Newest first"."""
    ids = await emit(service, 3)
    assert event_ids(await listed(api, path)) == ids


async def test_a_delivery_has_the_documented_fields_and_no_others(
    api: httpx2.AsyncClient, service: EmulatedService, path: str
) -> None:
    """Interface, Resources, Webhook delivery: its fields."""
    await emit(service, 1)
    (shown,) = (await listed(api, path))["data"]
    assert set(shown) == {
        "id",
        "eventId",
        "eventType",
        "status",
        "attempts",
        "responseStatus",
        "errorMessage",
        "durationMs",
        "isTest",
        "createdAt",
        "deliveredAt",
        "nextAttemptAt",
    }
    assert [WebhookDelivery.model_validate(shown)] == service.deliveries()


async def test_a_log_holds_only_the_deliveries_of_its_endpoint(
    api: httpx2.AsyncClient, service: EmulatedService, path: str
) -> None:
    other = await create(api, url="http://127.0.0.1:9/", events=["channel.unhealthy"])
    await service.emit("channel.unhealthy")
    assert (await listed(api, path))["data"] == []
    assert len((await listed(api, f"/v1/webhooks/{other['id']}/deliveries"))["data"]) == 1


async def test_the_log_is_kept_14_days(
    api: httpx2.AsyncClient, service: EmulatedService, path: str
) -> None:
    """Interface, Limits: "Delivery log retention: 14 days"."""
    await api.post(path.replace("deliveries", "test"))  # one entry: a test event is never retried
    await service.advance(days=14)
    assert len((await listed(api, path))["data"]) == 1
    await service.advance(seconds=1)
    assert (await listed(api, path))["data"] == []


@pytest.mark.parametrize(
    ("query", "size"),
    [({}, 25), ({"limit": 1}, 1), ({"limit": 100}, 100), ({"limit": 10**17}, 100)],
    ids=str,
)
async def test_a_page_has_25_entries_or_up_to_100_and_more_is_clamped(
    api: httpx2.AsyncClient,
    service: EmulatedService,
    path: str,
    query: dict[str, str | int],
    size: int,
) -> None:
    """Interface, Pagination: "limit: integer, 1 to 100, default 25. A value above 100 is clamped to
    100".

    Limits: Page size.
    """
    ids = await emit(service, 101)
    page = await listed(api, path, **query)
    assert event_ids(page) == ids[:size]
    assert page["nextCursor"] == page["data"][-1]["id"]


@pytest.mark.parametrize("limit", ["0", "-1", "", "x", "1.5", "1e1", "1_0", " 5", "٣", "9" * 5000])
async def test_a_limit_that_is_below_one_or_no_integer_is_refused(
    api: httpx2.AsyncClient, path: str, limit: str
) -> None:
    """Interface, Pagination: "limit: integer, 1 to 100, default 25"; Errors: 422."""
    response = await api.get(path, params={"limit": limit})
    error = checked_error(response, 422, "validation.failed")
    assert [issue["field"] for issue in error["details"]["issues"]] == ["limit"]


@pytest.mark.parametrize(("count", "pages"), [(4, 2), (5, 3), (6, 3)])
async def test_pages_follow_each_other_to_the_end_without_gap_or_repetition(
    api: httpx2.AsyncClient, service: EmulatedService, path: str, count: int, pages: int
) -> None:
    """Interface, Pagination: the cursor is the id of the last row, and null on the last page."""
    ids = await emit(service, count)
    seen = [page := await listed(api, path, limit=2)]
    while page["nextCursor"] is not None:
        assert page["nextCursor"] == page["data"][-1]["id"]
        page = await listed(api, path, limit=2, cursor=page["nextCursor"])
        seen.append(page)
    assert [event_id for page in seen for event_id in event_ids(page)] == ids
    assert len(seen) == pages


async def test_new_deliveries_do_not_shift_the_next_page(
    api: httpx2.AsyncClient, service: EmulatedService, path: str
) -> None:
    """Interface, Pagination: "Cursors are the id of the last row", so new deliveries do not move
    them.
    """
    ids = await emit(service, 4)
    first = await listed(api, path, limit=2)
    await emit(service, 3)
    second = await listed(api, path, limit=2, cursor=first["nextCursor"])
    assert event_ids(first) + event_ids(second) == ids


@pytest.mark.parametrize("written", ["as shown", "with an offset", "without one"])
async def test_timestamp_cursors_keep_working(
    api: httpx2.AsyncClient, service: EmulatedService, path: str, written: str
) -> None:
    """Interface, Pagination: "Timestamp cursors handed out earlier keep working"."""
    ids = await emit(service, 5, seconds_apart=10)
    first = await listed(api, path, limit=2)
    moment = first["data"][-1]["createdAt"]
    cursor = {
        "as shown": moment,
        "with an offset": moment.replace("Z", "+00:00"),
        "without one": moment.removesuffix("Z"),
    }[written]
    second = await listed(api, path, limit=2, cursor=cursor)
    assert event_ids(second) == ids[2:4]
    third = await listed(api, path, limit=2, cursor=second["nextCursor"])
    assert event_ids(third) == ids[4:]


async def test_a_cursor_whose_row_has_left_the_log_ends_the_pages(
    api: httpx2.AsyncClient, service: EmulatedService, path: str
) -> None:
    await emit(service, 3)
    first = await listed(api, path, limit=2)
    await service.settle()
    await service.advance(days=15)
    page = await listed(api, path, limit=2, cursor=first["nextCursor"])
    assert page == {"data": [], "nextCursor": None}


@pytest.mark.parametrize("cursor", ["", "x", "evt_0123", "dlv_", "0", "2026-02-30", "\x00"])
async def test_a_cursor_that_was_never_handed_out_is_refused(
    api: httpx2.AsyncClient, path: str, cursor: str
) -> None:
    """Interface, Pagination: "pass the previous `nextCursor` back unchanged"."""
    response = await api.get(f"{path}?cursor={quote(cursor)}")
    checked_error(response, 422, "validation.failed")
