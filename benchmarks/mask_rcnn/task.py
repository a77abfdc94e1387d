"""mask_rcnn in PyTorch: build, train, evaluate."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN
from cepheid.benchmarks.mask_rcnn.hyperparameters import Hyperparameters
from cepheid.benchmarks.mask_rcnn.stages import FeatureStage, HeadStage
from cepheid.reference.data.detection.average_precision import (
    AveragePrecision,
    compute_average_precision,
)
from cepheid.reference.data.detection.loader import Augmentation
from cepheid.reference.data.detection.truth import Detections
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table
from cepheid.reference.torch.detection.masks import encode_masks
from cepheid.reference.torch.detection.pyramid import FrozenNorm
from cepheid.reference.torch.detection.targets import Truth
from cepheid.reference.torch.detection.task import DetectionTask
from cepheid.reference.torch.parallel.plan import Stage, refuse_uneven_parts
from cepheid.reference.torch.ranks.distributed import TorchRanks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_SMALL_PIXELS = 256


def create(config: RunConfig, ranks: TorchRanks) -> "Segmentation":
    """Return the task for the timed loop."""
    return Segmentation(config, ranks)


class Segmentation(DetectionTask):
    """The detection of objects with their masks. Images are uint8 (n, pixels, pixels, 3).

    Targets are a packed ``Truth``.
    """

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    model: MaskRCNN
    network_type: type[MaskRCNN] = MaskRCNN
    evaluation_batch = 50  # of small images

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.facts["num_image_candidates"] = self.hyperparameters.num_image_candidates
        if self.pixels > LARGEST_SMALL_PIXELS:
            self.evaluation_batch = 4
        if self.sharing.stages > 1:
            setting, count = "the micro-batches of pipeline", self.sharing.micro_batches
            refuse_uneven_parts(setting, count, samples_of_a_replica=self.batch_per_rank)

    def make_detector(self) -> MaskRCNN:
        """Return the network."""
        norm: Any = FrozenNorm if self.facts["frozen_norms"] else partial(nn.GroupNorm, 8)
        return self.network_type(self.facts, norm, self.config.seed)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return SGD. Biases learn twice as fast and do not decay."""
        values = self.hyperparameters
        trained = [p for p in self.model.named_parameters() if p[1].requires_grad]
        biases = [p for name, p in trained if name.endswith("bias")]
        weights = [p for name, p in trained if not name.endswith("bias")]
        return self.make_parallel_optimizer(
            torch.optim.SGD,
            [
                {"params": weights, "weight_decay": values.opt_weight_decay},
                {"params": biases, "weight_decay": 0.0},
            ],
            lr=values.opt_base_learning_rate,
            momentum=values.opt_momentum,
            fused=True,
        )

    def prepare_update(self) -> None:
        """Set the learning rates of the step that completes ``samples``."""
        rate = self.hyperparameters.compute_rate(self.samples)
        for group, factor in zip(self.optimizer.param_groups, (1, 2), strict=True):
            group["lr"] = factor * rate

    def cut_stages(self) -> Sequence[Stage]:
        """Return what finds features and proposals, and the heads."""
        return FeatureStage(self.model, self.scale_pixels), HeadStage(self.model)

    def sum_losses(self, losses: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of images, (n,)."""
        return losses.sum()

    def make_augmentation(self) -> Augmentation:
        """Return how training images are varied."""
        facts, has_sides = self.facts, "shorter_side" in self.facts
        return Augmentation(
            self.pixels,
            has_parts=False,
            has_orientations=self.hyperparameters.data_augmentation == "orientations",
            mask_pixels=facts["mask_pixels"],
            sides=(facts["shorter_side"], facts["longer_side"]) if has_sides else None,
            filling=tuple(map(round, facts["pixel_mean"])),
        )

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's share of images and targets."""
        images, boxes, labels, masks, extents = self.loader.next_batch(self.samples)
        keys = self.first_sample + torch.arange(len(images))
        truth = Truth(keys, extents, boxes * extents.repeat(1, 2)[:, None], labels, masks)
        return self.to_device(images), self.to_device(truth.pack())

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images with NOISE_BOXES boxes each."""
        images, boxes = self.draw_noise_images(count, generator)
        side = self.facts["mask_pixels"]
        truth = Truth(
            torch.arange(count),
            torch.full((count, 2), float(self.pixels)),
            boxes * self.pixels,
            torch.ones(boxes.shape[:2]),
            torch.ones(*boxes.shape[:2], side, side),
        )
        return images, truth.pack()

    def compute_loss(self, images: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss of the images, a scalar."""
        with self.autocast():
            losses: Tensor = self.parallel(self.scale_pixels(images), targets)
        return losses.mean()

    def predict(self, images: Tensor, extents: Tensor | None = None, /) -> tuple[Tensor, ...]:
        """Return detections with masks, as ``MaskRCNN.detect``.

        ``extents`` (n, 2) are the width and height of the images in pixels, here the whole of them.
        """
        if extents is None:
            extents = torch.full((len(images), 2), float(self.pixels), device=images.device)
        with self.autocast():
            return self.model.detect(self.scale_pixels(images), extents)

    def predict_noise(self) -> None:
        """Predict once, in the shapes of an evaluation."""
        images, targets = self.draw_noise(self.evaluation_batch)
        self.compiled_predict(images, Truth.unpack(targets).extents)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return average precisions over the evaluation set, on every rank.

        Each image counts once, whatever the number of ranks. The first rank computes them from the
        detections of all.
        """
        self.model.eval()
        parts, codes, count = [], [], 0
        for images, numbers, valid in self.loader.evaluation_batches(self.evaluation_batch):
            rows = self.images.train_samples + numbers.numpy()
            extents = torch.from_numpy(self.loader.find_extents(rows)).float()
            found = self.compiled_predict(self.to_device(images), self.to_device(extents))
            boxes, labels, scores, masks = (each.cpu() for each in found)
            is_found = (labels > 0) & valid[:, None]
            boxes = boxes / extents.repeat(1, 2)[:, None]
            columns = (numbers[:, None].expand_as(labels), labels, scores, boxes)
            parts.append([column[is_found] for column in columns])
            for size, here, *own in zip(
                self.images.read_sizes(rows).tolist(), is_found, boxes, masks, strict=True
            ):
                codes += encode_masks(*(each[here] for each in own), *size)
            count += int(valid.sum())
        self.refuse_missing_images(count)
        joined = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
        gathered = self.ranks.all_gather_object((*joined, codes))
        precisions: Any = None
        if self.ranks.is_first:
            *arrays, of_masks = zip(*gathered, strict=True)
            joined = [np.concatenate(each) for each in arrays]
            masks_found = [code for part in of_masks for code in part]
            self.detections = Detections(joined[0], joined[1], joined[2], joined[3], masks_found)
            truth = self.source.make_truth(self.images, with_masks=True)
            precisions = [
                compute_average_precision(truth, self.detections, of_masks=of_masks)
                for of_masks in (False, True)
            ]
        reached: list[AveragePrecision] = self.ranks.broadcast(precisions)
        self.reached = reached
        boxes_reached, masks_reached = reached
        return boxes_reached.name_metrics() | masks_reached.name_metrics("mask_")

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the average precision of boxes and masks, by class and by size."""
        on_progress(1, 1)
        boxes, masks = map(self.list_precisions, self.reached)
        rows = tuple(
            {"objects": part, "ap": ap, "mask_ap": masks[part]}
            for part, ap in boxes.items()
            if ap is not None and masks[part] is not None
        )
        return [Table("Average precision by class and by size", rows)]

    def pictures(self) -> "Figure":
        """Return a figure of masks in images of the evaluation set."""
        from cepheid.benchmarks.mask_rcnn.pictures import (  # matplotlib is slow to import
            COLUMNS,
            draw_masks,
        )
        from cepheid.reference.data.detection.pictures import choose_images, compose_images

        truth = self.source.make_truth(self.images, with_masks=True)
        numbers = choose_images(truth, COLUMNS)
        rows = self.images.train_samples + numbers
        shown = compose_images(self.images, rows, self.definition.data)
        return draw_masks(shown, numbers, truth, self.detections, self.images.class_names)
