"""The masked autoregressive flow: a density, its published counts, and fast samples of it."""

import functools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cepheid.reference.torch.flow import sampling
from cepheid.reference.torch.flow.autoregressive import MaskedAutoregressiveFlow

SMALL = 5


def make_lively_flow(
    features: int, layers: int = 3, hidden: tuple[int, ...] = (12, 12), change: float = 0.3
) -> MaskedAutoregressiveFlow:
    """A flow in float64 with biases and weights far from those of a fresh one."""
    torch.manual_seed(3)
    flow = MaskedAutoregressiveFlow(features, layers, hidden).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(change * torch.randn_like(parameter))
    return flow


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    found: Tensor = torch.autograd.functional.jacobian(function, at)
    return found


def test_counts_are_the_published_ones_and_masks_those_of_tensorflow_probability() -> None:
    flow = MaskedAutoregressiveFlow(32)
    assert sum(parameter.numel() for parameter in flow.parameters()) == 725_504
    layers = [layer for made in flow.layers for layer in [*made.hidden, made.output]]
    assert sum(layer.bias.numel() + int(layer.mask.sum()) for layer in layers) == 373_536
    # Those of AutoregressiveNetwork(params=2, event_shape=4, hidden_units=[6]), by hand.
    made = MaskedAutoregressiveFlow(4, 1, (6,)).layers[0]
    assert made.degrees[1].tolist() == [1, 1, 2, 2, 3, 3]
    assert made.hidden[0].mask[2].tolist() == [1, 1, 0, 0]
    assert made.output.mask[4].tolist() == [1, 1, 1, 1, 0, 0]  # shift of the third feature
    assert made.output.mask[0].sum() == 0


def test_each_feature_depends_on_the_earlier_ones_only() -> None:
    made = make_lively_flow(SMALL, layers=1).layers[0]
    inputs = torch.randn(SMALL).double()
    for dependence in jacobian(lambda values: torch.stack(made(values)), inputs):
        assert torch.equal(dependence.triu(), torch.zeros_like(dependence))
        assert (dependence[1:].abs().sum(1) > 0).all()


def test_samples_give_their_noise_back_and_their_density() -> None:
    flow = make_lively_flow(SMALL)
    noise = torch.randn(64, SMALL, dtype=torch.float64)
    latents = flow.sample(noise)
    assert not torch.allclose(latents, noise, atol=0.1)
    torch.testing.assert_close(flow.compute_noise(latents)[0], noise)
    flow = make_lively_flow(SMALL)
    noise = torch.randn(SMALL, dtype=torch.float64)
    latents = flow.sample(noise[None])[0]
    stretch = jacobian(lambda given: flow.sample(given[None])[0], noise)
    normal = -0.5 * noise.square().sum() - 0.5 * SMALL * math.log(2 * math.pi)
    expected = normal - torch.linalg.slogdet(stretch).logabsdet
    torch.testing.assert_close(flow.log_prob(latents[None])[0], expected)


# Sampling -----------------------------------------------------------------------------------------


FEATURES = 32
MAKERS = {
    "native": sampling.make_native_sampler,
    "eager": sampling.make_eager_sampler,
    "masked once": sampling.make_plain_sampler,
}


@functools.cache
def flow() -> MaskedAutoregressiveFlow:
    """As published, with weights as lively as those of a trained one."""
    torch.manual_seed(1)
    made = MaskedAutoregressiveFlow(FEATURES)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return made.requires_grad_(False)


@functools.cache
def sampler(name: str) -> sampling.Sampler:
    try:
        return MAKERS[name](flow())
    except sampling.NoCompilerError as error:
        pytest.skip(f"no compiler: {error}")


@pytest.mark.parametrize(
    "count", [1, 2, 16, 17, 33, 100, pytest.param(1500, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", MAKERS)
def test_the_same_samples_as_the_plain_way(name: str, count: int) -> None:
    noise = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(count))
    given = noise.clone()
    latents = sampler(name)(noise)
    assert torch.equal(noise, given), "the noise is the caller's"
    torch.testing.assert_close(latents, flow().sample(noise), rtol=1e-4, atol=1e-4)


def test_threads_share_the_samples() -> None:
    threads = torch.get_num_threads()
    noise = torch.randn(1000, FEATURES, generator=torch.Generator().manual_seed(2))
    alone = sampler("native")(noise)
    torch.set_num_threads(3)
    try:
        assert torch.equal(sampler("native")(noise), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("hidden", [(7,), (40, 9), (12, 12, 30)])
def test_any_hidden_layers(hidden: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    other = MaskedAutoregressiveFlow(5, 2, hidden).requires_grad_(False)
    noise = torch.randn(20, 5)
    for make in MAKERS.values():
        try:
            sample = make(other)
        except sampling.NoCompilerError:
            continue
        torch.testing.assert_close(sample(noise), other.sample(noise), rtol=1e-4, atol=1e-5)


def test_a_missing_compiler_and_an_error_of_it_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sampling, "COMPILER", ("no-such-compiler",))
    with pytest.raises(sampling.NoCompilerError, match="no-such-compiler"):
        sampling.make_native_sampler(flow())
    monkeypatch.undo()
    source = tmp_path / "sampling.cpp"
    source.write_text("nonsense;")
    monkeypatch.setattr(sampling, "SOURCE", source)
    with pytest.raises(sampling.NoCompilerError):
        sampling.make_native_sampler(flow())
