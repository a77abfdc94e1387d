"""Each layer with each Fisher matrix, inverse and number of ranks, against dense matrices."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.second_order import KFAC, Options, fisher
from tests.distributed import on_ranks

SAMPLES, CLASSES, DAMPING, DRAWN = 8, 4, 0.1, 2
FISHERS, INVERSES = ("empirical", "sampled", "exact", "gauss_newton"), ("cholesky", "eigen")
Case = tuple[str, str, str]  # layer, Fisher matrix, inverse
Found = dict[str, Tensor]  # "A", "B" or "F", and "gradient", which was preconditioned


@dataclass(frozen=True)
class Problem:
    """A layer, its inputs (n, …), and the weights of positions, if any."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    weights: Tensor | None = None


PROBLEMS: Mapping[str, Problem] = {
    "linear": Problem(lambda: nn.Linear(5, 3), lambda: torch.randn(SAMPLES, 5)),
    "linear of positions": Problem(
        lambda: nn.Linear(5, 3, bias=False), lambda: torch.randn(SAMPLES, 6, 5)
    ),
    "convolution": Problem(
        lambda: nn.Conv2d(2, 3, 3, padding=1), lambda: torch.randn(SAMPLES, 2, 4, 3)
    ),
    "strides": Problem(
        lambda: nn.Conv2d(2, 3, 2, stride=2, bias=False), lambda: torch.randn(SAMPLES, 2, 4, 6)
    ),
    "embedding": Problem(lambda: nn.Embedding(5, 3), lambda: torch.randint(4, (SAMPLES, 2))),
    "weighed embedding": Problem(
        lambda: nn.Embedding(5, 3), lambda: torch.randint(4, (SAMPLES,)), torch.arange(SAMPLES) / 4
    ),
    "batch norm": Problem(
        lambda: nn.BatchNorm2d(3).eval(), lambda: 3 + torch.randn(SAMPLES, 3, 2, 2)
    ),
}
CASES: list[Case] = list(product(PROBLEMS, FISHERS, INVERSES))


def squares(logits: Tensor) -> Tensor:
    return logits.square().sum(1)


def make_case(layer: str) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """The layer, its inputs, what makes logits of its outputs, labels, and noise."""
    torch.manual_seed(3)
    module, inputs = PROBLEMS[layer].make(), PROBLEMS[layer].inputs()
    outputs = module(inputs).flatten(1).shape[1]
    readout, labels = torch.randn(outputs, CLASSES), torch.randint(CLASSES, (SAMPLES,))
    return module, inputs, readout, labels, torch.rand(SAMPLES, CLASSES)


def precondition(case: Case, rank: int = 0, ranks: int = 1) -> Found:
    """Factors of all ranks, loaded from a state, and the direction; alone with a scaled loss."""
    layer, kind, inverse = case
    module, inputs, readout, labels, noise = make_case(layer)
    options: dict[str, Any] = {"fisher": kind, "inverse": inverse, "damping": DAMPING}
    options |= {"fisher_samples": DRAWN} if kind == "sampled" else {}
    kfac = KFAC(module, Options(**options, average_decay=0, average_gradients=ranks > 1))
    share = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
    scale = 64.0 if ranks == 1 else 1.0
    if (weights := PROBLEMS[layer].weights) is not None:
        kfac.weigh({"": weights[share]})
    logits = module(inputs[share]).flatten(1) @ readout
    if kind != "empirical":
        count = fisher.count_noise(kfac.options.fisher, DRAWN, logits)
        losses = squares if kind == "gauss_newton" else None
        kfac.observe(logits, losses, loss_scale=scale, noise=noise[share, :count])
    (scale * functional.cross_entropy(logits, labels[share])).backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad /= scale
    kfac.step(loss_scale=scale)
    kfac.remove()
    again = KFAC(module, kfac.options)
    again.load_state_dict(kfac.state_dict())
    factors = again.state_dict()["factors"]
    found = {name[-1]: saved["tensors"][1] for name, saved in factors.items()}
    return {**found, "gradient": join_gradients(module)}


