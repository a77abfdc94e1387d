"""mask_rcnn in PyTorch: the detection of objects with their masks.

Images are uint8 (n, pixels, pixels, 3). Targets are a packed ``Truth``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN, place_heads
from cepheid.benchmarks.mask_rcnn.model import FrozenNorm
from cepheid.benchmarks.mask_rcnn.stages import FeatureStage, HeadStage
from cepheid.reference.data.detection.average_precision import Detections, compute_average_precision
from cepheid.reference.data.detection.loader import Augmentation
from cepheid.reference.optim.schedules import DroppedRate
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table
from cepheid.reference.torch import images
from cepheid.reference.torch.detection.sampling import Truth, encode_masks
from cepheid.reference.torch.detection.scenes import (
    Pictures,
    Scenes,
    list_precisions,
    load_given,
    refuse_missing_images,
)
from cepheid.reference.torch.workload import (
    Both,
    Evaluation,
    Inference,
    Maps,
    Network,
    Norms,
    OnProgress,
    Recipe,
    Result,
    Seat,
    Stages,
    Update,
    Workload,
)

LARGEST_SMALL_PIXELS = 256


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(DroppedRate):
    """The hyperparameters of mask_rcnn; names are those of MLPerf's logs where these have them."""

    opt_name: Literal["sgd"]
    opt_momentum: float
    opt_weight_decay: float
    num_image_candidates: int
    data_augmentation: Literal["mirror", "orientations"]


def read_shape(config: RunConfig) -> Scenes:
    """Return the facts of a configuration; the number of candidates is one of the model's."""
    values = config.read(Hyperparameters)
    facts = {**config.definition.model, "num_image_candidates": values.num_image_candidates}
    return Scenes(config, facts, int(facts["pixels"]), values)


def make_network(shape: Scenes, norms: Norms, kind: type[MaskRCNN] = MaskRCNN) -> nn.Module:
    """Return the network, channels last; it keeps the moments of pixels."""
    norm: Any = FrozenNorm if shape.facts["frozen_norms"] else partial(nn.GroupNorm, 8)
    network = kind(shape.facts, norm, shape.config.seed)
    images.keep_pixel_moments(network, shape.facts)
    return convert_conv2d_weight_memory_format(network, torch.channels_last)


def make_optimizer(shape: Scenes, network: nn.Module) -> Recipe:
    """Return SGD. Biases learn twice as fast and do not decay."""
    values = shape.values
    trained = [p for p in network.named_parameters() if p[1].requires_grad]
    biases = [p for name, p in trained if name.endswith("bias")]
    weights = [p for name, p in trained if not name.endswith("bias")]
    groups = [
        {"params": weights, "weight_decay": values.opt_weight_decay},
        {"params": biases, "weight_decay": 0.0},
    ]
    options = {"lr": values.opt_base_learning_rate, "momentum": values.opt_momentum}
    return Recipe(torch.optim.SGD, groups, {**options, "fused": True})


def prepare_update(shape: Scenes, update: Update) -> None:
    """Set the learning rates."""
    rate = shape.values.compute_rate(update.samples)
    for group, factor in zip(update.groups, (1, 2), strict=True):
        group["lr"] = factor * rate


def open_data(shape: Scenes, seat: Seat) -> Pictures:
    """Map the images with their objects."""
    facts, has_sides = shape.facts, "shorter_side" in shape.facts
    augmentation = Augmentation(
        shape.pixels,
        has_parts=False,
        has_orientations=shape.values.data_augmentation == "orientations",
        mask_pixels=facts["mask_pixels"],
        sides=(facts["shorter_side"], facts["longer_side"]) if has_sides else None,
        filling=tuple(map(round, facts["pixel_mean"])),
    )
    return Pictures(shape, seat, augmentation, make_targets)


def make_targets(
    first: int, boxes: Tensor, labels: Tensor, masks: Tensor, extents: Tensor
) -> Tensor:
    """Return the packed truth of images from the place ``first`` of the training on.

    Shapes are those of ``Truth``, but ``boxes`` are in shares of the images' extents.
    """
    keys = first + torch.arange(len(boxes))
    return Truth(keys, extents, boxes * extents.repeat(1, 2)[:, None], labels, masks).pack()


def make_noise(shape: Scenes, count: int, generator: torch.Generator) -> Both:
    """Return random images with a few boxes each, and their packed truth."""
    pixels, side = images.draw_images(count, shape.pixels, generator), shape.facts["mask_pixels"]
    boxes = images.draw_boxes(count, generator)
    labels, masks = torch.ones(boxes.shape[:2]), torch.ones(*boxes.shape[:2], side, side)
    extents = torch.full((count, 2), float(shape.pixels))
    return pixels, make_targets(0, boxes, labels, masks, extents)


