"""The tests use Debian's Chromium, and download nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import ConsoleMessage, Page, async_playwright
from support.needs import needed

__all__ = ["a_page"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")

# Root cannot use the sandbox, and containers have a small /dev/shm.
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


@asynccontextmanager
async def a_page() -> AsyncIterator[Page]:
    """Yield a page; fail if a script fails, a dialog opens or the policy blocks something."""
    problems: list[str] = []

    def note(line: ConsoleMessage) -> None:
        # The browser also reports HTTP error statuses, which the tests expect.
        if line.type == "error" and not line.text.startswith("Failed to load resource"):
            problems.append(line.text)

    path = needed(*_NAMES, package="chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        yield page
        await browser.close()
    assert problems == []