def join_gradients(module: nn.Module) -> Tensor:
    """The gradient as (outputs, inputs), for a batch norm as (2, channels)."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if isinstance(module, nn.Embedding):
        return gradients[0].T
    if isinstance(module, nn.BatchNorm2d):
        return torch.stack(gradients)
    return torch.cat([g.flatten(1) if g.ndim > 1 else g[:, None] for g in gradients], 1)


def find_hessians(kind: str, logits: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
    """The matrix of the logits of each sample, (n, classes, classes)."""
    p = logits.softmax(1)
    if kind == "gauss_newton":
        return 2 * torch.eye(CLASSES).expand(SAMPLES, -1, -1)
    if kind == "exact":
        return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    of_labels = [p - functional.one_hot(labels, CLASSES)]
    drawn = fisher.draw_label_gradients(logits, noise[:, :DRAWN])
    gradients = of_labels if kind == "empirical" else list(drawn)
    return sum((v[:, :, None] * v[:, None, :] for v in gradients), torch.zeros(()))


def unfold(module: nn.Module, inputs: Tensor) -> Tensor:
    """The inputs of each position, (n, positions, inputs), in the order of the weight."""
    if isinstance(module, nn.Embedding):
        return functional.one_hot(inputs, module.num_embeddings).float().view(SAMPLES, -1, 5)
    if isinstance(module, nn.Conv2d):
        window = module.kernel_size, module.dilation, module.padding, module.stride
        rows = functional.unfold(inputs, *window).transpose(1, 2)  # type: ignore[arg-type]
    else:
        rows = inputs.view(SAMPLES, -1, inputs.shape[-1])
    bias = torch.ones(*rows.shape[:2], 1) if module.bias is not None else rows[..., :0]
    return torch.cat([rows, bias], 2)


def compute_dense(case: Case) -> Found:
    """The same from unfolded inputs and dense matrices: (B ⊗ A + λI)⁻¹ g, or with λ split."""
    layer, kind, inverse = case
    module, inputs, readout, labels, noise = make_case(layer)
    outputs = module(inputs)
    logits = (outputs.flatten(1) @ readout).detach()
    hessians = find_hessians(kind, logits, labels, noise)
    functional.cross_entropy(outputs.flatten(1) @ readout, labels).backward()
    gradient = join_gradients(module)
    # By channel, position and class; what a convolution or a norm returns begins with channels.
    has_channels_first = outputs.ndim == 4
    slopes = readout.view(3, -1, CLASSES) if has_channels_first else None
    by_channel = readout.view(-1, 3, CLASSES).movedim(1, 0) if slopes is None else slopes
    if isinstance(module, nn.BatchNorm2d):
        normal = inputs.flatten(2) / (1 + module.eps) ** 0.5  # (n, c, p): as it was made
        parts = torch.einsum("ncp,cpk->nck", normal, by_channel), by_channel.sum(1)[None]
        both = [part.expand(SAMPLES, -1, -1) for part in parts]
        pairs = [(both[0], both[0]), (both[0], both[1]), (both[1], both[1])]
        rows = [torch.einsum("nck,nkl,ncl->c", a, hessians, b) / SAMPLES for a, b in pairs]
        matrices = torch.stack([torch.stack(rows[:2]), torch.stack(rows[1:])]).permute(2, 0, 1)
        damped = matrices + DAMPING * torch.eye(2)
        found = torch.linalg.solve(damped, gradient.T[..., None])[..., 0].T
        return {"F": torch.stack(rows), "gradient": found}
    rows_of_inputs = unfold(module, inputs)
    weights = PROBLEMS[layer].weights
    positions = torch.full(rows_of_inputs.shape[:2], 1 / rows_of_inputs.shape[1])
    positions = positions if weights is None else weights[:, None]
    a = torch.einsum("np,npi,npj->ij", positions, rows_of_inputs, rows_of_inputs) / SAMPLES
    b = torch.einsum("apk,nkl,bpl->ab", by_channel, hessians, by_channel) / SAMPLES
    if inverse == "eigen":
        damped = torch.kron(b.contiguous(), a.contiguous()) + DAMPING * torch.eye(len(a) * len(b))
        found = torch.linalg.solve(damped, gradient.flatten()).view_as(gradient)
    else:
        pi = (a.diagonal().mean() / b.diagonal().mean()).sqrt()
        half = torch.linalg.solve(b + DAMPING**0.5 / pi * torch.eye(len(b)), gradient)
        found = torch.linalg.solve(a + DAMPING**0.5 * pi * torch.eye(len(a)), half, left=False)
    return {"A": a, "B": b, "gradient": found}


def precondition_all() -> dict[Case, Found]:
    with start_ranks() as ranks:
        place = ranks.rank, ranks.world_size
        return {case: precondition(case, *place) for case in CASES}


@functools.cache
def find_on_ranks(ranks: int) -> list[dict[Case, Found]]:
    return on_ranks(ranks, precondition_all)


def list_found(case: Case, ranks: int) -> Iterator[Found]:
    """What each rank finds."""
    if ranks == 1:
        yield precondition(case)
    else:
        yield from (of_rank[case] for of_rank in find_on_ranks(ranks))


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_factors_and_directions_are_those_of_dense_matrices(case: Case, ranks: int) -> None:
    expected = compute_dense(case)
    for found in list_found(case, ranks):
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            if case[0] in ("convolution", "strides") and name == "A":
                # Its inputs are in another order, the channel last.
                assert torch.allclose(found[name].norm(), wanted.norm(), rtol=1e-4)
                continue
            values = found[name].diag_embed()[0] if len(found[name]) == 1 else found[name]
            assert torch.allclose(values, wanted, rtol=1e-3, atol=1e-5), name
