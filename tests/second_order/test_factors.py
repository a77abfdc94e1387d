"""Factors of one batch against their definitions, with every input unfolded."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.second_order import factors

# channels, (height, width), kernel, stride, padding, dilation
CONVOLUTIONS = [
    (8, (7, 5), 3, 1, 1, 1),
    (8, (6, 6), 3, 1, 0, 1),
    (8, (3, 2), 3, 1, 1, 1),
    (8, (1, 1), 3, 1, 1, 1),
    (8, (7, 9), (3, 5), 1, (2, 1), 1),
    (8, (5, 6), (2, 3), 1, "same", 1),
    (8, (9, 8), 3, 2, 1, 1),
    (8, (9, 9), 3, 1, 2, 2),
    (8, (8, 7), 1, 2, 0, 1),
    (8, (4, 4), 1, 1, 0, 1),
    (3, (11, 9), 7, 2, 3, 1),
    (3, (6, 6), 3, 1, "valid", 1),
    (8, (2, 3), 3, 1, (3, 2), 1),  # where the window sees nothing but padding
    (8, (3, 3), 3, 2, 2, 2),
    (3, (9, 9), 3, 1, 2, 2),
]


def _unfold(images: Tensor, module: nn.Conv2d) -> Tensor:
    """(n, positions, kernel row × kernel column × channel), and a 1 with a bias."""
    window = factors.make_window(module)
    padded = functional.pad(images, window.padding)
    columns = functional.unfold(padded, window.kernel, window.dilation, stride=window.stride)
    rows = columns.view(*images.shape[:2], -1, columns.shape[2]).permute(0, 3, 2, 1).flatten(2)
    if module.bias is not None:
        rows = torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], dim=2)
    return rows


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_inputs_of_a_convolution_equal_those_unfolded(
    case: tuple[int, tuple[int, int], int, int, int, int], bias: bool
) -> None:
    channels, size, kernel, stride, padding, dilation = case
    module = nn.Conv2d(channels, 2, kernel, stride, padding, dilation, bias=bias)
    images = torch.randn(4, channels, *size, generator=torch.Generator().manual_seed(1))
    rows = _unfold(images, module)
    expected = rows.flatten(0, 1).T @ rows.flatten(0, 1) / rows.shape[1]
    found = factors.compute_convolution_input_factor(images, factors.make_window(module), bias)
    assert (found - expected).norm() < 2e-6 * expected.norm()
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4, 5)])
def test_moments_of_channels(shape: tuple[int, ...]) -> None:
    inputs = 100 + torch.randn(shape)
    variance, mean = torch.var_mean(inputs.transpose(0, 1).flatten(1), dim=1, correction=0)
    torch.testing.assert_close(factors.compute_moments(inputs), (mean, variance))


def test_unfolding_in_parts_is_unfolding(monkeypatch: pytest.MonkeyPatch) -> None:
    module, images = nn.Conv2d(3, 2, 3, 2, 1, bias=False), torch.randn(5, 3, 9, 8)
    window = factors.make_window(module)
    at_once = factors.compute_convolution_input_factor(images, window, with_bias=False)
    monkeypatch.setattr(factors, "UNFOLDED_AT_ONCE", 2000)
    in_parts = factors.compute_convolution_input_factor(images, window, with_bias=False)
    assert torch.allclose(in_parts, at_once, atol=1e-5)


@pytest.mark.parametrize("columns", [3, 4, 7, 8])
def test_products_of_wide_rows_are_made_in_parts(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(5, columns)
    monkeypatch.setattr(factors, "WIDE_ROWS", 4)
    found = factors.multiply_rows(rows)
    assert torch.allclose(found, rows.T @ rows, atol=1e-6)
    assert columns < 4 or torch.equal(found.triu(2), found.T.triu(2))  # pairs share a block