def compute_loss(shape: Scenes, network: Network, pixels: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the images, a scalar."""
    return network(images.scale_pixels(network.module, pixels), targets).mean()


def predict(
    shape: Scenes, network: Network, pixels: Tensor, extents: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return detections with masks, as ``MaskRCNN.detect``.

    ``extents`` (n, 2) are the width and height of the images in pixels, here the whole of them.
    """
    if extents is None:
        extents = torch.full((len(pixels), 2), float(shape.pixels), device=pixels.device)
    with network.autocast():
        scaled = images.scale_pixels(network.module, pixels)
        return network.module.detect(scaled, extents)


def predict_noise(shape: Scenes, inference: Inference, noise: Both) -> None:
    """Predict once, in the shapes of an evaluation."""
    inference(noise[0], Truth.unpack(noise[1]).extents)


def evaluate(shape: Scenes, inference: Inference) -> Evaluation:
    """Return average precisions over the evaluation set, on every rank.

    Each image counts once, whatever the number of ranks. The first rank computes them from the
    detections of all. The details are the precisions of boxes and of masks, and the detections on
    the first rank.
    """
    data, ranks = inference.data, inference.ranks
    parts, codes, count = [], [], 0
    for pixels, numbers, valid in data.loader.evaluation_batches(inference.size):
        rows = data.images.train_samples + numbers.numpy()
        extents = torch.from_numpy(data.loader.find_extents(rows)).float()
        boxes, labels, scores, masks = (each.cpu() for each in inference(pixels, extents))
        is_found = (labels > 0) & valid[:, None]
        boxes = boxes / extents.repeat(1, 2)[:, None]
        columns = (numbers[:, None].expand_as(labels), labels, scores, boxes)
        parts.append([column[is_found] for column in columns])
        sizes = torch.from_numpy(data.images.read_sizes(rows))[is_found.nonzero()[:, 0]]
        codes += encode_masks(boxes[is_found], masks[is_found], sizes)
        count += int(valid.sum())
    joined = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    *gathered, counts = zip(*ranks.all_gather_object((*joined, codes, count)), strict=True)
    refuse_missing_images(shape, counts)
    detections = precisions = None
    if ranks.is_first:
        *arrays, of_ranks = gathered
        found, labels, scores, boxes = map(np.concatenate, arrays)
        detections = Detections(found, labels, scores, boxes, list(chain(*of_ranks)))
        truth = data.source.make_truth(data.images, with_masks=True)
        precisions = [
            compute_average_precision(truth, detections, of_masks=of_masks)
            for of_masks in (False, True)
        ]
    of_boxes, of_masks = ranks.broadcast(precisions)
    metrics = of_boxes.name_metrics() | of_masks.name_metrics("mask_")
    return Evaluation(metrics, (of_boxes, of_masks, detections))


def report(shape: Scenes, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return the average precision of boxes and masks, by class and by size."""
    on_progress(1, 1)
    boxes, masks = (list_precisions(result.data, each) for each in result.details[:2])
    rows = tuple(
        {"objects": part, "ap": ap, "mask_ap": masks[part]}
        for part, ap in boxes.items()
        if ap is not None and masks[part] is not None
    )
    return [Table("Average precision by class and by size", rows)]


def draw(shape: Scenes, result: Result) -> Any:
    """Return a figure of masks in images of the evaluation set."""
    from cepheid.benchmarks.mask_rcnn.pictures import (  # matplotlib is slow to import
        COLUMNS,
        draw_masks,
    )
    from cepheid.reference.data.detection.pictures import choose_images

    data = result.data
    truth = data.source.make_truth(data.images, with_masks=True)
    numbers = choose_images(truth, COLUMNS)
    rows = data.images.train_samples + numbers
    shown = data.images.compose_pictures(rows, shape.config.definition.data)
    return draw_masks(shown, numbers, truth, result.details[2], data.images.class_names)


WORKLOAD: Workload[Scenes] = Workload(
    read_shape=read_shape,
    make_network=make_network,
    stages=Stages(
        cut=lambda shape, network, count: (FeatureStage(network), HeadStage(network)),
        sum_losses=lambda shape, losses, targets: losses.sum(),
    ),
    maps=Maps(
        part=lambda network: network.first[0],
        gathered=lambda first, ranks: {
            "handed": place_heads(ranks),
            "proposals.scores": range(ranks),
            "proposals.codes": range(ranks),
        },
    ),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    predict_noise=predict_noise,
    make_noise=make_noise,
    open_data=open_data,
    prepare_update=prepare_update,
    evaluate=evaluate,
    evaluation_batch=lambda shape: 50 if shape.pixels <= LARGEST_SMALL_PIXELS else 4,
    load_given=load_given,
    report=report,
    pictures=draw,
)
