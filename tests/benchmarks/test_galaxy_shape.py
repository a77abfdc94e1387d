"""What is special to galaxy_shape: the published layout, the likelihood, the symmetries."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.benchmarks.galaxy_shape import model
from cepheid.benchmarks.galaxy_shape.broken import average_quarter_turns
from cepheid.benchmarks.galaxy_shape.plain import PlainShapeNetwork, rotate_as_published
from cepheid.reference.galaxies.shapes import RADIUS_SQUARED
from cepheid.reference.galaxies.stamps import crop_middle, reorient
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.rules.errors import UserError
from tests.tasks import assert_same_gradients

FULL: dict[str, Any] = {
    "bands": 6, "pixels": 64, "filters": (32, 64, 128, 256), "input_scaling": "asinh",
}  # fmt: skip
NORM: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.99}
MAKE_NORM = partial(GroupBatchNorm2d, **NORM)


def test_stride_two_pads_as_published_turned_by_half_a_turn() -> None:
    convolution = model.SamePaddedConv2d(1, 1, stride=2)
    torch.nn.init.zeros_(convolution.weight)
    with torch.no_grad():
        convolution.weight[0, 0, 2, 2] = 1  # picks the lower right pixel of each window
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert convolution(image).flatten().tolist() == [5, 7, 13, 15]
    convolution.weight.data = convolution.weight.data.flip(2, 3)  # the upper left one
    assert convolution(image).flatten().tolist() == [0, 0, 0, 5]


@pytest.mark.parametrize("training", [True, False])
def test_the_published_network_has_the_same_loss_and_gradients(training: bool) -> None:
    ours = model.ShapeNetwork(**FULL, targets=2, prelu="position", make_norm=MAKE_NORM)
    for parameter in ours.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # slopes and biases start at 0
    ours.head.weight.data *= 0.1  # no posterior so narrow that its likelihood is all rounding
    plain = PlainShapeNetwork(**FULL, **NORM, targets=2, prelu="position")
    plain.copy_parameters(ours)
    stamps, labels = 30 * torch.randn(4, 6, 64, 64), torch.rand(4, 2)
    losses = []
    for network, images in ((ours, stamps.flip(2, 3)), (plain, stamps)):
        network.train(training)
        mean, scale = network(images)
        loss = model.negative_log_likelihood(mean, scale, labels).mean()
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_same_gradients(plain, rotate_as_published(gradients_of(ours)))


def test_the_plain_network_refuses_raw_pixels() -> None:
    raw = {**FULL, "input_scaling": "none"}
    with pytest.raises(UserError, match="has no input_scaling=none"):
        PlainShapeNetwork(**raw, **NORM, targets=2, prelu="position")


def gradients_of(network: Any) -> list[Any]:
    return [parameter.grad for parameter in network.parameters()]


def test_asinh_equals_torchs() -> None:
    values = torch.tensor([0.0, -0.0, 1e-30, -1e-5, 0.3, -1, 20, -65504, 1e9])
    torch.testing.assert_close(model.asinh(values), torch.asinh(values), rtol=3e-7, atol=0)
    assert model.asinh(values).signbit().tolist() == values.signbit().tolist()


def test_prelu_has_one_slope_per_position() -> None:
    layer = model.PReLU(2, 3, "position")
    assert layer.slope.shape == (3, 3, 2)
    image = torch.full((1, 2, 3, 3), -2.0)
    assert layer(image).abs().sum() == 0  # starts at 0
    with torch.no_grad():
        layer.slope[0, 2, 1] = 0.5
    assert layer(image)[0, 1, 0, 2] == -1


def test_initialisation_is_glorot_uniform() -> None:
    convolution = model.SamePaddedConv2d(64, 64, stride=1)
    bound = math.sqrt(6 / (64 * 9 + 64 * 9))
    assert convolution.weight.abs().max() <= bound
    assert convolution.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert convolution.bias is not None
    assert convolution.bias.abs().sum() == 0


def test_likelihood_is_torchs_whitening_its_inverse_and_coverage_calibrated() -> None:
    mean, labels = torch.randn(5, 3), torch.randn(5, 3)
    scale = torch.tril(torch.randn(5, 3, 3))
    scale.diagonal(dim1=1, dim2=2).abs_().add_(0.1)
    expected = -torch.distributions.MultivariateNormal(mean, scale_tril=scale).log_prob(labels)
    torch.testing.assert_close(model.negative_log_likelihood(mean, scale, labels), expected)
    scale = torch.tril(torch.rand(4, 3, 3)) + torch.eye(3)
    white = torch.randn(4, 3)
    labels = (scale @ white.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(model.whiten(torch.zeros(4, 3), scale, labels), white)
    scale = torch.tensor([[0.3, 0.0], [0.2, 0.1]]).expand(200_000, 2, 2)
    labels = (scale @ torch.randn(200_000, 2, 1)).squeeze(2)
    sums = model.sum_metrics(torch.zeros_like(labels), scale, labels) / len(labels)
    assert sums[2].item() == pytest.approx(0.68, abs=0.005)
    assert sums[3].item() == pytest.approx(0.95, abs=0.005)
    assert set(RADIUS_SQUARED) == {"coverage_68", "coverage_95"}


@pytest.mark.parametrize("code", range(8))
def test_reorientation_moves_pixels_and_labels_together(code: int) -> None:
    # A galaxy's (e1, e2) are proportional to its quadrupole (⟨x² − y²⟩, 2⟨xy⟩): measure it.
    galsim = pytest.importorskip("galsim", reason="needs the extra galsim")
    drawn = galsim.Gaussian(sigma=3).shear(g1=0.3, g2=-0.2).drawImage(nx=32, ny=32, scale=1).array
    stamps = np.stack([np.zeros_like(drawn), drawn])[:, None]
    labels = np.array([[0, 0], [0.3, -0.2]], np.float32)
    moved, moved_labels = reorient(stamps, labels, np.array([1, 0]), np.array([code, 0]))
    before, after = quadrupole(drawn), quadrupole(moved[0, 0])
    assert moved[1].max() == 0
    assert after / before[0] * 0.3 == pytest.approx(moved_labels[0], abs=1e-3)
    assert before[1] / before[0] == pytest.approx(-0.2 / 0.3, abs=1e-3)


def quadrupole(image: Any) -> Any:
    image = torch.as_tensor(image)
    side = image.shape[0]
    x = torch.arange(side) - (side - 1) / 2
    squares, cross = x**2, torch.outer(x, x)
    first = (image * (squares[None, :] - squares[:, None])).sum()
    return np.array([float(first), float(2 * (image * cross).sum())])


def test_a_symmetrised_stamp_has_no_orientation() -> None:
    galsim = pytest.importorskip("galsim", reason="needs the extra galsim")
    drawn = galsim.Gaussian(sigma=3).shear(g1=0.3, g2=-0.2).drawImage(nx=32, ny=32, scale=1).array
    stamps = torch.from_numpy(drawn.copy())[None, None]
    before, after = quadrupole(stamps[0, 0]), quadrupole(average_quarter_turns(stamps)[0, 0])
    assert np.abs(after).max() < 1e-5 * np.abs(before).max()
    assert average_quarter_turns(stamps).sum().item() == pytest.approx(stamps.sum().item())


# The middle of a stamp ----------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "pixels"), [(64, 32), (64, 64), (7, 3)])
def test_the_middle_of_a_stamp_stays_in_the_middle_and_is_a_view(width: int, pixels: int) -> None:
    axis = np.arange(width) - (width - 1) / 2
    images = np.broadcast_to(axis, (2, 6, width, width))
    kept = crop_middle(images, pixels)
    assert kept.shape == (2, 6, pixels, pixels)
    assert np.array_equal(kept[0, 0, 0], np.arange(pixels) - (pixels - 1) / 2)
    assert np.array_equal(crop_middle(images.swapaxes(2, 3), pixels)[1, 5, :, 0], kept[0, 0, 0])
    images = np.zeros((1, 1, 4, 4))
    crop_middle(images, 2)[...] = 1
    assert images.sum() == 4
