"""Chromium, as Debian has it: nothing is downloaded."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright

__all__ = ["a_page"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")

# Root has no sandbox, and containers have a small /dev/shm.
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


def _chromium() -> str:
    """Return the browser's path; without one fail where CI must have it, and skip elsewhere."""
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("there is no Chromium here; on Debian: apt-get install chromium")
    return path


@asynccontextmanager
async def a_page() -> AsyncIterator[Page]:
    """Give a page in which no script fails, no dialog opens and no policy is broken."""
    problems: list[str] = []

    def note(line: ConsoleMessage) -> None:
        # An answer that is no success is noted there too, and means nothing here.
        if line.type == "error" and not line.text.startswith("Failed to load resource"):
            problems.append(line.text)

    path = _chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        yield page
        await browser.close()
    assert problems == []
