"""A module whose optional package is missing names the extra to install."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.version import InvalidVersion, Version
from support.deliveries import SECRET
from support.processes import run_python

from hookonce.errors import NeedsExtra

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_MODULES = [
    ("client", "httpx2", "client"),
    ("effects.aiosqlite", "aiosqlite", "aiosqlite"),
    ("effects.asyncpg", "asyncpg", "asyncpg"),
    ("effects.django", "django", "django"),
    ("effects.psycopg", "psycopg", "psycopg"),
    ("effects.psycopg", "psycopg_pool", "psycopg"),
    ("effects.sqlalchemy", "sqlalchemy", "sqlalchemy"),
    ("integrations.django", "django", "django"),
    ("operations.inspector", "jinja2", "inspector"),
    ("operations.opentelemetry", "opentelemetry", "otel"),
    ("operations.prometheus", "prometheus_client", "prometheus"),
    ("stores.postgres", "psycopg", "postgres"),
    ("stores.redis", "redis", "redis"),
    ("verification.ed25519", "cryptography", "v1a"),
]


def run_without(libraries: set[str], code: str) -> str:
    """Run a program that cannot import some libraries, and return what it prints."""
    return run_python(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {libraries!r}:\n"
        "            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Missing())\n" + code
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(("module", "library", "extra"), _MODULES)
def test_a_module_without_its_library_names_the_extra(
    module: str, library: str, extra: str
) -> None:
    printed = run_without(
        {library},
        f"try: import hookonce.{module}\nexcept ImportError as error: print(error)\n",
    )
    assert printed.endswith(f" needs {library}: pip install 'hookonce[{extra}]'\n")


def test_the_emulator_needs_no_extra_within_a_process() -> None:
    printed = run_without(
        {"yaml", *(library for _, library, _ in _MODULES)},
        "import asyncio\n"
        "from hookonce import Receiver, simulation\n"
        "from hookonce.emulator import EmulatedService\n"
        "from hookonce.events import CommentReceived\n"
        f"receiver = Receiver(secrets={SECRET!r}, store='memory://')\n"
        "receiver.on(CommentReceived, name='note')(lambda _: None)\n"
        "async def main():\n"
        "    async with EmulatedService(receiver) as service:\n"
        "        await service.emit(CommentReceived)\n"
        "        print(*(delivery.status for delivery in service.deliveries()))\n"
        "asyncio.run(main())\n",
    )
    assert printed == "delivered\n"


def test_another_missing_module_is_named_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="'other'"), NeedsExtra("x", "the test", "lib"):
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_every_extra_that_is_named_exists() -> None:
    extras = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {extra for _, _, extra in _MODULES} <= set(extras)


def test_no_extra_is_compared_as_a_version() -> None:
    """pip 24.1 to 25.3 reads the right side of a marker as a version if it can, and then fails."""
    requirements = " ".join(requires("hookonce") or [])
    extras = re.findall(r"extra == [\"']([^\"']+)", requirements)
    assert "cli" in extras
    for extra in extras:
        with pytest.raises(InvalidVersion):
            Version(extra)
