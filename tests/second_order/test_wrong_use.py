"""What K-FAC cannot be right for is refused by name, or left out with its reason."""

import copy
import logging
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cepheid.reference.torch.batch_norm import SpanBatchNorm2d
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.second_order import KFAC, Options
from cepheid.second_order.options import UseError
from tests.second_order import assert_misused

INPUTS = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
TARGETS = torch.arange(8) % 2


def make_network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def step_with_scaler(infinite: bool) -> None:
    """The directions are too large for float16; maybe one gradient is infinite before K-FAC."""
    network = make_network()
    kfac = KFAC(network, Options(simulated_ranks=2, gradient_format="float16"))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(functional.cross_entropy(network(INPUTS), TARGETS)).backward()
    gradient = next(network.parameters()).grad
    assert gradient is not None
    gradient *= float("inf") if infinite else 1e9
    before = copy.deepcopy(network.state_dict())
    scaler.unscale_(optimizer)
    kfac.step(loss_scale=scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0  # the step was left out
    for name, weights in network.state_dict().items():
        assert torch.equal(weights, before[name])


def test_what_became_infinite_when_it_was_sent_is_refused_unless_it_was_before() -> None:
    """Although a loss is scaled; what was infinite before is left to the scaler."""
    step_with_scaler(infinite=True)
    sent = r"gradient of \w+ is not finite after it was sent"
    assert_misused(sent, step_with_scaler, infinite=False)


def find_factors(options: Options, reentrant: bool | None) -> list[Tensor]:
    """The factors of two layers; recomputed in the backward pass unless ``reentrant`` is None."""
    network, inputs = make_network(), INPUTS.clone().requires_grad_()
    kfac = KFAC(network, options)
    for _ in range(2):
        network.zero_grad()
        first, last = inputs.split(4)
        for part, targets in ((first, TARGETS[:4]), (last, TARGETS[4:])):
            with kfac.accumulate() if part is first else nullcontext():
                if reentrant is None:
                    outputs = network(part)
                else:
                    outputs = checkpoint(network, part, use_reentrant=reentrant)
                assert isinstance(outputs, Tensor)
                if options.fisher == "exact":
                    kfac.observe(outputs, share=0.5)
                (functional.cross_entropy(outputs, targets) / 2).backward()
        kfac.step()
    return [average for layer in kfac.layers for average in layer.averages]


def test_layers_recomputed_by_checkpointing_have_the_same_factors_unless_reentrant() -> None:
    for options in (Options(), Options(fisher="exact"), Options(overlap=True)):
        factors = [find_factors(options, reentrant) for reentrant in (False, None)]
        torch.testing.assert_close(*factors, rtol=0, atol=0)
    seen = r'"0" has a gradient, .* use_reentrant=False'
    assert_misused(seen, find_factors, Options(), reentrant=True)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Linear(3, 2), torch.ones(3)),
        (nn.Conv2d(3, 2, 1), torch.ones(3, 4, 4)),
        (nn.Embedding(3, 2), torch.tensor(1)),
    ],
    ids=str,
)
def test_an_input_without_samples_is_refused(layer: nn.Module, inputs: Tensor) -> None:
    KFAC(layer)
    name = type(layer).__name__
    assert_misused(f'"{name}" has an input of shape .* no dimension for', layer, inputs)
    layer(inputs[None])


def backward(network: nn.Module, inputs: Tensor = INPUTS) -> None:
    network(inputs).square().sum(1).mean().backward()


def test_hooks_come_and_go_between_steps_only() -> None:
    network = make_network()
    kfac = KFAC(network)
    backward(network)
    kfac.attach()  # it is attached: nothing changes
    assert_misused('detach: 8 samples passed through layer "0" since', kfac.detach)
    kfac.step()
    kfac.detach()
    kfac.detach()
    network.zero_grad()
    backward(network, INPUTS[:4])
    assert_misused(r'attach: layer "0" has a gradient of a pass .* zero_grad', kfac.attach)
    network.zero_grad(set_to_none=False)
    kfac.attach()
    backward(network, INPUTS[4:])
    kfac.remove()  # at any time


