"""Reference convergence points: kept, read again, and what they lack said in words."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.rules import definition, rcp
from cepheid.rules.errors import UserError
from cepheid.rules.rcp import ReferencePoints
from tests.compliance.builder import reference_points

MINI = definition.load("galaxy_shape", "mini")
SAMPLES = {16: [21_000] * 5, 32: [24_000] * 5, 64: [27_008] * 6}
SOUND = reference_points(MINI, SAMPLES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rcp.json is kept."""
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    (tmp_path / "galaxy_shape").mkdir()
    return tmp_path / "galaxy_shape"


def test_saved_and_loaded(folder: Path) -> None:
    assert rcp.load("galaxy_shape", "mini") is None
    rcp.save("galaxy_shape", "mini", SOUND)
    rcp.save("galaxy_shape", "full", replace(SOUND, points=()))
    assert rcp.load("galaxy_shape", "mini") == SOUND
    assert [path.name for path in folder.iterdir()] == ["rcp.json"]


def test_points_are_in_the_order_of_batch_sizes() -> None:
    backwards = reference_points(MINI, dict(reversed(SAMPLES.items())))
    assert backwards == SOUND


def test_runs_are_added_and_machines_named_once() -> None:
    (point,) = reference_points(MINI, {32: [1, None, 3]}).points
    assert [run.seed for run in point.runs] == [1, 2, 3]
    assert point.samples == (1, 3)
    assert len(point.measured) == 1
    other = {"framework": "torch", "device": "cuda"}
    run = replace(point.runs[0], seed=4)
    grown = ReferencePoints(MINI.digest, (point,)).add_run(point.hyperparameters, other, run)
    assert grown.points[0].measured == (*point.measured, other)


def test_one_batch_size_has_one_set_of_hyperparameters() -> None:
    point = SOUND.points[0]
    others = {**point.hyperparameters, "opt_base_learning_rate": 0.5}
    with pytest.raises(ValueError, match="batch size 16"):
        SOUND.add_run(others, {}, point.runs[0])


def test_sound_points_lack_nothing() -> None:
    assert rcp.find_problems(SOUND, MINI) == []


def _with(**changes: object) -> Callable[[Mapping[str, Any]], Any]:
    return lambda hyperparameters: {**hyperparameters, **changes}


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        (replace(SOUND, definition_digest="f" * 64), "measured for another version"),
        (replace(SOUND, points=SOUND.points[1:]), "2 of 3 batch sizes"),
        (replace(SOUND, points=(*SOUND.points, SOUND.points[2])), "64 is there 2 times"),
        (
            reference_points(MINI, {16: [30_000] * 5, 32: [24_000] * 5, 64: [24_000] * 5}),
            "batch size 16 needs more samples than 32 (median 30,000 against 24,000)",
        ),
        (
            replace(
                SOUND,
                points=(
                    *SOUND.points,
                    replace(
                        SOUND.points[2],
                        hyperparameters=_with(global_batch_size=128, opt_name="sgd")(
                            SOUND.points[2].hyperparameters
                        ),
                    ),
                ),
            ),
            "batch size 128: opt_name must be adam",
        ),
        (
            reference_points(MINI, {**SAMPLES, 128: [27_008] * 4}),
            "batch size 128: 4 of 5 runs",
        ),
        (
            reference_points(MINI, {**SAMPLES, 128: [27_008] * 5 + [None]}),
            "batch size 128: seed 6 missed the targets",
        ),
    ],
)
def test_what_is_wrong_is_said(points: ReferencePoints, problem: str) -> None:
    (found,) = rcp.find_problems(points, MINI)
    assert problem in found


def test_an_inversion_within_an_evaluation_interval_is_chance() -> None:
    points = reference_points(MINI, {16: [27_000] * 5, 32: [24_000] * 5, 64: [24_000] * 5})
    assert rcp.find_problems(points, MINI) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["mini"].pop("definition_digest"), "mini: 'definition_digest' is a required"),
        (lambda d: d.update(huge={}), "'huge'"),
        (lambda d: d["mini"]["points"][0]["hyperparameters"].clear(), "mini.points.0"),
        (
            lambda d: d["mini"]["points"][0]["runs"][1].update(samples_to_target="many"),
            "mini.points.0.runs.1.samples_to_target",
        ),
        (lambda d: d["mini"]["points"][0]["runs"][1].update(note="x"), "'note' was unexpected"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(
    change: Callable[[dict[str, Any]], object], problem: str, folder: Path
) -> None:
    rcp.save("galaxy_shape", "mini", SOUND)
    path = folder / "rcp.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"rcp\.json") as error:
        rcp.load("galaxy_shape", "mini")
    assert problem in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_what_is_no_object_is_refused(text: str, folder: Path) -> None:
    (folder / "rcp.json").write_text(text)
    with pytest.raises(UserError, match=r"rcp\.json"):
        rcp.load("galaxy_shape", "mini")
