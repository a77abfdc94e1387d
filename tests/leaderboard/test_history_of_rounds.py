"""Best results over rounds: compared by the test of two results, never across definitions."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cepheid.leaderboard.rows.changes import SpeedChange, compare_speed
from cepheid.leaderboard.site.history import read_rounds, trace_bests
from cepheid.rules.definition import Definition
from cepheid.rules.documents import find_schema_problem
from cepheid.tools import build_leaderboard
from tests.compliance.builder import SYSTEM, write_result
from tests.leaderboard.test_evidence import find_broken_links
from tests.leaderboard.test_site import Page

NAME = "acme/box/star_shape-mini-closed"


@pytest.fixture
def first(star_shape: Definition) -> dict[str, Any]:
    write_result(Path("out"), star_shape)
    write_result(Path("out"), star_shape, system={**SYSTEM, "system": "gone"}, block_ms=30_000)
    build_leaderboard.main(["out", "--output", "first"])
    made: dict[str, Any] = json.loads(Path("first/results.json").read_text())
    return made


def _build_second(star_shape: Definition, *options: str) -> tuple[str, dict[str, Any]]:
    """Build the next round, twice as fast; returns its history and its index."""
    write_result(Path("later"), star_shape, block_ms=10_000)
    write_result(Path("later"), star_shape, system={**SYSTEM, "system": "new"})
    earlier = options or ("--history", "first")
    build_leaderboard.main(["later", "--output", "second", "--logs", "copy", *earlier])
    index = json.loads(Path("second/results.json").read_text())
    assert find_schema_problem(index, "results") is None
    return Path("second/history.html").read_text(), index


def test_the_best_over_the_rounds(first: dict[str, Any], star_shape: Definition) -> None:
    page, index = _build_second(star_shape)
    Page(page)
    assert "faster: 1." in page
    assert page.count("<circle") == 2
    assert page.count('data-label="hardware"') == 2  # what is faster may have more devices
    assert "Not in this round: acme/gone/star_shape-mini-closed" in page
    since = {result["id"]: result["since_last_round"] for result in index["results"]}
    assert since[NAME]["verdict"] == "faster"
    assert since[NAME]["low"] > 1.5
    assert since[NAME.replace("box", "new")]["verdict"] == "new"
    assert find_broken_links(Path("second")) == []
    assert 'href="../../../history.html"' in Path("second/results", f"{NAME}.html").read_text()


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        (
            {"definition_digest": "f" * 64}, "other definition",
            ["not comparable: the definition of the benchmark has changed",
             "different colours are not comparable: the definition of the benchmark has"],
        ),
        (
            {"comparison": None}, "unknown",
            ["cannot be tested", "different colours are not comparable: an index does not say"],
        ),
        ({"definition_digest": None}, "unknown", ["cannot be tested"]),  # as in version 1
    ],
    ids=["another definition", "too little", "no definition"],
)  # fmt: skip
def test_what_is_not_comparable_is_not_compared_in_silence(
    first: dict[str, Any], star_shape: Definition,
    change: dict[str, Any], verdict: str, says: list[str],
) -> None:  # fmt: skip
    for result in first["results"]:
        result |= change
    Path("old.json").write_text(json.dumps(first))
    page, index = _build_second(star_shape, "--history", "old.json")
    assert all(text in page for text in says)
    assert "faster:" not in page
    (since,) = (r["since_last_round"] for r in index["results"] if r["id"] == NAME)
    assert (since["verdict"], since["ratio"]) == (verdict, None)
    has_changed = "definition of the benchmark has changed" in page.split("<h2", 1)[1]
    assert has_changed == (verdict == "other definition")


def test_rounds_of_mlperf_are_compared_by_the_names_of_benchmarks(first: dict[str, Any]) -> None:
    (old,) = (result for result in first["results"] if result["id"] == NAME)
    old |= {"definition_digest": None, "round": "mlperf-training-5.0"}
    half = {"log_mean": old["comparison"]["log_mean"] - math.log(2)}
    new = {**old, "round": "mlperf-training-5.1", "comparison": {**old["comparison"], **half}}
    change = compare_speed(old, new)
    assert change is not None
    assert change.ratio == pytest.approx(2)
    assert compare_speed(old, {**new, "round": "v1.0"}) == SpeedChange("unknown")


def test_a_slower_round_does_not_become_the_best(first: dict[str, Any]) -> None:
    slow = json.loads(json.dumps(first))
    slow["results"] = [result for result in slow["results"] if "gone" in result["id"]]
    (line,) = trace_bests(read_rounds([first, slow, first]))
    changes = [step.change and step.change.verdict for step in line.steps]
    assert changes == [None, "slower", None]  # the last has the very runs of the best


def test_rounds_of_one_name_are_told_apart(first: dict[str, Any]) -> None:
    labels = [one.label for one in read_rounds([first, first])]
    assert len(set(labels)) == 2
    assert labels[0].startswith("v1.0 (20")


def test_names_of_an_earlier_index_are_text(first: dict[str, Any], star_shape: Definition) -> None:
    first["round"] = "<script>alert(1)</script>"
    first["results"][0]["id"] = "<img src=x>/\u202e/y"
    Path("old.json").write_text(json.dumps(first))
    page, _ = _build_second(star_shape, "--history", "old.json")
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
    assert "\u202e" not in page


def test_without_earlier_rounds_there_is_no_history(first: dict[str, Any]) -> None:
    assert not Path("first/history.html").exists()
    assert "history.html" not in Path("first/index.html").read_text()
    assert all(result["since_last_round"] is None for result in first["results"])
