"""The Fisher matrices that are not empirical: their directions, and the factors K-FAC makes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.second_order import KFAC, Options, fisher
from cepheid.second_order.options import UseError
from tests.second_order import assert_misused

SAMPLES, CLASSES = 8, 4
EXACT = Options(fisher="exact", average_decay=0, damping=0.1)
GAUSS_NEWTON = replace(EXACT, fisher="gauss_newton")
SAMPLED = replace(EXACT, fisher="sampled", fisher_samples=3)


def _cross_entropies(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    labels = torch.zeros(len(logits), dtype=torch.long) if labels is None else labels
    return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)


def _squares(outputs: Tensor) -> Tensor:
    return (outputs - 1).square().sum(1)


def _network() -> nn.Sequential:
    """Its batch normalisation uses running statistics: samples do not depend on each other."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(2, 3, 2, padding=1),
        nn.BatchNorm2d(3).eval(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(27, 5),
        nn.Tanh(),
        nn.Linear(5, CLASSES),
    )


def _data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(SAMPLES, 2, 2, 2, generator=generator),
        torch.randint(CLASSES, (SAMPLES,), generator=generator),
        torch.rand(SAMPLES, CLASSES, generator=generator),
    )


def _sum_products(directions: list[Tensor]) -> Tensor:
    return sum((v[:, :, None] * v[:, None, :] for v in directions), torch.zeros(()))


def _softmax_fisher(logits: Tensor) -> Tensor:
    p = logits.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def test_the_directions_of_a_softmax_are_exact_and_one_fewer_than_classes() -> None:
    logits = 3 * torch.randn(6, 5)
    logits[0] = torch.tensor([40.0, 0, 0, 0, 0])  # all but certain of the first class
    logits[1] = torch.tensor([-40.0, 0, 0, 0, 40])
    found = list(fisher.make_softmax_roots(logits, torch.rand(6, 4)))
    assert len(found) == 4
    assert torch.allclose(_sum_products(found), _softmax_fisher(logits), atol=1e-6)


def test_the_hessian_of_cross_entropy_is_the_fisher_matrix_and_others_are_their_own() -> None:
    logits, labels = 2 * torch.randn(6, 5), torch.randint(5, (6,))
    roots = fisher.make_loss_roots(logits, lambda f: _cross_entropies(f, labels), torch.rand(6, 5))
    assert torch.allclose(_sum_products(list(roots)), _softmax_fisher(logits), atol=1e-5)
    outputs, noise = torch.randn(3, 2), torch.rand(3, 2)
    squares = _sum_products(list(fisher.make_loss_roots(outputs, _squares, noise)))
    assert torch.allclose(squares, 2 * torch.eye(2).expand(3, 2, 2), atol=1e-6)
    linear = _sum_products(list(fisher.make_loss_roots(outputs, lambda f: f.sum(1), noise)))
    assert not linear.any()
    with pytest.raises(UseError, match="not convex in the outputs"):
        list(fisher.make_loss_roots(outputs, lambda f: -_squares(f), noise))
    with pytest.raises(UseError, match=r'fix: use reduction="none"'):
        list(fisher.make_loss_roots(outputs, lambda f: f.sum(), noise))


def test_labels_are_drawn_from_the_predictions() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).expand(20_000, 4)
    (one,) = fisher.draw_label_gradients(logits, torch.rand(20_000, 1))
    assert torch.allclose(one.mean(0), torch.zeros(4), atol=0.02)
    two = list(fisher.draw_label_gradients(logits, torch.rand(20_000, 2)))
    expected = _softmax_fisher(logits[:1])[0]
    assert torch.allclose(_sum_products(two).mean(0), expected, atol=0.02)
    (certain,) = fisher.draw_label_gradients(logits[:1], torch.ones(1, 1))
    assert certain[0, 3] < 0  # rounding leaves no number above all classes


def _observe(options: Options, pieces: int = 1) -> dict[str, Tensor]:
    """The averages of all factors, and the preconditioned gradients."""
    network = _network()
    kfac = KFAC(network, options)
    images, labels, noise = _data()
    size = SAMPLES // pieces
    for piece in range(pieces):
        these = slice(piece * size, (piece + 1) * size)
        logits = network(images[these])
        drawn = noise[these, : fisher.count_noise(options.fisher, options.fisher_samples, logits)]
        kfac.observe(logits, share=1 / pieces, noise=drawn)
        (functional.cross_entropy(logits, labels[these]) / pieces).backward()
    kfac.step()
    found = {name: saved["tensors"][1] for name, saved in kfac.state_dict()["factors"].items()}
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return {**found, "gradients": torch.cat(gradients)}


@pytest.mark.parametrize("options", [EXACT, SAMPLED], ids=["exact", "sampled"])
def test_pieces_of_a_batch_equal_the_whole(options: Options) -> None:
    whole, pieces = _observe(options), _observe(replace(options, overlap=False), pieces=4)
    for name, wanted in whole.items():
        assert torch.allclose(pieces[name], wanted, rtol=1e-4, atol=1e-6), name


def test_random_signs_separate_the_samples_of_a_batch_normalisation() -> None:
    """Without them, what the norm subtracts from gradients would be taken from the curvature."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    inputs = torch.randn(64, 3)
    sums = {}
    for kind, options in (("signs", EXACT), ("sampled", replace(SAMPLED, fisher_samples=60))):
        kfac = KFAC(network, options)
        total = torch.zeros(())
        for _ in range(8):
            logits = network(inputs)
            kfac.observe(logits)
            logits.sum().backward()
            kfac.step()
            total = total + kfac.layers[0].averages[1].trace()
        sums[kind] = float(total)
        kfac.remove()
    assert sums["signs"] == pytest.approx(sums["sampled"], rel=0.1)


def test_wrong_use_is_named() -> None:
    network = nn.Linear(2, 3)
    outputs = network(torch.ones(4, 2))
    none = 'observe has no use with fisher="empirical"'
    assert_misused(none, KFAC(network).observe, outputs)
    lacking = 'needs losses with fisher="gauss_newton"'
    assert_misused(lacking, KFAC(network, GAUSS_NEWTON).observe, outputs)
    observe = KFAC(network, EXACT).observe
    assert_misused('takes no losses with fisher="exact"', observe, outputs, _squares)
    assert_misused(r"outputs of shape \(4, 3, 1\)", observe, outputs[..., None])
    one = r"softmax of one logit .* take the Gauss-Newton matrix"
    assert_misused(one, observe, outputs[:, :1])
    noise = torch.zeros(4, 3)
    assert_misused(r"noise has shape \(4, 3\), expected \(4, 2\)", observe, outputs, noise=noise)
    many = '1,000 outputs, more than 128; fix: set fisher="sampled"'
    assert_misused(many, observe, torch.zeros(1, 1000))
