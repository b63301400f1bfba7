"""What only shows beside a receiver: other routers, and other receivers."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from starlette.applications import Starlette

from hookonce import Event, Receiver, Router
from hookonce.operations.doctor import Level, endpoint_findings, router_findings, subjects_in
from hookonce.verification.secrets import new_secret

from .findings import only

SECRET = new_secret()


async def handle(event: Event[object]) -> None: ...


@pytest.fixture
def shop() -> Iterator[ModuleType]:
    """Load the modules shop and shop.hooks; the latter has a receiver."""
    shop, hooks = ModuleType("shop"), ModuleType("shop.hooks")
    vars(hooks)["receiver"] = Receiver(secrets=SECRET, store="memory://")
    sys.modules |= {"shop": shop, "shop.hooks": hooks}
    yield hooks
    del sys.modules["shop"], sys.modules["shop.hooks"]


def test_a_router_that_nobody_includes_is_named(shop: ModuleType) -> None:
    assert router_findings("shop") == []
    shop.receiver.on("*", name="own")(handle)
    router = Router()
    vars(shop)["router"] = router
    assert router_findings("shop") == [], "it has no handler yet"
    router.on("*", name="all")(handle)
    found = only(router_findings("shop"), "routers")
    assert found.level is Level.WARNING
    assert "the router shop.hooks.router has handlers, and no receiver includes it" in found.found
    shop.receiver.include(router)
    assert router_findings("shop.hooks") == []


@pytest.mark.parametrize(("endpoint", "count"), [("other", 0), ("default", 1)])
def test_two_receivers_on_one_endpoint_are_named(endpoint: str, count: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = Receiver(secrets=SECRET, store=url)
    second = Receiver(secrets=SECRET, store=url, endpoint=endpoint)
    app = Starlette(routes=[*first.routes("/one"), *second.routes("/two")])
    findings = endpoint_findings(subjects_in(app))
    assert len(findings) == count
    for found in findings:
        assert (found.check, found.level) == ("endpoint", Level.FAULT)
        assert "at /one and /two have" in found.found
