"""The paper's measures: what is run of them, how it is scaled, what is kept."""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cepheid.measure.engine.published import load_published
from cepheid.measure.studies.sweep import points
from cepheid.measure.studies.sweep import records as sweep_records
from cepheid.measure.studies.sweep.points import Point
from cepheid.reference.data.verification import DataRead
from cepheid.reference.machine.energy import Counter, Sensors
from cepheid.reference.run import generate
from cepheid.rules.definition import BENCHMARKS, Block
from cepheid.rules.errors import UserError

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


class TrainingTask:
    """Takes the same time for every step, and counts them."""

    data_digest = "d" * 64

    def __init__(self, clock: Clock, batch_size: int) -> None:
        self.clock, self.batch_size = clock, batch_size
        self.samples = self.steps = 0
        self.prepared: list[str] = []

    def drop_caches(self) -> None:
        raise AssertionError("not a run")

    def build(self) -> int:
        self.prepared.append("build")
        return 1

    def warm_up(self) -> None:
        self.prepared.append("warm_up")
        self.clock.now += 5

    def implementation(self) -> Mapping[str, Any]:
        return {"framework": "none", "precision": "float32"}

    def open_data(self) -> None:
        self.prepared.append("open_data")

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        assert block.first_sample == self.samples
        while self.samples < block.samples:
            self.samples += self.batch_size
            self.steps += 1
            self.clock.now += STEP_SECONDS
            on_samples(self.samples)
        return float("nan")

    def evaluate(self) -> dict[str, float]:
        raise AssertionError("the paper's measure is of training alone")

    def digest_data(self) -> DataRead:
        raise AssertionError("not a run")

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def state(self) -> Mapping[str, Any]:
        return {}


def test_a_part_of_the_epochs_is_scaled_to_all(clock: Clock) -> None:
    task = TrainingTask(clock, 8)
    reports: list[tuple[int, int]] = []
    point = points.measure_training(
        task, 8, CPU, Sensors(), 0.5, lambda done, total: reports.append((done, total))
    )
    assert task.prepared == ["build", "warm_up", "open_data"]
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


