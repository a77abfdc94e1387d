"""LARS against steps computed by hand, in float64; learning rates by the number of samples."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from cepheid.benchmarks.registry import import_task
from cepheid.measure.studies import epochs
from cepheid.reference.optim.cycles import CyclicSchedule, follow_cycles
from cepheid.reference.optim.lars import Lars
from cepheid.reference.optim.schedules import (
    MomentumForm,
    Schedule,
    warmup_then_cosine,
    warmup_then_drops,
)
from cepheid.reference.run.config import configure
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition

ETA, DECAY, MOMENTUM, EPSILON = 0.001, 0.01, 0.9, 1e-3
WEIGHTS = (3.0, -4.0)  # norm 5
GRADIENTS = ((0.6, 0.8), (-0.3, 0.4), (0.0, 2.0))  # norms 1, 0.5 and 2
RATES = (10.0, 20.0, 5.0)


lars = partial(Lars, trust_coefficient=ETA, momentum=MOMENTUM, weight_decay=DECAY, epsilon=EPSILON)


def train(make: Any = lars, **options: Any) -> list[float]:
    """The weights after a step with each of the gradients and rates."""
    weight = torch.nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64))
    optimizer = make([weight], lr=RATES[0], **options)
    for at in range(3):
        step(weight, optimizer, at)
    values: list[float] = weight.detach().tolist()
    return values


def step(weight: Any, optimizer: Any, at: int) -> None:
    """Take the step of that number, from 0."""
    optimizer.param_groups[0]["lr"] = RATES[at]
    weight.grad = torch.tensor(GRADIENTS[at], dtype=torch.float64)
    optimizer.step()


def by_hand(form: MomentumForm, adaptive: bool = True, corrected: bool = False) -> list[float]:
    """The same with one number at a time, as figures 5 and 6 of Kumar et al. have it."""
    w, v, before = list(WEIGHTS), [0.0, 0.0], RATES[0]
    for rate, g in zip(RATES, GRADIENTS, strict=True):
        norms = math.hypot(*w), math.hypot(*g)
        adapted = rate
        if adaptive:
            adapted *= ETA * norms[0] / (norms[1] + DECAY * norms[0] + EPSILON)
        kept = MOMENTUM * (rate / before if corrected else 1)
        for i in range(2):
            decayed = g[i] + DECAY * w[i]
            if form == "scaled":
                v[i] = MOMENTUM * v[i] + decayed
                w[i] -= adapted * v[i]
            else:
                v[i] = kept * v[i] + adapted * decayed
                w[i] -= v[i]
        before = rate
    return w


@pytest.mark.parametrize(
    ("form", "adaptive", "corrected"),
    [
        ("scaled", True, False),
        ("scaled", False, False),
        ("unscaled", True, False),
        ("unscaled", False, False),
        ("unscaled", True, True),
    ],
)
def test_steps_are_those_of_the_paper(form: MomentumForm, adaptive: bool, corrected: bool) -> None:
    weights = train(form=form, adaptive=adaptive, corrected=corrected)
    assert weights == pytest.approx(by_hand(form, adaptive, corrected), rel=1e-14)


def test_without_adaptation_scaled_and_corrected_momentum_are_torchs_sgd() -> None:
    expected = train(torch.optim.SGD, momentum=MOMENTUM, weight_decay=DECAY)
    assert train(adaptive=False) == pytest.approx(expected, rel=1e-14)
    corrected = train(form="unscaled", corrected=True, adaptive=False)
    assert corrected == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("form", ["scaled", "unscaled"])
def test_each_tensor_has_its_own_rate_and_exempt_ones_none(form: MomentumForm) -> None:
    def make_weights() -> list[Any]:
        random = torch.Generator().manual_seed(0)
        weights = []
        for shape in [(3, 2), (4,), (2, 2, 2)]:
            values, gradient = torch.randn(2, *shape, generator=random, dtype=torch.float64)
            weights.append(torch.nn.Parameter(values))
            weights[-1].grad = gradient
        return weights

    exempt = {"weight_decay": 0.0, "adaptive": False}
    together, alone = make_weights(), make_weights()
    groups = [{"params": together[::2]}, {"params": together[1:2], **exempt}]
    Lars(groups, lr=3.0, weight_decay=DECAY, form=form).step()
    for weight, own in zip(alone, ({}, exempt, {}), strict=True):
        Lars([{"params": [weight], "weight_decay": DECAY, **own}], lr=3.0, form=form).step()
    for first, second in zip(together, alone, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-14, atol=0)


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_a_norm_of_zero_leaves_the_rate_as_it_is(zero: str) -> None:
    weight = torch.nn.Parameter(torch.full((2,), 0.0 if zero == "weight" else 2.0).double())
    weight.grad = torch.full((2,), 0.0 if zero == "gradient" else 1.0).double()
    Lars([weight], lr=0.5, weight_decay=0.1).step()
    expected = -0.5 * 1.0 if zero == "weight" else 2.0 - 0.5 * 0.1 * 2.0
    assert weight.detach().tolist() == pytest.approx([expected] * 2, rel=1e-15)


def test_state_goes_on_after_loading() -> None:
    def make_optimizer() -> tuple[Any, Lars]:
        weight = torch.nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64))
        return weight, Lars([weight], lr=1.0, form="unscaled", corrected=True)

    straight, optimizer = make_optimizer()
    for at in range(3):
        step(straight, optimizer, at)
    half, optimizer = make_optimizer()
    for at in range(2):
        step(half, optimizer, at)
    resumed, again = make_optimizer()
    resumed.data.copy_(half.data)
    again.load_state_dict(optimizer.state_dict())
    step(resumed, again, 2)
    assert torch.equal(straight, resumed)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="unscaled"):
        Lars([torch.nn.Parameter(torch.ones(1))], lr=1.0, form="half")  # type: ignore[arg-type]


# Schedules ----------------------------------------------------------------------------------------


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


def test_decay_collapses_follows_a_cosine_or_drops() -> None:
    schedule = Schedule(
        9.0, decay_samples=90, power=1.0, collapse_samples=60, collapse_length_samples=10
    )
    assert schedule.rate(60) == pytest.approx(3.0)
    assert schedule.rate(65) == pytest.approx(3.0 / 4)
    assert schedule.rate(70) == schedule.rate(90) == 0
    assert [schedule.weight_decay_factor(at) for at in (60, 61)] == [1.0, 2.0]
    assert not PLAIN.is_collapsed(10**9)
    rates = [
        warmup_then_cosine(at, base=2.0, end=1.0, warmup_samples=10, decay_samples=30)
        for at in (5, 10, 20, 30, 99)
    ]
    assert rates == pytest.approx([1.0, 2.0, 1.5, 1.0, 1.0])

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
    first = create(config, ranks).shape.schedule.peak  # of the optimizer at first
    assert first == pytest.approx(1.6)
    return arm, schedule


def test_the_published_rates_of_which_only_the_last_cycle_collapses() -> None:
    arm, schedule = published()
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
    assert sum(cycle["steps"] for cycle in arm.cycles) == 22_610  # 72.3 epochs
    for at, collapsed in ((1, False), (21_050, False), (21_051, True), (22_610, True)):
        assert schedule.is_collapsed(at * BATCH) == collapsed
        assert schedule.weight_decay_factor(at * BATCH) == (4 if collapsed else 1)
