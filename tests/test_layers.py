"""The code has the layers that the guide's design page draws."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "hookonce"

# The files that may import each backend, framework or tool.
HOMES = {
    "apsw": {"stores/sqlite/"},
    "redis": {"stores/redis/"},
    "starlette": {"http/", "emulator/api.py", "operations/inspector/", "integrations/fastapi.py"},
    "jinja2": {"operations/inspector/"},
    "prometheus_client": {"operations/prometheus.py", "operations/prometheus_metrics.py"},
    "opentelemetry": {"operations/opentelemetry.py"},
    "django": {"integrations/django.py", "effects/django.py"},
    "sqlalchemy": {"effects/sqlalchemy.py"},
    "psycopg": {"effects/psycopg.py", "stores/postgres/"},
    "psycopg_pool": {"effects/psycopg.py", "stores/postgres/"},
    "asyncpg": {"effects/asyncpg.py"},
    "aiosqlite": {"effects/aiosqlite.py"},
    "fastapi": {"integrations/fastapi.py"},
    "flask": {"integrations/flask.py"},
    "litestar": {"integrations/litestar.py"},
    "pytest": {"testing/pytest_plugin.py"},
    "uvicorn": {"cli/"},
    "click": {"cli/"},
    "rich": {"cli/"},
    "httpx2": {"cli/", "client/", "emulator/over_http.py"},
}
# Modules that only decide: they do no input or output.
PURE = {
    "addresses.py",
    "errors.py",
    "clock.py",
    "logs.py",
    "outcome.py",
    "resources.py",
    "verification/",
    "events/",
    "senders/",
    "operations/diagnosis.py",
}
READS_FILES = {"verification/providers.py"}
LOGS = {"logs.py"}
INPUT_OUTPUT = {"asyncio", "logging", "os", "pathlib", "queue", "socket", "subprocess", "threading"}


def drawn_layers() -> dict[str, int]:
    """Return the layer of each file, from the picture on the design page."""
    page = PACKAGE / "guide" / "design.md"
    picture = re.search(r"```\nsrc/hookonce/\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert picture is not None
    layers: dict[str, int] = {}
    layer = -1
    for line in picture[1].splitlines():
        number = re.match(r" ?(\d+) ", line)
        layer = int(number[1]) if number else layer
        layers |= dict.fromkeys(re.findall(r"\w+(?:\.py|/(?=\s))", line), layer)
    return layers


LAYERS = drawn_layers()
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
FOLDERS = sorted({f"{file.rpartition('/')[0]}/" for file in FILES if "/" in file})


def package_of(file: str) -> str:
    """Return the top-level folder of a file, or the file itself."""
    folder, slash, _ = file.partition("/")
    return folder + slash


def layer_of(file: str) -> int:
    return LAYERS[package_of(file)]


@cache
def imports(file: str) -> frozenset[str]:
    """Return the absolute dotted name of every module that a file imports anywhere."""
    return frozenset(_imports(file))


def _imports(file: str) -> Iterator[str]:
    package = ["hookonce", *Path(file).parts[:-1]]
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{name}.{alias.name}" for alias in node.names)


@cache
def own_file(module: str) -> str | None:
    """Return the package's file that an imported name comes from."""
    if module.split(".", maxsplit=1)[0] != "hookonce":
        return None
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        stem = "/".join(parts[:length])
        for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
            if (PACKAGE / candidate).exists():
                return candidate
    return "__init__.py"


def test_the_picture_shows_every_file_and_nothing_else() -> None:
    assert {package_of(file) for file in FILES} == set(LAYERS)


def test_a_file_imports_only_from_lower_layers() -> None:
    wrong = {
        (file, target)
        for file in FILES
        for name in imports(file)
        if (target := own_file(name)) is not None
        and layer_of(target) >= layer_of(file)
        and package_of(target) != package_of(file)
    }
    assert not wrong


def test_the_root_is_small_enough_to_be_read_at_a_glance() -> None:
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 29
    assert len([path for path in entries if path.is_file()]) <= 10


