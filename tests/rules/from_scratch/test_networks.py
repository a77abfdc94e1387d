"""Each network of rules/from_scratch.md, written from its text, is the reference's.

The reference's weights are copied by shape and in order; then losses and gradients agree in double
precision. Parameters are counted at both scales, and first weights compared with the text.
"""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from cepheid.benchmarks.registry import import_task
from cepheid.reference.run.config import configure
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d, SpanBatchNorm2d
from cepheid.reference.torch.detection.sampling import Truth
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.workload import Network
from cepheid.rules import definition
from tests.rules.from_scratch import clips, galaxies, scenes, sentences
from tests.rules.from_scratch.layers import ResNet50, doubles, measure_entropies

BLOCKS, SAMPLES = (3, 4, 6, 3), 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A network from ``model`` and settings, and its loss on what the reference draws.

    ``measure`` takes the network, the model, the settings, the reference's network (for its random
    numbers) and a batch; ``change`` may change the batch. ``model`` has other sizes than mini.
    """

    make: Callable[[Any, Any], nn.Module]
    measure: Callable[..., Tensor]
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda a, b: (a, b)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameters: str | None = None  # beside the definition's: those with this backbone


def scale(pixels: Tensor, model: Any) -> Tensor:
    mean, deviation = (torch.tensor(model[f"pixel_{name}"]) for name in ("mean", "deviation"))
    return ((pixels.double() - mean) / deviation).permute(0, 3, 1, 2)


def measure_shapes(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Any:
    mean, factor = net(batch[0].double())
    return galaxies.nll(mean, factor, batch[1])


def measure_bayesian(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Any:
    noises = [module.noise for module in other.modules() if hasattr(module, "noise")]
    for noise in noises:
        noise.normal_()
    weights = net.draw(noises)
    m = torch.cat([mean.flatten() for _, mean in net.list_means()])
    s = F.softplus(torch.cat([spread.flatten() for spread in net.spreads]))
    p = model["prior_scale"]
    kl = (torch.log(p / s) + (s**2 + m**2) / (2 * p**2) - 0.5).sum()
    mean, factor = functional_call(net, dict(weights), batch[0].double())
    return galaxies.nll(mean, factor, batch[1]) + kl / values["kl_divided_by_samples"]


def measure_images(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Tensor:
    moments = {"pixel_mean": [0.485, 0.456, 0.406], "pixel_deviation": [0.229, 0.224, 0.225]}
    logits = net(scale(batch[0] / 255, moments))
    return measure_entropies(logits, batch[1], values["label_smoothing"]).mean()


def measure_findings(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Tensor:
    logits = net(scale(batch[0].expand(-1, -1, -1, 3), model))
    return F.binary_cross_entropy_with_logits(logits, batch[1].double())


def measure_ssd(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Tensor:
    codes, logits, sides = net(scale(batch[0], model))
    own = model, scenes.list_defaults(model, sides)
    images = zip(codes, logits, batch[1], strict=True)
    return torch.stack([scenes.ssd_loss(own[0], *image, own[1]) for image in images]).mean()


def measure_masks(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Tensor:
    truth = Truth.unpack(batch[1])
    model["num_image_candidates"] = values["num_image_candidates"]
    truths = zip(truth.boxes, truth.labels, truth.masks, strict=True)
    loss: Tensor = net(scale(batch[0], model), list(truths))
    return loss


def measure_clips(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Any:
    from cepheid.benchmarks.video_prediction.losses import Pass

    fading, stable = (values[f"growth_{part}_samples"] for part in ("fading", "stable"))
    samples, alpha = fading + stable + 96, 96 / fading  # a step with a penalty
    stage, other.next = (1, alpha), Pass(samples)
    pixels, span = 2 * model["first_pixels"], values["gan_deviation_span"]
    past, future = (clips.show(part, pixels, stage) for part in batch)
    predicted = net.generator(past, stage)
    real, false = torch.cat([past, future], 2), torch.cat([past, predicted], 2)
    t = draw_shares(values, samples, len(past))
    judge = partial(net.critic, stage=stage, span=span)
    weights = {name: each.detach() for name, each in net.critic.named_parameters()}
    score = functional_call(net.critic, weights, (false, stage, span))
    error = (predicted - future).abs().mean()
    loss = clips.critic_loss(judge, real, false.detach(), values, t) - score.mean()
    loss = loss + values["gan_pixel_weight"] * error
    return loss + (error / 2 - loss).detach()  # what is logged, with the gradients of the losses


def draw_shares(values: Any, samples: int, count: int) -> Tensor:
    from cepheid.reference.data.random_streams import make_generator

    random = make_generator(values["seed"], "mixtures", samples)
    return torch.from_numpy(random.random(count, np.float32)).double()


def measure_words(net: Any, model: Any, values: Any, other: Any, *batch: Tensor) -> Tensor:
    logits = net(*batch)
    losses = sentences.measure_losses(logits, batch[1], values["label_smoothing"])
    is_per_sentence = isinstance(net, sentences.GNMT)
    return losses.sum() / len(batch[1]) if is_per_sentence else losses.mean()


def draw_labels(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return first, torch.randn_like(second, dtype=torch.float64)


def draw_truth(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Give the boxes other labels and masks."""
    second = second.double()
    objects = second if second.shape[2] == 5 else second[:, 1:]
    objects[:, :, 4] = torch.randint(1, 3, objects.shape[:2]).double()
    side = round((objects.shape[2] - 5) ** 0.5)
    cells = torch.rand(*objects.shape[:2], side // 4, side // 4).round()  # no value lies at ½
    masks = cells.repeat_interleave(4, 2).repeat_interleave(4, 3)
    objects[:, :, 5:] = masks.flatten(2)
    return first, second


def draw_sentences(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """End each sentence earlier than the one before."""
    for tokens in (first, second):
        for number, sentence in enumerate(tokens):
            sentence[-1 - number] = sentences.END
            sentence[len(sentence) - number :] = sentences.PADDING
    return first, second


def make_classifier(model: Any, values: Any) -> nn.Module:
    is_d = values.get("model_variant") == "d"
    outputs = model.get("classes", model.get("outputs"))
    return ResNet50(model.get("width", 64), BLOCKS, outputs, is_d=is_d)


def make_given(model: Any, values: Any) -> nn.Module:
    """Return a network of which only the last layer begins at random."""
    net = make_classifier(model, values)
    for name, value in net.named_parameters():
        if not name.startswith("classifier"):
            del value.law  # type: ignore[attr-defined]
    return net


ALL = {"anchors_per_image": 4096, "boxes_per_image": 256, "positive_share": 0.5}  # are sampled
CASES = {
    "galaxy_shape": Case(lambda m, v: galaxies.Shapes(m, 64), measure_shapes, draw_labels),
    "galaxy_bnn": Case(lambda m, v: galaxies.BayesianShapes(m, 64), measure_bayesian, draw_labels),
    "galaxy_vae": Case(
        lambda m, v: galaxies.Generative(m, encodes=True),
        lambda net, m, v, other, *batch: net.measure_loss(
            batch[0].double(), batch[1], v["kl_weight"]
        ),
        draw_labels,
    ),
    "resnet50": Case(make_classifier, measure_images),
    "kfac": Case(make_classifier, measure_images),
    "chest_xray": Case(make_given, measure_findings, parameters="resnet50"),
    "ssd": Case(lambda m, v: scenes.SSD(m), measure_ssd, draw_truth, {"classes": 2}),
    "mask_rcnn": Case(lambda m, v: scenes.MaskRCNN(m), measure_masks, draw_truth, ALL),
    "video_prediction": Case(lambda m, v: clips.Networks(m), measure_clips),
    "transformer": Case(lambda m, v: sentences.Transformer(m), measure_words, draw_sentences),
    "gnmt": Case(lambda m, v: sentences.GNMT(m), measure_words, draw_sentences),
}


class Norms:
    def __init__(self, name: str) -> None:
        self.of_spans = partial(SpanBatchNorm2d, over=Span())
        self.kind: Any = GroupBatchNorm2d if name.startswith("galaxy") else self.of_spans

    def make(self, **options: Any) -> Any:
        return partial(self.kind, **options)


def open_reference(name: str, settings: Any = (), **model: Any) -> tuple[Any, Any, Any]:
    """Return the workload of a benchmark, the facts of a run, and the model's section."""
    chosen = definition.load(name, "mini")
    facts = {**chosen.model, **model}
    changed = dataclasses.replace(chosen, model=MappingProxyType(facts))
    config = configure(changed, overrides=settings)
    workload = import_task(chosen, "torch").WORKLOAD
    return workload, workload.read_shape(config), facts


def pair(ours: nn.Module, theirs: nn.Module) -> list[tuple[Any, Any]]:
    left, pairs = list(theirs.parameters()), []
    for own in ours.parameters():
        place = next(k for k, other in enumerate(left) if other.shape == own.shape)
        pairs.append((own, left.pop(place)))
    assert not left
    return pairs


@pytest.mark.parametrize("size", ["mini", "full"])
@pytest.mark.parametrize("name", CASES)
def test_networks_have_the_parameters_of_the_definition(name: str, size: str) -> None:
    chosen, case = definition.load(name, size), CASES[name]
    expected = chosen.model["parameters"]
    if size == "full" and case.parameters:
        expected = chosen.model["parameters_with"]["model_backbone"][case.parameters]
    with torch.device("meta"):
        net = case.make(dict(chosen.model), configure(chosen).hyperparameters)
    assert sum(value.numel() for value in net.parameters()) == expected


class Copy(NamedTuple):
    """A network of the text with the reference's weights, and a batch for both."""

    model: dict[str, Any]
    ours: Any
    theirs: Any
    batch: tuple[Tensor, Tensor]
    losses: tuple[Tensor, Tensor]
    predict: Callable[..., Any]  # by the reference


def copy_reference(name: str) -> Copy:
    """Copy the reference's weights, somewhat changed, and compute both losses of a batch."""
    case, (workload, shape, model) = CASES[name], open_reference(name, **CASES[name].model)
    values = {**shape.config.hyperparameters, "seed": shape.config.seed}
    generator = torch.manual_seed(1)
    theirs, ours = workload.make_network(shape, Norms(name)), case.make(model, values)
    with torch.no_grad():
        for own, other in pair(ours, theirs):
            other.add_(0.05 * torch.randn_like(other))
            own.copy_(other)
    batch = case.change(*workload.make_noise(shape, SAMPLES, generator))
    network = Network(theirs, theirs, nullcontext)
    found = case.measure(ours, model, values, theirs, *batch)
    losses = found, workload.compute_loss(shape, network, *batch)
    return Copy(model, ours, theirs, batch, losses, partial(workload.predict, shape, network))


@pytest.mark.parametrize("name", CASES)
@doubles()
def test_losses_and_gradients_are_those_of_the_reference(name: str) -> None:
    copy = copy_reference(name)
    found, expected = (loss.item() for loss in copy.losses)
    assert found == pytest.approx(expected, rel=1e-8)
    for loss in copy.losses:
        loss.backward()
    for own, other in pair(copy.ours, copy.theirs):
        size = float(other.grad.norm())
        assert torch.allclose(own.grad, other.grad, rtol=1e-5, atol=1e-7 * size)


@pytest.mark.parametrize("name", CASES)
def test_first_weights_are_those_of_the_text(name: str) -> None:
    workload, shape, model = open_reference(name)
    ours, drawn = CASES[name].make(model, shape.config.hyperparameters), []
    for seed in range(3):
        torch.manual_seed(seed)
        theirs = workload.make_network(shape, Norms(name))
        drawn.append([other.detach().flatten() for _, other in pair(ours, theirs)])
    for own, parts in zip(ours.parameters(), zip(*drawn, strict=True), strict=True):
        if hasattr(own, "law"):
            check_law(own.law, torch.cat(parts).double())


def check_law(law: tuple[float, float, bool], values: Tensor) -> None:
    """Compare first weights with their deviation and mean; masked ones are 0."""
    deviation, mean, is_even = law
    if not deviation:
        assert torch.allclose(values, torch.full_like(values, mean), rtol=1e-5)
        return
    values = values[values != 0] - mean
    error = deviation / len(values) ** 0.5
    assert abs(float(values.mean())) < 5 * error
    assert float(values.square().mean().sqrt()) == pytest.approx(deviation, abs=5 * error)
    largest = float(values.abs().max()) / deviation
    assert largest < 1.7321 if is_even else largest > 1.7321 or len(values) < 50
