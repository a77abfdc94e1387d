"""chest_xray in PyTorch: build, train, evaluate."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.chest_xray.given import find_given_file
from cepheid.benchmarks.chest_xray.hyperparameters import Hyperparameters
from cepheid.benchmarks.chest_xray.model import LAST_LAYERS, make_backbone, rename_given
from cepheid.reference.data import radiographs
from cepheid.reference.data.imagenet.loader import Loader, count_workers
from cepheid.reference.data.order import Share
from cepheid.reference.data.radiographs import make_cropping
from cepheid.reference.data.radiographs.auroc import (
    bootstrap_intervals,
    compute_auroc,
    measure_quality,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table
from cepheid.reference.torch.given_weights import load_given_weights
from cepheid.reference.torch.image_task import ImageTask
from cepheid.reference.torch.ranks.distributed import TorchRanks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def create(config: RunConfig, ranks: TorchRanks) -> "ChestXray":
    """Return the task for the timed loop."""
    return ChestXray(config, ranks)


class ChestXray(ImageTask):
    """What is found in a radiograph. Images are uint8 (n, y, x, 1), labels float32 (n, 14)."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    evaluation_batch = 250
    given_digest: str | None = None

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.facts = self.definition.model
        self.cropping = make_cropping(self.pixels)
        self.given_file = find_given_file(config)

    def make_network(self) -> nn.Module:
        """Return the backbone, channels last; it starts from the given weights if they are there.

        Only the last layer is initialised from the seed.
        """
        facts, device = self.facts, self.ranks.device
        self.mean, self.deviation = (
            torch.tensor(facts[name], device=device) for name in ("pixel_mean", "pixel_deviation")
        )
        normalisation = self.make_normalisation(
            epsilon=facts["batch_norm_epsilon"], momentum=facts["batch_norm_momentum"]
        )
        network = make_backbone(self.hyperparameters.model_backbone, facts, normalisation)
        if self.given_file and self.given_file.path.exists() and device.type != "meta":
            self.load_given(network)
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return network

    def load_given(self, network: nn.Module) -> None:
        """Load the weights from which the definition starts into all layers but the last."""
        assert self.given_file is not None
        self.given_digest = load_given_weights(
            network,
            self.given_file.path,
            self.given_file.digest,
            own=LAST_LAYERS[self.hyperparameters.model_backbone],
            rename=rename_given,
        )

    def warm_up(self) -> None:
        """Refuse to train where the given weights are missing; warm up."""
        if self.given_file and self.given_digest is None:
            self.load_given(self.model)
        super().warm_up()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam with two groups: what the weights are given for, and the last layer."""
        values = self.hyperparameters
        last = LAST_LAYERS[values.model_backbone]
        groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for name, parameter in self.model.named_parameters():
            groups[name.startswith(last)].append(parameter)
        return self.make_parallel_optimizer(
            torch.optim.Adam,
            [{"params": group} for group in groups],
            weight_decay=values.opt_weight_decay,
            fused=True,
            **values.torch_options,
        )

    def prepare_update(self) -> None:
        """Set both learning rates of the step that completes ``samples``."""
        rate = self.hyperparameters.compute_rate(self.samples)
        factors = (1.0, self.hyperparameters.opt_last_layer_rate_factor)
        for group, factor in zip(self.optimizer.param_groups, factors, strict=True):
            group["lr"] = factor * rate

    def open_data(self) -> None:
        """Map the images with their labels; threads that decode them wait for the first batch."""
        ranks = self.ranks
        has_gpu = ranks.device.type == "cuda"
        workers = count_workers(has_gpu, ranks.ranks_per_node)
        share = Share(ranks.rank, ranks.world_size, self.batch_per_rank)
        self.images = radiographs.load(self.folder)
        self.loader = Loader(
            self.images, self.cropping, self.config.seed, share, workers, pinned=has_gpu
        )

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's share of images, half of them mirrored, and labels."""
        images, labels = self.loader.next_batch(self.samples)
        return self.to_device(images), self.to_device(labels)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images and labels."""
        shape = (count, self.pixels, self.pixels, 1)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        labels = torch.rand(count, self.facts["outputs"], generator=generator).round()
        return images, labels

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return images as float32 (n, 3, y, x), three times the same, channels last in memory."""
        return ((images.float() - self.mean) / self.deviation).permute(0, 3, 1, 2)

    def compute_loss(self, images: Tensor, labels: Tensor, /) -> Tensor:
        """Return the mean cross-entropy over images and findings, a scalar in nats."""
        with self.autocast():
            logits = self.parallel(self.scale_pixels(images))
        return binary_cross_entropy_with_logits(logits.float(), labels)

    def predict(self, images: Tensor, /) -> Tensor:
        """Return the logits of images, (n, 14)."""
        with self.autocast():
            logits: Tensor = self.model(self.scale_pixels(images))
        return logits

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the areas under the ROC curves and their mean, on every rank.

        Each image counts once, whatever the number of ranks. Every rank has the scores of all.
        """
        self.model.eval()
        self.average_statistics()
        parts = []
        for images, labels, valid in self.loader.evaluation_batches(self.evaluation_batch):
            scores = self.compiled_predict(self.to_device(images)).float().cpu()
            parts.append((scores[valid].numpy(), labels[valid].numpy()))
        gathered = self.ranks.all_gather_object(
            [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        )
        self.scores, self.truth = map(np.concatenate, zip(*gathered, strict=True))
        assert len(self.scores) == self.definition.evaluation_samples
        return measure_quality(self.scores, self.truth)

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the area of each finding, with its interval."""
        areas = compute_auroc(self.scores, self.truth)
        lows, highs = bootstrap_intervals(self.scores, self.truth)
        on_progress(1, 1)
        rows: tuple[Mapping[str, str | int | float], ...] = tuple(
            {
                "finding": name,
                "images": int(self.truth[:, k].sum()),
                "auroc": float(areas[k]),
                "low": float(lows[k]),
                "high": float(highs[k]),
            }
            for k, name in enumerate(radiographs.FINDINGS)
        )
        return [Table("Area under the ROC curve by finding, with 95% bootstrap interval", rows)]

    def pictures(self) -> "Figure":
        """Return a figure of examples, ROC curves and areas."""
        from cepheid.benchmarks.chest_xray import pictures  # matplotlib is slow to import

        return pictures.draw_figure(self.images, self.scores, self.truth)
