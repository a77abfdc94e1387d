"""`cepheid measure sweep --quality`: the quality at each batch size, seed by seed."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("galsim", reason="needs the extra galsim")
pytest.importorskip("matplotlib", reason="needs the extra site")

from cepheid.measure.engine import own_process
from cepheid.measure.studies.sweep import quality
from cepheid.measure.studies.sweep.quality import QualityJob, QualityPoint
from cepheid.reference import data
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools.console.terminal import Terminal
from cepheid.tools.measure.__main__ import main
from tests import tiny


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["galaxy_shape", "--samples", "100"], "--samples: only --quality has it"),
        (["galaxy_shape", "--seeds", "1"], "--seeds: only --quality has it"),
        (["galaxy_shape", "--quality", "--epochs", "1"], "leave it out beside --quality"),
        (["galaxy_shape", "--quality", "--samples", "0"], "expected 1 to"),
        (
            ["galaxy_shape", "--quality", "--samples", "9", "--batch-sizes", "2,10"],
            "--batch-sizes: 10 is more than the 9 samples of each training; fix:",
        ),
        (["galaxy_shape", "--quality", "--seeds", "1,x"], "--seeds 1,x: expected numbers"),
        (["galaxy_generation", "--quality"], "galaxy_generation trains nothing"),
        (["kfac", "--framework", "keras"], "kfac has no task for it"),
        (["galaxy_shape", "--framework", "jax"], 'no framework "jax"'),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(["sweep", *arguments])


def point(job: QualityJob) -> QualityPoint:
    error = 0.4 / job.size + 0.01 * job.seed
    found = {"e_rmse": error, "nll": -1.0, "coverage_68": 0.7, "coverage_95": 0.93}
    return QualityPoint(job.size, job.seed, job.samples, found, 0.5, 12.0, 0.1, {})


def test_an_interrupted_sweep_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int]] = []

    def measure(function: object, job: QualityJob, _: object) -> Any:
        seen.append((job.seed, job.size))
        if len(seen) == 4:
            raise KeyboardInterrupt
        return point(job)

    monkeypatch.setattr(own_process, "run_alone", measure)
    monkeypatch.setattr(data, "prepare", lambda *arguments: None)
    out = tmp_path / "quality"
    call = ["galaxy_shape", "--quality", "--batch-sizes", "2,4,14", "--seeds", "1,2",
            "--output", str(out)]  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        main(["sweep", *call])
    assert main(["sweep", *call]) == 0
    assert seen == [(1, 2), (1, 4), (1, 14), (2, 2), (2, 2), (2, 4), (2, 14)]
    told = capsys.readouterr().out
    assert "0.215 (0.21 to 0.22)" in told
    assert (out / "quality.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((out / "quality.json").read_text())
    assert kept["configuration"]["samples"] == 80_000  # over which the learning rate decays
    assert len(kept["points"]) == len((out / "quality.csv").read_text().splitlines()) - 1 == 6
    assert main(["sweep", *call, "--seeds", "3"]) == 0  # another seed joins them
    assert len(json.loads((out / "quality.json").read_text())["points"]) == 9
    with pytest.raises(UserError, match="samples was 80000, is 100"):
        main(["sweep", *call, "--samples", "100"])


def test_trainings_that_diverge_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(function: object, job: QualityJob, _: object) -> QualityPoint:
        diverges = job.size == 2 or (job.size == 4 and job.seed == 1)
        quality = {"e_rmse": math.nan} if diverges else {"e_rmse": job.seed / 10}
        return replace(point(job), quality=quality, train_loss=math.inf if diverges else 0.5)

    monkeypatch.setattr(own_process, "run_alone", measure)
    monkeypatch.setattr(data, "prepare", lambda *arguments: None)
    out = tmp_path / "quality"
    call = ["galaxy_shape", "--quality", "--batch-sizes", "2,4,8", "--seeds", "1,2,3"]
    assert main(["sweep", *call, "--output", str(out)]) == 0
    told = capsys.readouterr().out
    cells = [line.split("  ") for line in told.splitlines() if line.startswith(("2 ", "4 ", "8 "))]
    assert [row[-1].strip() for row in cells] == [
        "diverged",
        "0.25 (0.2 to 0.3); 1 of 3 diverged",
        "0.2 (0.1 to 0.3)",
    ]

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    json.loads((out / "quality.json").read_text(), parse_constant=refuse)
    assert math.isnan(quality.load_all(out)[0].quality["e_rmse"])


def test_every_batch_size_sees_the_same_number_of_samples(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.install(tmp_path, monkeypatch, "galaxy_shape", data=tiny.SIZES, timing=tiny.TIMING)
    chosen = definition.load("galaxy_shape", "mini")
    plain = ("compile=off", "precision=fp32")
    job = QualityJob("galaxy_shape", "mini", "torch", 3, 1, 32, plain, data_root)
    assert job.list_overrides(chosen)[:3] == [
        "threads=1", "global_batch_size=3", "opt_learning_rate_decay_samples=32",
    ]  # fmt: skip
    data.prepare(chosen.data, data_root)
    found = quality.train_once(job, Terminal(quiet=True))
    assert (found.size, found.samples) == (3, 33)
    assert found.quality.keys() == {"e_rmse", "nll", "coverage_68", "coverage_95"}
    assert found.implementation["threads_per_rank"] == 1
    assert QualityPoint.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_a_damaged_point_is_named(tmp_path: Path) -> None:
    facts = point(QualityJob("a", "mini", "torch", 8, 1, 100, (), tmp_path)).as_json()
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "8.json").write_text(json.dumps({**facts, "quality": 1}))
    with pytest.raises(UserError, match=r"8\.json: damaged"):
        quality.load_all(tmp_path)
