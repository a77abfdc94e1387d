"""ssd in PyTorch: build, train, evaluate."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.ssd.hyperparameters import Hyperparameters
from cepheid.benchmarks.ssd.model import SSD, compute_cells, join_maps
from cepheid.reference.data.detection.average_precision import (
    AveragePrecision,
    compute_average_precision,
)
from cepheid.reference.data.detection.colours import Strengths
from cepheid.reference.data.detection.loader import Augmentation
from cepheid.reference.data.detection.truth import Detections
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table
from cepheid.reference.torch.detection import suppression
from cepheid.reference.torch.detection.boxes import decode
from cepheid.reference.torch.detection.default_boxes import Level, make_default_boxes
from cepheid.reference.torch.detection.losses import compute_multibox_losses
from cepheid.reference.torch.detection.matching import Matches, match_default_boxes
from cepheid.reference.torch.detection.task import DetectionTask
from cepheid.reference.torch.image_task import ImageTask
from cepheid.reference.torch.ranks.distributed import TorchRanks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def create(config: RunConfig, ranks: TorchRanks) -> "Detection":
    """Return the task for the timed loop."""
    return Detection(config, ranks)


class Detection(DetectionTask, ImageTask):
    """The detection of objects. Images are uint8 (n, pixels, pixels, 3).

    Targets are float32 (n, most, 5): corners in shares of the side, and the label, 0 for none.
    """

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    model: SSD
    evaluation_batch = 100
    negatives_per_positive: float

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.levels = Level.list_levels(self.facts, compute_cells(self.facts, self.pixels))
        self.negatives_per_positive = self.facts["negatives_per_positive"]

    def make_detector(self) -> SSD:
        """Return the network, with batch norms over ``model_bn_span`` samples."""
        self.defaults = make_default_boxes(self.pixels, self.levels).to(self.ranks.device)
        normalisation = self.make_normalisation(
            epsilon=self.facts["batch_norm_epsilon"], momentum=self.facts["batch_norm_momentum"]
        )
        return SSD(self.facts, self.levels, normalisation)

    def make_network(self) -> nn.Module:
        """Return the network, channels last, for the images that this rank shares."""
        network = super().make_network()
        assert isinstance(network, SSD)
        return self.partition(network, gathered=network.heads)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return SGD, which decays all parameters."""
        values = self.hyperparameters
        return self.make_parallel_optimizer(
            torch.optim.SGD,
            [{"params": list(self.model.parameters())}],
            lr=values.opt_base_learning_rate,
            momentum=values.opt_momentum,
            weight_decay=values.opt_weight_decay,
            fused=True,
        )

    def learning_rate(self) -> float:
        """Return the learning rate of the step that completes ``samples``."""
        return self.hyperparameters.compute_rate(self.samples)

    def make_augmentation(self) -> Augmentation:
        """Return how training images are varied."""
        values = self.hyperparameters
        if values.data_augmentation == "orientations":
            return Augmentation(self.pixels, has_parts=False, has_orientations=True)
        return Augmentation(
            self.pixels, most_tries=values.max_samples, strengths=Strengths(**self.facts["jitter"])
        )

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's share of images and targets."""
        images, boxes, labels = self.loader.next_batch(self.samples)
        targets = torch.cat((boxes, labels[:, :, None].to(boxes.dtype)), dim=2)
        return self.to_device(images), self.to_device(targets)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images with NOISE_BOXES boxes each."""
        images, boxes = self.draw_noise_images(count, generator)
        return images, torch.cat((boxes, torch.ones_like(boxes[:, :, :1])), dim=2)

    def compute_loss(self, images: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss of the images, a scalar."""
        with self.autocast():
            maps = self.parallel(self.scale_pixels(images))
        codes, logits = self.join(maps)
        matches = self.match(targets)
        return compute_multibox_losses(codes, logits, matches, self.negatives_per_positive).mean()

    def match(self, targets: Tensor) -> Matches:
        """Return what the default boxes shall say, for targets (n, most, 5)."""
        boxes, labels = targets[:, :, :4], targets[:, :, 4].long()
        return match_default_boxes(boxes, labels, self.defaults, self.facts["least_overlap"])

    def join(self, maps: tuple[Sequence[Tensor], Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
        """Return codes (n, k, 4) and logits (n, k, classes + 1), in float32, of the maps."""
        codes, logits = maps
        return join_maps(codes, 4).float(), join_maps(logits, self.facts["classes"] + 1).float()

    def predict(self, images: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the corners of all boxes, (n, k, 4), and their scores, (n, k, classes)."""
        with self.autocast():
            maps = self.model(self.scale_pixels(images))
        codes, logits = self.join(maps)
        return decode(codes, self.defaults), logits.softmax(dim=2)[:, :, 1:]

    def detect(self, images: Tensor, valid: Tensor) -> suppression.Detections:
        """Return the detections in images; there are none in those not ``valid``, (n,)."""
        boxes, scores = self.compiled_predict(images)
        scores = scores.where(valid[:, None, None], 0.0)
        limits = ("least_score", "largest_overlap", "most_per_class")
        return suppression.select_detections(
            boxes,
            scores,
            **{limit: self.facts[limit] for limit in limits},
            most=self.facts["most_per_image"],
        )

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return average precisions over the evaluation set, on every rank.

        Each image counts once, whatever the number of ranks. The first rank computes them from the
        detections of all.
        """
        self.model.eval()
        self.average_statistics()
        parts, count = [], 0
        for images, numbers, valid in self.loader.evaluation_batches(self.evaluation_batch):
            found = self.detect(self.to_device(images), self.to_device(valid))
            parts.append((numbers[found.images.cpu()], found))
            count += int(valid.sum())
        self.refuse_missing_images(count)
        found = suppression.Detections.join(found for _, found in parts)
        columns = torch.cat([part for part, _ in parts]), found.labels, found.scores, found.boxes
        gathered = self.ranks.all_gather_object([column.cpu().numpy() for column in columns])
        precision = None
        if self.ranks.is_first:
            arrays = [np.concatenate(of_ranks) for of_ranks in zip(*gathered, strict=True)]
            self.detections = Detections(arrays[0], arrays[1], arrays[2], arrays[3])
            precision = compute_average_precision(
                self.source.make_truth(self.images), self.detections
            )
        reached: AveragePrecision = self.ranks.broadcast(precision)
        self.precision_reached = reached
        return reached.name_metrics()

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the average precision by class and by size."""
        on_progress(1, 1)
        parts = self.list_precisions(self.precision_reached)
        rows = tuple({"objects": part, "ap": value} for part, value in parts.items() if value)
        return [Table("Average precision by class and by size", rows)]

    def pictures(self) -> "Figure":
        """Return a figure of detections in images of the evaluation set."""
        from cepheid.benchmarks.ssd import pictures  # matplotlib is slow to import

        truth = self.source.make_truth(self.images)
        numbers = pictures.choose_images(truth)
        rows = self.images.train_samples + numbers
        shown = pictures.compose_images(self.images, rows, self.definition.data)
        names = self.images.class_names
        return pictures.draw_detections(shown, numbers, truth, self.detections, names)
