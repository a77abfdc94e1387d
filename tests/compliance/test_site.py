"""The page: complete in itself, safe whatever a log says, the same for the same logs."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from compliance import leaderboard, package, site
from compliance.judge import judge
from rules import rounds
from rules.definition import Definition
from tests.compliance.builder import write_result
from tests.compliance.mixed import write_mixed

VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Tags, links and ids of a page; raises where tags do not close in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        named = dict(attrs)
        self.links += [str(named[key]) for key in ("href", "src") if named.get(key)]
        self.ids += [str(named["id"])] if named.get("id") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(path: Path, folder: Path) -> str:
    judgement = judge([package.read(path)], rounds.load("v1.0"))
    return site.page(leaderboard.rows(judgement), judgement.round, folder)


@pytest.fixture
def text(star_shape: Definition) -> str:
    return page(write_mixed(Path("out"), star_shape), Path("out/leaderboard"))


def test_markup_from_a_system_description_is_text(text: str) -> None:
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#39;box&#39;)&lt;/script&gt;" in text
    assert "\u202e" not in text
    assert Page(text).tags.count("script") == 1


def test_the_page_loads_nothing(text: str) -> None:
    found = Page(text)
    assert all(link.startswith(("#", "../results/")) for link in found.links), found.links
    assert "url(#" in text or "url(" not in text
    assert not re.search(r"(src|href)=.?https?:", text)
    assert "@import" not in text


def test_every_log_is_linked(text: str) -> None:
    logs = [link for link in Page(text).links if link.startswith("../results/")]
    assert len(logs) == 5 + 5 + 5 + 5 + 2
    assert all((Path("out/leaderboard") / unquote(link)).resolve().is_file() for link in logs)


def test_a_folder_cannot_pose_as_a_scheme(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    hostile = Path("javascript:alert(1)")
    folder.rename(hostile)
    links = Page(page(hostile, Path("."))).links
    assert any(link.startswith("javascript%3Aalert") for link in links)
    assert not any(link.startswith("javascript:") for link in links)


def test_ids_are_there_once(text: str) -> None:
    ids = Page(text).ids
    assert len(ids) == len(set(ids))


def test_a_rejected_result_shows_reasons_and_no_time(text: str) -> None:
    rows = re.findall(r"<tr>.*?</tr>", text, re.DOTALL)
    (rejected,) = [row for row in rows if "rejected" in row]
    assert "T12 opt_name must be adam" in rejected
    assert 'data-label="minutes" class="number" data-value=""' in rejected
    assert "circle" not in rejected


def test_plots_have_a_line_for_each_run_and_the_target(text: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) == 3 * 2  # three tables, two quality metrics
    assert "target 0.05" in figures[0]
    assert "target 0.9" in figures[1]
    full = figures[0].count("stroke: #3a86d1")
    assert full >= 5
    assert "provisional targets" in text


def test_the_spread_shows_every_run(text: str) -> None:
    assert text.count("<circle") == 5 + 5 + 4
    assert text.count("did not converge</title>") == 1
    assert text.count("dropped from the mean</title>") == 2 + 2 + 1


def test_the_same_logs_give_the_same_page(text: str) -> None:
    assert text == page(Path("out"), Path("out/leaderboard"))


@pytest.mark.parametrize(
    ("content", "shown"), [(b"\x89PNG\r\n\x1a\n...", 1), (b"<svg onload=alert()>", 0)]
)
def test_a_picture_of_a_run_is_in_the_page(
    content: bytes, shown: int, star_shape: Definition
) -> None:
    out = Path("out")
    folder = write_result(out, star_shape)
    (folder / "pictures_1.png").write_bytes(content)
    found = Page(page(out, out / "leaderboard"))
    assert found.tags.count("img") == shown
    assert sum(link.startswith("data:image/png;base64,") for link in found.links) == shown
