"""What `cepheid diff` and a history of rounds claim: what a test of two results finds."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.score.levels import average
from cepheid.leaderboard.rows import changes, index
from cepheid.leaderboard.rows.changes import SpeedChange, compare_speed
from cepheid.leaderboard.rows.data import describe_level
from cepheid.leaderboard.site.history import read_rounds, trace_bests
from cepheid.rules.definition import Definition
from cepheid.rules.documents import find_schema_problem
from cepheid.tools import build_leaderboard, diff_leaderboards
from tests import assert_refused
from tests.compliance.asserting import call_tool
from tests.compliance.builder import SYSTEM, write_result
from tests.leaderboard.test_evidence import find_broken_links
from tests.leaderboard.test_site import Page, build_site

RUNS = (1.0, 1.02, 1.04, 1.06, 1.08)


@pytest.fixture
def document(star_shape: Definition) -> dict[str, Any]:
    write_result(Path("out"), star_shape)
    made: dict[str, Any] = json.loads(build_site(Path("out"))["results.json"])
    _set_runs(made, RUNS)
    return made


def _set_runs(document: dict[str, Any], minutes: tuple[float, ...]) -> None:
    (result,) = document["results"]
    level = replace(average([math.log(value) for value in minutes]), basis="score")
    result["comparison"] = describe_level(level)
    result["score_minutes"] = math.exp(level.log_mean)
    for run, value in zip(result["run_logs"], minutes, strict=True):
        run["minutes"] = value


def _change(old: dict[str, Any], new: dict[str, Any]) -> changes.Change:
    (found,) = changes.find_changes(old, new)
    return found


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.001, "no difference"), (0.5, "faster"), (2.0, "slower")]
)
def test_real_changes_are_claimed(factor: float, verdict: str, document: dict[str, Any]) -> None:
    new = copy.deepcopy(document)
    low, *rest = (factor * value for value in RUNS)
    _set_runs(new, (low, *rest))
    found = _change(document, new)
    assert found.speed
    assert found.speed.verdict == verdict
    assert found.speed.ratio == pytest.approx(1 / factor)
    assert (f" {verdict}: " in str(found)) == (verdict != "no difference")


def test_other_definitions_are_not_compared_and_text_is_escaped(document: dict[str, Any]) -> None:
    new = copy.deepcopy(document)
    _set_runs(new, tuple(value / 2 for value in RUNS))
    new["results"][0]["definition_digest"] = "f" * 64
    found = _change(document, new)
    assert found.speed == changes.SpeedChange("other definition")
    assert "not comparable" in str(found)
    new = copy.deepcopy(document)
    new["results"][0]["accelerator"] = "\x1b[2J\u202e"
    assert "\x1b" not in str(_change(document, new))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=1), "of version 1.*fix: build that site again"),
        (lambda d: d.update(version=2), "of version 2.*fix: build that site again"),
        (lambda d: d["results"][0].update(nodes=10**30), "not the index of a leaderboard"),
        (lambda d: d["results"][0].update(nodes=-1), "not the index of a leaderboard"),
        (lambda d: d["results"][0].update(score_minutes=1e100), "not the index of a leaderboard"),
    ],
)
def test_an_index_of_an_earlier_version_or_with_impossible_numbers_is_refused(
    document: dict[str, Any], tmp_path: Path, change: Callable[[Any], object], says: str
) -> None:
    change(document)
    (tmp_path / "results.json").write_text(json.dumps(document))
    assert_refused(says, index.read, tmp_path)


def test_quality_hyperparameters_and_runs(document: dict[str, Any]) -> None:
    new = copy.deepcopy(document)
    (result,) = new["results"]
    result["quality"]["rmse"] += 0.01
    result["hyperparameters"]["opt_base_learning_rate"] = 0.5
    result["run_logs"].pop()
    result["codes"] = ["T8.late"]
    found = {item.field: (item.old, item.new) for item in _change(document, new).differences}
    (before,) = document["results"]
    assert found["quality rmse"] == (before["quality"]["rmse"], result["quality"]["rmse"])
    assert found["hyperparameter opt_base_learning_rate"] == (0.001, 0.5)
    assert found["run 4 minutes"] == (RUNS[4], None)
    assert found["codes"] == (None, "T8.late")


def test_json_has_both_values(document: dict[str, Any], tmp_path: Path) -> None:
    new = copy.deepcopy(document)
    _set_runs(new, tuple(value / 2 for value in RUNS))
    for name, content in (("old.json", document), ("new.json", new)):
        (tmp_path / name).write_text(json.dumps(content))
    paths = [str(tmp_path / "old.json"), str(tmp_path / "new.json"), "--format", "json"]
    (change,) = json.loads(call_tool(diff_leaderboards.main, paths, 1))
    assert change["speed"]["verdict"] == "faster"
    score = next(item for item in change["differences"] if item["field"] == "score_minutes")
    assert score["old"] == pytest.approx(2 * score["new"])


@pytest.mark.parametrize(
    "level", [{"log_mean": 1e308}, {"variance": 1e300}, {"degrees": 0}, {"degrees": 10**30}]
)
def test_impossible_numbers_of_an_index(level: dict[str, Any], document: dict[str, Any]) -> None:
    new = copy.deepcopy(document)
    new["results"][0]["comparison"] |= level
    new["results"][0]["score_minutes"] = 1.0
    assert find_schema_problem(new, "results") is None
    speed = _change(document, new).speed
    assert speed
    assert speed.verdict in ("unknown", "few runs", "no difference")
    str(speed)


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


def test_rounds_of_one_name_are_told_apart_and_the_best_stays(first: dict[str, Any]) -> None:
    slow = json.loads(json.dumps(first))
    slow["results"] = [result for result in slow["results"] if "gone" in result["id"]]
    (line,) = trace_bests(read_rounds([first, slow, first]))
    changes = [step.change and step.change.verdict for step in line.steps]
    assert changes == [None, "slower", None]  # the last has the very runs of the best
    labels = [one.label for one in read_rounds([first, first])]
    assert len(set(labels)) == 2
    assert labels[0].startswith("v1.0 (20")
    assert not Path("first/history.html").exists()
    assert "history.html" not in Path("first/index.html").read_text()
    assert all(result["since_last_round"] is None for result in first["results"])


def test_names_of_an_earlier_index_are_text(first: dict[str, Any], star_shape: Definition) -> None:
    first["round"] = "<script>alert(1)</script>"
    first["results"][0]["id"] = "<img src=x>/\u202e/y"
    Path("old.json").write_text(json.dumps(first))
    page, _ = _build_second(star_shape, "--history", "old.json")
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
    assert "\u202e" not in page
