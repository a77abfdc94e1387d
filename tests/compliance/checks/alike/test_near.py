"""Near copies: noise, offsets and means of runs are found, honest seeds are not."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from cepheid.compliance.checks.alike import near
from cepheid.compliance.checks.alike.near import Close, Course, Scale
from cepheid.rules import definition, evidence
from tests.compliance.asserting import require

SCALES = [
    (name, scale)
    for name in definition.names()
    for scale in definition.scales(name)
    if near.load_scale(name, scale)
]


def read_courses(name: str, scale: str) -> list[Course]:
    shown = require(evidence.load(definition.load(name, scale)))
    courses = [[metrics for _, metrics in curve.evaluations] for curve in shown.correct]
    return [course for course in courses if len(course) >= near.EVALUATIONS]


def simulate(name: str, scale: str, count: int, chance: random.Random) -> list[Course]:
    """Runs of as many new seeds, which vary together as those of the evidence do."""
    courses = [course[: near.EVALUATIONS] for course in read_courses(name, scale)]
    means = [
        {key: sum(course[at][key] for course in courses) / len(courses) for key in courses[0][at]}
        for at in range(near.EVALUATIONS)
    ]

    def draw() -> Course:
        weights = [chance.gauss(0, 1) / math.sqrt(len(courses) - 1) for _ in courses]
        pairs = list(zip(weights, courses, strict=True))
        return [
            {
                key: mean + sum(weight * (course[at][key] - mean) for weight, course in pairs)
                for key, mean in point.items()
            }
            for at, point in enumerate(means)
        ]

    return [draw() for _ in range(count)]


def find(courses: Sequence[Course], scale: Scale, of_result: int = 5) -> list[Close]:
    steps = [scale.measure(course) for course in courses]
    known = [each for each in steps if each is not None]
    assert len(known) == len(courses)
    return list(near.find_close(known, [at // of_result for at in range(len(known))], scale))


def load(name: str, scale: str) -> Scale:
    return require(near.load_scale(name, scale))


def test_few_evaluations_tell_nothing_and_there_are_enough() -> None:
    assert ("galaxy_shape", "mini") in SCALES
    scale = load("galaxy_shape", "mini")
    (course, *_) = read_courses("galaxy_shape", "mini")
    assert scale.measure(course[: near.EVALUATIONS]) is not None
    assert scale.measure(course[: near.EVALUATIONS - 1]) is None
    assert near.make_scale([course] * (near.SEEDS_MIN - 1)) is None
    assert near.make_scale([course] * near.SEEDS_MIN) is None  # seeds that do not differ
    assert scale.measure([{}, *course[1:]]) is None


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_one_of_ten_thousand_pairs_of_seeds_is_a_false_alarm_at_most(name: str, scale: str) -> None:
    known = load(name, scale)
    steps = [known.measure(course) for course in simulate(name, scale, 500, random.Random(48))]
    limit = math.sqrt(known.find_limit(1))
    pairs = [math.dist(a, b) <= limit for a, b in combinations([each for each in steps if each], 2)]
    assert len(pairs) > 100_000
    assert sum(pairs) / len(pairs) <= near.FALSE_ALARMS_MAX
    assert not find(simulate(name, scale, 500, random.Random(49)), known)


def change(course: Course, how: Callable[[str, int, float], float]) -> Course:
    return [{key: how(key, at, v) for key, v in point.items()} for at, point in enumerate(course)]


def diverge(course: Course, value: float) -> Course:
    return [*course[:3], dict.fromkeys(course[3], value), *course[4:]]


def add_noise(course: Course, scale: Scale, share: float, chance: random.Random) -> Course:
    """Add a share of what is usual between two seeds."""
    spreads = dict(scale.spreads)

    def add(key: str, at: int, value: float) -> float:
        return value + chance.gauss(0, share) * min(spreads[key]) if key in spreads else value

    return change(course, add)


def mix(*runs: Course) -> Course:
    return change(runs[0], lambda key, at, _: round(sum(r[at][key] for r in runs) / len(runs), 7))


PLANTED: dict[str, Callable[[list[Course], Scale, random.Random], Course]] = {
    "as it is": lambda runs, scale, chance: runs[2],
    "an offset": lambda runs, scale, chance: change(runs[2], lambda key, at, value: value + 0.01),
    "rounded": lambda runs, scale, chance: change(
        runs[2], lambda key, at, value: float(f"{value:.5g}")
    ),
    "noise": lambda runs, scale, chance: add_noise(runs[2], scale, 0.02, chance),
    "the mean of two": lambda runs, scale, chance: mix(runs[1], runs[2]),
    "the mean of three": lambda runs, scale, chance: mix(*runs[:3]),
    "the mean of four": lambda runs, scale, chance: mix(*runs[:4]),
    "the mean with noise": lambda runs, scale, chance: add_noise(
        mix(runs[1], runs[2]), scale, 0.02, chance
    ),
}


@pytest.mark.parametrize("is_own", [True, False], ids=["in the result", "of another result"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_changed_copy_is_found(name: str, is_own: bool) -> None:
    scale, chance = load("galaxy_shape", "mini"), random.Random(7)
    runs = simulate("galaxy_shape", "mini", 40, chance)
    at = 4 if is_own else 22
    runs[at] = PLANTED[name](runs, scale, chance)
    runs[30:32] = diverge(runs[30], 1e200), diverge(runs[31], -1e5)  # nobody is hidden by these
    found = find(runs, scale)
    assert {close.run for close in found} == {at}
    (close,) = {close.others for close in found}
    parents = {"three": (0, 1, 2), "four": (0, 1, 2, 3)}.get(name.split()[-1], (1, 2))
    assert close == (parents if "mean" in name else (2,))


def test_new_evidence_moves_the_limits() -> None:
    courses = [each[: near.EVALUATIONS] for each in read_courses("galaxy_shape", "mini")]
    middle = courses[0]
    wider = [change(each, lambda key, at, v: 3 * v - 2 * middle[at][key]) for each in courses]
    before, after = near.make_scale(courses), near.make_scale(wider)
    assert before is not None
    assert after is not None
    assert after.find_limit(1) == pytest.approx(before.find_limit(1), rel=1e-6)
    for (name, spreads), (same, others) in zip(before.spreads, after.spreads, strict=True):
        assert name == same
        assert others == pytest.approx([3 * spread for spread in spreads])
    assert before.find_limit(10**8) < before.find_limit(10**6) < before.find_limit(1)
