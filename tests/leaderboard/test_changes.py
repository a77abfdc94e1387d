"""What `cepheid diff` claims: what the test of two results finds, never across definitions."""

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
from cepheid.leaderboard.rows.data import describe_level
from cepheid.rules.definition import Definition
from cepheid.rules.documents import find_schema_problem
from cepheid.tools import diff_leaderboards
from tests.compliance.asserting import Printed, assert_refused
from tests.compliance.builder import write_result
from tests.leaderboard.test_site import build_site

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


def test_times_of_another_definition_are_not_compared(document: dict[str, Any]) -> None:
    new = copy.deepcopy(document)
    _set_runs(new, tuple(value / 2 for value in RUNS))
    new["results"][0]["definition_digest"] = "f" * 64
    found = _change(document, new)
    assert found.speed == changes.SpeedChange("other definition")
    assert "not comparable" in str(found)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=1), "of version 1.*fix: build that site again"),
        (lambda d: d.update(version=2), "of version 2.*fix: build that site again"),
        (lambda d: d["results"][0].update(nodes=10**30), "is not the index of a leaderboard"),
        (lambda d: d["results"][0].update(nodes=-1), "is not the index of a leaderboard"),
        (
            lambda d: d["results"][0].update(score_minutes=1e100),
            "is not the index of a leaderboard",
        ),
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


def test_json_has_both_values(document: dict[str, Any], tmp_path: Path, capsys: Printed) -> None:
    new = copy.deepcopy(document)
    _set_runs(new, tuple(value / 2 for value in RUNS))
    for name, content in (("old.json", document), ("new.json", new)):
        (tmp_path / name).write_text(json.dumps(content))
    paths = [str(tmp_path / "old.json"), str(tmp_path / "new.json"), "--format", "json"]
    assert diff_leaderboards.main(paths) == 1
    (change,) = json.loads(capsys.readouterr().out)
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


def test_control_characters_of_an_index_are_escaped(document: dict[str, Any]) -> None:
    new = copy.deepcopy(document)
    new["results"][0]["accelerator"] = "\x1b[2J\u202e"
    assert "\x1b" not in str(_change(document, new))
