"""Schedules, at samples where the rate can be said by hand or is published."""

import pytest
import torch

from cepheid.benchmarks.registry import import_task
from cepheid.measure.studies import epochs
from cepheid.reference.optim.cycles import CyclicSchedule, follow_cycles
from cepheid.reference.optim.schedules import (
    Schedule,
    warmup_then_cosine,
    warmup_then_drops,
)
from cepheid.reference.run.config import configure
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition

PLAIN = Schedule(peak=8.0, end=0.5, warmup_samples=100, decay_samples=1100)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (PLAIN, {1: 0.08, 50: 4.0, 100: 8.0, 600: 0.5 + 7.5 / 4, 1100: 0.5, 5000: 0.5}),
        (Schedule(8.0, start=2.0, warmup_samples=100), {50: 5.0, 100: 8.0, 10_000: 8.0}),
        (Schedule(8.0, decay_samples=100, power=1.0), {25: 6.0, 100: 0.0}),
        (Schedule(8.0, decay_samples=100, decay="cosine"), {50: 4.0, 100: 0.0}),
        (
            Schedule(8.0, decay_samples=90, decay="step"),
            {29: 8.0, 30: 0.8, 59: 0.8, 60: 0.08, 80: 0.008, 200: 0.008},
        ),
    ],
)
def test_rates(schedule: Schedule, rates: dict[int, float]) -> None:
    assert {at: schedule.rate(at) for at in rates} == pytest.approx(rates)


def test_collapsed_decay() -> None:
    schedule = Schedule(
        9.0, decay_samples=90, power=1.0, collapse_samples=60, collapse_length_samples=10
    )
    assert schedule.rate(60) == pytest.approx(3.0)
    assert schedule.rate(65) == pytest.approx(3.0 / 4)
    assert schedule.rate(70) == schedule.rate(90) == 0
    assert [schedule.weight_decay_factor(at) for at in (60, 61)] == [1.0, 2.0]
    assert not PLAIN.is_collapsed(10**9)


def test_warm_up_then_cosine() -> None:
    rates = [
        warmup_then_cosine(at, base=2.0, end=1.0, warmup_samples=10, decay_samples=30)
        for at in (5, 10, 20, 30, 99)
    ]
    assert rates == pytest.approx([1.0, 2.0, 1.5, 1.0, 1.0])


def test_drops_follow_a_linear_warm_up() -> None:
    def rate(samples: int, factor: float = 0) -> float:
        return warmup_then_drops(
            samples, base=8.0, warmup_samples=100, warmup_factor=factor, drops=[1000, 2000]
        )

    assert [rate(at) for at in (25, 100, 1000)] == [2.0, 8.0, 8.0]
    assert [rate(at) for at in (1001, 2000, 2001)] == pytest.approx([0.8, 0.8, 0.08])
    assert [rate(at, factor=1) for at in (0, 50, 100)] == [4.0, 6.0, 8.0]


# Cyclic learning rates ----------------------------------------------------------------------------


BATCH = 4096


def published() -> tuple[epochs.Arm, CyclicSchedule]:
    """The cyclic arm at full scale, and the schedule of its task."""
    (arm,) = (a for a in epochs.load_comparison("resnet50", "full", "cycles").arms if a.cycles)
    full = definition.load("resnet50", "full")
    config = configure(full, division="open", overrides=arm.overrides)
    create = find_create(import_task(full, "torch"))
    ranks = TorchRanks(0, 1, torch.device("cpu"))
    schedule = follow_cycles(create, arm.cycles)(config, ranks).shape.schedule
    assert create(config, ranks).shape.schedule.peak == pytest.approx(
        1.6
    )  # of the optimizer at first
    return arm, schedule


def test_the_published_rates() -> None:
    _, schedule = published()
    rates = {
        780: 0.85,  # half of the warm-up from 0.1 to 1.6
        1560: 1.6,
        1560 + 6240: 1.6 * 2 / 3,
        7800 + 3750: 0.255,
        11_550 + 500: (0.255 + 0.764) / 2,
        11_550 + 1000: 0.764,
        16_300: 0.191,
        17_300: 0.572,
        21_050: 0.143,
        21_050 + 780: 0.143 / 4,
        22_610: 0.0,
        30_000: 0.0,
    }
    assert {at: schedule.rate(at * BATCH) for at in rates} == pytest.approx(rates)
    assert schedule.peak == 1.6


def test_only_the_last_cycle_collapses() -> None:
    arm, schedule = published()
    assert sum(cycle["steps"] for cycle in arm.cycles) == 22_610  # 72.3 epochs
    for at, collapsed in ((1, False), (21_050, False), (21_051, True), (22_610, True)):
        assert schedule.is_collapsed(at * BATCH) == collapsed
        assert schedule.weight_decay_factor(at * BATCH) == (4 if collapsed else 1)
