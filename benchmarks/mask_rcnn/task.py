"""mask_rcnn in PyTorch: build, train, evaluate."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.mask_rcnn.detector import MaskRCNN
from benchmarks.mask_rcnn.hyperparameters import Hyperparameters
from benchmarks.mask_rcnn.stages import FeatureStage, HeadStage
from reference.data.detection.average_precision import (
    AveragePrecision,
    compute_average_precision,
)
from reference.data.detection.loader import Augmentation, Loader
from reference.data.detection.truth import Detections
from reference.data.imagenet.loader import count_workers
from reference.data.order import Share
from reference.run.config import RunConfig
from reference.run.report import Table
from reference.torch.detection.masks import encode_masks
from reference.torch.detection.pyramid import FrozenNorm
from reference.torch.detection.targets import Truth
from reference.torch.distributed import TorchRanks
from reference.torch.given_weights import load_given_weights
from reference.torch.model_parallel import MICRO_BATCHES, refuse_uneven_parts
from reference.torch.parallel_task import ParallelTask
from reference.torch.pipeline import Stage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE_BOXES = 4  # in each image of noise
LARGEST_SMALL_PIXELS = 256
METRICS = ("ap", "ap50", "ap75")


def create(config: RunConfig, ranks: TorchRanks) -> "Segmentation":
    """Return the task for the timed loop."""
    return Segmentation(config, ranks)


class Segmentation(ParallelTask):
    """The detection of objects with their masks. Images are uint8 (n, pixels, pixels, 3).

    Targets are a packed ``Truth``.
    """

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    model: MaskRCNN
    network_type: type[MaskRCNN] = MaskRCNN
    evaluation_batch = 50  # of small images
    given_digest: str | None = None

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.facts = {
            **self.definition.model,
            "num_image_candidates": self.hyperparameters.num_image_candidates,
        }
        self.pixels = int(self.facts["pixels"])
        if self.pixels > LARGEST_SMALL_PIXELS:
            self.evaluation_batch = 4
        if self.sharing.stages > 1:
            count = self.sharing.micro_batches
            refuse_uneven_parts(MICRO_BATCHES, count, samples_of_a_replica=self.batch_per_rank)
        self.source = importlib.import_module(f"reference.data.{self.definition.data['generator']}")

    def make_network(self) -> nn.Module:
        """Return the network, channels last."""
        facts, device = self.facts, self.ranks.device
        self.mean, self.deviation = (
            torch.tensor(facts[name], device=device) for name in ("pixel_mean", "pixel_deviation")
        )
        norm: Any = FrozenNorm if facts["frozen_norms"] else partial(nn.GroupNorm, 8)
        network = self.network_type(facts, norm, self.config.seed)
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return network

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

    def warm_up(self) -> None:
        """Load the weights from which the definition starts, if it has any; warm up."""
        if given := self.facts.get("given_weights"):
            path = self.config.data_root / given["file"]
            self.given_digest = load_given_weights(self.model.backbone, path, given["digest"])
        super().warm_up()

    def open_data(self) -> None:
        """Map the images with their objects; threads that decode them wait for the first batch."""
        ranks = self.ranks
        share = Share(ranks.rank, ranks.world_size, self.batch_per_rank, ranks.partitions)
        has_gpu = ranks.device.type == "cuda"
        workers = count_workers(has_gpu, ranks.ranks_per_node)
        self.images = self.source.load(self.folder)
        facts, has_sides = self.facts, "shorter_side" in self.facts
        augmentation = Augmentation(
            self.pixels,
            has_parts=False,
            has_orientations=self.hyperparameters.data_augmentation == "orientations",
            mask_pixels=facts["mask_pixels"],
            sides=(facts["shorter_side"], facts["longer_side"]) if has_sides else None,
            filling=tuple(map(round, facts["pixel_mean"])),
        )
        self.loader = Loader(
            self.images, augmentation, self.config.seed, share, workers, pinned=has_gpu
        )

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's share of images and targets."""
        images, boxes, labels, masks, extents = self.loader.next_batch(self.samples)
        keys = self.first_sample + torch.arange(len(images))
        truth = Truth(keys, extents, boxes * extents.repeat(1, 2)[:, None], labels, masks)
        return self.to_device(images), self.to_device(truth.pack())

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images with NOISE_BOXES boxes each."""
        shape = (count, self.pixels, self.pixels, 3)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        sides = torch.rand(count, NOISE_BOXES, 2, generator=generator) / 2
        side = self.facts["mask_pixels"]
        truth = Truth(
            torch.arange(count),
            torch.full((count, 2), float(self.pixels)),
            torch.cat((sides, sides + 0.3), dim=2) * self.pixels,
            torch.ones(count, NOISE_BOXES),
            torch.ones(count, NOISE_BOXES, side, side),
        )
        return images, truth.pack()

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return images as float32 (n, 3, pixels, pixels), channels last in memory."""
        return ((images.float() - self.mean) / self.deviation).permute(0, 3, 1, 2)

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
        assert self.ranks.sum(torch.tensor(count)) == self.definition.evaluation_samples
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
        self.reached: list[AveragePrecision] = self.ranks.broadcast(precisions)
        return {
            prefix + metric: getattr(reached, metric) or 0.0
            for prefix, reached in zip(("", "mask_"), self.reached, strict=True)
            for metric in METRICS
        }

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the average precision of boxes and masks, by class and by size."""
        on_progress(1, 1)
        columns = []
        for reached in self.reached:
            sizes = {size: getattr(reached, f"ap_{size}") for size in ("small", "medium", "large")}
            columns.append(
                {**dict(zip(self.images.class_names, reached.by_class, strict=True)), **sizes}
            )
        boxes, masks = columns
        rows = tuple(
            {"objects": part, "ap": ap, "mask_ap": masks[part]}
            for part, ap in boxes.items()
            if ap is not None and masks[part] is not None
        )
        return [Table("Average precision by class and by size", rows)]

    def pictures(self) -> "Figure":
        """Return a figure of masks in images of the evaluation set."""
        from benchmarks.mask_rcnn.pictures import (  # matplotlib is slow to import
            COLUMNS,
            draw_masks,
        )
        from reference.data.detection.pictures import choose_images, compose_images

        truth = self.source.make_truth(self.images, with_masks=True)
        numbers = choose_images(truth, COLUMNS)
        rows = self.images.train_samples + numbers
        shown = compose_images(self.images, rows, self.definition.data)
        return draw_masks(shown, numbers, truth, self.detections, self.images.class_names)