def test_a_package_imports_only_the_part_of_a_store_that_it_uses() -> None:
    packages = {"delivery/", "watching/", "inbox/", "http/"}
    assert packages <= {package_of(file) for file in FILES}
    whole = {"hookonce.stores.protocols.Store", "hookonce.stores.protocols.InboxStore"}
    assert not [f for f in FILES if package_of(f) in packages and whole & imports(f)]


def test_no_layer_of_the_picture_is_superfluous() -> None:
    # Put each package into the lowest layer that its imports allow.
    needs = {
        package: {
            package_of(t)
            for f in FILES
            if package_of(f) == package
            for n in imports(f)
            if (t := own_file(n))
        }
        - {package}
        for package in LAYERS
    }
    lowest: dict[str, int] = {}
    for package in TopologicalSorter(needs).static_order():
        lowest[package] = 1 + max((lowest[need] for need in needs[package]), default=-1)
    assert max(LAYERS.values()) == max(lowest.values())


def test_a_dependency_is_imported_only_where_it_belongs() -> None:
    wrong = {
        (file, name)
        for file in FILES
        for name in {name.split(".")[0] for name in imports(file)} & set(HOMES)
        if not any(
            file == home or (home[-1] == "/" and file.startswith(home)) for home in HOMES[name]
        )
    }
    assert not wrong


def test_what_only_decides_does_no_input_or_output_and_waits_for_nothing() -> None:
    pure = [f for f in FILES if {f, package_of(f)} & PURE and f not in READS_FILES | LOGS]
    assert {f if f in PURE else package_of(f) for f in pure} == PURE - READS_FILES - LOGS
    wrong = {
        (file, name)
        for file in pure
        for name in {name.split(".")[0] for name in imports(file)} & INPUT_OUTPUT
    }
    assert not wrong
    for file in pure:
        tree = ast.parse((PACKAGE / file).read_text())
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Await)], file


def test_no_file_imports_itself_by_way_of_others() -> None:
    # Importing any file of a folder also imports the folder's `__init__.py`.
    arrows = {
        file: {target for name in imports(file) if (target := own_file(name)) not in {None, file}}
        for file in FILES
    }
    TopologicalSorter(arrows).prepare()  # raises CycleError


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_part_of_a_folder_imports_itself_by_way_of_others(folder: str) -> None:
    # A part is a file, or a folder with all its files.
    arrows: dict[str, set[str]] = {}
    for file in [file for file in FILES if file.startswith(folder)]:
        part = package_of(file.removeprefix(folder))
        targets = {target for name in imports(file) if (target := own_file(name))}
        within = {package_of(t.removeprefix(folder)) for t in targets if t.startswith(folder)}
        arrows.setdefault(part, set()).update(within - {part})
    TopologicalSorter(arrows).prepare()  # raises CycleError


def test_no_tool_of_operations_imports_another() -> None:
    tools = ("prometheus", "opentelemetry", "diagnosis", "inspector/", "doctor/")
    for own in [f"operations/{tool}" for tool in tools]:
        for file in [file for file in FILES if file.startswith(own)]:
            targets = {target for name in imports(file) if (target := own_file(name))}
            assert not {t for t in targets if t.startswith("operations/") and not t.startswith(own)}


def test_no_backend_imports_another() -> None:
    backends = ("stores/memory.py", "stores/sqlite/", "stores/postgres/", "stores/redis/")
    for own in backends:
        for file in [file for file in FILES if file.startswith(own)]:
            targets = {target for name in imports(file) if (target := own_file(name))}
            assert not {t for t in targets if t.startswith(backends) and not t.startswith(own)}


def test_importing_the_package_loads_no_backend_server_or_tool() -> None:
    tools = ("redis", "apsw", "uvicorn", "click", "rich", "httpx2", "pytest", "sqlite3")
    unwanted = (*tools, "sqlalchemy", "psycopg", "asyncpg", "aiosqlite", "django")
    code = f"import hookonce, sys; print([n for n in {unwanted} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == "[]"
