"""One PostgreSQL for the tests of this folder, in each process that runs some of them."""

from collections.abc import Iterator

import pytest
from support.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """Return an empty PostgreSQL."""
    shared_postgres.clear()
    return shared_postgres
