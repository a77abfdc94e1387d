"""chest_xray in PyTorch: what is found in a radiograph.

Images are uint8 (n, y, x, 1), labels float32 (n, 14).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.chest_xray.hyperparameters import (
    GivenFile,
    Hyperparameters,
    find_given_file,
)
from cepheid.benchmarks.chest_xray.model import LAST_LAYERS, make_backbone, rename_given
from cepheid.reference.data import radiographs
from cepheid.reference.data.image_files.crops import Cropping
from cepheid.reference.data.image_files.loader import Loader
from cepheid.reference.data.radiographs.auroc import (
    bootstrap_intervals,
    compute_auroc,
    measure_quality,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table, Value
from cepheid.reference.torch.images import (
    draw_images,
    keep_pixel_moments,
    load_given_weights,
    scale_pixels,
)
from cepheid.reference.torch.pieces import Pieces, cut
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Network,
    Norms,
    OnProgress,
    Recipe,
    Result,
    Seat,
    Spans,
    Update,
    Workload,
)


@dataclass(frozen=True)
class Findings:
    """The facts of chest_xray; ``given`` is the file of weights from which the training starts."""

    config: RunConfig
    values: Hyperparameters
    cropping: Cropping
    given: GivenFile | None

    @classmethod
    def read(cls, config: RunConfig) -> "Findings":
        """Return the facts of a configuration."""
        values = config.read(Hyperparameters)
        cropping = radiographs.make_cropping(int(config.definition.model["pixels"]))
        return cls(config, values, cropping, find_given_file(config))

    @property
    def last_layer(self) -> str:
        """How the names of the last layer begin, the only one initialised from the seed."""
        return LAST_LAYERS[self.values.model_backbone]


def make_network(shape: Findings, norms: Norms) -> nn.Module:
    """Return the backbone, channels last; it starts from the given weights if they are there."""
    facts = shape.config.definition.model
    normalisation = norms.make(**shape.config.norm_options)
    network = make_backbone(shape.values.model_backbone, facts, normalisation)
    is_real = not next(network.parameters()).is_meta
    if shape.given and shape.given.path.exists() and is_real:
        load_given(shape, network)
    keep_pixel_moments(network, facts)
    convert_conv2d_weight_memory_format(network, torch.channels_last)
    return network


def load_given(shape: Findings, network: Any) -> str | None:
    """Load the given weights, if any, into all layers but the last; return their digest."""
    if shape.given is None:
        return None
    return load_given_weights(
        network, shape.given.path, shape.given.digest, own=shape.last_layer, rename=rename_given
    )


def make_optimizer(shape: Findings, network: Any) -> Recipe:
    """Return Adam with two groups: what the weights are given for, and the last layer."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in network.named_parameters():
        groups[name.startswith(shape.last_layer)].append(parameter)
    options = {"weight_decay": shape.values.opt_weight_decay, "fused": True}
    return Recipe(
        torch.optim.Adam,
        [{"params": group} for group in groups],
        {**options, **shape.values.torch_options},
    )


def prepare_update(shape: Findings, update: Update) -> None:
    """Set both learning rates."""
    rate = shape.values.compute_rate(update.samples)
    factors = (1.0, shape.values.opt_last_layer_rate_factor)
    for group, factor in zip(update.groups, factors, strict=True):
        group["lr"] = factor * rate


class Batches:
    """Images with their labels; threads that decode them wait for the first batch."""

    def __init__(self, shape: Findings, seat: Seat) -> None:
        config = shape.config
        self.images = seat.load()
        self.loader = Loader(
            self.images, shape.cropping, config.seed, seat.share, seat.workers, pinned=seat.pins
        )

    def take(self, samples: int, size: int) -> Pieces:
        """Return this rank's share of images, half of them mirrored, and labels."""
        images, labels = self.loader.next_batch(samples)
        return cut(images, labels, size)


def make_noise(shape: Findings, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random images, (count, pixels, pixels, 1), and labels, (count, outputs)."""
    images = draw_images(count, shape.cropping.pixels, generator, channels=1)
    outputs = shape.config.definition.model["outputs"]
    return images, torch.rand(count, outputs, generator=generator).round()


def compute_loss(shape: Findings, network: Network, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over images and findings, a scalar in nats."""
    return binary_cross_entropy_with_logits(predict(shape, network, images).float(), labels)


def predict(shape: Findings, network: Network, images: Tensor) -> Tensor:
    """Return the logits of images, (n, 14); the network sees the grey value three times."""
    return network(scale_pixels(network.module, images))


def evaluate(shape: Findings, inference: Inference) -> Evaluation:
    """Return the areas under the ROC curves and their mean; the details are scores and labels.

    Each image counts once, whatever the number of ranks. Every rank has the scores of all.
    """
    parts = []
    for images, labels, valid in inference.data.loader.evaluation_batches(inference.size):
        scores = inference(images).float().cpu()
        parts.append((scores[valid].numpy(), labels[valid].numpy()))
    gathered = inference.ranks.all_gather_object(
        [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    )
    scores, truth = map(np.concatenate, zip(*gathered, strict=True))
    assert len(scores) == shape.config.definition.evaluation_samples
    return Evaluation(measure_quality(scores, truth), (scores, truth))


def report(shape: Findings, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return the area of each finding, with its interval."""
    scores, truth = result.details
    areas = compute_auroc(scores, truth)
    lows, highs = bootstrap_intervals(scores, truth)
    on_progress(1, 1)
    rows: tuple[Mapping[str, Value], ...] = tuple(
        {
            "finding": name,
            "images": int(truth[:, k].sum()),
            "auroc": float(areas[k]),
            "low": float(lows[k]),
            "high": float(highs[k]),
        }
        for k, name in enumerate(radiographs.FINDINGS)
    )
    return [Table("Area under the ROC curve by finding, with 95% bootstrap interval", rows)]


def draw(shape: Findings, result: Result) -> Any:
    """Return a figure of examples, ROC curves and areas."""
    from cepheid.benchmarks.chest_xray import pictures  # matplotlib is slow to import

    return pictures.draw_figure(result.data.images, *result.details)


WORKLOAD: Workload[Findings] = Workload(
    read_shape=Findings.read,
    make_network=make_network,
    norms=lambda shape: Spans(shape.values.model_bn_span),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    make_noise=make_noise,
    open_data=Batches,
    is_static=True,
    prepare_update=prepare_update,
    evaluate=evaluate,
    evaluation_batch=lambda shape: 250,
    load_given=load_given,
    report=report,
    pictures=draw,
)