def test_passes_that_no_backward_pass_follows_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = make_network()
    kfac = KFAC(network)
    with torch.no_grad():
        network(INPUTS)
    backward(network)
    kfac.step()
    assert not caplog.records
    for _ in range(2):
        network.zero_grad()
        network(INPUTS)
        backward(network)
        kfac.step()
    (record,) = caplog.records
    assert 'layer "0" saw 16 samples, but gradients of 8' in record.getMessage()


class Doubled(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class Renamed(nn.Conv2d):
    """A convolution that is one."""


def test_layers_that_compute_something_else_or_have_no_shape_yet_are_left_out() -> None:
    network = nn.Sequential(
        Doubled(3, 3), nn.LazyLinear(2), Renamed(3, 3, 1), SpanBatchNorm2d(3, Span(), 1e-5, 0.1)
    )
    kfac = KFAC(network)
    assert [layer.name for layer in kfac.layers] == ["2", "3"]
    assert kfac.left_out == {
        "0": "Doubled has a forward of its own",
        "1": "its shape is not known yet; pass a batch through the model before",
    }
    assert_misused(r'no layer to .*; "1": its shape is not known', KFAC, network[:2])
    lazy = nn.Sequential(nn.LazyLinear(2))
    lazy(INPUTS)
    assert [layer.name for layer in KFAC(lazy).layers] == ["0"]


def test_the_whole_model_is_called_by_its_class(caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Linear(3, 2)
    kfac = KFAC(network, Options(simulated_ranks=2, gradient_format="float16"))
    backward(network, 1e4 * INPUTS)
    assert network.weight.grad is not None
    network.weight.grad *= 1e9
    with caplog.at_level(logging.WARNING), pytest.raises(UseError, match="gradient of Linear is"):
        kfac.step()
    assert "K-FAC: Linear: its largest value on rank 0" in caplog.text


def test_paused_passes_add_nothing_but_their_gradients_are_preconditioned() -> None:
    paused, plain = make_network(), make_network()
    kfac, other = KFAC(paused), KFAC(plain)
    for network in (paused, plain):
        backward(network)
    with kfac.pause():
        backward(paused)
    for each in (kfac, other):
        each.step()
    found, single = ([p.grad for p in each.parameters()] for each in (paused, plain))
    doubled = [2 * gradient for gradient in single if gradient is not None]
    torch.testing.assert_close(found, doubled, rtol=1e-4, atol=1e-6)


def test_layers_without_factors_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.LayerNorm(4), nn.Linear(4, 2))
    with caplog.at_level(logging.WARNING):
        KFAC(network, Options(skip=("2",)))
    (message,) = (record.getMessage() for record in caplog.records)
    assert '"1" (no factors for PReLU): left to the optimizer alone; skip them' in message
    caplog.clear()
    network[0].weight.requires_grad_(False)
    with caplog.at_level(logging.WARNING):
        KFAC(network, Options(skip=("1", "2")))
    assert not caplog.records


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ([make_network(), 1e-3], {}, r"options are a float, .* Options; fix: write KFAC\(model"),
        ([make_network(), {"damping": 1}], {}, "options are a dict, expected Options"),
        ([make_network().parameters()], {}, "an nn.Module; fix: give the model itself"),
        ([make_network()], {"damping": 0.01}, r"KFAC\(model, Options\(damping=0\.01\)\)"),
        ([make_network()], {"lr": 0.1}, "no option .lr.; the optimizer has it: leave it out"),
        ([make_network()], {"dampnig": 0.01}, 'no option .dampnig.; did you mean "damping"'),
    ],
)
def test_other_arguments_are_refused(arguments: list[Any], named: Any, message: str) -> None:
    assert_misused(message, KFAC, *arguments, **named)


def test_samples_that_are_not_first_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    class OverPositions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.last(self.first(inputs).mean(0))
            return outputs

    network = OverPositions()
    kfac = KFAC(network)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            network(torch.ones(5, 4, 3)).square().mean().backward()  # 5 positions of 4 samples
            kfac.step()
    (message,) = (record.getMessage() for record in caplog.records)
    assert 'layer "first" saw 5 samples and layer "last" 4; dimension 0' in message
