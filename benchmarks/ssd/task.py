"""ssd in PyTorch: the detection of objects. Images are uint8 (n, pixels, pixels, 3).

Targets are float32 (n, most, 5): corners in shares of the side, and the label, 0 for none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.ssd.model import SSD, compute_cells, join_maps
from cepheid.reference.data.detection.average_precision import Detections, compute_average_precision
from cepheid.reference.data.detection.colours import Strengths
from cepheid.reference.data.detection.loader import Augmentation
from cepheid.reference.optim.schedules import DroppedRate
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table
from cepheid.reference.torch import images
from cepheid.reference.torch.detection import suppression
from cepheid.reference.torch.detection.default_boxes import (
    Level,
    Matches,
    compute_multibox_losses,
    decode,
    make_default_boxes,
    match_default_boxes,
)
from cepheid.reference.torch.detection.scenes import (
    Pictures,
    Scenes,
    list_precisions,
    load_given,
    refuse_missing_images,
)
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Maps,
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


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(DroppedRate):
    """The hyperparameters of ssd; the names are those of MLPerf's logs where these have them."""

    model_bn_span: int
    opt_name: Literal["sgd"]
    opt_momentum: float
    opt_weight_decay: float
    max_samples: Literal[1, 50]
    data_augmentation: Literal["ssd_crop_mirror_jitter", "orientations"]


@dataclass(frozen=True)
class Objects(Scenes):
    """The facts of ssd: the levels of its default boxes, and how training images are varied."""

    levels: Sequence[Level]
    augmentation: Augmentation
    negatives_per_positive: float

    @classmethod
    def read(cls, config: RunConfig) -> "Objects":
        """Return the facts of a configuration."""
        facts = config.definition.model
        pixels, negatives = int(facts["pixels"]), facts["negatives_per_positive"]
        values = config.read(Hyperparameters)
        levels = Level.list_levels(facts, compute_cells(facts, pixels))
        if values.data_augmentation == "orientations":
            augmentation = Augmentation(pixels, has_parts=False, has_orientations=True)
        else:
            strengths = Strengths(**facts["jitter"])
            augmentation = Augmentation(pixels, most_tries=values.max_samples, strengths=strengths)
        return cls(config, facts, pixels, values, levels, augmentation, negatives)


def make_network(shape: Objects, norms: Norms) -> nn.Module:
    """Return the network, channels last; it keeps the default boxes and the moments of pixels."""
    network = SSD(shape.facts, shape.levels, norms.make(**shape.config.norm_options))
    return keep_constants(shape, convert_conv2d_weight_memory_format(network, torch.channels_last))


def keep_constants(shape: Objects, network: nn.Module) -> nn.Module:
    """Let the network keep the default boxes and the moments of pixels; return it."""
    images.keep_pixel_moments(network, shape.facts)
    boxes = make_default_boxes(shape.pixels, shape.levels)
    network.register_buffer("defaults", boxes, persistent=False)
    return network


def make_optimizer(shape: Objects, network: nn.Module) -> Recipe:
    """Return SGD, which decays all parameters."""
    values = shape.values
    options = {"momentum": values.opt_momentum, "weight_decay": values.opt_weight_decay}
    options |= {"lr": values.opt_base_learning_rate, "fused": True}
    return Recipe(torch.optim.SGD, [{"params": list(network.parameters())}], options)


def prepare_update(shape: Objects, update: Update) -> None:
    """Set the learning rate."""
    update.groups[0]["lr"] = shape.values.compute_rate(update.samples)


def open_data(shape: Objects, seat: Seat) -> Pictures:
    """Map the images with their objects."""
    return Pictures(shape, seat, shape.augmentation, make_targets)


def make_targets(first: int, boxes: Tensor, labels: Tensor) -> Tensor:
    """Return the targets of boxes (n, most, 4) and labels (n, most); all places are alike."""
    return torch.cat((boxes, labels[:, :, None].to(boxes.dtype)), dim=2)


