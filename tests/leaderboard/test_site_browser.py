"""The site in a real browser: what a reader does with it, and that nothing goes wrong meanwhile."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.score.comparison import describe, format_ratio, mean_ratio, ratio
from cepheid.leaderboard.build import make_site_files
from cepheid.leaderboard.rows.entry import Entry
from tests.compliance import small
from tests.compliance.field import write_field
from tests.compliance.judging import make_site
from tests.leaderboard.browser import Visitor, chromium

ROUND = "mini-closed.html"
BENCHMARK = "benchmarks/star_shape-mini.html"
PAGES = (
    "index.html", ROUND, "mini-open.html", BENCHMARK, "benchmarks/star_images-mini.html",
    "systems/acme/a100.x1.html", "systems/dodgy/odd.html",
    "results/acme/a100.x1/star_shape-mini-closed.html",
    "results/acme/a100.x1/star_images-mini-closed.html",
    "results/dodgy/odd/star_shape-mini-closed.html",
    "results/cepheid/reference/star_shape-mini-closed.html", "compare.html",
    "compare.html#r=acme/a100.x1/star_shape-mini-closed&r=bolt/tpu-1/star_shape-mini-closed",
    "elsewhere.html", "glossary.html",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def field(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A site, built once for all tests of this file."""
    root = tmp_path_factory.mktemp("field")
    with pytest.MonkeyPatch.context() as patch:
        write_field(root / "submissions", small.install(root / "benchmarks", patch))
        made = make_site(root / "submissions", folder=root / "site")
        for name, content in make_site_files(made):
            path = root / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        ENTRIES[:] = made.entries
        yield root / "site"


ENTRIES: list[Entry] = []
IS_POINT = "part => part.parentElement.getAttribute('data-kind') === 'points'"


@pytest.fixture
def visitor(browser: Any, field: Path) -> Iterator[Visitor]:
    """Fails a test in which the browser complained or asked for anything but the site's files."""
    made = Visitor(browser, field)
    yield made
    made.context.close()
    assert made.complaints == []


def rows(visitor: Visitor, column: str = "system") -> list[str]:
    """The texts of a column in the rows that are shown."""
    found = visitor.page.locator(f'table[data-table] tbody [data-label="{column}"]:visible')
    return [text.strip().split("\n")[0] for text in found.all_inner_texts()]


WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
NARROW = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}
# That other pages fit, test_site_both_browsers.py says.
FITTING = [
    *(pytest.param(name, NARROW, id=f"narrow-dark-{name}") for name in PAGES),
    *(pytest.param(PAGES[n], WIDE, id=f"wide-{PAGES[n]}", marks=pytest.mark.promise)
      for n in (4, 6, 12, 13, 14)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), FITTING)
