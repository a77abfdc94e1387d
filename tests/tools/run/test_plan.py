"""`cepheid run --dry-run`, and that each run of a result gets a process of its own."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from tests import tiny
from tests.processes import cepheid
from tests.tools import scripted
from tests.tools.test_mishaps import logs, run
from tests.tools.test_run_benchmark import FAST, cepheid_run

PLAN = ["galaxy_shape", *FAST, "--dry-run", "--submitter", "acme"]


def test_the_plan_writes_nothing_and_says_all(tmp_path: Path) -> None:
    planned = cepheid_run(*PLAN, "--data", tmp_path / "data", "--output", tmp_path / "out")
    assert planned.returncode == 0, planned.stderr
    assert "runs:    0 of 5 are present; missing: 0, 1, 2, 3, 4" in planned.stdout
    assert "not prepared yet" in planned.stdout
    assert "the first run shows how long" in planned.stdout
    assert "26 MiB of weights" in planned.stdout
    assert "refused" not in planned.stdout
    assert list(tmp_path.iterdir()) == []


def test_everything_that_the_closed_division_refuses_is_told(tmp_path: Path) -> None:
    asked = ["--set", "opt_name=sgd", "--set", "global_batch_size=2", "--output", tmp_path]
    refused = cepheid_run(*PLAN, *asked)
    assert refused.returncode == 1, refused.stderr
    told = [line for line in refused.stdout.splitlines() if line.startswith("refused:")]
    assert len(told) == 2
    assert "opt_name=sgd: in the closed division it must be adam (rule T12)" in told[1]

    of_open = cepheid_run(*PLAN, *asked, "--division", "open")
    assert of_open.returncode == 2
    assert "needs code of your own" in of_open.stderr
    no_division = cepheid_run(*PLAN, "--division", "close", "--output", tmp_path)
    assert 'division is "close"' in no_division.stderr


def test_each_run_has_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a run that missed its targets, which the exit code remembers."""
    tiny.use(tiny.folder_of("galaxy_shape", timing=scripted.TIMING), monkeypatch)
    (ended,) = run(tmp_path / "out", "--runs", "3", mishap="evaluate 0 nan")
    assert ended.code == 1, ended.err
    assert ended.out.count(scripted.BEGUN) == 3
    assert logs(tmp_path / "out") == ["result_0.txt", "result_1.txt", "result_2.txt"]
    assert ended.out.count("energy: ") <= 1
    assert "2 more to run: about " in ended.out
    assert "1 more to run: about " in ended.out
    (more,) = run(tmp_path / "out", "--runs", "+2")
    assert more.code == 0, more.err
    assert more.out.count(scripted.BEGUN) == 2
    monkeypatch.undo()
    planned = plan_of("galaxy_shape", tmp_path / "out")
    assert "5 of 5 are present; missing: none" in planned
    assert "as the runs so far" in planned


def plan_of(benchmark: str, output: Path) -> str:
    """By the real definition."""
    planned = cepheid("run", benchmark, "--scale", "mini", "--dry-run", "--output", output)
    assert planned.returncode == 0, planned.stderr
    return planned.stdout


def test_the_plan_of_a_benchmark_that_generates(tmp_path: Path) -> None:
    planned = plan_of("galaxy_generation", tmp_path / "out")
    assert "time:    per run 32,000 images; " in planned
    assert "weights" not in planned
