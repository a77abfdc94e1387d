"""resnet50 in PyTorch: build, train, evaluate."""

import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.resnet50.hyperparameters import (
    Hyperparameters,
    ImageHyperparameters,
    make_schedule,
)
from benchmarks.resnet50.model import BLOCKS, ResNet, is_exempt, scale_pixels, sum_metrics
from benchmarks.resnet50.stages import ResNetStage, cut_stages
from reference.data import imagenet
from reference.data.imagenet.crops import Cropping
from reference.data.imagenet.loader import Loader, Share
from reference.optim.lars import Lars
from reference.optim.schedules import Schedule
from reference.run.config import Execution, RunConfig
from reference.torch import accumulation
from reference.torch.accumulation import Piece
from reference.torch.batch_norm import SpanBatchNorm2d, average_running_statistics
from reference.torch.distributed import Span, TorchRanks
from reference.torch.model_parallel import STAGES, refuse_uneven_parts
from reference.torch.parallel_task import ParallelTask
from reference.torch.spatial.grid import Grid
from reference.torch.spatial.network import partition_network
from rules.errors import UserError


def create(config: RunConfig, ranks: TorchRanks) -> "ResNet50":
    """Return the task for the timed loop."""
    return ResNet50(config, ranks)


class ResNet50(ParallelTask):
    """The classification of an image."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: ImageHyperparameters
    evaluation_batch = 250

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        self.grid = Grid.parse(config.execution.own.get("spatial_partitions", "1"))
        ranks = ranks.partition(self.grid.parts, "spatial_partitions")
        super().__init__(config, ranks)
        refuse_uneven_parts(STAGES, self.sharing.stages, blocks=sum(BLOCKS))
        self.find_pipeline_span()  # fails early
        self.schedule = self.make_schedule()
        model = self.definition.model
        self.grid.check(model["pixels"], model["pixels"])
        self.cropping = Cropping(
            model["pixels"],
            model["evaluation_resize_pixels"],
            area=model["crop_area"],
            aspect=model["crop_aspect"],
        )
        self.classes = int(model["classes"])

    def make_schedule(self) -> Schedule:
        """Return the learning-rate schedule of the configuration."""
        return make_schedule(self.config)

    def make_network(self) -> nn.Module:
        """Return the network, channels last, with batch norms over ``model_bn_span`` samples.

        The ranks of a replica share its images (``spatial_partitions``).
        """
        model, values = self.definition.model, self.hyperparameters
        self.span = self.find_pipeline_span() or self.ranks.make_span(
            values.model_bn_span, self.batch_per_rank
        )
        network = ResNet(
            classes=self.classes,
            width=model["width"],
            variant=values.model_variant,
            normalisation=partial(
                SpanBatchNorm2d,
                over=self.span,
                epsilon=model["batch_norm_epsilon"],
                momentum=model["batch_norm_momentum"],
            ),
        )
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        shape = 3, model["pixels"], model["pixels"]
        return partition_network(network, self.ranks, self.grid, shape, averaged=["fc"])

    def find_pipeline_span(self) -> Span | None:
        """Return the groups of ``model_bn_span`` samples in a replica's share in a pipeline.

        Raises UserError where they are not whole in each of equal micro-batches.
        """
        if self.sharing.stages == 1:
            return None
        share, count = self.batch_per_rank, self.sharing.micro_batches
        span = self.hyperparameters.model_bn_span or self.config.global_batch_size
        if share % count or (share // count) % span:
            raise UserError(
                f"{STAGES}={self.sharing.stages}: {share} samples of a replica in {count} "
                f"micro-batches cannot be normalised over whole groups of model_bn_span={span}; "
                f"fix: choose pipeline_micro_batches and model_bn_span such that their product "
                f"divides {share}"
            )
        return Span(share // span)

    def cut_stages(self) -> Sequence[ResNetStage]:
        """Return equal numbers of blocks."""
        assert isinstance(self.model, ResNet)
        return cut_stages(self.model, self.sharing.stages)

    def sum_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of all images, for logits (n, classes), labels (n,)."""
        smoothing = self.hyperparameters.label_smoothing
        return cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")

    def count_losses(self, targets: Tensor) -> int:
        """Return the number of images, for labels (n,)."""
        return len(targets)

    def list_piece_sizes(self) -> Sequence[int]:
        """Return the possible sizes of a piece: whole groups of ``model_bn_span`` samples."""
        span, share = self.hyperparameters.model_bn_span, self.batch_per_rank
        groups, _ = self.ranks.split_span(span, share)
        return [size for size in super().list_piece_sizes() if size % (share // groups) == 0]

    def refuse_uneven_pieces(self) -> None:
        """Raise UserError where pieces or spans of the configuration are not possible."""
        accumulation.refuse_uneven_pieces(
            self.config.execution,
            self.list_piece_sizes(),
            "all have the same size, and batch norms normalise over whole groups of model_bn_span "
            f"samples, here {self.hyperparameters.model_bn_span or self.config.global_batch_size}",
        )

    def make_smaller(self, settings: Execution) -> Execution | None:
        """Return ``settings`` with smaller pieces, or None if there are none.

        Ranks that share images exchange rows in each pass, so that none can try a step alone.
        """
        return super().make_smaller(settings) if self.grid.parts == 1 else None

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on; norms know the groups of a piece."""
        super().use_execution(settings)
        groups = self.span.local_groups * self.piece_size // self.batch_per_rank
        groups = max(1, groups // self.sharing.micro_batches)
        for module in self.model.modules():
            if isinstance(module, SpanBatchNorm2d):
                module.over = replace(module.over, local_groups=groups)
                module.is_pipelined = self.sharing.stages > 1

    def unite(self, pieces: Sequence[Piece], is_alone: bool) -> Generator[Piece, None, None]:
        """Yield the pieces of a step; running statistics become those of all of them."""
        if len(pieces) == 1:
            return super().unite(pieces, is_alone)
        return average_running_statistics(self.model, pieces)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return SGD or LARS; biases and batch norms are neither decayed nor adapted."""
        values = self.hyperparameters
        assert isinstance(values, Hyperparameters)
        options = {"lr": self.schedule.peak, "momentum": values.opt_momentum}
        if values.opt_name == "sgd" and values.opt_momentum_form == "scaled":
            groups = self.make_parameter_groups()
            return self.make_parallel_optimizer(torch.optim.SGD, groups, fused=True, **options)
        return self.make_parallel_optimizer(
            Lars,
            self.make_parameter_groups(adaptive=values.opt_name == "lars"),
            trust_coefficient=values.lars_trust_coefficient,
            epsilon=values.lars_epsilon,
            form=values.opt_momentum_form,
            corrected=values.opt_momentum_correction,
            **options,
        )

    def make_parameter_groups(self, **decayed: Any) -> list[dict[str, Any]]:
        """Return the weights and the parameters exempt from decay, as two groups.

        ``decayed`` are options of the first group; in the second one they are False.
        """
        weights = [p for p in self.model.parameters() if not is_exempt(p)]
        exempt = [p for p in self.model.parameters() if is_exempt(p)]
        decay = self.hyperparameters.opt_weight_decay
        return [
            {"params": weights, "weight_decay": decay, **decayed},
            {"params": exempt, "weight_decay": 0.0, **dict.fromkeys(decayed, False)},
        ]

    def open_data(self) -> None:
        """Map the packed images; threads that decode them wait for the first batch."""
        self.images = imagenet.load(self.folder)
        self.loader = self.make_loader(self.cropping)

    def make_loader(self, cropping: Cropping) -> Loader:
        """Return a loader of this rank's share of the images, cropped by ``cropping``."""
        ranks = self.ranks
        has_gpu = ranks.device.type == "cuda"
        # A CPU needs far longer to train on an image than one worker needs to decode it.
        workers = max(1, (os.cpu_count() or 1) // ranks.ranks_per_node) if has_gpu else 1
        share = Share(ranks.rank, ranks.world_size, self.batch_per_rank, ranks.partitions)
        return Loader(self.images, cropping, self.config.seed, share, workers, pinned=has_gpu)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return images, uint8 (share, pixels, pixels, 3), and labels (share,)."""
        after = self.samples + self.config.global_batch_size
        if self.schedule.is_collapsed(after) and self.loader.cropping == self.cropping:
            self.loader.close()
            self.loader = self.make_loader(replace(self.cropping, area=(1.0, 1.0), aspect=(1, 1)))
        images, labels = self.loader.next_batch(self.samples)
        return self.to_device(images), self.to_device(labels)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images, uint8 (count, pixels, pixels, 3), and labels (count,)."""
        shape = (count, self.cropping.pixels, self.cropping.pixels, 3)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return images, torch.arange(count) % self.classes

    def compute_loss(self, images: Tensor, labels: Tensor, /) -> Tensor:
        """Return the mean cross-entropy of a batch, a scalar in nats, with label smoothing."""
        with self.autocast():
            logits = self.parallel(scale_pixels(images))
        smoothing = self.hyperparameters.label_smoothing
        return cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    def predict(self, images: Tensor, /) -> Tensor:
        """Return the logits of images, (batch, classes)."""
        with self.autocast():
            logits: Tensor = self.model(scale_pixels(images))
        return logits

    def prepare_update(self) -> None:
        """Set rate and weight decay of the step that completes ``samples``."""
        rate = self.schedule.rate(self.samples)
        decay = self.hyperparameters.opt_weight_decay
        decay *= self.schedule.weight_decay_factor(self.samples)
        for group, of_group in zip(self.optimizer.param_groups, (decay, 0.0), strict=True):
            group["lr"], group["weight_decay"] = rate, of_group

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return top-1 and top-5 accuracy and the mean cross-entropy in nats.

        Each image of the validation set counts once, whatever the number of ranks.
        """
        self.model.eval()
        if self.span.ranks < self.ranks.world_size:
            is_statistic = ("running_mean", "running_var")
            buffers = self.model.named_buffers()
            self.ranks.average(buffer for name, buffer in buffers if name.endswith(is_statistic))
        sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        for batch in self.loader.evaluation_batches(self.evaluation_batch):
            images, labels, valid = map(self.to_device, batch)
            sums += sum_metrics(self.compiled_predict(images).float(), labels, valid)
        correct, correct_5, loss, count = self.ranks.sum(sums).tolist()
        assert count == self.definition.evaluation_samples
        return {
            "accuracy": correct / count,
            "accuracy_top5": correct_5 / count,
            "loss": loss / count,
        }
