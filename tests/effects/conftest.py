"""A PostgreSQL for the tests of this folder."""

import pytest
from support.postgres import PostgresServer


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """Return a PostgreSQL whose schema ``public`` is empty."""
    shared_postgres.clear()
    return shared_postgres
