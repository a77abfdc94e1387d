"""Pages, history, lists of files and long tables, in Chromium and in Firefox."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cepheid.tools import build_leaderboard
from tests.compliance import small
from tests.compliance.builder import SYSTEM, write_code, write_result
from tests.leaderboard.browser import Visitor, chromium, firefox

ROUND = "mini-closed.html"
FILES = "logs/acme/box0/star_shape-mini-closed/files.html"
CODE = "logs/acme/box0/star_shape-mini-closed~code/files.html"
PAGES = (
    "index.html", "history.html", FILES, CODE, ROUND, "benchmarks/star_shape-mini.html",
    "results/acme/box0/star_shape-mini-closed.html", "compare.html",
)  # fmt: skip
SYSTEMS = 5
ROWS = 2  # at once, instead of the number that site.js has


@pytest.fixture(
    scope="module",
    params=[pytest.param(chromium, id="chromium"), pytest.param(firefox, id="firefox")],
)
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    start: Callable[[], AbstractContextManager[Any]] = request.param
    with start() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The second round of a site with copies, built once; its tables show two rows at once."""
    root = tmp_path_factory.mktemp("rounds")
    with pytest.MonkeyPatch.context() as patch:
        mini = small.install(root / "benchmarks", patch)
        for number, when in enumerate(("before", "now")):
            for system in range(SYSTEMS):
                named = {**SYSTEM, "system": f"box{system}"}
                block_ms = 20_000.0 / (1 + number) + 3_000 * system
                write_result(root / when, mini, system=named, block_ms=block_ms)
            write_code(root / when, mini.name)
        build_leaderboard.main([str(root / "before"), "--output", str(root / "first")])
        history = ["--history", str(root / "first"), "--logs", "copy"]
        build_leaderboard.main([str(root / "now"), "--output", str(root / "site"), *history])
        script = root / "site" / "site.js"
        text = script.read_text(encoding="utf-8")
        at_once = "ROWS_AT_ONCE = isNarrow ? 10 : 50, ROWS_MANY = isNarrow ? 10 : 100;"
        assert text.count(at_once) == 1
        script.write_text(text.replace(at_once, f"ROWS_AT_ONCE = {ROWS}, ROWS_MANY = {ROWS};"))
        yield root / "site"


@pytest.fixture
def visitor(browser: Any, folder: Path) -> Iterator[Visitor]:
    """Fails a test in which the browser complained or asked for anything but the site's files."""
    made = Visitor(browser, folder)
    yield made
    made.context.close()
    assert made.complaints == []


def _need_options(visitor: Visitor) -> None:
    browser = visitor.context.browser
    if browser is None or browser.browser_type.name == "firefox":
        pytest.skip("Firefox, driven as it is installed, neither prints nor leaves out scripts")


def count_rows(visitor: Visitor) -> int:
    return visitor.page.locator("table[data-table] tbody tr:visible").count()


def test_pages_fit_and_nothing_complains(visitor: Visitor) -> None:
    for name in PAGES:
        page = visitor.open(name)
        for width, height in ((360, 740), (1280, 900)):
            page.set_viewport_size({"width": width, "height": height})
            assert visitor.excess_pixels <= 0, (name, width)


def test_a_complaint_is_heard(browser: Any, folder: Path) -> None:
    """The test above can fail: errors of a page arrive here."""
    visitor = Visitor(browser, folder)
    visitor.open(ROUND).evaluate("console.error('overheard')")
    visitor.context.close()
    assert visitor.complaints == ["overheard"]


def test_the_history_names_its_rounds_and_copies_open_as_text(visitor: Visitor) -> None:
    page = visitor.open("history.html")
    assert page.get_by_role("heading", level=1).inner_text().startswith("History v1.0")
    assert page.locator("figure.plot svg").first.is_visible()
    assert "faster: " in page.locator("section table").first.inner_text()
    page.get_by_role("link", name="box0").first.click()
    assert page.url.endswith("results/acme/box0/star_shape-mini-closed.html")
    page = visitor.open(FILES)
    assert page.locator("tbody tr").count() == len(page.locator("tbody code").all())
    page.get_by_role("link", name="result_0.txt").click()
    assert page.url.endswith("star_shape-mini-closed/result_0.txt")
    assert ":::MLLOG" in page.locator("body").inner_text()


def test_a_long_table_shows_its_first_rows_and_all_on_request(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    assert count_rows(visitor) == ROWS
    assert page.get_by_role("button", name=f"show all {SYSTEMS}").is_visible()
    page.get_by_role("button", name="star_shape").click()
    page.get_by_role("button", name="star_shape").click()  # the slowest of all rows is first
    assert page.locator("table[data-table] tbody th").first.inner_text().startswith("box4")
    head = page.locator("th[data-key=star_shape]")
    assert head.get_attribute("aria-sort") == "descending"
    page.get_by_label("filter").fill("box3")
    assert count_rows(visitor) == 1
    assert page.locator("output").inner_text() == f"1 of {SYSTEMS} rows"
    assert "q=box3" in page.url
    page.get_by_label("filter").fill("")
    page.get_by_role("button", name=f"show all {SYSTEMS}").click()
    assert count_rows(visitor) == SYSTEMS
    assert "open=mini-closed" in page.url


def test_all_rows_are_printed_and_saved(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    page.get_by_role("button", name="star_shape").click()
    page.get_by_role("button", name="star_shape").click()  # the slowest first
    saved = page.evaluate("saved('csv')").splitlines()
    assert len(saved) == SYSTEMS + 1
    names = "document.querySelectorAll('table[data-table] tbody th a')"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = page.evaluate(f"[...{names}].map((name) => name.textContent)")
    assert printed[0] == "box4"
    assert [name in line for name, line in zip(printed, saved[1:], strict=True)] == [True] * SYSTEMS
    _need_options(visitor)
    page.emulate_media(media="print")
    assert page.locator("table.ranking tbody tr:visible").count() == SYSTEMS
    assert count_rows(visitor) == 0  # of the table over all benchmarks: most cells would be empty
    assert page.locator("p.pages").first.is_hidden()


def test_without_javascript_all_rows_are_there(browser: Any, folder: Path) -> None:
    visitor = Visitor(browser, folder, java_script_enabled=False)
    _need_options(visitor)
    visitor.open(ROUND)
    assert count_rows(visitor) == SYSTEMS
    assert visitor.page.locator("table.ranking tbody tr:visible").count() == SYSTEMS
    visitor.context.close()
