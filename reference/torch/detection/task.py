"""The base of the tasks that find objects in images."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.reference.data.detection.average_precision import AveragePrecision
from cepheid.reference.data.detection.loader import Augmentation, Loader
from cepheid.reference.data.imagenet.loader import count_workers
from cepheid.reference.data.order import Share
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.given_weights import load_given_weights
from cepheid.reference.torch.parallel.task import ParallelTask
from cepheid.reference.torch.ranks.distributed import TorchRanks

NOISE_BOXES = 4  # in each image of noise


class DetectionTask(ParallelTask):
    """A ``ParallelTask`` on images, uint8 (n, pixels, pixels, 3), that its definition describes.

    A network whose definition has ``given_weights`` starts from these in its ``backbone``.
    ``make_detector`` returns the network, and ``make_augmentation`` how training images vary.
    """

    given_digest: str | None = None

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.facts: dict[str, Any] = dict(self.definition.model)
        self.pixels = int(self.facts["pixels"])
        self.source = importlib.import_module(
            f"cepheid.reference.data.{self.definition.data['generator']}"
        )

    def make_detector(self) -> nn.Module:
        """Return the network with initial weights."""
        raise NotImplementedError

    def make_augmentation(self) -> Augmentation:
        """Return how training images are varied."""
        raise NotImplementedError

    def make_network(self) -> nn.Module:
        """Return the network, channels last."""
        self.mean, self.deviation = (
            torch.tensor(self.facts[name], device=self.ranks.device)
            for name in ("pixel_mean", "pixel_deviation")
        )
        network = self.make_detector()
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return network

    def warm_up(self) -> None:
        """Load the weights from which the definition starts, if it has any; warm up."""
        if given := self.facts.get("given_weights"):
            path = self.config.data_root / given["file"]
            backbone: Any = self.model.backbone
            self.given_digest = load_given_weights(backbone, path, given["digest"])
        super().warm_up()

    def open_data(self) -> None:
        """Map the images with their objects; threads that decode them wait for the first batch."""
        ranks = self.ranks
        share = Share(ranks.rank, ranks.world_size, self.batch_per_rank, ranks.partitions)
        has_gpu = ranks.device.type == "cuda"
        workers = count_workers(has_gpu, ranks.ranks_per_node)
        self.images = self.source.load(self.folder)
        self.loader = Loader(
            self.images, self.make_augmentation(), self.config.seed, share, workers, pinned=has_gpu
        )

    def draw_noise_images(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images, and NOISE_BOXES boxes in each: corners in shares, (n, boxes, 4)."""
        shape = (count, self.pixels, self.pixels, 3)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        sides = torch.rand(count, NOISE_BOXES, 2, generator=generator) / 2
        return images, torch.cat((sides, sides + 0.3), dim=2)

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return images as float32 (n, 3, pixels, pixels), channels last in memory."""
        return ((images.float() - self.mean) / self.deviation).permute(0, 3, 1, 2)

    def refuse_missing_images(self, count: int) -> None:
        """Raise AssertionError if the ranks did not evaluate each image once, here ``count``."""
        assert self.ranks.sum(torch.tensor(count)) == self.definition.evaluation_samples

    def list_precisions(self, reached: AveragePrecision) -> dict[str, Any]:
        """Return the average precision of each class and of each size, by name; None for none."""
        sizes = {size: getattr(reached, f"ap_{size}") for size in ("small", "medium", "large")}
        return {**dict(zip(self.images.class_names, reached.by_class, strict=True)), **sizes}
