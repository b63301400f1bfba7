"""The URLs that an endpoint may have: Events, rule 3 (interface v1)."""

import asyncio
import socket
from ipaddress import ip_address
from typing import Any

import pytest
from support.service_api import PUBLIC_URL, calling, checked_error, create, wanted

from hookonce.addresses import is_public
from hookonce.emulator import EmulatedService

pytestmark = pytest.mark.anyio

LOOPBACK = ["https://127.0.0.1/", "https://127.8.9.1/", "https://[::1]/", "https://localhost/"]
OTHERS_NOT_PUBLIC = [
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://100.64.0.1/",
    "https://0.0.0.0/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    "https://[::]/",
    "https://[::ffff:10.0.0.1]/",
    "https://167772161/",
    "https://0x0a000001/",
    "https://10.1/",
    "https://user:word@10.0.0.1:8443/hooks?x=1",
]


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Replace DNS by a dict from host names to addresses, and return the dict for tests to fill."""
    names: dict[str, list[str]] = {}

    async def getaddrinfo(_: object, host: str, port: int | None, **__: object) -> list[Any]:
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(None, None, 0, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return names


@pytest.mark.parametrize("url", LOOPBACK + OTHERS_NOT_PUBLIC)
async def test_an_address_that_is_not_public_is_refused(url: str) -> None:
    """Interface, Events, rule 3: "refused with code webhook.url_private"; the interface does not
    say the status.
    """
    service = EmulatedService(allow_loopback=False)
    async with calling(service) as api:
        response = await api.post("/v1/webhooks", json=wanted(url=url))
    error = checked_error(response, 422, "webhook.url_private")
    assert error["kind"] == "validation"
    assert service.endpoints == []


@pytest.mark.parametrize("url", OTHERS_NOT_PUBLIC)
async def test_other_private_networks_are_refused_if_loopback_is_allowed(url: str) -> None:
    """Interface, Events, rule 3; the emulator makes an exception for loopback addresses only."""
    async with calling(EmulatedService()) as api:
        response = await api.post("/v1/webhooks", json=wanted(url=url))
    checked_error(response, 422, "webhook.url_private")


async def test_http_to_a_public_address_is_refused_even_if_loopback_is_allowed() -> None:
    async with calling(EmulatedService()) as api:
        response = await api.post("/v1/webhooks", json=wanted(url="http://8.8.8.8/"))
    checked_error(response, 422, "validation.failed")


@pytest.mark.parametrize("url", [*LOOPBACK, "http://127.0.0.1:8000/", "http://[::ffff:127.0.0.1]/"])
async def test_http_and_loopback_are_accepted_by_default(url: str) -> None:
    async with calling(EmulatedService()) as api:
        assert (await create(api, url=url))["url"] == url


@pytest.mark.parametrize(
    "url",
    [PUBLIC_URL, "https://[2001:4860:4860::8888]/", "https://8.8.8.8:8443", "HTTPS://8.8.8.8"],
)
async def test_a_public_https_url_is_accepted_and_kept_as_it_was_sent(url: str) -> None:
    """Interface, Resources, Webhook endpoint: "must be https and resolve to a public address"."""
    async with calling(EmulatedService(allow_loopback=False)) as api:
        assert (await create(api, url=url))["url"] == url


@pytest.mark.parametrize(
    "url",
    [
        "http://8.8.8.8/",
        "ftp://8.8.8.8/",
        "8.8.8.8/hooks",
        "//8.8.8.8/hooks",
        "https:///hooks",
        "https://",
        "",
        "https://8.8.8.8:99999/",
        "https://8.8.8.8:port/",
        "https://[::1/",
        "https://[nonsense]/",
        "https://8.8.8.8/a b",
        "https://8.8.8.8\\@127.0.0.1/",
        "https://8.8.8.8/\n",
        " https://8.8.8.8/",
        "https://bäckerei.example/",
        f"https://{'a' * 64}.example/",
        "https://a..example/",
    ],
    ids=repr,
)
async def test_a_url_that_is_not_https_is_refused(url: str) -> None:
    """Interface, Resources, Webhook endpoint: "uri; must be https"; Errors: 422."""
    async with calling(EmulatedService(allow_loopback=False)) as api:
        response = await api.post("/v1/webhooks", json=wanted(url=url))
    error = checked_error(response, 422, "validation.failed")
    assert [issue["field"] for issue in error["details"]["issues"]] == ["url"]


async def test_all_addresses_of_a_host_must_be_public(
    resolved: dict[str, list[str]],
) -> None:
    """Interface, Events, rule 3: "resolve to a public address"."""
    resolved["good.example"] = ["8.8.8.8", "2001:4860:4860::8888"]
    resolved["mixed.example"] = ["8.8.8.8", "10.0.0.1"]
    async with calling(EmulatedService()) as api:
        await create(api, url="https://good.example/hooks")
        response = await api.post("/v1/webhooks", json=wanted(url="https://mixed.example/"))
        checked_error(response, 422, "webhook.url_private")


@pytest.mark.usefixtures("resolved")
async def test_a_host_that_does_not_resolve_is_refused() -> None:
    """Interface, Events, rule 3: the URL must resolve."""
    async with calling(EmulatedService()) as api:
        response = await api.post("/v1/webhooks", json=wanted(url="https://nowhere.example/"))
    checked_error(response, 422, "validation.failed")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("172.15.255.255", True),
        ("172.32.0.0", True),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("203.0.113.1", False),
        ("240.0.0.1", False),
        ("239.1.1.1", False),
        ("2a00:1450::1", True),
        ("2001:db8::1", False),
        ("ff0e::1", False),
        ("fec0::1", False),
        ("4000::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:169.254.0.1", False),
        ("64:ff9b::8.8.8.8", True),
        ("64:ff9b::10.0.0.1", False),
        ("2002:808:808::1", True),
        ("2002:a00:1::1", False),
        ("2001:0:a00:1::1", False),
    ],
)
def test_an_address_is_public_if_anybody_can_reach_it(address: str, *, expected: bool) -> None:
    """Interface, Events, rule 3; RFC 6890 has the registries of special-purpose addresses."""
    assert is_public(ip_address(address)) is expected
