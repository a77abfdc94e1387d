"""Damping, its shares and its raising; owners; intervals."""

import logging

import pytest
import torch
from torch import Tensor

from cepheid.second_order import statistic
from cepheid.second_order.exchange import assign_owners, estimate_inversion_cost
from cepheid.second_order.statistic import Interval, compute_steps_to_next
from tests.second_order import assert_misused


def _definite(size: int, seed: int) -> Tensor:
    rows = torch.randn(3 * size, size, generator=torch.Generator().manual_seed(seed))
    return rows.T @ rows / len(rows)


def test_pi_shares_damping_by_the_mean_eigenvalues() -> None:
    inputs, outputs = 8 * torch.eye(2), 2 * torch.eye(3)
    of_inputs, of_outputs = statistic.split_damping([inputs, outputs], 0.01, pi_correction=True)
    assert of_inputs.item() == pytest.approx(0.2)
    assert of_outputs.item() == pytest.approx(0.05)
    plain = statistic.split_damping([inputs, outputs], 0.01, pi_correction=False)
    assert [share.item() for share in plain] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("inputs", "outputs"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_pi_is_one_beside_a_factor_of_zeros(inputs: float, outputs: float) -> None:
    shares = statistic.split_damping([inputs * torch.eye(2), outputs * torch.eye(3)], 0.04, True)
    assert [share.item() for share in shares] == pytest.approx([0.2, 0.2])


def test_solving_and_inverses_precondition_and_equal_sizes_are_inverted_together() -> None:
    inputs, outputs, gradient = _definite(5, 1), _definite(4, 2), torch.randn(4, 5)
    shares = [torch.tensor(0.3), torch.tensor(0.2)]
    first, second = statistic.factorize_cholesky(["A", "B"], [inputs, outputs], shares)
    damped = [inputs + 0.3 * torch.eye(5), outputs + 0.2 * torch.eye(4)]
    expected = damped[1].inverse() @ gradient @ damped[0].inverse()
    for steps in ((1, 1), (9, 1), (9, 9)):
        found = statistic.precondition(gradient, first, second, 0.06, steps)
        assert torch.allclose(found, expected, atol=1e-5)
    matrices = [_definite(size, seed) for seed, size in enumerate([3, 5, 3, 4, 5])]
    results = statistic.factorize_cholesky(list("abcde"), matrices, [torch.tensor(0.1)] * 5)
    for matrix, result in zip(matrices, results, strict=True):
        expected = matrix + 0.1 * torch.eye(len(matrix))
        assert torch.allclose(result.factor @ result.factor.T, expected, atol=1e-5)


def test_damping_of_a_singular_factor_is_raised_and_said_but_not_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = torch.diag(torch.tensor([1.0, -0.5]))
    with caplog.at_level(logging.WARNING):
        sound, raised = statistic.factorize_cholesky(
            ["fc.A", "conv.A"], [torch.eye(2), broken], [torch.tensor(0.01)] * 2
        )
    assert sound.damping.item() == pytest.approx(0.01)
    assert raised.damping.item() == pytest.approx(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "K-FAC: conv.A is singular; its damping is raised to 0.1",
        "K-FAC: conv.A is singular; its damping is raised to 1",
    ]
    broken = torch.diag(torch.tensor([1.0, -1e12]))
    singular = r"conv\.A cannot be inverted .* raise damping"
    factor = ["conv.A"], [broken], [torch.tensor(0.01)]
    assert_misused(singular, statistic.factorize_cholesky, *factor)


def test_the_costliest_layers_are_shared_out_first() -> None:
    costs = [estimate_inversion_cost([size]) for size in (1, 2, 3, 4, 5, 6)]  # 1 8 27 64 125 216
    owners = assign_owners(costs, 2)
    assert owners.of_layer == (1, 0, 1, 1, 1, 0)
    assert owners.cost_by_rank == (224, 217)
    assert owners.imbalance == pytest.approx(224 / 220.5)
    assert "2   50.8%" in owners.format_table()
    assert "wait" not in owners.format_table()
    idle = assign_owners([1.0], 3).format_table()
    assert "ranks without a layer, which wait for the others: 1, 2" in idle


@pytest.mark.parametrize(
    ("one_before", "two_before", "steps"),
    [(0.2, 0.0, 4), (0.1, 0.0, 4), (0.05, 0.2, 8), (0.05, 0.05, 13), (float("nan"), 0.0, 4)],
)
def test_intervals_adapt(one_before: float, two_before: float, steps: int) -> None:
    assert compute_steps_to_next(Interval(8, 5), one_before, two_before, 0.1) == steps


def test_a_factor_that_stands_still_is_refreshed_less_and_less_often() -> None:
    interval, steps = Interval(), []
    for _ in range(6):
        count = compute_steps_to_next(interval, 0.0, 0.0, 0.1)
        interval = interval.record_refresh(interval.due, count)
        steps.append(count)
    assert steps == [2, 3, 5, 8, 13, 21]
    assert interval.due == sum(steps)
    assert interval.record_failure(40).due == 41


def test_products_in_bfloat16_are_rounded_and_no_more() -> None:
    matrices = [_definite(160, 1), _definite(130, 2)]
    shares, gradient = [torch.tensor(0.1)] * 2, torch.randn(130, 160)
    of_inputs, of_outputs = statistic.factorize_cholesky(["A", "B"], matrices, shares)
    rounded = statistic.factorize_cholesky(["A", "B"], matrices, shares, torch.bfloat16)
    for steps in ((1, 1), (9, 1), (9, 9)):
        expected = statistic.precondition(gradient, of_inputs, of_outputs, 0.01, steps)
        found = statistic.precondition(gradient, rounded[0], rounded[1], 0.01, steps)
        assert found.dtype is torch.float32
        error = ((found - expected).norm() / expected.norm()).item()
        # Not 0 even by solving: B has more columns to be multiplied with than rows.
        assert 1e-4 < error < 2**-7


@pytest.mark.parametrize(
    ("fisher", "damping"), [((9.0, 3.3, 1.21), 1e-7), ((9e4, 23310.0, 6037.29), 1e-3)]
)
def test_unit_wise_blocks_that_are_nearly_singular(
    fisher: tuple[float, float, float], damping: float
) -> None:
    found = statistic.precondition_unit_wise(
        torch.ones(2, 1), torch.tensor(fisher)[:, None], damping
    )
    assert found.isfinite().all()
    assert found.norm() <= 1.001 * 2**0.5 / damping  # what damping alone would leave


def test_rounded_products_are_off_by_no_more_than_the_inverses_are_large() -> None:
    """Directions of high curvature are small and may be lost in the rounding of others."""
    scales = torch.logspace(0, 4, 160)
    rotation = torch.linalg.qr(_definite(160, 3)).Q
    steep = rotation @ torch.diag(scales) @ rotation.T
    gradient = steep[:130, :] / scales.max()  # in the range of what is inverted
    shares = [torch.tensor(0.1)] * 2
    exact, rounded = (
        statistic.factorize_cholesky(["A", "B"], [steep, _definite(130, 2)], shares, products)
        for products in (torch.float32, torch.bfloat16)
    )
    expected, found = (
        statistic.precondition(gradient, pair[0], pair[1], 0.01, (9, 9))
        for pair in (exact, rounded)
    )
    largest = [torch.linalg.matrix_norm(each.compute_inverse(), ord=2) for each in exact]
    bound = 2**-7 * largest[0] * largest[1] * gradient.norm()
    assert (found - expected).norm() < bound
