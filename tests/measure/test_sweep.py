"""`cepheid measure sweep`: what is run, how it is scaled, what is kept, told and drawn."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest

from cepheid.measure.engine import own_process
from cepheid.measure.engine.recorded_points import PointFolder, Shown, finish, open_folder
from cepheid.measure.studies.sweep import measures as points
from cepheid.measure.studies.sweep import quality
from cepheid.measure.studies.sweep import records as figures
from cepheid.measure.studies.sweep.measures import MEASURES, Job, Point
from cepheid.measure.studies.sweep.quality import QualityPoint
from cepheid.measure.studies.sweep.records import Sweep, load_published, read_sweep
from cepheid.reference.data import generators
from cepheid.reference.machine.counters import Counter
from cepheid.reference.machine.energy import Sensors
from cepheid.reference.run import generate
from cepheid.rules import definition
from cepheid.rules.definition import BENCHMARKS, Block
from cepheid.rules.errors import UserError
from cepheid.tools.console.terminal import Terminal
from cepheid.tools.measure.__main__ import main
from tests import assert_refused, tiny
from tests.reference.run.scripted import ScriptedGenerator, ScriptedTask

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("matplotlib", reason="needs the extra site")

CPU = SimpleNamespace(accelerator=None)
STEP_SECONDS = 0.01


class Clock:
    """Time that passes only where somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    manual = Clock()
    monkeypatch.setattr(points, "time", SimpleNamespace(perf_counter=manual, monotonic=manual))
    return manual


class TrainingTask(ScriptedTask):
    """Takes the same time for every step, and counts them."""

    def __init__(self, clock: Clock, batch_size: int) -> None:
        super().__init__([])
        self.clock, self.batch_size = clock, batch_size
        self.samples = self.steps = 0

    def warm_up(self) -> None:
        super().warm_up()
        self.clock.now += 5

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        assert block.first_sample == self.samples
        while self.samples < block.samples:
            self.samples += self.batch_size
            self.steps += 1
            self.clock.now += STEP_SECONDS
            on_samples(self.samples)
        return float("nan")


