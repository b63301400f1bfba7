"""After kills at any moment, each effect exists exactly once, but only with a ledger.

With ``latest_by``, no effect is written after a newer effect of the same channel. Without
``latest_by``, some effects are.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.postgres import PostgresServer

from .benches import ON_POSTGRES, ON_SQLITE
from .kills import Figures, How, kills

SEED = random.randrange(1_000_000)

Round = Callable[..., Figures]


@pytest.fixture
def kill(tmp_path: Path, request: pytest.FixtureRequest) -> Round:
    def round_of(name: str, *, events: int, how: How = How.WITHIN) -> Figures:
        postgres: PostgresServer | None = None
        if name in ON_POSTGRES:
            postgres = request.getfixturevalue("postgres")
        figures = asyncio.run(
            kills(name, tmp_path, events=events, how=how, seed=SEED, postgres=postgres)
        )
        print(figures, SEED)  # noqa: T201 - pytest shows the figures if a test fails
        return figures

    return round_of


def is_exact(figures: Figures) -> bool:
    return (figures.lost, figures.twice, figures.strange) == (0, 0, 0)


@pytest.mark.costs("2 s")
@pytest.mark.sample(1, of="file")
@pytest.mark.parametrize("name", ["asyncpg", "sqlite3"])
def test_each_effect_exists_once_after_kills(name: str, kill: Round) -> None:
    figures = kill(name, events=150)
    assert figures.faults["kill"]
    assert is_exact(figures)
    assert figures.late


@pytest.mark.costs("4 s")
@pytest.mark.sample(1, of="file")
@pytest.mark.parametrize("name", ["asyncpg", "psycopg-threads"])
def test_each_effect_exists_once_in_the_database_of_the_store(name: str, kill: Round) -> None:
    figures = kill(name, events=150, how=How.SHARED)
    assert figures.faults["kill"]
    assert is_exact(figures)


@pytest.mark.full("3 s")
def test_without_a_ledger_some_effects_exist_twice(kill: Round) -> None:
    figures = kill("asyncpg", events=150, how=How.ALONE)
    assert figures.twice
    assert not figures.lost


@pytest.mark.costs("2 s")
@pytest.mark.sample(1, of="file")
@pytest.mark.parametrize("name", ["asyncpg", "sqlite3"])
def test_no_effect_is_written_after_a_newer_one_of_its_channel(name: str, kill: Round) -> None:
    figures = kill(name, events=150, how=How.LATEST)
    assert figures.faults.total()
    assert is_exact(figures)
    assert not figures.late


@pytest.mark.full("up to 10 s of processor time each", draw=4)
@pytest.mark.parametrize("how", [How.WITHIN, How.LATEST])
@pytest.mark.parametrize("name", [*ON_POSTGRES, *ON_SQLITE])
def test_each_effect_exists_once_in_every_ledger(name: str, how: How, kill: Round) -> None:
    figures = kill(name, events=300, how=how)
    assert is_exact(figures)
    assert not figures.late or how is How.WITHIN
