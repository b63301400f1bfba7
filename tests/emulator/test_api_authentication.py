"""Authentication of API calls: Authentication (interface v1), rule by rule."""

import pickle
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest
from support.service_api import calling, checked_error, create, wanted

from hookonce.emulator import EmulatedService, VirtualClock

pytestmark = pytest.mark.anyio

PATH = "/v1/webhooks"


@pytest.fixture
async def service() -> AsyncIterator[EmulatedService]:
    async with EmulatedService(service="postline", clock=VirtualClock()) as service:
        yield service


@pytest.fixture
async def api(service: EmulatedService) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client whose requests carry no key unless a test adds a key."""
    transport = httpx2.ASGITransport(service.api)
    async with httpx2.AsyncClient(transport=transport, base_url="https://service.test") as client:
        yield client


async def status_with(api: httpx2.AsyncClient, headers: dict[str, str]) -> int:
    return (await api.post(PATH, json=wanted(), headers=headers)).status_code


@pytest.mark.parametrize(
    ("header", "form"),
    [
        ("Authorization", "Bearer {}"),
        ("authorization", "bearer  {}"),
        ("X-API-Key", "{}"),
        ("x-api-key", "{}"),
    ],
)
async def test_a_key_is_sent_in_either_header(
    api: httpx2.AsyncClient, service: EmulatedService, header: str, form: str
) -> None:
    """Interface, Authentication 1: `Authorization: Bearer <API_KEY>`, "`X-API-Key` is accepted
    as well".
    """
    assert await status_with(api, {header: form.format(service.new_key())}) == 201


async def test_x_api_key_counts_if_authorization_has_another_scheme(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    key = service.new_key()
    assert await status_with(api, {"authorization": "Basic x", "x-api-key": key}) == 201
    assert await status_with(api, {"authorization": f"Basic {key}"}) == 401


async def test_authorization_counts_if_both_headers_carry_a_key(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    good, bad = service.new_key(), "postline_sk_bad"
    assert await status_with(api, {"authorization": f"Bearer {good}", "x-api-key": bad}) == 201
    assert await status_with(api, {"authorization": f"Bearer {bad}", "x-api-key": good}) == 401


async def test_a_key_has_the_documented_form_and_its_prefix_exposes_the_leading_part(
    service: EmulatedService,
) -> None:
    """Interface, Authentication 2: "`<service>_sk_...` followed by the secret part"."""
    key = service.new_key("editor", name="nightly job")
    assert re.fullmatch("postline_sk_[0-9a-f]{40}", key)
    (shown,) = service.keys
    assert key.startswith(shown.prefix)
    assert shown.prefix.startswith("postline_sk_")
    assert len(shown.prefix) < len(key) / 2
    assert (shown.name, shown.role) == ("nightly job", "editor")


async def test_only_the_hash_of_a_key_is_kept(service: EmulatedService) -> None:
    """Interface, Authentication 4: "Only a hash is stored"."""
    key = service.new_key()
    secret_part = key.removeprefix(service.keys[0].prefix).encode()
    assert secret_part not in pickle.dumps(service._keys)
    assert key not in repr(service) + repr(service.api) + repr(service._keys) + repr(service.keys)


async def test_only_admins_manage_webhooks(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, Authentication 6: create, update, test, deliveries and rotate-secret need the
    admin role.

    Authentication 8: "A role that does not allow the operation is answered with 403".
    """
    async with calling(service) as admins:
        row = f"{PATH}/{(await create(admins))['id']}"
    operations = [
        ("POST", PATH),
        ("PATCH", row),
        ("POST", f"{row}/test"),
        ("GET", f"{row}/deliveries"),
        ("POST", f"{row}/rotate-secret"),
    ]
    before = service.endpoint()
    for role in ("viewer", "contributor", "editor"):
        headers = {"x-api-key": service.new_key(role)}
        for method, path in operations:
            response = await api.request(method, path, headers=headers)
            error = checked_error(response, 403, "api.forbidden")
            assert error["kind"] == "permission"
    assert service.endpoint() == before
    assert service.deliveries() == []


async def test_there_are_four_roles(service: EmulatedService) -> None:
    """Interface, Authentication 5: "viewer, contributor, editor or admin"."""
    with pytest.raises(ValueError, match="there are viewer, contributor, editor, admin"):
        service.new_key("owner")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"x-api-key": ""},
        {"x-api-key": "postline_sk_0123"},
        {"authorization": "Bearer postline_sk_0123"},
        {"x-api-key": "\xff\xfe"},
    ],
    ids=str,
)
async def test_a_missing_or_unknown_key_is_answered_401(
    api: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    """Interface, Authentication 8: "A key that is missing, revoked, expired or unknown"."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    response = await api.post(PATH, json=wanted(), headers=raw)
    assert checked_error(response, 401, "api.unauthorized")["kind"] == "permission"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_a_revoked_key_is_answered_401_and_others_are_not(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, Authentication 8; Errors: "401 | Key revoked"."""
    revoked, other = service.new_key(), service.new_key()
    service.revoke_key(revoked)
    response = await api.post(PATH, headers={"x-api-key": revoked})
    checked_error(response, 401, "api.unauthorized")
    assert await status_with(api, {"x-api-key": other}) == 201
    with pytest.raises(LookupError) as caught:
        service.revoke_key(revoked)
    assert revoked not in str(caught.value)


async def test_an_expired_key_is_answered_401(
    api: httpx2.AsyncClient, service: EmulatedService
) -> None:
    """Interface, Authentication 8; Errors: "401 | Key expired"."""
    headers = {"x-api-key": service.new_key(expires_at=service.now + timedelta(minutes=1))}
    await service.advance(seconds=59)
    assert await status_with(api, headers) == 201
    await service.advance(seconds=1.000001)  # a datetime is rounded to a microsecond
    checked_error(await api.post(PATH, headers=headers), 401, "api.unauthorized")


async def test_a_key_reaches_only_its_own_workspace(api: httpx2.AsyncClient) -> None:
    """Interface, Authentication 3: a key "belongs to that workspace and cannot be pointed at
    another".
    """
    async with EmulatedService(service="postline") as other:
        headers = {"x-api-key": other.new_key()}
    checked_error(await api.post(PATH, headers=headers), 401, "api.unauthorized")


async def test_a_plan_without_api_access_is_answered_402() -> None:
    """Interface, Authentication 9: the free plan's one key; "`/v1` answers it with 402
    api.not_on_plan".
    """
    async with EmulatedService(plan="free") as service, calling(service) as api:
        with pytest.raises(ValueError, match="the plan allows 1 keys"):
            service.new_key()
        for path in (PATH, "/v1/me"):
            error = checked_error(await api.post(path, json=wanted()), 402, "api.not_on_plan")
            assert error["kind"] == "permission"
        assert service.endpoints == []


async def test_an_unknown_path_needs_a_key_too(
    api: httpx2.AsyncClient,
) -> None:
    """Interface, Endpoints: "All calls need authentication"."""
    checked_error(await api.get("/v1/nothing"), 401, "api.unauthorized")
