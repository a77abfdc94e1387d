"""kfac with the other networks of figures 2 and 3 of its paper."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch.nn import functional

from cepheid.benchmarks.resnet50.model import ARCHITECTURES, ResNet
from cepheid.reference.run.config import configure
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.second_order import KFAC, Options
from tests.tasks import create

FULL, MINI = (definition.load("kfac", scale) for scale in ("full", "mini"))


@pytest.mark.parametrize("scale", [FULL, MINI], ids=["full", "mini"])
def test_other_networks_are_choices_of_the_open_division(
    scale: definition.Definition, data_root: Path
) -> None:
    with pytest.raises(UserError, match="network=resnet18: the closed division has resnet50 only"):
        configure(scale, overrides=["network=resnet18"])
    with pytest.raises(UserError, match="network=resnet19"):
        configure(scale, division="open", overrides=["network=resnet19"])
    meta = torch.device("meta")
    counts = []
    for name in scale.variants["network"]:
        settings = [f"network={name}", "model_variant=v1_5"]
        config = configure(scale, division="open", overrides=settings, data_root=data_root)
        assert config.definition.digest == scale.digest
        with meta:
            counts.append(create(config, TorchRanks(0, 1, meta)).build())
    published = [25_557_032, 11_689_512, 21_797_672, 44_549_160]
    mini = [1_486_106, 703_386, 1_336_538, 2_682_906]
    assert counts == (published if scale is FULL else mini)


DAMPING = 1e-4


def compute_dense_directions(network: Any, images: Any, labels: Any) -> dict[str, Any]:
    """(B ⊗ A + λI)⁻¹ g of all convolutions and linear layers, from unfolded inputs.

    The gradients stay in ``network``.
    """
    seen: dict[str, Any] = {}
    layers = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)
    }
    hooks = [
        module.register_forward_hook(
            lambda _, inputs, output, name=name: seen.update({name: (inputs[0].detach(), output)})
        )
        for name, module in layers.items()
    ]
    loss = functional.cross_entropy(network(images), labels)
    slopes = torch.autograd.grad(loss, [output for _, output in seen.values()], retain_graph=True)
    loss.backward()
    for hook in hooks:
        hook.remove()
    samples, found = len(images), {}
    for (name, (inputs, _)), slope in zip(seen.items(), slopes, strict=True):
        of = layers[name]
        if isinstance(of, torch.nn.Linear):
            rows, slope = (
                torch.cat([inputs, torch.ones(samples, 1)], 1)[:, :, None],
                slope[..., None],
            )
        else:
            rows = functional.unfold(inputs, of.kernel_size, of.dilation, of.padding, of.stride)
        columns = samples * slope.flatten(2)
        a = torch.einsum("nip,njp->ij", rows, rows).double() / (samples * rows.shape[2])
        b = torch.einsum("nip,njp->ij", columns, columns).double() / samples
        fisher = torch.kron(b, a) + DAMPING * torch.eye(len(a) * len(b))
        found[name] = torch.linalg.solve(fisher, join_gradients(of).flatten().double())
    return found


def join_gradients(module: Any) -> Any:
    """The gradients of weight and bias as rows of outputs."""
    gradients = [p.grad.flatten(1) if p.ndim > 1 else p.grad[:, None] for p in module.parameters()]
    return torch.cat(gradients, 1)


@pytest.mark.parametrize(("name", "layers"), [("resnet18", 7), ("resnet50", 10)])
def test_directions_of_both_kinds_of_blocks_are_those_of_dense_matrices(
    name: str, layers: int
) -> None:
    torch.manual_seed(2)
    network = ResNet(3, 2, dataclasses.replace(ARCHITECTURES[name], blocks=(1, 1)))
    network.eval()  # batch norms do not mix samples
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images, labels = torch.randn(6, 3, 12, 12), torch.arange(6) % 3
    expected = compute_dense_directions(network, images, labels)
    assert len(expected) == layers
    plain = {layer: join_gradients(network.get_submodule(layer)).flatten() for layer in expected}
    network.zero_grad()
    kfac = KFAC(network, Options(inverse="eigen", damping=DAMPING, average_decay=0))
    assert not kfac.left_out
    functional.cross_entropy(network(images), labels).backward()
    kfac.step()
    for layer, direction in expected.items():
        found = join_gradients(network.get_submodule(layer)).flatten()
        assert (found - direction).norm() / direction.norm() < 1e-3, layer
        assert (plain[layer] / DAMPING - direction).norm() / direction.norm() > 2e-3, layer