def test_pages_fit_silently(browser: Any, field: Path, name: str, options: dict[str, Any]) -> None:
    visitor = Visitor(browser, field, **options)
    page = visitor.open(name)
    assert visitor.excess_pixels <= 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (brightness < 150) == (options.get("color_scheme") == "dark")
    visitor.context.close()
    assert visitor.complaints == []


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("light", (ROUND, BENCHMARK)),
        # It looks at each page for seconds, and need not look at two of a kind.
        pytest.param("light", (*PAGES[4:6], *PAGES[7:10], *PAGES[12:]), marks=pytest.mark.promise),
        pytest.param("dark", (ROUND, BENCHMARK, PAGES[-2]), marks=pytest.mark.promise),
    ],
)
def test_axe_finds_nothing(browser: Any, field: Path, scheme: Any, names: tuple[str, ...]) -> None:
    """All texts have contrast, all fields labels, all pages landmarks: what axe-core can see."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not there")
    visitor = Visitor(browser, field, color_scheme=scheme, bypass_csp=True)
    found = []
    for name in names:
        page = visitor.open(name)
        for details in page.locator("details").all():
            details.evaluate("found => { found.open = true; }")
        answer = axe.Axe().run(page).response
        assert len(answer["passes"]) > 10  # it did look
        for violation in answer["violations"]:
            nodes = [node["html"][:150] for node in violation["nodes"][:3]]
            found.append((name, violation["id"], nodes))
    visitor.context.close()
    assert found == []


def test_sort(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    shown = dict(zip(rows(visitor), rows(visitor, "aggregate"), strict=False))
    assert shown["reference"] == "1 (reference)"  # where one belongs
    assert rows(visitor)[:5] == ["a100.x8", "a100.x4", "a100.x2", "a100.x1", "reference"]
    page.get_by_role("button", name="star_shape").click()
    assert rows(visitor)[:2] == ["a100.x8", "tpu-8"]
    assert "odd" not in rows(visitor)  # what is not ranked stands below
    page.get_by_role("button", name="star_shape").click()
    assert rows(visitor)[0] == "reference"
    page.get_by_role("button", name="star_images").click()  # more is better: the best first
    assert rows(visitor)[0] == "a100.x8"
    head = page.locator("th[data-key=star_images]")
    assert head.get_attribute("aria-sort") == "descending"
    visitor.open(f"{BENCHMARK}#sort=behind")  # slower than the first, by number
    assert (rows(visitor)[0], rows(visitor)[8]) == ("a100.x8", "reference")


def test_tables_sort_with_the_keyboard_and_say_by_what(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    page.get_by_role("button", name="system", exact=True).focus()
    page.keyboard.press("Enter")
    cells = page.locator("table[data-table] tbody th").all()
    shown = [cell.get_attribute("data-value") for cell in cells]
    assert shown == sorted(map(str, shown))
    assert len(shown) == 9
    for name in (ROUND, BENCHMARK, "benchmarks/star_images-mini.html"):
        for button in visitor.open(name).locator("th button").all():
            assert button.get_attribute("title"), (name, button.inner_text())


def test_filter(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    field = page.get_by_label("filter")
    field.fill("runs around")  # a title of a drawing, in a folded row
    assert rows(visitor) == []
    field.fill("bolt")
    assert [name[:3] for name in rows(visitor)] == ["tpu"] * 4
    assert page.locator("output").inner_text() == "4 of 9 rows"
    field.fill("")
    page.locator("select[name=device]").select_option("Example A100")
    assert [name[:4] for name in rows(visitor)] == ["a100"] * 4
    page.locator("select[name=device]").select_option("")
    page.locator("select[name=availability]").select_option("preview")
    assert {name[:3] for name in rows(visitor)} == {"tpu"}
    page.locator("select[name=availability]").select_option("")
    page.get_by_label("at least so many devices").fill("4")
    page.get_by_label("at most so many devices").fill("7")
    assert sorted(rows(visitor)) == ["a100.x4", "tpu-4"]
    assert "least=4&most=7" in page.url


def test_filters_act_on_rankings_and_plots(visitor: Visitor) -> None:
    page = visitor.open(f"{ROUND}#q=bolt")
    ranked = page.locator("table.ranking tbody th:visible").all_inner_texts()
    assert ranked
    assert all("bolt" in text for text in ranked)
    page = visitor.open(f"{BENCHMARK}#least=8")
    figure = page.locator("figure.plot").first
    drawn = {part.get_attribute("data-of") for part in figure.locator("svg g > [data-of]").all()}
    assert drawn == {f"{who}/star_shape-mini-closed" for who in ("acme/a100.x8", "bolt/tpu-8")}
    assert page.locator("table[data-table=more] tbody tr:visible").count() == 2


def test_every_result_is_drawn_against_its_devices_and_obeys_filters(visitor: Visitor) -> None:
    def list_points() -> list[str]:
        figure = page.locator("figure.plot", has_text="Time against accelerators").first
        parts = figure.locator("svg [data-of]").all()
        return [str(part.get_attribute("data-of")) for part in parts if part.evaluate(IS_POINT)]

    page = visitor.open(BENCHMARK)
    ranked = [one.id for one in ENTRIES if one.is_scored and "star_shape-mini-closed" in one.id]
    assert sorted(list_points()) == sorted(ranked)
    page.get_by_label("filter").fill("acme")
    assert {name.split("/")[0] for name in list_points()} == {"acme"}
    page.get_by_label("filter").fill("nobody has this")
    assert list_points() == []
    assert page.get_by_text("No result of this chart matches the filters.").count() > 0


def test_a_result_stands_out_in_all_plots(visitor: Visitor) -> None:
    page = visitor.open(BENCHMARK)
    page.locator("table[data-table] tbody tr", has_text="tpu-1").first.hover()
    figure = page.locator("figure.plot").first
    assert "lit" in str(figure.get_attribute("class"))
    lit = {part.get_attribute("data-of") for part in figure.locator("svg g > .lit").all()}
    assert lit == {"bolt/tpu-1/star_shape-mini-closed"}
    assert page.locator("svg g > .lit").count() > 1


def test_prices_make_costs_and_stay_in_the_address(visitor: Visitor) -> None:
    page = visitor.open(BENCHMARK)
    assert page.locator(".pareto figure").count() == 0
    page.get_by_label("Example A100").last.fill("6")
    row = page.locator("table[data-table=more] tbody tr", has_text="a100.x1").first
    minutes = float(str(row.get_attribute("data-minutes")))
    told, ends = row.locator("[data-cost]").inner_text().split(" ", 1)
    low, high = map(float, ends.split("–"))
    cost = float(told)
    assert low <= cost <= high
    assert cost == pytest.approx(6 * minutes / 60, rel=0.01)
    assert page.locator(".pareto figure").count() == 1
    visitor.come_back()
    assert float(row.locator("[data-cost]").inner_text().split()[0]) == cost


def test_a_view_is_shared_by_its_address(visitor: Visitor) -> None:
    page = visitor.open(ROUND)
    page.get_by_label("filter").fill("a100")
    page.get_by_text("columns", exact=True).click()
    assert not page.get_by_label("framework").is_checked()  # few ask for it
    page.get_by_label("availability").last.check()
    page.get_by_label("hardware").uncheck()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="star_shape").click()
    page.get_by_role("button", name="star_shape").click()
    seen = rows(visitor)
    visitor.come_back()
    assert rows(visitor) == seen == ["a100.x1", "a100.x4", "a100.x2", "a100.x8"]
    assert page.get_by_label("filter").input_value() == "a100"
    assert page.locator("th[data-key=framework]").is_hidden()
    assert page.locator("th[data-key=availability]").is_visible()
    assert rows(visitor, "hardware") == []


def test_what_is_saved_is_what_is_shown(visitor: Visitor) -> None:
    page = visitor.open(f"{ROUND}#q=bolt&hide=hardware&sort=star_shape")
    saved = {}
    for kind in ("CSV", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == f"mini-closed.{kind.lower()}"
        saved[kind] = download.value.path().read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(saved["CSV"])))
    objects = json.loads(saved["JSON"])
    systems = [line["system"].removeprefix("bolt/") for line in lines]
    assert systems == rows(visitor) == ["tpu-8", "tpu-2", "tpu-4", "tpu-1"]
    assert [found["system"] for found in objects] == [line["system"] for line in lines]
    assert not {"hardware", "framework"} & set(lines[0] | objects[0])
    low, value = float(lines[0]["star_shape_low"]), objects[0]["star_shape"]
    assert low < value < objects[0]["star_shape_high"]
    scores = {
        entry.names.system: entry.standing.score.main.mean
        for entry in ENTRIES
        if entry.level and entry.standing.score
    }
    assert float(lines[0]["star_shape"]) == value == scores["tpu-8"]
    assert objects[0]["star_images"] is None


def test_compare_says_what_python_says(visitor: Visitor) -> None:
    scored = {entry.id: entry for entry in ENTRIES if entry.level and entry.standing.score}
    pairs = [
        ("bolt/tpu-8/star_shape-mini-closed", f"{who}/star_shape-mini-closed")
        for who in ("acme/a100.x8", "acme/a100.x1", "bolt/tpu-4", "cepheid/reference")
    ]
    images = "star_images-mini-closed"
    pairs.append((f"cepheid/reference/{images}", f"acme/a100.x2/{images}"))
    for first, other in ((scored[a], scored[b]) for a, b in pairs):
        assert first.level is not None
        assert other.level is not None
        said = describe(other.name, first.name, ratio(other.level, first.level))
        page = visitor.open(f"compare.html#r={first.id}&r={other.id}")
        assert page.locator(".sentence").all_inner_texts() == [said]


def test_choose_and_compare(visitor: Visitor) -> None:
    page = visitor.open(BENCHMARK)
    compare = page.get_by_role("button", name="compare", exact=True)
    assert compare.is_disabled()
    page.get_by_label("compare acme/a100.x1").check()
    assert compare.is_disabled()
    page.get_by_label("compare bolt/tpu-1").check()
    compare.click()
    page.wait_for_url("**/compare.html#**")
    assert "times as fast as" in page.locator(".sentence").inner_text()
    base, other = page.get_by_role("region", name="results compared").locator("tbody tr").all()
    name, division, hardware, framework, batch_size, _, told, _ = other.inner_text().split("\t")
    assert (name, division, batch_size) == ("acme/a100.x1", "closed", "10")
    assert (hardware, framework) == ("1 x Example A100", "torch 2.13.0")
    assert "–" in told
    assert "the first, compared with" in base.inner_text()
    page.get_by_label("find a result").fill("reference star_images")
    page.get_by_role("button", name="add").click()
    names = page.locator("#comparison h2").all_inner_texts()
    assert names == ["star_shape, mini", "star_images, mini"]
    page.get_by_role("button", name="remove acme/a100.x1").click()
    assert "acme/a100.x1" not in page.locator("#comparison").inner_text()
    visitor.come_back()
    assert page.locator("#comparison h2").all_inner_texts()[-1] != "star_shape, mini"


def test_compare_over_benchmarks(visitor: Visitor) -> None:
    """The geometric mean is that of Python, and device counts are kept apart."""
    scored = {entry.id: entry for entry in ENTRIES if entry.level}
    names = ("star_shape-mini-closed", "star_images-mini-closed")
    ids = [f"acme/{system}/{name}" for name in names for system in ("a100.x1", "a100.x8")]
    page = visitor.open("compare.html#" + "&".join(f"r={one}" for one in ids))
    levels = [scored[one].level for one in ids]
    assert all(levels)
    one_shape, many_shape, one_images, many_images = levels
    found = mean_ratio([(many_shape, one_shape), (many_images, one_images)])  # type: ignore[list-item]
    last = page.locator("#comparison table").first.locator("tr").last.inner_text().split("\t")
    assert last[-1].startswith(f"this is {format_ratio(found.value)} times as fast ")
    assert f"{format_ratio(found.low or 0)}–{format_ratio(found.high or 0)} of 2" in last[-1]
    differences = page.locator("#differences")
    differences.locator("figure.plot").nth(1).wait_for()
    assert "accelerators per node" in differences.inner_text()
    assert "global_batch_size" in differences.inner_text()
    assert differences.locator("figure.plot").count() == 2  # one for each metric of star_shape


def test_many_or_unknown_results_are_compared(visitor: Visitor) -> None:
    ids = [one.id for one in ENTRIES if one.level and one.id.endswith("star_shape-mini-closed")]
    page = visitor.open("compare.html#" + "&".join(f"r={one}" for one in ids))
    assert page.locator(".ratio-chart svg").count() == 1
    table = page.get_by_role("region", name="results compared")
    assert table.locator("tbody tr").count() == len(ids)
    assert page.locator(".sentence:visible").count() == 0  # in a fold
    page = visitor.open("compare.html#r=<img src=x onerror=alert(1)>&r=nobody")
    text = page.locator("#comparison").inner_text()
    assert "<img src=x onerror=alert(1)>: there is no such result" in text
    assert page.locator("#comparison img").count() == 0


def test_hostile_names_are_text(visitor: Visitor) -> None:
    page = visitor.open("results/dodgy/odd/star_shape-mini-closed.html")
    assert "<script>alert(1)</script>sgd" in page.locator("main").inner_text()
    page = visitor.open("systems/dodgy/odd.html")
    said = page.locator("main").inner_text()
    assert "<script>alert('box')</script> \"quoted\" \\u202eCPU long" in said
    assert "x" * 2000 in said  # of 10,000
    page = visitor.open(ROUND)
    name = "'\"><img src=x onerror=alert(1)>\\u202e&amp;#?%2e"
    page.get_by_role("link", name=name).first.click()
    assert name in page.locator("h1").inner_text()
    page.get_by_role("link", name="result_0.txt").first.click()
    assert page.url.endswith("result_0.txt")
    visitor.complaints = [text for text in visitor.complaints if not text.endswith("result_0.txt")]


def test_without_javascript_everything_is_there(browser: Any, field: Path) -> None:
    visitor = Visitor(browser, field, java_script_enabled=False)
    visitor.open(ROUND)
    assert len(rows(visitor)) == 9
    assert visitor.page.get_by_label("filter").is_hidden()
    visitor.open("compare.html")
    assert "needs JavaScript" in visitor.page.locator("main").inner_text()
    visitor.context.close()


@pytest.mark.parametrize("name", [ROUND, BENCHMARK])
def test_a_table_fits_on_paper(visitor: Visitor, name: str) -> None:
    """A4 across, with margins of 10 mm."""
    page = visitor.open(name)
    page.set_viewport_size({"width": 1046, "height": 718})
    page.emulate_media(media="print")
    assert visitor.excess_pixels <= 0


LETTERS_MIN, TARGET_MIN, NAME_MIN = 11.9, 24, 90  # pixels: of text in charts, boxes, a column
LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [390, 768, 1024])
@pytest.mark.parametrize("name", [ROUND, BENCHMARK, PAGES[7], PAGES[12]])
def test_a_reader_can_read_it(visitor: Visitor, name: str, width: int) -> None:
    """No text of a chart is small or lies on another; no name is broken inside a word."""
    page = visitor.page
    page.set_viewport_size({"width": width, "height": 844})
    visitor.open(name)
    page.wait_for_timeout(300)
    limits = {"letters": LETTERS_MIN, "box": TARGET_MIN * (width < 700), "name": NAME_MIN}
    assert page.evaluate(LOOK, limits) == []


def test_columns_without_room_are_offered_and_saved(visitor: Visitor) -> None:
    page = visitor.page
    page.set_viewport_size({"width": 820, "height": 900})
    visitor.open(f"{BENCHMARK}#show=rcp,rmse,accuracy,framework,availability")
    head = page.locator("table[data-table=''] th[data-key=availability]").first
    assert head.is_hidden()
    assert "availability" in page.evaluate("saved('csv')").splitlines()[0].split(",")
    page.get_by_role("button", name="more column").first.click()
    assert head.is_visible()
    assert "wide=star_shape-closed" in page.url


def test_the_first_result_is_on_the_first_screen_of_a_phone(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    for name, first in ((ROUND, "table.ranking tbody tr"), (BENCHMARK, "table.data tbody th")):
        box = visitor.open(name).locator(first).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 844, name


def test_ranks_axes_legend_and_counts_follow_the_filter(visitor: Visitor) -> None:
    page = visitor.open(f"{ROUND}#q=bolt")
    table = page.locator("table.ranking", has_text="tpu").first
    ranks = table.locator("tbody tr:visible td.rank").all_inner_texts()
    assert ranks[0].split()[0] == "1"
    places = [
        float(str(mark.get_attribute("x")).rstrip("%"))
        for mark in table.locator("tbody tr:visible .axis svg svg").all()
    ]
    assert max(places) - min(places) > 60  # of the width: the axis fits what is seen
    assert page.locator(".legend [data-device]:visible").count() <= 1
    assert page.locator(".lead-of b:visible").count() == 0
    page.get_by_label("filter").fill("nobody has this")
    assert page.get_by_text("No result matches these filters.").is_visible()
    assert page.locator("table.ranking:visible").count() == 0
    page.get_by_role("button", name="Clear the filters").click()
    assert page.locator("table.ranking:visible").count() > 0
    assert page.url.endswith("#")


def test_the_first_of_a_filtered_table_is_what_others_are_compared_with(visitor: Visitor) -> None:
    page = visitor.open(f"{BENCHMARK}#q=bolt")
    told = page.locator("table[data-table=''] tbody tr:visible td.behind").all_inner_texts()
    training = [one for one in ENTRIES if one.level and "star_shape-mini-closed" in one.id]
    scored = {entry.names.system: entry for entry in training}
    first, last = (scored[name].level for name in ("tpu-8", "tpu-1"))
    assert first is not None
    assert last is not None
    assert told[0] == ""
    assert told[-1].startswith(f"{format_ratio(ratio(first, last).value)}× (")


def test_a_page_prints(visitor: Visitor) -> None:
    page = visitor.open(BENCHMARK)
    page.emulate_media(media="print")
    assert page.get_by_label("filter").is_hidden()
    assert page.locator("figure svg").first.is_visible()
    assert page.pdf()[:5] == b"%PDF-"