def test_a_part_of_the_epochs_is_scaled_to_all_which_are_100_after_10(clock: Clock) -> None:
    task: Any = TrainingTask(clock, 8)
    reports: list[tuple[int, int]] = []
    point = points.measure_training(
        task, 8, CPU, Sensors(), 0.5, lambda done, total: reports.append((done, total))
    )
    prepared = ("build", "warm_up", "open_data")
    assert [each for each in task.diary if each in prepared] == [*prepared]
    assert point.counts == {
        "warm_up_steps": 50, "timed_steps": 500, "timed_epochs": 0.5, "train_loss": None,
    }  # fmt: skip
    assert task.steps == 550
    assert reports[-1] == (500, 500)
    assert point.seconds == pytest.approx(100 * 1000 * STEP_SECONDS)
    assert point.middle_half_seconds == pytest.approx((point.seconds, point.seconds))
    assert point.images_per_second == pytest.approx(8 / STEP_SECONDS)
    assert point.peak_resident_bytes > 2**20
    assert point.peak_device_bytes is None
    assert point.energy_joules is None
    task = TrainingTask(clock, 14)
    point = points.measure_training(task, 14, CPU, Sensors(), 100)
    assert task.steps == 110 * (8000 // 14)
    assert point.fraction == 1
    task = TrainingTask(clock, 2)  # a minute is timed where nothing is said
    point = points.measure_training(task, 2, CPU, Sensors())
    assert point.counts["timed_steps"] == pytest.approx(60 / STEP_SECONDS, rel=0.01)
    warm_up = point.counts["warm_up_steps"]
    assert warm_up is not None
    assert 6 <= warm_up * STEP_SECONDS < 12


def test_energy_is_scaled_alike(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from cepheid.reference.machine import energy

    times = SimpleNamespace(monotonic=clock, sleep=lambda seconds: None)
    monkeypatch.setattr(energy, "time", times)
    counter = Counter("package-0", lambda: 100 * clock.now)  # a hundred watts
    ending = Sensors((counter,), "")

    def on_progress(done: int, total: int) -> None:
        if done == total:
            clock.now += 1e-6  # the last reading is after the last step

    task: Any = TrainingTask(clock, 8)
    with monkeypatch.context() as patch:
        patch.setattr(energy.Meter, "__exit__", _read_twice(clock))
        point = points.measure_training(task, 8, CPU, ending, 0.5, on_progress)
    assert point.energy_joules == pytest.approx(100 * point.seconds, rel=1e-3)


def _read_twice(clock: Clock) -> Callable[..., None]:
    def leave(meter: Any, *exception: object) -> None:
        meter._over.set()
        meter._thread.join()
        for _ in range(2):
            clock.now += 0.1
            meter._read()

    return leave


class Generating(ScriptedGenerator):
    """A third of its time is sampling."""

    def __init__(self, clock: Clock) -> None:
        super().__init__({})
        self.clock = clock

    def sample(self, images: int, repetition: int) -> tuple[int, int]:
        self.clock.now += 0.001 * images
        return super().sample(images, repetition)

    def decode(self, latents: tuple[int, int]) -> str:
        self.clock.now += 0.002 * latents[0]
        return super().decode(latents)


def test_generation_is_repeated_after_a_warm_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task: Any = Generating(clock)
    monkeypatch.setattr(generate, "time", SimpleNamespace(perf_counter=clock))
    point = points.measure_generation(task, 1000, CPU, Sensors())
    done = [each for each in task.diary if each.startswith(("build", "warm", "sample"))]
    assert done[:3] == ["build", "warm_up 100", "sample 1000 0"]
    assert point.counts == {"warm_up_images": 1100, "repetitions": 10}
    assert done[3:] == [f"sample 1000 {repetition}" for repetition in range(1, 11)]
    assert point.seconds == pytest.approx(3.0)
    assert point.parts_seconds == pytest.approx({"sampling": 1.0, "decoding": 2.0})
    assert point.images_per_second == pytest.approx(1000 / 3)


# What is published, and what is kept --------------------------------------------------------------


def test_published_times_are_complete() -> None:
    names = [path.parent.name for path in BENCHMARKS.glob("*/published.yaml")]
    assert {"galaxy_shape", "galaxy_bnn", "galaxy_generation"} <= set(names)
    for name in names:
        found = load_published(name)
        assert found is not None
        assert found.measure in MEASURES
        assert found.caveats
        for machine in found.machines.values():
            assert set(found.in_figure) <= machine.seconds.keys(), name
    assert load_published("nothing") is None


def configuration() -> dict[str, Any]:
    return {
        "benchmark": "galaxy_shape", "scale": "full", "measure": "training", "epochs": 0.5,
        "parameters": 1_500_817, "threads": 1,
        "system": {"processor": "A", "accelerator": None, "framework": "torch 2"},
    }  # fmt: skip


def point(size: int, seconds: float = 500.0) -> Point:
    counts = {"timed_epochs": 0.5, "timed_steps": 10, "warm_up_steps": 1, "train_loss": 0.1}
    implementation = {"framework": "torch 2", "precision": "float32"}
    middle_half = seconds, seconds * 1.1
    facts = counts, 2**30, None, None, implementation, 0.1
    return Point(size, seconds, middle_half, 10.0, 0.005, *facts)


def open_sweep(path: Path, **changes: Any) -> Any:
    return open_folder(path, {**configuration(), **changes}, Point, "sweep")


def write(sweep: Sweep, folder: Any) -> Mapping[str, Any]:
    """Keep the points of a sweep; return what ``sweep.json`` has."""
    for each in sweep.points:
        folder.keep(each)
    finish("sweep", folder, sweep.describe(), Shown(sweep.list_columns(), lambda path: None))
    content: dict[str, Any] = json.loads((folder.path / "sweep.json").read_text())
    return content


def test_points_are_kept_one_by_one_and_another_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    folder = open_sweep(path)
    folder.keep(point(8))
    folder.keep(point(2))
    assert folder.list_missing([point(2), point(4), point(8)]) == [point(4)]
    again = open_sweep(path)
    assert again.load_points() == (point(2), point(8))
    kept = Sweep(configuration(), again.load_points(), "no sensors")
    content = write(replace(kept, published=load_published("galaxy_shape")), again)
    assert read_sweep(path, configuration()) == kept
    cells = content["table"][0]
    assert cells["V100_seconds"] == 2082.35
    assert cells["V100_over_this"] == pytest.approx(2082.35 / 500)
    assert cells["measured_fraction"] == 0.005
    assert not list(path.glob(".*"))
    open_sweep(tmp_path)
    with pytest.raises(UserError, match=r"epochs was 0\.5, is 1; .*threads was 1, is 2"):
        open_sweep(tmp_path, epochs=1, threads=2)
    with pytest.raises(UserError, match='another configuration: scale was "full"') as raised:
        open_sweep(tmp_path, scale="tiny", threads=2)
    assert "threads" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"points": [], "configuration": {}}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    assert_refused(r"not a sweep\.json of", read_sweep, tmp_path / "sweep.json", configuration())
    folder = open_sweep(tmp_path)
    (tmp_path / "2.json").write_text(text)
    assert_refused(r"2\.json: damaged .*remove it to measure again", folder.load_points)


def test_the_threads_of_a_sweep_are_those_that_were_taken() -> None:
    of_two = {**configuration(), "threads": 2}

    def take(*threads: int) -> tuple[Point, ...]:
        return tuple(
            replace(point(size), implementation={"threads_per_rank": count})
            for size, count in enumerate(threads, 1)
        )

    of_old = (point(4),)  # which do not say how many
    assert Sweep(of_two, take(1, 1)).machine == "A, 1 thread"
    assert Sweep(of_two, take(2, 1)).machine == "A, 1 to 2 threads"
    assert Sweep(of_two, of_old).machine == "A, 2 threads"


# The command -------------------------------------------------------------------------------------


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
    monkeypatch.setattr(generators, "prepare", lambda *arguments: None)
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
    assert_refused("epochs was null, is 1", main, ["sweep", *call, "--epochs", "1"])
    write(Sweep(configuration(), (point(2, 125.0),)), open_sweep(tmp_path / "other"))
    assert main(["sweep", *call, "--against", str(tmp_path / "other")]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "other / this" in line)
    row = next(line for line in lines if line.startswith("2 "))
    assert row[head.index("other / this") :].split()[0] == "0.25"
    assert "other_over_this" in (out / "sweep.json").read_text()
    with pytest.raises(UserError, match="its scale is full, expected mini"):
        main(["sweep", "galaxy_shape", "--scale", "mini", "--against", str(out), "--output", "x"])


def test_the_caption_says_what_a_reader_must_know() -> None:
    reported = load_published("galaxy_shape")
    here = Sweep(configuration(), (point(2), point(14)), published=reported)
    text = " ".join(figures.write_caption(here))
    for said in ("scaled from 0.5 of the 100 epochs", "as reported, not verified", "A, 1 thread"):
        assert said in text
    assert "mean squared error" in text
    assert "say nothing about the machines" not in text
    mini = replace(here, configuration={**configuration(), "scale": "mini"}, other=here)
    assert "say nothing about the machines" in " ".join(figures.write_caption(mini))


def test_ratios_are_of_the_same_sizes(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    other = Sweep(configuration(), (point(2, 500.0), point(4)))
    pair = point(2, 1000.0), point(64, 10.0)
    here = Sweep(configuration(), pair, published=load_published("galaxy_shape"), other=other)
    axes = Figure().add_subplot()
    figures.draw_ratios(axes, figures.list_lines(here), here)
    drawn = {str(line.get_label()): line.get_xydata() for line in axes.get_lines()}
    ratio = drawn["other: A / this machine"]
    assert ratio.tolist() == [[2, 0.5]]  # type: ignore[union-attr]
    assert drawn["V100 / this machine"].tolist() == [[2, 2.08235]]  # type: ignore[union-attr]
    figures.draw_sweep(here, tmp_path / "figure.png")
    assert [file.name for file in tmp_path.iterdir()] == ["figure.png"]


def test_a_sweep_of_generation_is_drawn(tmp_path: Path) -> None:
    measured = tuple(
        replace(point(n, n**0.5), counts={"repetitions": 30}, fraction=1.0) for n in (1, 100, 5000)
    )
    generating = {**configuration(), "benchmark": "galaxy_generation", "measure": "generation"}
    generated = Sweep(generating, measured, published=load_published("galaxy_generation"))
    content = write(generated, open_folder(tmp_path, generating, Point, "sweep"))
    figures.draw_sweep(generated, tmp_path / "f.png")
    assert [*content["table"][0]][:2] == ["images", "seconds"]
    assert "medians of 30 repetitions" in " ".join(figures.write_caption(generated))


def train_instead(job: Job) -> QualityPoint:
    error = 0.4 / job.size + 0.01 * job.seed
    values = {"e_rmse": error, "nll": -1.0, "coverage_68": 0.7, "coverage_95": 0.93}
    return QualityPoint(job.size, job.seed, job.samples, values, 0.5, 12.0, 0.1, {})


def test_an_interrupted_sweep_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int]] = []

    def measure(function: object, job: Job, _: object) -> Any:
        seen.append((job.seed, job.size))
        if len(seen) == 4:
            raise KeyboardInterrupt
        return train_instead(job)

    monkeypatch.setattr(own_process, "run_alone", measure)
    monkeypatch.setattr(generators, "prepare", lambda *arguments: None)
    out = tmp_path / "quality"
    call = ["galaxy_shape", "--quality", "--batch-sizes", "2,4,14", "--seeds", "1,2",
            "--output", str(out)]  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        main(["sweep", *call])
    assert main(["sweep", *call]) == 0
    assert seen == [(1, 2), (1, 4), (1, 14), (2, 2), (2, 2), (2, 4), (2, 14)]
    assert "0.215 (0.21 to 0.22)" in capsys.readouterr().out
    assert (out / "quality.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((out / "quality.json").read_text())
    assert kept["configuration"]["samples"] == 68_000  # over which the learning rate decays
    assert len(kept["points"]) == 6
    assert main(["sweep", *call, "--seeds", "3"]) == 0  # another seed joins them
    assert len(json.loads((out / "quality.json").read_text())["points"]) == 9
    assert_refused("samples was 68000, is 100", main, ["sweep", *call, "--samples", "100"])


def test_trainings_that_diverge_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(function: object, job: Job, _: object) -> QualityPoint:
        diverges = job.size == 2 or (job.size == 4 and job.seed == 1)
        values = {"e_rmse": math.nan} if diverges else {"e_rmse": job.seed / 10}
        return replace(train_instead(job), quality=values, train_loss=math.inf if diverges else 0.5)

    monkeypatch.setattr(own_process, "run_alone", measure)
    monkeypatch.setattr(generators, "prepare", lambda *arguments: None)
    out = tmp_path / "quality"
    call = ["galaxy_shape", "--quality", "--batch-sizes", "2,4,8", "--seeds", "1,2,3"]
    assert main(["sweep", *call, "--output", str(out)]) == 0
    told = capsys.readouterr().out
    cells = [line.split("  ") for line in told.splitlines() if line.startswith(("2 ", "4 ", "8 "))]
    said = ["diverged", "0.25 (0.2 to 0.3); 1 of 3 diverged", "0.2 (0.1 to 0.3)"]
    assert [row[-1].strip() for row in cells] == said

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    json.loads((out / "quality.json").read_text(), parse_constant=refuse)
    assert PointFolder(out, QualityPoint).load_points()[0].quality["e_rmse"] is None


def test_every_batch_size_sees_the_same_number_of_samples(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.install(tmp_path, monkeypatch, "galaxy_shape", data=tiny.SIZES, timing=tiny.TIMING)
    chosen = definition.load("galaxy_shape", "mini")
    plain = ("compile=off", "precision=fp32")
    job = Job("galaxy_shape", "mini", "torch", "quality", 3, plain, data_root, samples=32)
    assert job.list_settings(chosen)[:3] == [
        "threads=1", "global_batch_size=3", "opt_learning_rate_decay_samples=32",
    ]  # fmt: skip
    generators.prepare(chosen.data, data_root)
    found = quality.train_once(job, lambda _: Terminal(quiet=True))
    assert (found.size, found.samples) == (3, 33)
    assert found.quality.keys() == {"e_rmse", "nll", "coverage_68", "coverage_95"}
    assert found.implementation["threads_per_rank"] == 1
    assert msgspec.json.decode(msgspec.json.encode(found), type=QualityPoint) == found
