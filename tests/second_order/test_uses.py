"""Posteriors and criteria of a network, against dense matrices."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.second_order import information
from cepheid.second_order.information.blocks import FisherBlocks
from tests.second_order import assert_misused
from tests.second_order.test_information import CLASSES, make_data, make_network


def flatten(blocks: FisherBlocks, name: str, vectors: dict[str, Tensor]) -> Tensor:
    block = blocks.blocks[name]
    joined: Tensor = block.layer.join([vectors[each] for each in block.names])
    return joined.flatten()


def list_gradients(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the gradient of each sample, (n, parameters), one after the other."""
    model.eval()
    rows = []
    for inputs, targets in data:
        for place in range(len(inputs)):
            loss = functional.cross_entropy(
                model(inputs[place : place + 1]), targets[place : place + 1]
            )
            parts = torch.autograd.grad(loss, list(model.parameters()))
            rows.append(torch.cat([part.flatten() for part in parts]))
    model.train()
    return torch.stack(rows)


def test_a_posterior_has_the_moments_and_the_evidence_of_the_dense_matrix() -> None:
    model, precision = make_network(), 2.0
    blocks = information.fisher_blocks(model, make_data())
    posterior = information.LaplacePosterior(model, blocks, precision)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    drawn = [posterior.sample(generator) for _ in range(1000)]
    variances = posterior.find_variances()
    volume = 0.0
    for name, block in blocks.blocks.items():
        dense = block.to_dense()
        covariance = torch.linalg.inv(blocks.samples * dense + precision * torch.eye(len(dense)))
        found = flatten(blocks, name, variances)
        assert torch.allclose(found, covariance.diagonal(), rtol=1e-3), name
        samples = torch.stack([flatten(blocks, name, each) for each in drawn])
        deviations = samples - flatten(blocks, name, weights)
        # five standard errors of a mean and of a covariance
        error = covariance.diagonal().sqrt() / math.sqrt(len(drawn))
        assert ((deviations.mean(0)).abs() < 5 * error).all(), name
        scale = torch.outer(error, error) * math.sqrt(len(drawn))
        assert ((deviations.T @ deviations / len(drawn) - covariance).abs() < 7 * scale).all(), name
        volume += float(torch.linalg.slogdet(torch.linalg.inv(covariance) / precision)[1])
    squares = sum(float(weights[name].square().sum()) for name in blocks.parameters)
    expected = -15 * 0.7 - 0.5 * precision * squares - 0.5 * volume
    assert posterior.compute_log_evidence(0.7) == pytest.approx(expected, rel=1e-4)


def test_takeuchis_trace_is_that_of_the_dense_blocks_and_counts_free_parameters() -> None:
    model, data = make_network(), make_data()
    curvature = information.fisher_blocks(model, data)
    gradients = information.fisher_blocks(model, data, fisher="empirical")
    expected = 0.0
    for name, block in curvature.blocks.items():
        dense = block.to_dense() + 0.01 * torch.eye(len(block.to_dense()))
        solved = torch.linalg.solve(dense, gradients.blocks[name].to_dense())
        expected += float(solved.trace())
    found = information.compute_takeuchi_trace(curvature, gradients, 0.01)
    assert found == pytest.approx(expected, rel=1e-3)
    # Targets drawn from the predictions make both matrices one: all 12 count, one is idle.
    torch.manual_seed(0)
    layer, inputs = nn.Linear(3, CLASSES), torch.randn(40_000, 3)
    drawn = [(inputs, torch.distributions.Categorical(logits=layer(inputs)).sample())]
    curvature = information.fisher_blocks(layer, drawn)
    gradients = information.fisher_blocks(layer, drawn, fisher="empirical")
    # A softmax of three classes has eight free parameters of these twelve.
    found = information.compute_takeuchi_trace(curvature, gradients, 1e-5)
    assert found == pytest.approx(8, rel=0.03)


@pytest.mark.parametrize("is_curved", [False, True])
def test_a_noise_scale_is_that_of_the_dense_covariance(is_curved: bool) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, CLASSES, bias=False))
    data = make_data(30, 40)
    curvature = information.fisher_blocks(model, data) if is_curved else None
    gradients = list_gradients(model, data)
    matrix = curvature.blocks["1"].to_dense() if curvature else torch.eye(54)
    noise = float((torch.cov(gradients.T) @ matrix).trace())
    mean = gradients.mean(0)
    signal = float(mean @ matrix @ mean) - noise / len(gradients)
    found = information.compute_noise_scale(model, data, curvature=curvature)
    assert found == pytest.approx(noise / signal, rel=1e-3)


def test_a_mean_that_cannot_be_told_from_zero_has_an_infinite_noise_scale() -> None:
    model = nn.Linear(1, 1, bias=False)
    data = [(torch.tensor([[1.0], [1.0]]), torch.tensor([1.0, -1.0]))]

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0] * targets

    assert information.compute_noise_scale(model, data, losses) == math.inf


def test_wrong_use_says_what_is_wrong() -> None:
    model, data = make_network(), make_data()
    blocks, make = information.fisher_blocks(model, data), information.LaplacePosterior
    assert_misused("prior_precision is 0; it must be above 0", make, model, blocks, 0)
    lacking = r'the blocks have "0\.weight", which the model lacks'
    assert_misused(lacking, make, nn.Linear(2, 2), blocks, 1)
    others = information.fisher_blocks(model, data, fisher="empirical", skip=("0",))
    trace, scale = information.compute_takeuchi_trace, information.compute_noise_scale
    assert_misused("blocks of different layers", trace, blocks, others, 0.1)
    assert_misused("needs two samples or more", scale, model, make_data(1))
