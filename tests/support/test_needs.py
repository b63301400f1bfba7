"""If a requirement is missing, the skip says how to install it; in CI the test fails."""

import pytest

from .needs import needed


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)


def test_in_ci_what_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        needed("chromium", "google-chrome", package="chromium")


def test_elsewhere_it_is_the_reason_of_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"chromium is not .* apt-get install chromium"):
        needed("chromium", "google-chrome", package="chromium")
