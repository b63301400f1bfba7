"""The PostgreSQL store works on Debian's server, which is older than the wheel's server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from stores.test_contract import WHOLE
from support.postgres import PostgresServer, debian_binaries, postgres_server

from hookonce.stores.contract import Bench, Rule
from hookonce.stores.postgres import PostgresStore

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def debian() -> Iterator[PostgresServer]:
    with postgres_server(debian_binaries()) as server:
        yield server


@pytest.mark.sample(20, full=80)
@pytest.mark.parametrize("rule", WHOLE)
async def test_a_store_on_debians_server_keeps_the_rule(debian: PostgresServer, rule: Rule) -> None:
    debian.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
    await rule(Bench(partial(PostgresStore, debian.url)))