def test_the_whole_measure_is_100_epochs_after_10(clock: Clock) -> None:
    task = TrainingTask(clock, 14)
    point = points.measure_training(task, 14, CPU, Sensors(), 100)
    assert task.steps == 110 * (8000 // 14)
    assert point.fraction == 1


def test_a_minute_is_timed_where_nothing_is_said(clock: Clock) -> None:
    task = TrainingTask(clock, 2)
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

    with monkeypatch.context() as patch:
        patch.setattr(energy.Meter, "__exit__", _read_twice(clock))
        point = points.measure_training(TrainingTask(clock, 8), 8, CPU, ending, 0.5, on_progress)
    assert point.energy_joules == pytest.approx(100 * point.seconds, rel=1e-3)


def _read_twice(clock: Clock) -> Callable[..., None]:
    def leave(meter: Any, *exception: object) -> None:
        meter._over.set()
        meter._thread.join()
        for _ in range(2):
            clock.now += 0.1
            meter._read()

    return leave


class Generating:
    """Takes the place of a task that generates: a third of its time is sampling."""

    data_digest = weights_digest = "d" * 64

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[tuple[str, int]] = []

    def drop_caches(self) -> None:
        raise AssertionError("not a run")

    def build(self) -> int:
        self.calls.append(("build", 0))
        return 1

    def warm_up(self, images: int) -> None:
        self.calls.append(("warm_up", images))

    def implementation(self) -> Mapping[str, Any]:
        return {"framework": "none"}

    def open_data(self) -> None:
        raise AssertionError("no data are needed")

    def sample(self, images: int, repetition: int) -> int:
        self.calls.append(("sample", repetition))
        self.clock.now += 0.001 * images
        return images

    def decode(self, latents: int) -> str:
        self.clock.now += 0.002 * latents
        return "images"

    def evaluate(self, images: object) -> dict[str, float]:
        raise AssertionError("the images are not judged")

    def digest_data(self) -> DataRead:
        raise AssertionError("not a run")

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def keep_times(self, times: object) -> None:
        raise AssertionError("not a run")


def test_generation_is_repeated_after_a_warm_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Generating(clock)
    monkeypatch.setattr(generate, "time", SimpleNamespace(perf_counter=clock))
    point = points.measure_generation(task, 1000, CPU, Sensors())
    assert task.calls[:3] == [("build", 0), ("warm_up", 100), ("sample", 0)]
    assert point.counts == {"warm_up_images": 1100, "repetitions": 10}
    assert task.calls[3:] == [("sample", repetition) for repetition in range(1, 11)]
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
        assert found.measure in points.MEASURES
        assert found.caveats
        for machine in found.machines:
            assert set(found.in_figure) <= machine.seconds.keys(), f"{name}: {machine.name}"
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
    return Point(
        size,
        seconds,
        (seconds, seconds * 1.1),
        10.0,
        0.005,
        counts,
        2**30,
        None,
        None,
        implementation,
        0.1,
    )


def test_points_are_kept_one_by_one(tmp_path: Path) -> None:
    folder = sweep_records.open_folder(tmp_path / "sweep", configuration())
    folder.keep(point(8))
    folder.keep(point(2))
    assert folder.list_missing([2, 4, 8]) == [4]
    again = sweep_records.open_folder(tmp_path / "sweep", configuration())
    assert again.load_points() == (point(2), point(8))
    kept = sweep_records.Sweep(configuration(), again.load_points(), "no sensors")
    again.write_tables(kept, load_published("galaxy_shape"))
    assert sweep_records.read_sweep(tmp_path / "sweep") == kept
    text = (tmp_path / "sweep" / "sweep.csv").read_text()
    cells = next(csv.DictReader(io.StringIO(text)))
    assert cells["V100_reported_seconds"] == "2082.35"
    assert float(cells["V100_over_this"]) == pytest.approx(2082.35 / 500, rel=1e-3)
    assert cells["measured_fraction"] == "0.005"
    assert not list((tmp_path / "sweep").glob(".*"))


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    sweep_records.open_folder(tmp_path, configuration())
    with pytest.raises(UserError, match=r"epochs was 0\.5, is 1; .*threads was 1, is 2"):
        sweep_records.open_folder(tmp_path, {**configuration(), "epochs": 1, "threads": 2})


def test_of_another_scale_only_the_scale_is_said(tmp_path: Path) -> None:
    sweep_records.open_folder(tmp_path, configuration())
    scale = configuration()["scale"]
    with pytest.raises(UserError) as raised:
        sweep_records.open_folder(tmp_path, {**configuration(), "scale": "tiny", "threads": 2})
    assert f'holds another configuration: scale was "{scale}"' in str(raised.value)
    assert "threads" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"points": [], "configuration": {}}'])
def test_what_is_no_sweep_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"not a sweep\.json of"):
        sweep_records.read_sweep(tmp_path / "sweep.json")
    (tmp_path / "2.json").write_text(text)
    with pytest.raises(UserError, match="remove it to measure again"):
        sweep_records.SweepFolder(tmp_path).load_points()


def test_a_point_reads_as_it_was_written() -> None:
    whole = replace(point(4), energy_joules=3.0, peak_device_bytes=5)
    assert Point.from_json(whole.as_json()) == whole


def test_the_threads_of_a_sweep_are_those_that_were_taken() -> None:
    of_two = {**configuration(), "threads": 2}

    def take(*threads: int) -> tuple[Point, ...]:
        return tuple(
            replace(point(size), implementation={"threads_per_rank": count})
            for size, count in enumerate(threads, 1)
        )

    of_old = (point(4),)  # which do not say how many
    assert sweep_records.Sweep(of_two, take(1, 1)).machine == "A, 1 thread"
    assert sweep_records.Sweep(of_two, take(2, 1)).machine == "A, 1 to 2 threads"
    assert sweep_records.Sweep(of_two, of_old).machine == "A, 2 threads"
