"""The site in Firefox: pages open and fit, tables sort and filter. Chromium has the other tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compliance import small
from tests.compliance.mixed import write_mixed
from tests.leaderboard.browser import Visitor, firefox
from tests.leaderboard.test_site import MINI, build_site

ROUND = "mini-closed.html"
BENCHMARK = "benchmarks/star_shape-mini.html"
PAGES = ("index.html", ROUND, BENCHMARK, MINI, "compare.html")
SIZES = ((360, 740), (1280, 900))  # of a phone, of a laptop


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with firefox() as found:
        yield found


@pytest.fixture(scope="module")
def folder(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site, built once for all tests of this file."""
    root = tmp_path_factory.mktemp("mixed")
    with pytest.MonkeyPatch.context() as patch:
        mini = small.install(root / "benchmarks", patch)
        for name, content in build_site(write_mixed(root / "out", mini)).items():
            path = root / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    return root / "site"


@pytest.fixture
def visitor(browser: Any, folder: Path) -> Iterator[Visitor]:
    """Fails a test in which the browser complained or asked for anything but the site's files."""
    made = Visitor(browser, folder)
    yield made
    made.context.close()
    assert made.complaints == []


def systems(visitor: Visitor) -> list[str]:
    """The systems of the rows that are shown, from the first to the last."""
    found = visitor.page.locator('table[data-table] tbody [data-label="system"]:visible')
    return [text.strip().split("\n")[0] for text in found.all_inner_texts()]


def test_every_page_fits_and_nothing_complains(visitor: Visitor) -> None:
    excess = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for name in PAGES:
        page = visitor.open(name)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate(excess) <= 0, (name, width)


def test_a_complaint_is_heard(browser: Any, folder: Path) -> None:
    """The test above can fail: errors of a page arrive here."""
    visitor = Visitor(browser, folder)
    visitor.open(ROUND).evaluate("console.error('overheard')")
    visitor.context.close()
    assert visitor.complaints == ["overheard"]


def test_sort(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    page.get_by_role("button", name="star_shape").click()
    assert systems(visitor) == ["a100.x8", "box"]
    page.get_by_role("button", name="star_shape").click()
    assert systems(visitor) == ["box", "a100.x8"]
    head = page.locator("th[data-key=star_shape]")
    assert head.get_attribute("aria-sort") == "descending"


def test_filter(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    page.get_by_label("filter").fill("a100")
    assert systems(visitor) == ["a100.x8"]
    assert page.locator("output").inner_text() == "1 of 2 rows"
    assert page.url.endswith("#q=a100")
