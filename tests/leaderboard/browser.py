"""Real browsers for the tests of the site: those of Debian, driven by Playwright."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A browser; the test is skipped where there is none, or nothing to drive it with."""
    path = _find("Chromium", ("chromium", "chromium-browser", "google-chrome"))
    with _drive() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def firefox() -> "Iterator[Browser]":
    """The other browser, as it is installed: Playwright drives it by WebDriver BiDi."""
    path = _find("Firefox", ("firefox-esr", "firefox"))
    with _drive() as playwright:
        browser = playwright.firefox.launch(channel="moz-firefox", executable_path=path)
        yield browser
        browser.close()


def _find(browser: str, names: Sequence[str]) -> str:
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"there is no {browser} here; Debian has it as the package {names[0]}")
    return path


def _drive() -> "AbstractContextManager[Playwright]":
    driver = pytest.importorskip(
        "playwright.sync_api", reason="Playwright, of the extra test, is not installed"
    )
    made: AbstractContextManager[Playwright] = driver.sync_playwright()
    return made


class Visitor:
    """A page of a built site, from its folder. What must not happen is in ``complaints``."""

    def __init__(self, browser: "Browser", folder: Path, **options: Any) -> None:
        self.folder = folder
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", self._check_request)
        self.page.on("requestfailed", lambda request: self.complaints.append(request.url))

    def _check_request(self, request: Any) -> None:
        inside = f"file://{self.folder.resolve()}/"
        if not request.url.startswith((inside, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    @property
    def excess_pixels(self) -> int:
        """How much wider the page is than what shows it."""
        root = "document.documentElement"
        found: int = self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
        return found

    def come_back(self) -> None:
        """Leave the page, and open it again by its address."""
        self._go_anew(self.page.url)

    def open(self, name: str) -> "Page":
        """Open a page anew, also where only what follows # is another."""
        self._go_anew(f"file://{self.folder.resolve()}/{name}")
        return self.page

    def _go_anew(self, address: str) -> None:
        self.page.wait_for_load_state()  # in Firefox a link that is still followed interrupts it
        self.page.goto("about:blank")
        self.page.goto(address)
