"""Mixtures of two runs of any results are found, honest seeds are not."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from cepheid.compliance.checks.alike import mixed, near
from cepheid.compliance.checks.alike.near import Course, Scale, Steps
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition, rounds
from cepheid.rules.events import is_number
from cepheid.rules.host import ROOT
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.builder import SYSTEM, run_records, write_log, write_result
from tests.compliance.checks.alike.test_near import SCALES, change, load, read_courses, simulate

MINI = definition.load("galaxy_shape", "mini")


def measure(courses: Sequence[Course], scale: Scale) -> list[Steps]:
    steps = [scale.measure(course) for course in courses]
    known = [each for each in steps if each is not None]
    assert len(known) == len(courses)
    return known


def mix(one: Course, other: Course, weight: float, digits: int = 9) -> Course:
    return change(
        one,
        lambda key, at, value: float(
            f"{weight * value + (1 - weight) * other[at][key]:.{digits}g}"
        ),
    )  # fmt: skip


def shift(course: Course) -> Course:
    return change(course, lambda key, at, value: value + 0.003)


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
def test_a_mixture_is_found(name: str, at: int) -> None:
    scale = load("galaxy_shape", "mini")
    runs = simulate("galaxy_shape", "mini", 60, random.Random(at))
    parents = (0, 3) if at == 1 else (5, 21)
    runs[at] = MIXTURES[name](runs[parents[0]], runs[parents[1]])
    found = {(close.run, *sorted(close.others)) for close in mixed.find_mixtures(
        measure(runs, scale), scale)}  # fmt: skip
    assert found == {(at, *parents)}


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_honest_seeds_are_no_mixtures(name: str, scale: str) -> None:
    """Fewer than one in 10,000 pairs has a false alarm, and one in a hundred judgements."""
    known, pairs, found = load(name, scale), 0, 0
    for number in range(40):
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
    """Also where the limits follow from any half of the seeds."""
    recorded, seeds = read_recorded(name, scale), read_courses(name, scale)
    halves = [tuple(seeds), *list(combinations(seeds, near.SEEDS_MIN))[::9]]
    for half in halves:
        known = near.make_scale(half)
        assert known is not None
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


def test_few_runs_or_directions_tell_nothing() -> None:
    scale = load("galaxy_shape", "mini")
    steps = measure(simulate("galaxy_shape", "mini", 4, random.Random(1)), scale)
    middle = tuple((a + b) / 2 for a, b in zip(steps[0], steps[1], strict=True))
    assert list(mixed.find_mixtures([steps[0], steps[1]], scale)) == []
    assert len(list(mixed.find_mixtures([steps[0], steps[1], middle], scale))) == 1
    line = Scale(scale.spreads, scale.volumes[:1])
    assert list(mixed.find_mixtures([steps[0], steps[1], middle], line)) == []
    assert list(mixed.find_mixtures([steps[0]] * 4, scale)) == []  # copies, and no mixtures


def test_limits_follow_from_evidence_and_from_what_is_compared() -> None:
    scale = load("galaxy_shape", "mini")
    wider = Scale(scale.spreads, tuple(volume + 2 for volume in scale.volumes))
    assert mixed.find_radius(scale, 10**4, 20) < mixed.find_radius(wider, 10**4, 20)
    assert mixed.find_radius(scale, 10**9, 20) < mixed.find_radius(scale, 10**4, 20)
    assert mixed.find_radius(scale, 10**4, 40) < mixed.find_radius(scale, 10**4, 20)


@pytest.mark.parametrize(
    ("results", "share"), [(80, 1.0), (300, 0.6), (2_000, 0.1)], ids=lambda each: str(each)
)
def test_many_results_are_compared_in_bounded_time(results: int, share: float) -> None:
    """With near copies; of very many runs some mixtures are missed, and of five some are found."""
    scale, chance = load("galaxy_shape", "mini"), random.Random(results)
    base = measure(read_courses("galaxy_shape", "mini"), scale)
    middle = [math.fsum(at) / len(base) for at in zip(*base, strict=True)]
    many: list[Steps] = []
    for _ in range(5 * results):
        weights = [chance.gauss(0, 1) / math.sqrt(len(base) - 1) for _ in base]
        many.append(tuple(
            mean + sum(w * (x - mean) for w, x in zip(weights, at, strict=True))
            for mean, at in zip(middle, zip(*base, strict=True), strict=True)
        ))  # fmt: skip
    chosen = chance.sample(range(len(many)), 150)
    planted = list(zip(chosen[::3], chosen[1::3], chosen[2::3], strict=True))
    for run, one, other in planted:
        many[run] = tuple((a + b) / 2 for a, b in zip(many[one], many[other], strict=True))
    start = time.process_time()
    assert list(near.find_close(many, [at // 5 for at in range(len(many))], scale)) == []
    found = {close.run for close in mixed.find_mixtures(many, scale)}
    assert time.process_time() - start < 5
    assert found <= {run for run, _, _ in planted}
    assert len(found) >= share * len(planted)


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_runs_that_were_made_to_cost_time_do_not(clusters: int) -> None:
    """500 runs that are nearly the same, or lie on one line."""
    scale, chance = load("galaxy_shape", "mini"), random.Random(clusters)
    (first, second) = measure(simulate("galaxy_shape", "mini", 2, chance), scale)
    runs = [
        tuple(
            a + at % clusters * (b - a) + chance.gauss(0, 1e-3)
            for a, b in zip(first, second, strict=True)
        )
        for at in range(500)
    ]
    start = time.process_time()
    assert list(mixed.find_mixtures(runs, scale)) or clusters < 3
    assert time.process_time() - start < 15


def test_the_mean_of_two_rivals_is_told_beside_the_score(tmp_path: Path) -> None:
    """Three submitters; the third's run 2 is the mean of a run of each of the others."""
    chance = random.Random(9)
    courses = simulate("galaxy_shape", "mini", 15, chance)
    courses[12] = mix(courses[1], courses[8], 0.5)
    root = tmp_path / "submissions"
    for number, name in enumerate(("acme", "beta", "copier")):
        system = {**SYSTEM, "submitter": name, "system": f"box{number}"}
        folder = write_result(root / name, MINI, system=system)
        for index in range(MINI.runs.required):
            records = run_records(
                MINI, index, blocks=near.EVALUATIONS, system=system, block_ms=20_000 + 777 * number
            )
            points = iter(courses[5 * number + index])
            for record in records:
                if record["key"] == "eval_accuracy":
                    point = next(points)
                    counts = {key: min(1.0, round(value * 2000) / 2000)
                              for key, value in point.items() if "coverage" in key}  # fmt: skip
                    record["value"] = point["e_rmse"]
                    record["metadata"]["metrics"] = {**point, **counts}
            write_log(folder / f"result_{index}.txt", records)
    judgement = judge([package.read(root)], rounds.load())
    alike = [finding for finding in judgement.findings if finding.code == "T19.near"]
    assert {finding.severity for finding in alike} == {"warning"}
    told = {finding.path.parent.parent.parent.parent.name: finding for finding in alike}
    assert told.keys() == {"acme", "beta", "copier"}
    assert told["copier"].path.name == "result_2.txt"
    assert "acme" in told["copier"].message
    assert "beta" in told["copier"].message
