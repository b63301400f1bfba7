"""Whoever is killed at whatever moment, each effect is there once; without a ledger it is not."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.postgres import PostgresServer

from .benches import ON_POSTGRES, ON_SQLITE
from .kills import Figures, kills

SEED = random.randrange(1_000_000)

Round = Callable[..., Figures]


@pytest.fixture
def kill(tmp_path: Path, request: pytest.FixtureRequest) -> Round:
    def round_of(name: str, *, events: int, is_within: bool = True) -> Figures:
        postgres: PostgresServer | None = None
        if name in ON_POSTGRES:
            postgres = request.getfixturevalue("postgres")
        figures = asyncio.run(
            kills(name, tmp_path, events=events, is_within=is_within, seed=SEED, postgres=postgres)
        )
        print(figures, SEED)  # noqa: T201 - shown where it fails
        return figures

    return round_of


def is_exact(figures: Figures) -> bool:
    return (figures.lost, figures.twice, figures.strange) == (0, 0, 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["asyncpg", "sqlite3"])
def test_each_effect_is_there_once_whoever_is_killed(name: str, kill: Round) -> None:
    figures = kill(name, events=150)
    assert figures.faults["kill"]
    assert is_exact(figures)


def test_without_a_ledger_some_effects_are_there_twice(kill: Round) -> None:
    figures = kill("asyncpg", events=150, is_within=False)
    assert figures.twice
    assert not figures.lost


@pytest.mark.full("up to 10 s of processor time each")
@pytest.mark.parametrize("name", [*ON_POSTGRES, *ON_SQLITE])
def test_each_effect_is_there_once_in_every_ledger(name: str, kill: Round) -> None:
    assert is_exact(kill(name, events=300))
