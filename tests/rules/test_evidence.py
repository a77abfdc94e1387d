"""Evidence: what it must hold before a target is believed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.rules import definition, evidence
from cepheid.rules.evidence import Curve, Evidence

MINI = definition.load("galaxy_shape", "mini")
GOOD = {"e_rmse": 0.0, "nll": -99.0}
POOR = {"e_rmse": 1.0, "nll": 99.0}
HALF = {"e_rmse": 0.0, "nll": 99.0}
LAST = MINI.timing.max_samples


def correct(seed: int) -> Curve:
    return Curve("correct", seed, 1.0, ((100, POOR), (200, GOOD)))


def broken(variant: str, last: int = LAST) -> Curve:
    return Curve(variant, 1, 1.0, ((100, HALF), (last, POOR)))


SOUND = Evidence(MINI.digest, {}, (*map(correct, range(10)), broken("shuffled"), broken("frozen")))


def problems(recorded: Evidence) -> list[str]:
    return evidence.find_problems(recorded, MINI, ("shuffled", "frozen"))


def test_sound_evidence_has_no_problem() -> None:
    assert problems(SOUND) == []
    assert evidence.summarize_samples(SOUND, MINI) == (200, 200, 200)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda e: replace(e, definition_digest="x"), "measured for another definition"),
        (lambda e: replace(e, curves=e.curves[1:]), "9 seeds of the correct model"),
        (
            lambda e: replace(
                e, curves=(replace(e.curves[0], evaluations=((9, POOR),)), *e.curves[1:])
            ),
            "the correct model misses the targets with seed 0",
        ),
        (lambda e: replace(e, curves=e.curves[:-1]), "the broken variant frozen was not tried"),
        (
            lambda e: replace(
                e, curves=(*e.curves, Curve("frozen", 2, 1.0, ((100, GOOD), (LAST, POOR))))
            ),
            "the broken variant frozen reaches the targets",
        ),
        (
            lambda e: replace(e, curves=(*e.curves, broken("frozen", LAST - 1))),
            "frozen was not run to the full budget",
        ),
    ],
)
def test_what_is_wrong_is_said(change: Callable[[Evidence], Evidence], problem: str) -> None:
    (found,) = problems(change(SOUND))
    assert problem in found


def test_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    (tmp_path / "galaxy_shape").mkdir()
    assert evidence.load(MINI) is None
    evidence.save("galaxy_shape", "mini", SOUND)
    evidence.save("galaxy_shape", "full", replace(SOUND, curves=()))
    assert evidence.load(MINI) == SOUND


def test_evidence_of_another_definition_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    (tmp_path / "galaxy_shape").mkdir()
    evidence.save("galaxy_shape", "mini", replace(SOUND, definition_digest="0" * 64))
    assert evidence.load(MINI) is None
