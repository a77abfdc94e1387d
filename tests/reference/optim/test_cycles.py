"""Cyclic learning rates, at steps where the published cycles say the rate."""

import pytest

torch = pytest.importorskip("torch", reason="tasks need the extra torch")

from cepheid.benchmarks.registry import import_task
from cepheid.measure.studies import epochs
from cepheid.reference.optim.cycles import CyclicSchedule, follow_cycles
from cepheid.reference.run.config import configure
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition

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
