"""Schedules, at samples where the rate can be said by hand."""

import pytest

from cepheid.reference.optim.schedules import (
    Schedule,
    scale_linearly,
    warmup_then_cosine,
    warmup_then_drops,
)

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


def test_linear_scaling() -> None:
    assert scale_linearly(0.1, 8192, 256) == pytest.approx(3.2)


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
