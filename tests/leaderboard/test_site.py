"""The site: complete in itself, safe whatever a log says, the same for the same logs."""

import datetime
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from cepheid.leaderboard.build import make_site_files
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.entry import list_entries, make_slug
from cepheid.leaderboard.site.reported import load_scores, load_sets
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.documents import find_schema_problem
from tests import assert_refused
from tests.checkout import PUBLISHED_LOGS
from tests.compliance import small
from tests.compliance.asserting import assert_says
from tests.compliance.builder import SYSTEM, run_records, write_log, write_result
from tests.compliance.field import describe_system, write_field, write_generation, write_training
from tests.compliance.judging import judge_folder, make_site
from tests.compliance.mixed import write_mixed

VOID = {"meta", "input", "br", "link", "img", "wbr"}
EFFICIENCY = 'data-key="efficiency"'
MINI = "results/acme/box/star_shape-mini-closed.html"


class Page(HTMLParser):
    """Tags, links and ids of a page; raises where tags do not close in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        named = dict(attrs)
        self.attributes |= set(named)
        self.links += [str(named[key]) for key in ("href", "src") if named.get(key)]
        self.ids += [str(named["id"])] if named.get("id") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def build_site(*paths: Path, folder: Path = Path("site"), reference: str = "") -> dict[str, str]:
    made = make_site(*paths, folder=folder, reference=reference)
    return {name: content.decode("utf-8", "replace") for name, content in make_site_files(made)}


def make_pages(files: dict[str, str]) -> dict[str, Page]:
    return {name: Page(text) for name, text in files.items() if name.endswith(".html")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose `submissions` and `out` the two sites below are built of."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def mixed(home: Path) -> dict[str, str]:
    with small.installed(home / "mixed") as mini:
        return build_site(write_mixed(Path("out"), mini))


@pytest.fixture(scope="module")
def field(home: Path) -> dict[str, str]:
    with small.installed(home / "field") as mini:
        return build_site(write_field(Path("submissions"), mini))


def test_the_pages(mixed: dict[str, str]) -> None:
    assert {name for name in mixed if "/" not in name} == {
        "index.html", "full-closed.html", "mini-closed.html", "mini-open.html", "compare.html",
        "elsewhere.html", "results.json", "results.schema.json", "results.csv", "files.txt",
        "site.css", "site.js", "costs.js", "compare.js", "ratios.js", "charts.js", "icon.svg",
        "glossary.html",
    }  # fmt: skip
    assert {name for name in mixed if name.startswith("benchmarks/")} == {
        "benchmarks/star_shape-full.html", "benchmarks/star_shape-mini.html",
    }  # fmt: skip
    assert MINI in mixed
    assert mixed["files.txt"].splitlines() == sorted(mixed)


def test_markup_from_logs_and_descriptions_is_text(field: dict[str, str]) -> None:
    for name, text in field.items():
        if name.endswith(".html"):
            assert "<script>alert" not in text, name
            assert "\u202e" not in text, name
            assert len(text) < 3_000_000
            scripts = re.findall(r'<script src="[^"]*"></script>', text)
            data = re.findall(r'<script type="application/json"[^>]*>([^<]*)</script>', text)
            assert len(scripts) + len(data) == text.count("<script"), name
            assert all(json.loads(one) for one in data), name
            more = {"compare.html": 5}.get(name, 5 * name.startswith("benchmarks/"))
            assert len(scripts) == 1 + more, name
            assert "<b>3</b>" not in text, name
    assert "&lt;script&gt;alert(&#39;box&#39;)&lt;/script&gt;" in field["systems/dodgy/odd.html"]
    assert "</script" not in field["compare.html"].split('id="data">')[1].split("</script>\n")[0]


def test_every_page_is_well_formed_and_leads_somewhere(
    field: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home / "field")
    for name, page in make_pages(field).items():
        assert len(page.ids) == len(set(page.ids)), name
        assert not {key for key in page.attributes if key.startswith("on")}, name
        assert "style" not in page.attributes, name
        for link in page.links:
            target = link.split("#")[0]
            if not target or link.startswith(("https://doi.org/10.", "https://arxiv.org/abs/")):
                continue
            assert not re.match(r"[a-z+.-]+:|//", link), (name, link)
            here = (Path("site") / name).parent / unquote(target)
            inside = str(PurePosixPath(here.resolve().relative_to(Path.cwd())))
            if inside.startswith("site/"):
                assert inside.removeprefix("site/") in field, (name, link)
            else:
                assert here.resolve().exists(), (name, link)
        for place in (link[1:] for link in page.links if link.startswith("#") and "=" not in link):
            assert place in page.ids, (name, place)


def test_nothing_is_loaded_from_elsewhere(field: dict[str, str]) -> None:
    for name in ("site.js", "costs.js", "compare.js", "site.css"):
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", field[name])
        assert "@import" not in field[name]
        assert not re.search(r"\b(eval|fetch|innerHTML|XMLHttpRequest|localStorage)\b", field[name])


def test_a_folder_cannot_pose_as_a_scheme(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    hostile = Path("javascript:alert(1)")
    Path("out").rename(hostile)
    links = make_pages(build_site(hostile, folder=Path(".")))[MINI].links
    assert any("javascript%3Aalert" in link for link in links)
    assert not any(link.startswith("javascript:") for link in links)


def test_a_rejected_result_has_reasons_and_no_number(mixed: dict[str, str]) -> None:
    rejected = mixed["results/acme/odd/star_shape-mini-closed.html"]
    assert "opt_name must be adam" in rejected
    assert '<span class="big">' not in rejected
    assert "compare.html#r=" not in rejected
    unranked = mixed["mini-closed.html"].split("Not ranked")[1]
    assert "T12.not_allowed opt_name must be adam" in unranked
    for name in ("mini-closed.html", "benchmarks/star_shape-mini.html"):
        above, _, below = mixed[name].partition("Not ranked</h")
        assert "acme/odd/" not in above, name  # neither in a table that filters, nor in a chart
        assert "acme/odd/" in below, name
        assert "checkbox" not in below, name


def test_every_run_has_a_mark_a_curve_a_time_line_and_a_log(mixed: dict[str, str]) -> None:
    page = mixed["benchmarks/star_shape-mini.html"].split("</table>")[0]
    table = "".join(re.findall(r'<svg class="spread".*?</svg>', page, re.DOTALL))
    assert table.count("<circle") == 5 + 4
    assert table.count("did not converge</title>") == 1
    assert table.count("dropped from the mean</title>") == 1  # of the time; a score drops none
    text = mixed[MINI]
    assert text.count("<polyline") >= 5 * 2  # two metrics
    assert "target 0.1</text>" in text
    assert text.count('<rect class="block"') == 5 * 3
    assert text.count('<rect class="evaluation"') == 5 * 3
    assert text.count('<rect class="init"') == 5
    assert sum("result_" in link for link in Page(text).links) >= 5
    assert "least and greatest plausible mean" in text
    assert "Aggregate" not in mixed["mini-closed.html"]


def test_plots_have_a_title_a_description_and_a_table(field: dict[str, str]) -> None:
    for name, text in field.items():
        for figure in re.findall(r'<figure class="plot">.*?</figure>', text, re.DOTALL):
            assert re.search(r"<title id=.+?<desc id=.+?</desc>", figure, re.DOTALL), name
            assert "<table" in figure, name
            assert "nan" not in re.sub(r"<t[de].*?</t[de]", "", figure)


def test_generation_energy_and_scaling_are_shown(field: dict[str, str]) -> None:
    text = field["benchmarks/star_images-mini.html"]
    assert "Latency against the number of images" in text
    assert "Images per second against the number of images" in text
    ranked = re.findall(r"<a href=\"../results/(acme/[^\"]+|cepheid/[^\"]+)\"", text)
    assert ranked[0].startswith("acme/a100.x8")
    assert "images/s" in field["mini-closed.html"]
    text = field["benchmarks/star_shape-mini.html"]
    assert_says(text, "Energy of a run against its time", "Energy leaves out: the power supply")
    scaling = text.split("<b>Time against accelerators")[1].split("</figure>")[0]
    assert_says(scaling, "efficiency", "100%")
    assert EFFICIENCY in text
    assert "Epochs to the targets against batch size" in text


def test_only_pictures_stand_beside_pages(field: dict[str, str], star_shape: Definition) -> None:
    name = "results/cepheid/reference/star_shape-mini-closed"
    assert f"{name}.png" in field
    assert '<img src="star_shape-mini-closed.png"' in field[f"{name}.html"]
    folder = write_result(Path("out"), star_shape)
    (folder / "pictures_1.png").write_bytes(b"<svg onload=alert()>")
    assert not any(name.endswith(".png") for name in build_site(Path("out")))


def test_a_result_judged_without_its_course_cannot_be_drawn(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    judgement = judge_folder(Path("out"))
    with pytest.raises(ValueError, match="courses"):
        _ = list_entries(judgement.results)[0].runs


def test_one_run_is_provisional(star_shape: Definition) -> None:
    files = build_site(write_result(Path("out"), star_shape, runs=1))
    make_pages(files)
    assert "provisional: 1 of 5 runs" in files["mini-closed.html"]
    assert "so far" in files[MINI]
    for name in ("index.html", MINI, "benchmarks/star_shape-mini.html"):
        assert "cepheid run star_shape --scale mini --output out" in files[name], name
    row = files["index.html"].split('class="ranking"')[1].split("</table>")[0]
    assert_says(row, " so far</b>", "1 of 5 runs", ' hollow"')
    assert "data-rank" not in row


def test_a_provisional_score_is_shown_and_never_ranked(star_shape: Definition) -> None:
    """Fast or slow, it stands after every proven one, and is in no comparison or history."""
    full = definition.load("star_shape", "full")
    for root, system in (("acme", "box"), ("bolt", "tpu")):
        named = describe_system(root, system)
        write_result(Path("submissions", root), full, system=named)
        write_result(Path("submissions", root), star_shape, system=named)
    files = build_site(Path("submissions"))
    make_pages(files)
    for one in json.loads(files["results.json"])["results"]:
        is_full = one["scale"] == "full"
        assert one["verdict"] == ("provisional" if is_full else "scored")
        assert (one["rank"] is None) == (one["comparison"] is None) == is_full
        assert bool(one["provisional_because"]) == is_full
        assert one["time_minutes"] > 0
        assert (one["score_minutes"] is None) == is_full  # without reference points only a time
        assert "T16.provisional" in {found["code"] for found in one["findings"]} or not is_full
    sentence = "provisional: its targets may still change"
    page = files["full-closed.html"]
    assert page.count(sentence) == 2
    assert page.count(' hollow"') == 2
    assert "data-rank" not in page
    assert re.search(r'class="score">[0-9.]+ (s|min)<', page)
    assert files["benchmarks/star_shape-full.html"].count(sentence) == 4
    assert sentence in files["results/acme/box/star_shape-full-closed.html"]
    assert files["mini-closed.html"].count("data-rank") >= 2
    assert sentence not in files["mini-closed.html"]


def test_an_unknown_benchmark_is_listed_and_not_ranked(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    folder.rename(folder.with_name("moon_shape-mini-closed"))
    for log in (folder.with_name("moon_shape-mini-closed")).iterdir():
        log.write_text(log.read_text().replace("star_shape", "moon_shape"))
    files = build_site(Path("out"))
    make_pages(files)
    assert "unknown benchmark" in files["index.html"].split("Not ranked")[1]
    assert not any(name.startswith("benchmarks/") for name in files)


def test_systems_of_one_name_are_told_apart(star_shape: Definition) -> None:
    write_result(Path("one"), star_shape)
    write_result(Path("two"), star_shape, block_ms=9000)
    files = build_site(Path("two"), Path("one"))
    assert MINI in files
    assert MINI.replace(".html", "~2.html") in files
    assert build_site(Path("one"), Path("two")) == files
    assert "1 result has the same name as another one" in files["index.html"]


def test_what_is_given_twice_counts_once_and_one_size_alone(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    assert build_site(Path("out"), Path("out/results")) == build_site(Path("out"))
    write_result(Path("out"), star_shape)
    assert EFFICIENCY not in build_site(Path("out"))["benchmarks/star_shape-mini.html"]


@pytest.mark.parametrize("value", [10**400, -1, 1e308, 5e-324, math.nan, -math.inf, [[]], "x"])
def test_no_value_of_a_log_breaks_the_site(value: object, star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    images = definition.load("star_images", "mini")
    generated = write_result(Path("out"), images)

    def spoil(record: dict[str, Any]) -> None:
        if record["key"] in ("global_batch_size", "seed", "eval_accuracy"):
            record["value"] = value
        for key in ("samples_count", "images_count", "epoch_num"):
            if key in record["metadata"]:
                record["metadata"][key] = value
        for name in record["metadata"].get("metrics", {}):
            record["metadata"]["metrics"][name] = value

    for run in range(5):
        for where, asked in ((folder, star_shape), (generated, images)):
            records = run_records(asked, run)
            for record in records:
                spoil(record)
            write_log(where / f"result_{run}.txt", records)
    files = build_site(Path("out"))
    make_pages(files)
    document = json.loads(files["results.json"], parse_constant=pytest.fail)
    assert find_schema_problem(document, "results") is None


@pytest.mark.parametrize("name", ["a/b", "..", "", "x" * 65, "ünïcode", ".hidden", "a b", "a:b"])
def test_slugs_are_safe_and_differ(name: str) -> None:
    made = make_slug(name)
    assert re.fullmatch(r"([A-Za-z0-9_-][A-Za-z0-9._-]*)?", made)
    assert made != name or not name
    assert len(made) <= 80


def test_the_index_is_valid_and_has_every_result(field: dict[str, str]) -> None:
    document = json.loads(field["results.json"])
    assert find_schema_problem(document, "results") is None
    assert all(result["page"] in field for result in document["results"])
    rejected = [r for r in document["results"] if r["verdict"] == "rejected"]
    assert {r["submitter"] for r in rejected} == {"bolt", "dodgy"}
    assert all(r["rank"] is None and r["score_minutes"] is None for r in rejected)
    assert json.loads(field["results.schema.json"])["$schema"].startswith("https://json-schema")


def test_the_aggregate_ignores_competitors(star_shape: Definition) -> None:
    from cepheid.leaderboard.plots.ranking import compute_aggregate

    images = definition.load("star_images", "mini")

    def ratios() -> dict[str, float]:
        tabs = make_site(Path("submissions")).tabs
        (tab,) = [tab for tab in tabs if tab.name == "mini-closed"]
        found = compute_aggregate(tab.entries, "")
        assert found.reference == "cepheid/reference"
        assert found.ratios["cepheid/reference", 1].value == 1
        return {
            k[0]: ratio.value for k, ratio in found.ratios.items() if k[0] != "cepheid/reference"
        }

    write_field(Path("submissions"), star_shape)
    before = ratios()
    assert set(before) == {f"acme/a100.x{count}" for count in (1, 2, 4, 8)}  # who has both
    rival = describe_system("zeta", "rival", 16, accelerator="Example X")
    write_training(Path("submissions"), star_shape, rival, 500)
    write_generation(Path("submissions"), images, rival, 0.0001)
    after = ratios()
    assert after.pop("zeta/rival") > max(before.values())
    assert after == before


@pytest.mark.parametrize("text", ["{", "[]", '{"results": []}', "[" * 100_000])
def test_a_file_that_is_not_an_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(text)
    assert_refused(r"results\.json", index.read, tmp_path)


def test_reported_numbers_have_sources() -> None:
    for found in load_sets():
        assert found.source
        assert found.caveats
        assert found.tables
        for table in found.tables:
            assert all(len(row) == len(table["columns"]) for row in table["rows"]), table["id"]
    ids = [table["id"] for found in load_sets() for table in found.tables]
    asked = {"kfac-1", "kfac-2", "kfac-3", "tpu-1", *(f"guide-{n}" for n in (2, 4, 5, 6, 8, 9, 13))}
    assert asked <= set(ids)
    assert len(ids) == len(set(ids))


def test_scores_of_published_logs_are_those_of_our_scorer() -> None:
    import csv

    expected = PUBLISHED_LOGS / "expected_scores.csv"
    if not expected.is_file():
        pytest.skip("the published logs are not beside the checkout")
    key = itemgetter("round", "submitter", "system", "benchmark")
    known = {key(one): one for one in load_scores()}
    with expected.open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    for row in found:  # test_published.py holds our scorer to the same numbers
        parts = row["results_folder"].split("/")
        one = known[parts[0], parts[1], parts[3], parts[-1]]
        assert one["scored_here"] == "yes"
        minutes = float(one["olympic_mean_minutes"])
        assert minutes == pytest.approx(float(row["olympic_mean_minutes"]), abs=0.001)
    assert sum(one["scored_here"] == "yes" for one in known.values()) == len(found)


def test_a_small_version_says_what_it_is_first_and_in_its_plots(field: dict[str, str]) -> None:
    said = "100 parameters on 100 generated stars; not the sky."
    page = field["benchmarks/star_shape-mini.html"]
    assert re.search(rf"</h1>\s*<p class=\"lead\"><b>A small version.*{said}", page)
    captions = re.findall(r"<figcaption>.*?</figcaption>", page)
    assert captions
    assert all("star_shape, mini" in caption for caption in captions)
    ranking = field["mini-closed.html"].split('aria-labelledby="ranking-2"')[1]
    assert said in ranking.split("</section")[0]


def test_the_glossary_explains_terms_metrics_and_rules(field: dict[str, str]) -> None:
    text = field["glossary.html"]
    for words in ("Reference convergence points", "error of the shape", "model FLOPs utilisation"):
        assert words in text
    assert {"T21", "T23", "S2", "M1"} <= set(Page(text).ids)
    rejected = field["results/dodgy/odd/star_shape-mini-closed.html"]
    assert 'href="../../../glossary.html#T12"' in rejected


def test_the_start_page_says_what_it_is_who_publishes_it_and_counts_right(
    star_shape: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_result(Path("out"), star_shape)
    page = build_site(Path("out"))["index.html"]
    assert "1 result of 1 submitter," in page
    assert "1 benchmark, 1 result</span>" in page
    assert "the organisers of v1.0 did not publish it" in page
    judged_in = replace(rounds.load(), published=datetime.date(2026, 8, 4))
    monkeypatch.setattr(rounds, "load", lambda name=rounds.CURRENT: judged_in)
    page = build_site(Path("out"))["index.html"]
    assert "The organisers of v1.0 published it on 2026-08-04." in page


def test_a_result_that_organisers_ran_again_is_marked_everywhere(star_shape: Definition) -> None:
    for submitter in ("acme", "bolt"):
        named = {**SYSTEM, "submitter": submitter}
        write_result(Path("submissions", submitter), star_shape, system=named)
    again = "path: acme/results, who: Jane Doe, on: 2026-07-05, reason: Within 1% on our machine."
    Path("submissions/decisions.yaml").write_text(f"reproduced:\n - {{{again}}}\n")
    files = build_site(Path("submissions"))
    make_pages(files)
    for name in ("index.html", "mini-closed.html"):
        rows = re.findall(r"<tr data-id=.*?</tr>", files[name], re.DOTALL)
        marked = {re.findall(r'data-id="(\w+)/', row)[0] for row in rows if ">reproduced<" in row}
        assert marked == {"acme"}, name
        assert sum(">reproduced<" in row for row in rows) == 2  # the ranking and the large table
    assert "Within 1% on our machine." in files[MINI]
    assert "Within 1% on our machine." not in files[MINI.replace("acme", "bolt")]


def test_the_feed_has_an_entry_for_each_day_of_changes(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    made = make_site(Path("out"))
    days = (
        {"on": "2026-08-09", "changes": ["removed acme/<odd> & co."]},
        {"on": "2026-08-05", "changes": ["added acme/box", "score minutes: 1 → 2"]},
    )
    files = dict(make_site_files(replace(made, changes=days)))
    feed = ElementTree.fromstring(files["changes.xml"])
    name = "{http://www.w3.org/2005/Atom}"
    assert feed.findtext(f"{name}updated") == "2026-08-09T00:00:00Z"
    first, second = feed.findall(f"{name}entry")
    assert first.findtext(f"{name}title") == "1 change on 2026-08-09"
    assert first.findtext(f"{name}content") == "removed acme/<odd> & co."
    assert second.findtext(f"{name}title") == "2 changes on 2026-08-05"
    ids = [entry.findtext(f"{name}id") for entry in (first, second)]
    assert len(set(ids)) == 2
    index_page = files["index.html"].decode()
    assert_says(index_page, 'type="application/atom+xml"', 'href="changes.xml">feed of changes</a>')
    assert "2026-08-05" in files["decisions.html"].decode()
    assert "changes.xml" not in dict(make_site_files(made))
