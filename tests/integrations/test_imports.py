"""An adapter imports only its own framework."""

import subprocess
import sys

import pytest

FRAMEWORKS = {"fastapi", "flask", "django", "litestar"}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        ("hookonce", set[str]()),
        ("hookonce.integrations", set[str]()),
        ("hookonce.integrations.wsgi", set[str]()),
        ("hookonce.integrations.aws_lambda", set[str]()),
        *((f"hookonce.integrations.{name}", {name}) for name in sorted(FRAMEWORKS)),
    ],
)
def test_an_adapter_imports_its_own_framework_and_no_other(module: str, wanted: set[str]) -> None:
    code = f"import sys, {module}; print(*(set({sorted(FRAMEWORKS)}) & sys.modules.keys()))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(loaded) == wanted
