"""K-FAC on one rank, against itself: pieces, states, stale factors, weights of positions."""

import copy
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.batch_norm import SpanBatchNorm2d
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.second_order import KFAC, Options, sample_cross_entropy
from cepheid.second_order.options import UseError
from tests.second_order import assert_misused

EXACT = Options(inverse="eigen", damping=0.1, average_decay=0)


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(5, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 3, stride=2, padding=1, bias=False),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def _batch(samples: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 5, 4, 4, generator=generator)
    return images, torch.randint(3, (samples,), generator=generator)


def _gradients(network: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def _backward(network: nn.Module, seed: int = 0) -> None:
    """Leave the gradients of a batch, and of nothing before it."""
    images, targets = _batch(seed=seed)
    network.zero_grad()
    functional.cross_entropy(network(images), targets).backward()


def _step(network: nn.Module, kfac: KFAC, seed: int = 0) -> list[Tensor]:
    """Precondition the gradients of a batch, and return them."""
    _backward(network, seed)
    kfac.step()
    return _gradients(network)


def _precondition(
    network: nn.Module, options: Options, inputs: Tensor, targets: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients before and after."""
    kfac = KFAC(network, options)
    network.zero_grad()
    functional.cross_entropy(network(inputs), targets).backward()
    before = _gradients(network)
    kfac.step(learning_rate=0.1)
    return before, _gradients(network)


def test_sampled_fisher_is_that_of_the_predictions() -> None:
    network = nn.Linear(2, 3)
    inputs = torch.ones(1, 2).repeat(40_000, 1)
    kfac = KFAC(network, Options(fisher="sampled", average_decay=0))
    logits = network(inputs)
    kfac.observe_sampled(sample_cross_entropy(logits))
    assert network.weight.grad is None
    functional.cross_entropy(logits, torch.zeros(40_000, dtype=torch.long)).backward()
    kfac.step()
    p = logits[0].detach().softmax(0)
    found = kfac.layers[0].averages[1]
    assert torch.allclose(found, p.diag() - torch.outer(p, p), atol=0.01)


def test_sampled_fisher_sees_what_comes_before_an_activation_in_place() -> None:
    network, (images, targets) = _network(), _batch()
    copied = copy.deepcopy(network)
    kfac = KFAC(network, Options(fisher="sampled"))
    loss = functional.cross_entropy(network(images), targets)
    kfac.observe_sampled(loss)  # the real targets, so that both kinds are the same
    loss.backward()
    kfac.step()
    _, expected = _precondition(copied, Options(), images, targets)
    torch.testing.assert_close(_gradients(network), expected, rtol=1e-4, atol=1e-6)


def test_accumulated_passes_equal_one() -> None:
    network, (images, targets) = _network().eval(), _batch()
    _, expected = _precondition(network, Options(), images, targets)
    kfac = KFAC(network, Options(overlap=True))
    network.zero_grad()
    with kfac.accumulate():
        (functional.cross_entropy(network(images[:6]), targets[:6]) / 2).backward()
    (functional.cross_entropy(network(images[6:]), targets[6:]) / 2).backward()
    kfac.step()
    torch.testing.assert_close(_gradients(network), expected, rtol=1e-3, atol=1e-5)


def _train_in_pieces(size: int) -> tuple[list[Tensor], KFAC, list[int]]:
    """Weights after steps of 12 samples in pieces, and how many factors were due in each."""
    network = _network().eval()  # samples do not depend on each other
    kfac = KFAC(network, Options(stale=True, stale_tolerance=0.5, average_decay=0.5, damping=0.1))
    optimizer = torch.optim.SGD(network.parameters(), 0.05, 0.9)
    due = []
    for step in range(12):
        due.append(sum(each.due <= step for each in kfac.intervals.values()))
        images, targets = _batch(seed=step)
        optimizer.zero_grad()
        for inputs, labels in zip(images.split(size), targets.split(size), strict=True):
            loss = functional.cross_entropy(network(inputs), labels, reduction="sum") / 12
            loss.backward()
        kfac.step()
        optimizer.step()
    return [p.detach() for p in network.parameters()], kfac, due


def test_pieces_accumulate_with_stale_factors_as_whole_batches() -> None:
    weights, kfac, due = _train_in_pieces(size=5)  # the last piece has 2 samples
    expected, whole, _ = _train_in_pieces(size=12)
    assert kfac.intervals == whole.intervals
    assert 0 in due  # no factor is due in some steps, in others some of them, or all
    assert len(set(due)) > 2
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def test_overlap_needs_to_know_which_pass_is_the_last() -> None:
    network, (images, targets) = _network(), _batch()
    KFAC(network, Options(overlap=True))
    functional.cross_entropy(network(images), targets).backward()
    assert_misused(r"kfac\.accumulate", network, images)


def test_factors_are_float32_under_autocast() -> None:
    images, targets = _batch()
    found = []
    for is_enabled in (True, False):
        network = _network()
        kfac = KFAC(network, Options())
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_enabled):
            loss = functional.cross_entropy(network(images).float(), targets)
        loss.backward()
        kfac.step()
        found.append(kfac.layers[0].averages[0])
    assert found[0].dtype == torch.float32
    # The images themselves are float32: their factor must not be rounded to bfloat16.
    assert torch.allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_averages_keep_their_share() -> None:
    network = nn.Linear(2, 2, bias=False)
    kfac = KFAC(network, Options(average_decay=0.75))
    for value in (1.0, 3.0):
        network(torch.full((4, 2), value)).sum().backward()
        kfac.step()
    assert torch.allclose(kfac.layers[0].averages[0], torch.full((2, 2), 0.75 * 1 + 0.25 * 9))


def test_norms_are_kept_or_the_step_is_bounded() -> None:
    network, (images, targets) = _network(), _batch()
    before, after = _precondition(network, Options(rescaling="norm"), images, targets)
    for weight, bias in ((0, 1), (2, 3)):
        for_layer = [torch.cat([g[weight].flatten(), g[bias]]).norm() for g in (before, after)]
        assert for_layer[0].item() == pytest.approx(for_layer[1].item(), rel=1e-4)
    plain = _precondition(network, Options(), images, targets)[1]
    clipped = _precondition(network, Options(rescaling="kl_clip", kl_clip=1e-4), images, targets)[1]
    scale = clipped[0].flatten()[0] / plain[0].flatten()[0]
    product = sum(float((a * b).sum()) for a, b in zip(clipped, before, strict=True))
    assert 0.1**2 * product * scale == pytest.approx(1e-4, rel=1e-3)
    assert all(torch.allclose(a, scale * b, atol=1e-7) for a, b in zip(clipped, plain, strict=True))


@pytest.mark.parametrize(
    "options", [Options(), Options(inverse="eigen"), Options(stale=True)], ids=str
)
def test_a_saved_state_goes_on_with_the_same_steps(options: Options) -> None:
    def train(network: nn.Module, kfac: KFAC, optimizer: torch.optim.SGD, steps: range) -> None:
        for step in steps:
            _step(network, kfac, step % 2)
            optimizer.step()

    network = _network()
    kfac, optimizer = KFAC(network, options), torch.optim.SGD(network.parameters(), 0.05, 0.9)
    train(network, kfac, optimizer, range(6))
    states = copy.deepcopy([network.state_dict(), kfac.state_dict(), optimizer.state_dict()])
    train(network, kfac, optimizer, range(6, 12))

    resumed = _network()
    other, second = KFAC(resumed, options), torch.optim.SGD(resumed.parameters(), 0.05, 0.9)
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])
    second.load_state_dict(states[2])
    train(resumed, other, second, range(6, 12))
    torch.testing.assert_close([*network.parameters()], [*resumed.parameters()], rtol=0, atol=0)
    assert kfac.intervals == other.intervals


def test_stale_factors_are_refreshed_less_often_or_every_so_many_steps() -> None:
    network = _network()
    kfac = KFAC(network, Options(stale=True))
    for _ in range(20):
        _step(network, kfac)  # no optimizer: nothing but the sum of gradients changes
    assert kfac.intervals["0.A"].refreshes == 6  # at 0, 1, 3, 6, 11, 19
    assert kfac.refreshed_share == pytest.approx(6 / 20)
    kfac.remove()
    kfac = KFAC(network, Options(stale=True, stale_interval=4, stale_tolerance=1e9, damping=0.1))
    for step in range(10):
        assert {each.due <= step for each in kfac.intervals.values()} == {step % 4 == 0}
        _step(network, kfac)


def test_stale_is_exact_while_everything_changes() -> None:
    results = []
    for options in (Options(stale=True, stale_tolerance=1e-9), Options()):
        network = _network()
        kfac = KFAC(network, options)
        for seed in range(4):
            found = _step(network, kfac, seed)
        results.append(found)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_changed_damping_reaches_stale_inverses() -> None:
    network = _network()
    kfac = KFAC(network, Options(damping=0.1, stale=True, stale_tolerance=1e9))
    for _ in range(13):
        _step(network, kfac)  # no factor is due in the next steps
    for damping, is_renewed in ((0.12, False), (0.126, True), (0.125, False), (1.0, True)):
        kept = [layer.statistics[0].factored for layer in kfac.curvature.layers]
        kfac.damping = damping
        _step(network, kfac)
        now = [layer.statistics[0].factored for layer in kfac.curvature.layers]
        renewed = [a is not b for a, b in zip(kept, now, strict=True) if a is not None]
        assert set(renewed) == {is_renewed}
    found = _step(network, kfac)
    other = _network()  # of the same weights
    expected = _step(other, KFAC(other, Options(damping=1.0, average_decay=0)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    loaded = KFAC(_network(), Options(damping=0.1, stale=True))
    loaded.load_state_dict(kfac.state_dict())
    assert loaded.curvature.inverted_damping == loaded.damping == 1.0


def test_layers_are_left_out_by_name_and_by_kind() -> None:
    network = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.PReLU(), nn.Linear(2, 2), nn.Linear(2, 2)
    )
    network[3].weight = network[2].weight
    network.append(nn.Sequential(nn.Linear(2, 2)))
    network.append(nn.MultiheadAttention(2, 1))
    network.append(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    network.extend([nn.Linear(2, 2), nn.Embedding(5, 3, padding_idx=0)])
    kfac = KFAC(network, Options(skip=("4",)))
    assert [layer.name for layer in kfac.layers] == ["7"]
    assert kfac.left_out == {
        "0": "a convolution in 2 groups",
        "1": "no factors for PReLU",
        "2": "shares a parameter with 3",
        "3": "shares a parameter with 2",
        "4.0": "skipped by name",
        "5": "no factors for MultiheadAttention",
        "5.out_proj": "MultiheadAttention uses its weight without calling it",
        "6": "its weight is computed from other parameters",
        "6.parametrizations.weight": "no factors for ParametrizationList",
        "8": "an embedding with padding_idx, whose row has no gradient; weigh its positions 0",
    }
    refused = r'"0" \(Conv2d\) is not supported: a convolution in 2'
    assert_misused(refused, KFAC, network, Options(unsupported="refuse"))
    assert_misused(r'skip "head\.\*" matches no layer', KFAC, network, Options(skip=("head.*",)))
    assert_misused("no layer to precondition", KFAC, nn.PReLU())


def test_a_product_that_is_not_positive_clips_nothing() -> None:
    network = nn.Linear(2, 2)
    kfac = KFAC(network, Options(rescaling="kl_clip"))
    layer = kfac.layers[0]
    directions = {layer: torch.ones(2, 3)}
    kfac._rescale(directions, {layer: -torch.ones(2, 3)}, torch.tensor(-6.0), 0.1)
    assert directions[layer].tolist() == [[1.0] * 3] * 2


def test_two_passes_of_a_batch_norm_before_one_backward() -> None:
    """Each pass is judged by the mean and variance that it had."""
    first, second = torch.randn(6, 3), 5 + 3 * torch.randn(6, 3)
    found = []
    for together in (True, False):
        norm = SpanBatchNorm2d(3, Span(), 1e-5, 0.1)
        kfac = KFAC(norm, Options(average_decay=0))
        losses = []
        for inputs in (first, second):
            losses.append(norm(inputs[:, :, None, None]).pow(3).mean())
            if not together:
                losses.pop().backward()
        if together:
            sum(losses).backward()
        kfac.step()
        found.append(kfac.curvature.layers[0].averages[0])
    assert torch.allclose(found[0], found[1], rtol=1e-4)


def test_wrong_use_of_a_model_of_damping_and_of_a_state_which_forgets_what_was_known() -> None:
    network = nn.Linear(2, 2)
    kfac = KFAC(network)
    assert_misused("by keyword", network, input=torch.ones(1, 2))
    for damping in (-1, 0, float("inf"), float("nan"), "x", None):
        with pytest.raises(UseError, match=f"damping is {damping!r}; it must be a number above 0"):
            kfac.damping = damping  # type: ignore[assignment]
    assert_misused(r"no .*\.A of size 3", kfac.load_state_dict, {})
    with pytest.raises(UseError, match=r"no 0\.A of size 4"):  # of another model
        KFAC(nn.Sequential(nn.Linear(3, 2))).load_state_dict(KFAC(nn.Linear(3, 2)).state_dict())
    used = _network()
    kfac, other = KFAC(used), KFAC(_network())
    _step(used, kfac, seed=1)
    kfac.load_state_dict(other.state_dict())
    assert not any(saved["tensors"] for saved in kfac.state_dict()["factors"].values())
    assert not any(layer.is_ready for layer in kfac.layers)


def test_other_parameters_keep_their_gradients() -> None:
    network, inputs = nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 2)), torch.randn(5, 3)
    before, after = _precondition(network, Options(skip=("2",)), inputs, torch.zeros(5).long())
    changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert changed == [True, True, False, False, False]


def test_nothing_is_observed_without_gradients() -> None:
    network, (images, _) = _network(), _batch()
    kfac = KFAC(network)
    with torch.no_grad():
        network(images)
    kfac.remove()
    network(images)
    assert all(layer.samples == 0 for layer in kfac.layers)


def test_a_batch_that_overflowed_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    network, (images, targets) = _network(), _batch()
    kfac = KFAC(network, Options(average_decay=0))

    def step(scale: float) -> None:
        network.zero_grad()
        (scale * functional.cross_entropy(network(images), targets)).backward()
        kfac.step()

    step(1.0)
    known = kfac.layers[3].averages[1].clone()
    with caplog.at_level(logging.WARNING):
        step(float("inf"))
    assert "K-FAC: 6.B is not finite; it is left as it was" in caplog.messages
    assert torch.equal(kfac.layers[3].averages[1], known)
    step(1.0)
    assert all(gradient.isfinite().all() for gradient in _gradients(network))
    for _ in range(20):
        step(float("nan"))
    assert_misused("not finite in 21 steps", step, float("nan"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": 0.0}, "damping is 0.0; it must be a number above 0"),
        ({"damping": float("nan")}, "damping is nan"),
        ({"damping": float("inf")}, "damping is inf; it must be a number above 0 and finite"),
        ({"kl_clip": float("nan")}, "kl_clip is nan"),
        ({"average_decay": float("nan")}, "average_decay is nan"),
        ({"simulated_ranks": 2.5}, "simulated_ranks is 2.5; it must be a whole number from 0"),
        ({"fisher_samples": float("nan")}, "fisher_samples is nan; it must be a whole number"),
        ({"average_decay": 1.0}, "average_decay is 1.0"),
        ({"fisher": "true"}, "fisher is 'true'; fix: set empirical or sampled or exact"),
        ({"fisher": "sampled", "fisher_samples": 0}, "fisher_samples is 0"),
        ({"fisher_samples": 2}, 'nothing is drawn with fisher="empirical"; fix: leave it out'),
        ({"inverse": "lu"}, "fix: set cholesky or eigen"),
        ({"shard_update": True, "distribute_inverse": False}, "needs distribute_inverse"),
        ({"ranks_per_node": -1}, "ranks_per_node is -1"),
        ({"simulated_ranks": -1}, "simulated_ranks is -1"),
        ({"damping": "1"}, "damping is '1'; it must be a number"),
        ({"damping": True}, "damping is True; it must be a number"),
        ({"stale": "off"}, "stale is 'off'; fix: set True or False"),
        ({"distribute_inverse": 0}, "distribute_inverse is 0; fix: set True or False"),
        ({"skip": "10"}, "skip is '10'; expected names of layers; fix: give a tuple"),
        ({"skip": (1,)}, r"skip is \(1,\); expected names of layers"),
        ({"sums": "as_sent"}, "ranks that communicate add in float32; fix: set simulated_ranks"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    assert_misused(message, Options, **options)


def test_the_page_has_all_options_and_methods() -> None:
    page = (Path(__file__).parents[2] / "docs/kfac.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| \S.* \|$", page, re.MULTILINE)
    assert rows == [(each.name, repr(each.default)) for each in fields(Options)]
    named = set(
        re.findall(r"`(\w+)", page[page.index("| of `KFAC` |") : page.index("### Options")])
    )
    inner = {"compute_directions", "refuse_unobserved"}
    assert {name for name in dir(KFAC) if not name.startswith("_")} - inner <= named


def test_what_a_step_needs_is_asked_for() -> None:
    network = _network()
    clipping = KFAC(network, Options(rescaling="kl_clip"))
    assert_misused(r"call step\(learning_rate", clipping.step)
    assert_misused("none of its layers has a gradient; fix: call backward", KFAC(_network()).step)
    sample = KFAC(network).observe_sampled
    assert_misused('needs the option fisher="sampled"', sample, torch.zeros(()))
    kfac = KFAC(network, Options(fisher="sampled"))
    _backward(network)
    assert_misused("or observe_sampled before step", kfac.step)
    unseen = KFAC(network, EXACT)
    unseen.detach()
    _backward(network)
    assert_misused(r"has a gradient, but its factors are due .* attach\(\)", unseen.step)


def test_positions_without_weight_are_as_if_they_were_not_there() -> None:
    torch.manual_seed(4)
    padded = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    plain = copy.deepcopy(padded)
    inputs = torch.randn(2, 5, 3)
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])

    kfac = KFAC(padded, EXACT)
    kfac.weigh({"0": real * (2 / 7)})
    (padded(inputs) * real[..., None]).square().sum().div(2).backward()
    kfac.step()
    alone = KFAC(plain, EXACT)
    plain(inputs[real][None]).square().sum().backward()
    alone.step()
    factors = [layer.averages for layer in (*kfac.layers, *alone.layers)]
    assert torch.allclose(factors[0][0], factors[1][0], atol=1e-6)
    assert torch.allclose(2 * factors[0][1], factors[1][1], rtol=1e-4)  # of the mean of 2 samples


def test_weights_of_other_positions_are_refused() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    kfac = KFAC(network, EXACT)
    for name in ("1", "2"):
        weights = {name: torch.ones(6)}
        assert_misused(f'"{name}" matches no linear layer or', kfac.weigh, weights)
    kfac.weigh({"0": torch.ones(5)})
    wrong = r'"0" has weights of shape \(5,\), but .* has \(6,\)'
    assert_misused(wrong, network, torch.randn(6, 3))


@pytest.mark.parametrize("fisher", ["empirical", "exact"])
def test_an_activation_in_place_takes_no_output_of_tokens_out_of_the_graph(fisher: Any) -> None:
    torch.manual_seed(4)
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    inputs, factors = torch.randn(6, 5, 3), []
    for activation in (torch.relu, torch.relu_):
        for layer in (first, last):
            layer.zero_grad()
        network = nn.ModuleList([first, last])
        kfac = KFAC(network, Options(fisher=fisher, average_decay=0))
        logits = last(activation(first(inputs))).mean(1)
        if fisher == "exact":
            kfac.observe(logits)
        functional.cross_entropy(logits, torch.arange(6) % 2).backward()
        kfac.step()
        kfac.remove()
        factors.append(kfac.layers[0].averages)
    assert len(factors[0]) == 2
    torch.testing.assert_close(*factors, rtol=0, atol=0)


@pytest.mark.parametrize("fisher", ["empirical", "exact"])
def test_an_output_in_another_order_has_the_same_factors(fisher: Any) -> None:
    torch.manual_seed(4)
    inputs, factors = torch.randn(4, 3), []
    layer = nn.Linear(3, 4, bias=False)
    other = copy.deepcopy(layer)
    other.register_forward_hook(lambda module, given, output: output.T.contiguous().T)
    for each in (layer, other):
        kfac = KFAC(each, Options(fisher=fisher, average_decay=0))
        logits = each(inputs)
        if fisher == "exact":
            kfac.observe(logits)
        functional.cross_entropy(logits, torch.arange(4)).backward()
        kfac.step()
        factors.append(kfac.layers[0].averages)
    torch.testing.assert_close(*factors, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("has_gradient", [False, True])
def test_a_layer_that_no_pass_reached_may_have_a_gradient_of_zero(has_gradient: bool) -> None:
    network = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    kfac = KFAC(network, EXACT)
    for parameter in network[1].parameters():
        parameter.grad = torch.zeros_like(parameter) if has_gradient else None
    network[0](torch.randn(4, 3)).square().sum().backward()
    kfac.step()
    assert has_gradient or not kfac.layers[1].is_ready
    assert not any(bool(each.any()) for each in _gradients(network[1]))
