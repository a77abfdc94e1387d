"""Evidence and reference convergence points: what they must hold before they are believed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.rules import definition, evidence, rcp
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Curve, Evidence
from cepheid.rules.rcp import ReferencePoints
from tests.compliance.builder import reference_points

MINI = definition.load("galaxy_shape", "mini")
GOOD = {"e_rmse": 0.0, "nll": -99.0}
POOR = {"e_rmse": 1.0, "nll": 99.0}
LAST = MINI.timing.max_samples


def correct(seed: int) -> Curve:
    return Curve("correct", seed, 1.0, ((100, POOR), (200, GOOD)))


def broken(variant: str, last: int = LAST) -> Curve:
    return Curve(variant, 1, 1.0, ((100, {"e_rmse": 0.0, "nll": 99.0}), (last, POOR)))


BROKEN = (replace(broken("shuffled", 200), is_finite=False), broken("shuffled"), broken("frozen"))
SOUND = Evidence(MINI.digest, (*map(correct, range(10)), *BROKEN))


def add(recorded: Evidence, curve: Curve) -> Evidence:
    return replace(recorded, curves=(*recorded.curves, curve))


def problems(recorded: Evidence) -> list[str]:
    return evidence.find_problems(recorded, MINI, ("shuffled", "frozen"))


def test_sound_evidence_and_points_have_no_problem() -> None:
    assert problems(SOUND) == []
    assert evidence.summarize_samples(SOUND, MINI) == (200, 200, 200)
    assert rcp.find_problems(POINTS, MINI) == []
    inverted = reference_points(MINI, {16: [27_000] * 5, 32: [24_000] * 5, 64: [24_000] * 5})
    assert rcp.find_problems(inverted, MINI) == []


def test_what_is_wrong_is_said() -> None:
    for change, problem in [
        (lambda e: replace(e, definition_digest="x"), "measured for another definition"),
        (lambda e: replace(e, curves=e.curves[1:]), "9 seeds of the correct model"),
        (lambda e: replace(e, curves=(Curve("correct", 0, 1.0, ((9, POOR),)), *e.curves[1:])),
         "the correct model misses the targets with seed 0"),
        (lambda e: replace(e, curves=e.curves[:-1]), "the broken variant frozen was not tried"),
        (lambda e: add(e, Curve("frozen", 2, 1.0, ((100, GOOD), (LAST, POOR)))),
         "the broken variant frozen reaches the targets"),
        (lambda e: add(e, broken("frozen", LAST - 1)), "frozen was not run to the full budget"),
    ]:  # fmt: skip
        (found,) = problems(change(SOUND))
        assert problem in found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    (tmp_path / "galaxy_shape").mkdir()
    return tmp_path / "galaxy_shape"


@pytest.mark.usefixtures("folder")
def test_evidence_is_saved_and_loaded_for_its_own_definition_alone() -> None:
    assert evidence.load(MINI) is None
    evidence.save("galaxy_shape", "mini", SOUND)
    evidence.save("galaxy_shape", "full", replace(SOUND, curves=()))
    assert evidence.load(MINI) == SOUND
    evidence.save("galaxy_shape", "mini", replace(SOUND, definition_digest="0" * 64))
    assert evidence.load(MINI) is None


SAMPLES = {16: [21_000] * 5, 32: [24_000] * 5, 64: [27_008] * 6}
POINTS = reference_points(MINI, SAMPLES)


def test_points_are_saved_in_order_and_machines_named_once(folder: Path) -> None:
    assert reference_points(MINI, dict(reversed(SAMPLES.items()))) == POINTS
    assert rcp.load("galaxy_shape", "mini") is None
    rcp.save("galaxy_shape", "mini", POINTS)
    rcp.save("galaxy_shape", "full", replace(POINTS, points=()))
    assert rcp.load("galaxy_shape", "mini") == POINTS
    assert [path.name for path in folder.iterdir()] == ["rcp.json"]
    (point,) = reference_points(MINI, {32: [1, None, 3]}).points
    assert [run.seed for run in point.runs] == [1, 2, 3]
    assert point.samples == (1, 3)
    assert len(point.measured) == 1
    other = {"framework": "torch", "device": "cuda"}
    run = replace(point.runs[0], seed=4)
    grown = ReferencePoints(MINI.digest, (point,)).add_run(point.hyperparameters, other, run)
    assert grown.points[0].measured == (*point.measured, other)
    point = POINTS.points[0]
    others = {**point.hyperparameters, "opt_base_learning_rate": 0.5}
    with pytest.raises(ValueError, match="batch size 16"):
        POINTS.add_run(others, {}, point.runs[0])


@pytest.mark.usefixtures("folder")
def test_a_run_keeps_on_what_it_was_measured() -> None:
    machines = [{"device": "cpu"}, {"device": "cuda"}, {"device": "cpu"}]
    curves = tuple(replace(correct(seed), measured=each) for seed, each in enumerate(machines))
    evidence.save(MINI.name, MINI.scale, Evidence(MINI.digest, curves))
    assert len(evidence.read_file(MINI.name, evidence.FILE)["mini"]["measured"]) == 2
    assert evidence.load(MINI) == Evidence(MINI.digest, curves)


def add_point(**changes: Any) -> ReferencePoints:
    last = POINTS.points[-1]
    other = replace(last, hyperparameters={**last.hyperparameters, **changes})
    return replace(POINTS, points=(*POINTS.points, other))


def test_what_is_wrong_with_points_is_said() -> None:
    for points, problem in [
        (replace(POINTS, definition_digest="f" * 64), "measured for another version"),
        (replace(POINTS, points=POINTS.points[1:]), "2 of 3 batch sizes"),
        (add_point(), "64 is there 2 times"),
        (
            reference_points(MINI, {16: [30_000] * 5, 32: [24_000] * 5, 64: [24_000] * 5}),
            "batch size 16 needs more samples than 32 (median 30,000 against 24,000)",
        ),
        (add_point(global_batch_size=128, opt_name="sgd"), "batch size 128: opt_name must be adam"),
        (reference_points(MINI, {**SAMPLES, 128: [27_008] * 4}), "batch size 128: 4 of 5 runs"),
        (
            reference_points(MINI, {**SAMPLES, 128: [27_008] * 5 + [None]}),
            "batch size 128: seed 6 missed the targets",
        ),
    ]:
        (found,) = rcp.find_problems(points, MINI)
        assert problem in found


def test_a_broken_file_is_refused_with_the_place(folder: Path) -> None:
    for change, problem in [
        (lambda d: d["mini"].pop("definition_digest"), "mini: 'definition_digest' is a required"),
        (lambda d: d.update(huge={}), "'huge'"),
        (lambda d: d["mini"]["points"][0]["hyperparameters"].clear(), "mini.points.0"),
        (
            lambda d: d["mini"]["points"][0]["runs"][1].update(samples_to_target="many"),
            "mini.points.0.runs.1.samples_to_target",
        ),
        (lambda d: d["mini"]["points"][0]["runs"][1].update(note="x"), "'note' was unexpected"),
    ]:
        (folder / "rcp.json").unlink(missing_ok=True)
        rcp.save("galaxy_shape", "mini", POINTS)
        document = json.loads((folder / "rcp.json").read_text())
        change(document)
        for text, said in ((json.dumps(document), problem), ("{", ""), ("[]", "")):
            (folder / "rcp.json").write_text(text)
            with pytest.raises(UserError, match=r"rcp\.json") as error:
                rcp.load("galaxy_shape", "mini")
            assert said in str(error.value)