def make_noise(shape: Objects, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random images (n, pixels, pixels, 3) with a few boxes each, (n, most, 5)."""
    pixels = images.draw_images(count, shape.pixels, generator)
    boxes = images.draw_boxes(count, generator)
    return pixels, make_targets(0, boxes, torch.ones(boxes.shape[:2]))


def compute_loss(shape: Objects, network: Network, pixels: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the images, a scalar."""
    codes, logits = compute_maps(shape, network, pixels)
    matches = match(shape, network.module.defaults, targets)
    return compute_multibox_losses(codes, logits, matches, shape.negatives_per_positive).mean()


def match(shape: Objects, defaults: Tensor, targets: Tensor) -> Matches:
    """Return what the default boxes shall say, for targets (n, most, 5)."""
    boxes, labels = targets[:, :, :4], targets[:, :, 4].long()
    return match_default_boxes(boxes, labels, defaults, shape.facts["least_overlap"])


def compute_maps(shape: Objects, network: Network, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes (n, k, 4) and logits (n, k, classes + 1), in float32, of images."""
    codes, logits = network(images.scale_pixels(network.module, pixels))
    return join_maps(codes, 4).float(), join_maps(logits, shape.facts["classes"] + 1).float()


def predict(shape: Objects, network: Network, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the corners of all boxes, (n, k, 4), and their scores, (n, k, classes)."""
    codes, logits = compute_maps(shape, network, pixels)
    return decode(codes, network.module.defaults), logits.softmax(dim=2)[:, :, 1:]


def detect(
    shape: Objects, inference: Inference, pixels: Tensor, valid: Tensor
) -> suppression.Detections:
    """Return the detections in images; there are none in those not ``valid``, (n,)."""
    boxes, scores = inference(pixels)
    scores = scores.where(inference.to_device(valid)[:, None, None], 0.0)
    limits = ("least_score", "largest_overlap", "most_per_class")
    chosen = {limit: shape.facts[limit] for limit in limits}
    most = shape.facts["most_per_image"]
    return suppression.select_detections(boxes, scores, **chosen, most=most)


def evaluate(shape: Objects, inference: Inference) -> Evaluation:
    """Return average precisions over the evaluation set, on every rank.

    Each image counts once, whatever the number of ranks. The first rank computes them from the
    detections of all. The details are the precisions, and the detections on the first rank.
    """
    data, ranks = inference.data, inference.ranks
    parts, count = [], 0
    for pixels, numbers, valid in data.loader.evaluation_batches(inference.size):
        seen = detect(shape, inference, pixels, valid)
        parts.append((numbers[seen.images.cpu()], seen))
        count += int(valid.sum())
    seen = suppression.Detections.join(part for _, part in parts)
    columns = torch.cat([part for part, _ in parts]), seen.labels, seen.scores, seen.boxes
    mine = [*(column.cpu().numpy() for column in columns), count]
    *gathered, counts = zip(*ranks.all_gather_object(mine), strict=True)
    refuse_missing_images(shape, counts)
    detections = precision = None
    if ranks.is_first:
        arrays = [np.concatenate(of_ranks) for of_ranks in gathered]
        detections = Detections(arrays[0], arrays[1], arrays[2], arrays[3])
        precision = compute_average_precision(data.source.make_truth(data.images), detections)
    precision = ranks.broadcast(precision)
    return Evaluation(precision.name_metrics(), (precision, detections))


def report(shape: Objects, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return the average precision by class and by size."""
    on_progress(1, 1)
    parts = list_precisions(result.data, result.details[0])
    rows = tuple({"objects": part, "ap": value} for part, value in parts.items() if value)
    return [Table("Average precision by class and by size", rows)]


def draw(shape: Objects, result: Result) -> Any:
    """Return a figure of detections in images of the evaluation set."""
    from cepheid.benchmarks.ssd import pictures  # matplotlib is slow to import

    source, shown = result.data.source, result.data.images
    truth = source.make_truth(shown)
    numbers = pictures.choose_images(truth)
    rows = shown.train_samples + numbers
    composed = shown.compose_pictures(rows, shape.config.definition.data)
    return pictures.draw_detections(composed, numbers, truth, result.details[1], shown.class_names)


WORKLOAD: Workload[Objects] = Workload(
    read_shape=Objects.read,
    make_network=make_network,
    norms=lambda shape: Spans(shape.values.model_bn_span),
    maps=Maps(gathered=lambda network, ranks: dict.fromkeys(network.heads, range(ranks))),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    make_noise=make_noise,
    open_data=open_data,
    prepare_update=prepare_update,
    evaluate=evaluate,
    evaluation_batch=lambda shape: 100,
    load_given=load_given,
    report=report,
    pictures=draw,
)
