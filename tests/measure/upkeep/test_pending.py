"""`cepheid measure pending`: what is stale, in which order it is made, and what a repeat says."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.measure.engine import own_process, provenance
from cepheid.measure.engine.provenance import Fingerprint, Taken
from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.measure.studies.resolution.resolution import measure_spread
from cepheid.measure.studies.shallow import baselines
from cepheid.measure.studies.upkeep import pending, records
from cepheid.rules import definition, evidence, rcp
from cepheid.rules.evidence import Curve, Evidence
from cepheid.tools.measure.__main__ import main
from tests.compliance.builder import CODE_DIGEST, reference_points, run_records, write_log
from tests.tools.no_training import GOOD, POOR, FakeTraining, Points, replace_training

pytest.importorskip("torch", reason="measuring needs the extra torch")

Printed = pytest.CaptureFixture[str]
NOW, BEFORE = "a" * 64, "b" * 64
MINI = definition.load("galaxy_shape", "mini")
VARIANTS = ("shuffled_labels", "frozen", "blind_to_orientation", "fixed_covariance")


def make_points(run: Training) -> Points:
    quality = GOOD if run.variant == CORRECT else POOR
    return (3008, POOR), (MINI.timing.max_samples, quality)


class FakeWithCode(FakeTraining):
    def __call__(self, *arguments: Any) -> Iterator[tuple[Training, Curve]]:
        for run, curve in super().__call__(*arguments):
            facts = {"framework": "none", **curve.measured}
            yield run, replace(curve, code=NOW, measured=facts)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    """No training, a folder with nothing measured, and code whose fingerprint is known."""
    fake = FakeWithCode(make_points)
    replace_training(fake, tmp_path / "benchmarks", monkeypatch)
    monkeypatch.setattr(
        provenance, "find_current_code", lambda names, root: {n: frozenset({NOW}) for n in names}
    )
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("os.nice", lambda by: by)
    monkeypatch.setattr(baselines, "ROWS", {})
    return fake


def list_pending(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The JSON of the command."""
    file = tmp_path / "pending.json"
    assert main(["pending", "galaxy_shape", *arguments, "--output", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def save(*curves: Curve, digest: str = MINI.digest) -> None:
    evidence.save(MINI.name, MINI.scale, Evidence(digest, curves))


def make_curve(seed: int, code: str, variant: str = CORRECT, seconds: float = 36.0) -> Curve:
    return Curve(variant, seed, seconds, ((3008, POOR), (24_000, GOOD)), code)


@pytest.mark.usefixtures("training")
def test_nothing_recorded_is_all_missing(tmp_path: Path, capsys: Printed) -> None:
    found = list_pending(tmp_path)
    assert [one["what"] for one in found["pending"]] == [CORRECT, *sorted(VARIANTS), "result"]
    assert found["runs"] == 10 + 2 * 4 + 5
    assert "pending: 6 records, 23 runs, 0.0 core hours" in capsys.readouterr().out
    assert list_pending(tmp_path, "--scale", "full")["pending"] == []


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize(
    ("code", "digest", "why"),
    [
        (NOW, MINI.digest, "8 missing"),
        (BEFORE, MINI.digest, "2 fingerprint changed, 8 missing"),
        ("", MINI.digest, "2 no fingerprint kept, 8 missing"),
        (NOW, "0" * 64, "2 another definition, 8 missing"),
    ],
)
def test_a_record_says_why_it_is_made_again(
    tmp_path: Path, capsys: Printed, code: str, digest: str, why: str
) -> None:
    save(make_curve(1, code), make_curve(2, code), digest=digest)
    correct = next(one for one in list_pending(tmp_path)["pending"] if one["what"] == CORRECT)
    assert why in capsys.readouterr().out
    assert correct["hours"] == pytest.approx((8 if "2" not in why else 10) * 0.01)


@pytest.mark.usefixtures("training")
def test_a_run_of_an_accelerator_counts_what_it_takes_on_a_core(tmp_path: Path) -> None:
    there = {"framework": "none", "accelerator": "NVIDIA H200"}
    frozen = Curve("frozen", 1, 60.0, ((24_000, POOR),), NOW, {"framework": "none"})
    save(frozen, replace(make_curve(1, NOW), seconds=7.0, measured=there))
    hours = {one["what"]: one["hours"] for one in list_pending(tmp_path)["pending"]}
    assert hours[CORRECT] == pytest.approx(9 * 60 / 3600, abs=0.001)


def test_stages_come_in_order_and_the_cheapest_first_in_each(
    training: FakeTraining, tmp_path: Path
) -> None:
    seconds = dict(zip(VARIANTS, (40.0, 10.0, 30.0, 20.0), strict=True))
    save(*(make_curve(1, "", name, time) for name, time in {CORRECT: 99.0, **seconds}.items()))
    rcp.save(MINI.name, MINI.scale, reference_points(MINI, {16: [21_000] * 5, 32: [24_000] * 5}))
    order = [one["what"] for one in list_pending(tmp_path)["pending"]]
    cheapest = sorted(VARIANTS, key=lambda name: seconds[name])
    assert order == [CORRECT, *cheapest, "result", "batch size 16"]

    assert list_pending(tmp_path, "--run")["runs"] == 5  # of the result, for `cepheid run`
    assert training.names == [
        *((CORRECT, seed) for seed in range(1, 11)),
        *((name, seed) for name in cheapest for seed in (1, 2)),
        *((CORRECT, seed) for seed in range(1, 6)),
    ]
    assert {run.config.execution.threads for run in training.runs} == {"1"}
    points = rcp.load(MINI.name, MINI.scale)
    assert points is not None
    point = points.at(16)
    assert point is not None
    assert [(run.seed, run.code) for run in point.runs] == [(seed, NOW) for seed in range(1, 6)]
    training.runs = []
    assert [one["what"] for one in list_pending(tmp_path, "--run")["pending"]] == ["result"]
    assert training.runs == []


def test_hours_end_the_work_and_the_same_command_goes_on(
    training: FakeTraining, tmp_path: Path
) -> None:
    save(*(make_curve(seed, "", seconds=360.0) for seed in range(1, 11)))  # an hour in all
    left = list_pending(tmp_path, "--run", "--hours", "0.9")["pending"]
    assert CORRECT in [one["what"] for one in left]
    assert CORRECT not in {name for name, _ in training.names}
    assert list_pending(tmp_path, "--run", "--hours", "1.1")["runs"] >= 5
    assert CORRECT in {name for name, _ in training.names}


def test_several_runs_at_a_time_are_kept_as_such(
    training: FakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_process, "open_pool", ThreadPoolExecutor)  # sees what is replaced here
    monkeypatch.setattr(pending, "prepare_data", lambda *_: tmp_path)
    monkeypatch.setattr(provenance, "keep_current", lambda *_: NOW)
    save(make_curve(1, NOW))
    assert list_pending(tmp_path, "--run", "--jobs", "3")["runs"] == 5
    assert len(set(training.names)) == len(training.names) == 9 + 2 * len(VARIANTS)
    recorded = evidence.load(MINI)
    assert recorded is not None
    beside = [curve.measured.get("runs_at_once") for curve in recorded.curves]
    assert (beside.count(None), beside.count(3)) == (1, len(training.names))
    assert measure_spread(recorded.correct) is None  # their times say nothing


@pytest.mark.usefixtures("training")
def test_results_count_where_their_code_computes_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "box" / "galaxy_shape-mini-closed"
    folder.mkdir(parents=True)
    for index, code in enumerate((NOW, NOW, BEFORE)):
        path = write_log(folder / f"result_{index}.txt", run_records(MINI, index))
        path.write_text(path.read_text().replace(CODE_DIGEST, code))
    result = next(one for one in list_pending(tmp_path)["pending"] if one["what"] == "result")
    assert len([state for state in result["states"].values() if state]) == 3


@pytest.mark.usefixtures("training")
def test_baselines_are_listed_and_tried_with_the_broken_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(baselines, "ROWS", {"galaxy_shape": ("moments",)})
    monkeypatch.setattr(
        baselines, "record_missing", lambda one, name, seed, root, observer: tried.append(seed)
    )
    made = Evidence(MINI.digest, (Curve("moments", 1, 9.0, ((6000, GOOD),)),))
    evidence.save(MINI.name, MINI.scale, made, evidence.BASELINES_FILE)
    (listed,) = [
        one for one in list_pending(tmp_path)["pending"] if one["what"] == "baseline moments"
    ]
    assert (listed["stage"], listed["hours"]) == (records.STAGES[1], 0.003)
    list_pending(tmp_path, "--run")
    assert tried == [2]


# Fingerprints -----------------------------------------------------------------------------------

HERE, THERE = {"vectors": "AVX2"}, {"vectors": "AVX512"}


def take(digest: str, loss: float, code: str, machine: dict[str, str] = HERE) -> Taken:
    values = {"loss 1": loss}
    return Taken(Fingerprint(digest, values), machine, {code: "commit"}, MINI.digest)


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``tmp_path`` the folder of definitions, of galaxy_shape alone."""
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    (tmp_path / "galaxy_shape").mkdir()
    source = definition.BENCHMARKS / "galaxy_shape" / "benchmark.yaml"
    shutil.copy(source, tmp_path / "galaxy_shape")


@pytest.mark.parametrize(
    ("before", "is_current"),
    [
        (take("x", 1.0, BEFORE), True),  # another line, the same bits
        (take("y", 1.2, BEFORE), False),
        (take("y", 1.0001, BEFORE), False),  # other bits on the same kind of machine
        (take("y", 1.0001, BEFORE, THERE), True),  # rounding of another one
        (take("y", 1.2, BEFORE, THERE), False),
    ],
)
def test_code_is_current_that_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Taken, is_current: bool
) -> None:
    install(tmp_path, monkeypatch)
    asked = []

    def take_all(names: list[str], root: Path) -> dict[str, Taken]:
        asked.append(names)
        return {"galaxy_shape": next(now)}

    now = iter([before, *[take("x", 1.0, NOW)] * 2])
    codes = iter([BEFORE, NOW, NOW, NOW])
    monkeypatch.setattr(provenance, "take_all", take_all)
    monkeypatch.setattr(provenance, "digest_code", lambda root, name: next(codes))
    provenance.keep_current("galaxy_shape", tmp_path)
    found = provenance.find_current_code(["galaxy_shape"], tmp_path)["galaxy_shape"]
    assert found == ({NOW, BEFORE} if is_current else {NOW})
    provenance.keep_current("galaxy_shape", tmp_path)
    taken = provenance.load_taken("galaxy_shape")
    assert {code for each in taken for code in each.code} == {NOW, BEFORE}
    assert provenance.find_current_code(["galaxy_shape"], tmp_path)["galaxy_shape"] == found
    assert len(asked) == 3  # the last answer came from the file


def test_another_definition_has_a_fingerprint_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that computed the same under the earlier definition counts: full may be as it was."""
    install(tmp_path, monkeypatch)
    changed = replace(MINI, digest="c" * 64)
    taken = [take("x", 1.0, BEFORE), take("x", 1.0, NOW), take("y", 1.2, NOW)]
    taken[2] = replace(taken[2], definition=changed.digest)
    code, now = iter([BEFORE, NOW, NOW, NOW, NOW]), iter(taken)
    monkeypatch.setattr(provenance, "digest_code", lambda root, name: next(code))
    monkeypatch.setattr(provenance, "take_all", lambda names, root: {"galaxy_shape": next(now)})
    for _ in range(3):
        provenance.keep_current("galaxy_shape", tmp_path)  # the third is known
    monkeypatch.setattr(provenance, "load", lambda name, scale: changed)
    provenance.keep_current("galaxy_shape", tmp_path)
    found = provenance.find_current_code(["galaxy_shape"], tmp_path)
    assert found == {"galaxy_shape": frozenset({NOW, BEFORE})}
    assert next(now, None) is None


@pytest.mark.slow
def test_the_fingerprint_of_a_benchmark_is_taken_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_training(None, tmp_path / "benchmarks", monkeypatch)
    code = provenance.keep_current("galaxy_shape", tmp_path / "data")
    (taken,) = provenance.load_taken("galaxy_shape")
    assert list(taken.code) == [code]
    found = provenance.find_current_code(["galaxy_shape"], tmp_path / "data")
    assert found == {"galaxy_shape": frozenset({code})}


# Repeating --------------------------------------------------------------------------------------


def crossing_at(seed: int, samples: int) -> Curve:
    return Curve(CORRECT, seed, 1.0, ((samples, GOOD),))


RECORDED = tuple(crossing_at(seed, 24_000 + 500 * seed) for seed in range(10))


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (RECORDED[3], "same"),
        (crossing_at(3, 27_000), "another course, as of another seed"),
        (crossing_at(3, 12_000), "differs"),
        (crossing_at(3, 44_000), "differs"),
        (Curve(CORRECT, 3, 1.0, ((45_000, POOR),)), "differs"),
    ],
)
def test_a_repeated_run_lies_where_one_more_seed_would(now: Curve, verdict: str) -> None:
    assert pending.compare(MINI, RECORDED, now).verdict == verdict


def test_a_seed_that_differs_fails_the_night(training: FakeTraining, capsys: Printed) -> None:
    save(*(replace(curve, seed=curve.seed + 1) for curve in RECORDED))
    assert main(["pending", "galaxy_shape", "--repeat", "--seed", "3"]) == 1
    assert training.names == [(CORRECT, 3)]
    assert "differs" in capsys.readouterr().out
