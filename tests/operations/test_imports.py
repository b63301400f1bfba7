"""Each operator tool is imported only on request, and names the extra that it lacks."""

import subprocess
import sys

import pytest

LIBRARIES = {"opentelemetry", "prometheus_client"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        ("hookonce", set[str]()),
        ("hookonce.cli.metrics", set[str]()),
        ("hookonce.operations", set[str]()),
        ("hookonce.operations.prometheus", {"prometheus_client"}),
        ("hookonce.operations.opentelemetry", {"opentelemetry"}),
    ],
)
def test_an_observer_imports_its_own_library_and_no_other(module: str, wanted: set[str]) -> None:
    loaded = python(f"import sys, {module}; print(*({LIBRARIES} & sys.modules.keys()))")
    assert set(loaded.stdout.split()) == wanted, loaded.stderr


def test_the_records_for_observers_are_imported_without_the_tools() -> None:
    loaded = python("import sys, hookonce.operations; print(*sys.modules)")
    names = set(loaded.stdout.split())
    assert "hookonce.operations" in names, loaded.stderr
    assert not [name for name in names if name.startswith("hookonce.operations.")]


def test_traces_need_only_the_api_of_opentelemetry() -> None:
    loaded = python(
        "import sys, hookonce.operations.opentelemetry as traces; traces.OpenTelemetryObserver();"
        "unwanted = 'opentelemetry.sdk', 'opentelemetry.semconv';"
        "print([name for name in sys.modules if name.startswith(unwanted)])"
    )
    assert loaded.stdout.strip() == "[]", loaded.stderr
