"""Fast samples of the flow are the plain way's, whatever makes them and however many there are."""

import functools
from pathlib import Path

import pytest
import torch

from cepheid.reference.torch.flow import sampling
from cepheid.reference.torch.flow.autoregressive import MaskedAutoregressiveFlow
from cepheid.reference.torch.flow.sampling import (
    NoCompilerError,
    Sampler,
    make_eager_sampler,
    make_native_sampler,
    make_plain_sampler,
)

FEATURES = 32
MAKERS = {
    "native": make_native_sampler,
    "eager": make_eager_sampler,
    "masked once": make_plain_sampler,
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
def sampler(name: str) -> Sampler:
    try:
        return MAKERS[name](flow())
    except NoCompilerError as error:
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


@pytest.mark.parametrize("name", MAKERS)
def test_a_sample_does_not_depend_on_those_beside_it(name: str) -> None:
    noise = torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(5))
    together = sampler(name)(noise)
    torch.testing.assert_close(sampler(name)(noise[7:8]), together[7:8], rtol=1e-4, atol=1e-4)


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
        except NoCompilerError:
            continue
        torch.testing.assert_close(sample(noise), other.sample(noise), rtol=1e-4, atol=1e-5)


def test_what_is_in_the_way_of_compiling_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "COMPILER", ("no-such-compiler",))
    with pytest.raises(NoCompilerError, match="no-such-compiler"):
        make_native_sampler(flow())


def test_an_error_of_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "sampling.cpp"
    source.write_text("nonsense;")
    monkeypatch.setattr(sampling, "SOURCE", source)
    with pytest.raises(NoCompilerError):
        make_native_sampler(flow())
