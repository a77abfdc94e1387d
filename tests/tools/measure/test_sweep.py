"""`cepheid measure sweep`: wrong use, sizes one by one, a lost process, the figure."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("matplotlib", reason="needs the extra site")

from cepheid.measure.engine import own_process
from cepheid.measure.engine.published import load_published
from cepheid.measure.studies.sweep import figure as figures
from cepheid.measure.studies.sweep import records as sweep_records
from cepheid.measure.studies.sweep.jobs import Job
from cepheid.measure.studies.sweep.records import Sweep
from cepheid.reference import data
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests.measure.test_sweep import configuration, point


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["galaxy_shap"], 'did you mean "galaxy_shape"'),
        (["galaxy_shape", "--batch-sizes", "2,x"], "with commas between"),
        (["galaxy_shape", "--images", "1"], "benchmarks that generate: galaxy_generation"),
        (["galaxy_shape", "--epochs", "0"], "expected more than 0 and at most 100"),
        (
            ["galaxy_shape", "--set", "global_batch_size=4"],
            "give the batch sizes with",
        ),
        (["galaxy_shape", "--against", "nowhere.json"], "cannot be read"),
        (["galaxy_vae"], "no paper reports times .*; fix: give it, e.g. --batch-sizes 8,16,32"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(["sweep", *arguments])


def test_each_size_has_a_process_of_its_own_and_may_lose_it() -> None:
    assert own_process.run_alone(os.getpid) != os.getpid()
    with pytest.raises(UserError, match=r"was killed; was there enough memory\?"):
        own_process.run_alone(signal.raise_signal, signal.SIGKILL)


def _sleep_alone(place: Path) -> None:
    own_process.run_alone(_tell_and_sleep, place)


def _tell_and_sleep(place: Path) -> None:
    place.write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc, to see processes")
def test_a_measurement_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("spawn").Process(
        target=_sleep_alone, args=(tmp_path / "pid",)
    )
    parent.start()
    for _ in range(600):
        if (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    child = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.join()
    for _ in range(300):
        if not _is_running(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the measurement outlived the process that had started it")


def _is_running(process: int) -> bool:
    """False for a process that has ended, also where nobody has asked how."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_same_command_measures_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def measure(function: object, job: Job, _: object) -> Any:
        seen.append(job.size)
        if job.size == 14 and len(seen) < 4:
            raise UserError("its process was killed")
        return point(job.size)

    monkeypatch.setattr(own_process, "run_alone", measure)
    monkeypatch.setattr(data, "prepare", lambda *arguments: None)
    out = tmp_path / "sweep"
    call = ["galaxy_shape", "--batch-sizes", "14,2,4", "--output", str(out)]
    assert main(["sweep", *call]) == 1
    assert "not measured: 14" in capsys.readouterr().out
    assert main(["sweep", *call]) == 0
    assert seen == [2, 4, 14, 14]
    assert main(["sweep", *call]) == 0
    said = capsys.readouterr().out
    assert "nothing to measure" in said
    assert "0.5 of 100 epochs" in said
    assert "2,082" in said
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="epochs was null, is 1"):
        main(["sweep", *call, "--epochs", "1"])
    faster = Sweep(configuration(), (point(2, 125.0),))
    sweep_records.open_folder(tmp_path / "other", configuration()).write_tables(faster, None)
    assert main(["sweep", *call, "--against", str(tmp_path / "other")]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "other / this" in line)
    row = next(line for line in lines if line.startswith("2 "))
    assert row[head.index("other / this") :].split()[0] == "0.25"
    assert "other_over_this" in (out / "sweep.csv").read_text()
    with pytest.raises(UserError, match="its scale is full, expected mini"):
        main(["sweep", "galaxy_shape", "--scale", "mini", "--against", str(out), "--output", "x"])


def test_the_caption_says_what_a_reader_must_know() -> None:
    reported = load_published("galaxy_shape")
    here = Sweep(configuration(), (point(2), point(14)))
    text = " ".join(figures.write_caption(here, reported, None))
    assert "scaled from 0.5 of the 100 epochs" in text
    assert "as reported, not verified" in text
    assert "mean squared error" in text
    assert "A, 1 thread" in text
    assert "say nothing about the machines" not in text
    mini = Sweep({**configuration(), "scale": "mini"}, here.points)
    assert "say nothing about the machines" in " ".join(figures.write_caption(mini, reported, here))


def test_ratios_are_of_the_same_sizes(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    here = Sweep(configuration(), (point(2, 1000.0), point(64, 10.0)))
    other = Sweep(configuration(), (point(2, 500.0), point(4)))
    lines = figures.list_lines(here, load_published("galaxy_shape"), other)
    axes = Figure().add_subplot()
    figures.draw_ratios(axes, lines, here, load_published("galaxy_shape"))
    drawn = {str(line.get_label()): line.get_xydata() for line in axes.get_lines()}
    ratio = drawn["other: A / this machine"]
    assert ratio.tolist() == [[2, 0.5]]  # type: ignore[union-attr]
    assert drawn["V100 / this machine"].tolist() == [[2, 2.08235]]  # type: ignore[union-attr]
    path = tmp_path / "figure.png"
    figures.draw_sweep(path, here, load_published("galaxy_shape"), other)
    assert [file.name for file in tmp_path.iterdir()] == ["figure.png"]


def test_a_figure_of_generation(tmp_path: Path) -> None:
    from dataclasses import replace

    points = tuple(
        replace(point(n, n**0.5), counts={"repetitions": 30}, fraction=1.0) for n in (1, 100, 5000)
    )
    generating = {**configuration(), "benchmark": "galaxy_generation", "measure": "generation"}
    generated = Sweep(generating, points)
    folder = sweep_records.open_folder(tmp_path, generating)
    folder.write_tables(generated, load_published("galaxy_generation"))
    figures.draw_sweep(tmp_path / "f.png", generated, load_published("galaxy_generation"), None)
    assert "images,seconds," in (tmp_path / "sweep.csv").read_text()
    assert "medians of 30 repetitions" in " ".join(figures.write_caption(generated, None, None))
