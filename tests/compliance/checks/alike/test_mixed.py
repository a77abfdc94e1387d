"""Mixtures of two runs of any results are found, honest seeds are not."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cepheid.compliance.checks.alike import mixed, near
from cepheid.compliance.checks.alike.near import Close, Course, Scale, Steps
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition, rounds
from cepheid.rules.events import is_number
from cepheid.rules.host import ROOT
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.asserting import Patch, require
from tests.compliance.builder import SYSTEM, run_records, write_log, write_result
from tests.compliance.checks.alike.test_near import (
    SCALES,
    change,
    diverge,
    load,
    read_courses,
    simulate,
)

MINI = definition.load("galaxy_shape", "mini")


def measure(courses: Sequence[Course], scale: Scale) -> list[Steps]:
    steps = [scale.measure(course) for course in courses]
    known = [each for each in steps if each is not None]
    assert len(known) == len(courses)
    return known


def mix(one: Course, other: Course, weight: float, digits: int = 9) -> Course:
    def between(key: str, at: int, value: float) -> float:
        return float(f"{weight * value + (1 - weight) * other[at][key]:.{digits}g}")

    return change(one, between)


def shift(course: Course) -> Course:
    return change(course, lambda key, at, value: value + 0.003)


def find(steps: Sequence[Steps], scale: Scale) -> set[tuple[int, ...]]:
    """Find mixtures: the run, then those that it is made of."""
    return {(close.run, *sorted(close.others)) for close in mixed.find_mixtures(steps, scale)}


MIXTURES: dict[str, Callable[[Course, Course], Course]] = {
    "the mean": lambda a, b: mix(a, b, 0.5),
    "a third": lambda a, b: mix(a, b, 1 / 3),
    "a fifth": lambda a, b: mix(a, b, 0.8),
    "an eighth": lambda a, b: mix(a, b, 0.125),
    "rounded": lambda a, b: mix(a, b, 0.5, 4),
    "with an offset": lambda a, b: shift(mix(a, b, 0.4)),
}


@pytest.mark.parametrize("at", [1, 7, 38], ids=["own result", "own and other", "others"])
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("count", [60, 180], ids=["few", "and runs that diverged"])
def test_a_mixture_is_found(name: str, at: int, count: int) -> None:
    scale = load("galaxy_shape", "mini")
    runs = simulate("galaxy_shape", "mini", count, random.Random(at))
    for number, value in zip(range(60, count), (1e200, -1e12, 1e5), strict=False):
        runs[number] = diverge(runs[number], value)
    parents = (0, 3) if at == 1 else (5, 21)
    runs[at] = MIXTURES[name](runs[parents[0]], runs[parents[1]])
    found = find(measure(runs, scale), scale)
    assert (at, *parents) in found
    assert {run for run, *_ in found} == {at}  # a line through its parents may pass a third run


@pytest.mark.parametrize("judgements", [10, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_honest_seeds_are_no_mixtures(name: str, scale: str, judgements: int) -> None:
    """Fewer than one in 10,000 pairs has a false alarm, and one in a hundred judgements."""
    known, pairs, found = load(name, scale), 0, 0
    for number in range(judgements):
        steps = measure(simulate(name, scale, 50, random.Random(1_000 + number)), known)
        pairs += math.comb(len(steps), 2)
        found += len({close.run for close in mixed.find_mixtures(steps, known)})
    assert found / pairs <= near.FALSE_ALARMS_MAX
    assert found <= 2  # 0.4 are expected at most


def read_recorded(name: str, scale: str) -> list[Course]:
    courses = read_courses(name, scale)
    for path in sorted(ROOT.glob(f"submissions/*/results/*/{name}-{scale}-*/result_*.txt")):
        course = [point.metrics for point in runlog.read(path).quality_curve]
        courses += [course] if len(course) >= near.EVALUATIONS else []
    return courses


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_recorded_runs_are_no_mixtures(name: str, scale: str) -> None:
    """Also where the limits follow from any few of the seeds."""
    recorded, seeds = read_recorded(name, scale), read_courses(name, scale)
    few = [random.Random(number).sample(seeds, near.SEEDS_MIN) for number in range(28)]
    for half in [seeds, *few]:
        known = require(near.make_scale(half))
        steps = measure(recorded, known)
        assert list(mixed.find_mixtures(steps, known)) == []
        assert list(near.find_close(steps, range(len(steps)), known)) == []


@needs_published_logs
def test_published_runs_are_no_mixtures() -> None:
    """Of every benchmark of published rounds that was evaluated often enough."""
    groups: defaultdict[tuple[str, str | None, str | None], list[tuple[Path, Course]]]
    groups = defaultdict(list)
    for folder in sorted(path for path in PUBLISHED_LOGS.iterdir() if path.is_dir()):
        for who in package.read(folder, rounds.load(folder.name).layout).submitters:
            for result in who.results:
                for path in result.runs:
                    values = [event.value for event in runlog.read(path).evaluations]
                    course = [{"q": float(value)} for value in values if is_number(value)]
                    if len(course) >= near.EVALUATIONS:
                        key = (folder.name, result.benchmark, result.scale)
                        groups[key].append((result.path, course))
    known = [(runs, near.make_scale([course for _, course in runs])) for runs in groups.values()]
    compared = [(runs, scale) for runs, scale in known if scale]
    assert len(compared) >= 5
    for runs, scale in compared:
        steps = measure([course for _, course in runs], scale)
        folders = [path for path, _ in runs]
        assert list(mixed.find_mixtures(steps, scale)) == []
        assert list(near.find_close(steps, [folders.index(path) for path in folders], scale)) == []


def test_few_runs_tell_nothing_and_limits_follow_from_evidence() -> None:
    scale = load("galaxy_shape", "mini")
    steps = measure(simulate("galaxy_shape", "mini", 4, random.Random(1)), scale)
    middle = tuple((a + b) / 2 for a, b in zip(steps[0], steps[1], strict=True))
    assert list(mixed.find_mixtures([steps[0], steps[1]], scale)) == []
    assert len(list(mixed.find_mixtures([steps[0], steps[1], middle], scale))) == 1
    line = Scale(scale.spreads, scale.volumes[:1])
    assert list(mixed.find_mixtures([steps[0], steps[1], middle], line)) == []
    assert list(mixed.find_mixtures([steps[0]] * 4, scale)) == []  # copies, and no mixtures
    wider = Scale(scale.spreads, tuple(volume + 2 for volume in scale.volumes))
    assert mixed.find_radius(scale, 10**4, 20) < mixed.find_radius(wider, 10**4, 20)
    assert mixed.find_radius(scale, 10**9, 20) < mixed.find_radius(scale, 10**4, 20)
    assert mixed.find_radius(scale, 10**4, 40) < mixed.find_radius(scale, 10**4, 20)


MANY = [
    (30, "few"), (300, "few"), (30, "some"), (300, "some"), (30, "many"), (300, "many"),
    *(pytest.param(2_000, number, marks=pytest.mark.promise) for number in ("some", "many")),
    pytest.param(2_000, "few", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("results", "number"), MANY)
def test_mixtures_of_many_results_are_found_in_bounded_time(results: int, number: str) -> None:
    """With near copies; of any weights, off the line by up to nine tenths of what may be.

    One of 10,000 runs that is near to one of its two may be missed, as rule T19 says.
    """
    which = ("few", "some", "many").index(number)
    name, scale_name = SCALES[which % len(SCALES)]
    scale, chance = load(name, scale_name), np.random.default_rng(results + which)
    base = np.array(measure(read_courses(name, scale_name), scale))
    middle, count = base.mean(axis=0), 5 * results
    weights = chance.normal(size=(count, len(base))) / math.sqrt(len(base) - 1)
    many = middle + weights @ (base - middle)
    longest = 2 * np.max(np.linalg.norm(many - middle, axis=1))
    radius = mixed.find_radius(scale, math.comb(count, 3) * 3, longest)
    planted = chance.permutation(count)[: count // 3 * 3].reshape(-1, 3)[:100]
    shares = {}
    for run, one, other in planted:
        weight = chance.uniform(0.12, 0.88)
        shares[int(run)] = weight
        off = chance.normal(size=many.shape[1])
        off *= radius * chance.uniform(0, 0.9) / np.linalg.norm(off)
        many[run] = weight * many[one] + (1 - weight) * many[other] + off
    courses = [tuple(map(float, course)) for course in many]
    start = time.process_time()
    of, copied = [at // 5 for at in range(count + 1)], int(planted[0][1])
    assert Close(count, (copied,)) in near.find_close([*courses, courses[copied]], of, scale)
    found = find(courses, scale)
    assert time.process_time() - start < 20  # 8 s on a quiet core
    expected = {(run, *sorted(others)) for run, *others in planted.tolist()}
    missed = expected - found
    # A mixture of two lies nearer to the middle than seeds do, so others may be on both sides, too.
    assert {run for run, *_ in found} <= {run for run, *_ in expected}
    assert len(missed) <= 1
    assert all(abs(shares[run] - 0.5) > 0.3 for run, *_ in missed)


def test_without_numpy_the_runs_nearest_to_the_middle_are_tried(monkeypatch: Patch) -> None:
    scale = load("galaxy_shape", "mini")
    runs = simulate("galaxy_shape", "mini", 180, random.Random(5))
    runs[9] = mix(runs[100], runs[20], 0.5)
    steps = measure(runs, scale)
    assert find(steps, scale) == {(9, 20, 100)}
    monkeypatch.setattr(mixed, "find_spec", lambda name: None)
    assert find(steps, scale) == {(9, 20, 100)}


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_runs_that_were_made_to_cost_time_do_not(clusters: int) -> None:
    """500 runs that are nearly the same, or lie on one line."""
    scale, chance = load("galaxy_shape", "mini"), random.Random(clusters)
    (first, second) = measure(simulate("galaxy_shape", "mini", 2, chance), scale)
    pairs = list(zip(first, second, strict=True))
    runs = [
        tuple(a + at % clusters * (b - a) + chance.gauss(0, 1e-3) for a, b in pairs)
        for at in range(500)
    ]
    start = time.process_time()
    assert list(mixed.find_mixtures(runs, scale)) or clusters < 3
    assert time.process_time() - start < 15


def test_the_mean_of_two_rivals_is_told_beside_the_score(tmp_path: Path) -> None:
    """Three submitters; the third's run 2 is the mean of a run of each of the others."""
    courses = simulate("galaxy_shape", "mini", 15, random.Random(4))
    courses[12] = mix(courses[1], courses[8], 0.5)
    root = tmp_path / "submissions"
    for number, name in enumerate(("acme", "beta", "copier")):
        system = {**SYSTEM, "submitter": name, "system": f"box{number}"}
        folder = write_result(root / name, MINI, system=system)
        for index in range(MINI.runs.required):
            pace = 20_000 + 777 * number
            records = run_records(MINI, index, blocks=11, system=system, block_ms=pace)
            points = iter(courses[5 * number + index])
            for record in records:
                if record["key"] == "eval_accuracy" and (point := next(points, None)):
                    counts = {key: min(1.0, round(value * 2000) / 2000)
                              for key, value in point.items() if "coverage" in key}  # fmt: skip
                    record["value"] = point["e_rmse"]
                    record["metadata"]["metrics"] = {**point, **counts}
            write_log(folder / f"result_{index}.txt", records)
    judgement = judge([package.read(root)], rounds.load())
    alike = [finding for finding in judgement.findings if finding.code == "T19.near"]
    assert {finding.severity for finding in alike} == {"warning"}
    told = {finding.path.parents[3].name: finding for finding in alike}
    assert told.keys() == {"acme", "beta", "copier"}
    assert told["copier"].path.name == "result_2.txt"
    assert all(name in told["copier"].message for name in ("acme", "beta"))
