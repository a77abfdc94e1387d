"""resnet50 in PyTorch: build, train, evaluate."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.resnet50.model import ResNet, Variant, is_exempt, scaled_pixels
from reference.data import imagenet, store
from reference.data.imagenet.crops import Cropping
from reference.data.imagenet.loader import Loader, Share
from reference.optim.lars import FORMS, Lars, MomentumForm
from reference.optim.schedules import DECAYS, Schedule, linearly_scaled
from reference.run.config import Execution, RunConfig
from reference.torch import precision
from reference.torch.distributed import SpanBatchNorm2d, TorchRanks, detect_lost_rank
from reference.torch.parallel_task import ParallelTask
from rules.errors import UserError
from rules.host import usable_processors

EVALUATION_BATCH_PER_RANK = 250
KNOWN: Mapping[str, tuple[object, ...]] = {
    "model_variant": ("v1_5", "d"),
    "opt_name": ("sgd", "lars"),
    "opt_momentum_form": FORMS,
    "opt_learning_rate_decay_schedule": tuple(DECAYS),
}
"""What this implementation can do, in the open division too."""


def create(config: RunConfig, ranks: TorchRanks) -> "ResNet50":
    """The task that the timed loop drives."""
    return ResNet50(config, ranks)


class ResNet50(ParallelTask):
    """The class of an image."""

    known = KNOWN

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        values = config.hyperparameters
        for key, known in self.known.items():
            if values[key] not in known:
                choices = ", ".join(map(str, known))
                raise UserError(f"--set {key}={values[key]}: this implementation knows {choices}")
        ranks.split_span(int(values["model_bn_span"]), self.batch_per_rank)  # refused early
        self.schedule = self.make_schedule()
        self.folder = imagenet.folder(self.definition.data, config.data_root)
        self.data_digest = store.read_manifest(self.folder).digest
        self.evaluation_batch = EVALUATION_BATCH_PER_RANK
        model = self.definition.model
        self.cropping = Cropping(
            model["pixels"],
            model["evaluation_resize_pixels"],
            area=model["crop_area"],
            aspect=model["crop_aspect"],
        )
        self.classes = int(model["classes"])

    def make_schedule(self) -> Schedule:
        """That of the configuration."""
        return schedule_of(self.config)

    def drop_caches(self) -> None:
        """Drop the images from the file caches."""
        store.drop_caches(self.folder)

    def make_network(self) -> nn.Module:
        """The network of the definition, channels last, with batch norms over ``model_bn_span``."""
        model, values = self.definition.model, self.config.hyperparameters
        self.span = self.ranks.make_span(int(values["model_bn_span"]), self.batch_per_rank)
        network = ResNet(
            classes=self.classes,
            width=model["width"],
            variant=cast(Variant, values["model_variant"]),
            normalisation=partial(
                SpanBatchNorm2d,
                over=self.span,
                epsilon=model["batch_norm_epsilon"],
                momentum=model["batch_norm_momentum"],
            ),
        )
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return network

    def make_optimizer(self) -> torch.optim.Optimizer:
        """SGD or LARS; biases and batch norms are neither decayed nor have their rate adapted."""
        values = self.config.hyperparameters
        weights = [p for p in self.model.parameters() if not is_exempt(p)]
        exempt = [p for p in self.model.parameters() if is_exempt(p)]
        decay = float(values["opt_weight_decay"])
        momentum, form = float(values["opt_momentum"]), str(values["opt_momentum_form"])
        if values["opt_name"] == "sgd" and form == "scaled":
            groups = [
                {"params": weights, "weight_decay": decay},
                {"params": exempt, "weight_decay": 0.0},
            ]
            options: dict[str, Any] = {"momentum": momentum, "fused": True}
            kind: type[torch.optim.Optimizer] = torch.optim.SGD
        else:
            is_lars = values["opt_name"] == "lars"
            groups = [
                {"params": weights, "weight_decay": decay, "adaptive": is_lars},
                {"params": exempt, "weight_decay": 0.0, "adaptive": False},
            ]
            options = {
                "momentum": momentum,
                "trust_coefficient": float(values["lars_trust_coefficient"]),
                "epsilon": float(values["lars_epsilon"]),
                "form": cast(MomentumForm, form),
                "corrected": bool(values["opt_momentum_correction"]),
            }
            kind = Lars
        return self.make_parallel_optimizer(kind, groups, lr=self.schedule.peak, **options)

    def warm_up(self) -> None:
        """As ever; the scale of the loss is put back too."""
        super().warm_up()
        self._compute_as(self.execution)

    def open_data(self) -> None:
        """Map the packed images; threads that decode them wait for the first batch."""
        self.images = imagenet.load(self.folder)
        self.loader = self.make_loader(self.cropping)

    def make_loader(self, cropping: Cropping) -> Loader:
        """This rank's share of the images, seen as ``cropping`` says."""
        ranks = self.ranks
        has_gpu = ranks.device.type == "cuda"
        # A processor that trains needs far longer for an image than one worker to decode it.
        workers = max(1, usable_processors() // ranks.ranks_per_node) if has_gpu else 1
        share = Share(ranks.rank, ranks.world_size, self.batch_per_rank)
        return Loader(self.images, cropping, self.config.seed, share, workers, pinned=has_gpu)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Images, uint8 (share, pixels, pixels, 3), and labels (share,)."""
        after = self.samples + self.config.global_batch_size
        if self.schedule.is_collapsed(after) and self.loader.cropping == self.cropping:
            self.loader.close()
            self.loader = self.make_loader(replace(self.cropping, area=(1.0, 1.0), aspect=(1, 1)))
        images, labels = self.loader.next_batch(self.samples)
        return self._on_device(images), self._on_device(labels)

    def loss_and_gradients(self) -> Tensor:
        """Forward and backward on this rank's share, with the scale of the loss."""
        with self.phase("data"):
            images, labels = self.next_batch()
        with self.sync_gradients():
            with self.phase("forward"):
                loss: Tensor = self._loss(images, labels)
            with self.phase("backward"), detect_lost_rank():
                self.scaler.scale(loss).backward()
        return loss.detach()

    def apply_gradients(self) -> None:
        """Set rate and weight decay for the samples trained after this step, and step."""
        self.samples += self.config.global_batch_size
        rate = self.schedule.rate(self.samples)
        decayed = float(self.config.hyperparameters["opt_weight_decay"])
        decayed *= self.schedule.weight_decay_factor(self.samples)
        for group, decay in zip(self.optimizer.param_groups, (decayed, 0.0), strict=True):
            group["lr"], group["weight_decay"] = rate, decay
        with detect_lost_rank():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Top-1 and top-5 accuracy and the mean cross-entropy in nats over the whole validation
        set, each image counted once whatever the number of ranks."""
        self.model.eval()
        if self.span.ranks < self.ranks.world_size:
            is_statistic = ("running_mean", "running_var")
            buffers = self.model.named_buffers()
            self.ranks.average(buffer for name, buffer in buffers if name.endswith(is_statistic))
        sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        for images, labels, valid in self.loader.evaluation_batches(self.evaluation_batch):
            logits = self._predict(self._on_device(images)).float()
            sums += _sums_of_metrics(logits, self._on_device(labels), self._on_device(valid))
        correct, correct_5, loss, count = self.ranks.sum(sums).tolist()
        assert count == self.definition.evaluation_samples
        return {
            "accuracy": correct / count,
            "accuracy_top5": correct_5 / count,
            "loss": loss / count,
        }

    def state(self) -> dict[str, Any]:
        """As ever, and the scale of the loss."""
        return {**super().state(), "loss_scale": self.scaler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, on a task that was built with the same configuration."""
        super().restore(state)
        if state["loss_scale"]:
            self.scaler.load_state_dict(state["loss_scale"])

    def _mean_loss(self, images: Tensor, labels: Tensor, /) -> Tensor:
        with precision.autocast(self.precision, self.ranks.device):
            logits = self.parallel(scaled_pixels(images))
        smoothing = float(self.config.hyperparameters["label_smoothing"])
        return cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    def _outputs(self, images: Tensor, /) -> Tensor:
        with precision.autocast(self.precision, self.ranks.device):
            logits: Tensor = self.model(scaled_pixels(images))
        return logits

    def _compute_as(self, how: Execution) -> None:
        super()._compute_as(how)
        is_scaled = self.precision is torch.float16
        self.scaler = torch.amp.GradScaler(self.ranks.device.type, enabled=is_scaled)

    def _synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        pixels = self.definition.model["pixels"]
        # A generator of its own: warming up must not move the global one.
        noise = torch.Generator().manual_seed(0)
        shape = (count, pixels, pixels, 3)
        images = torch.randint(0, 256, shape, generator=noise, dtype=torch.uint8)
        labels = torch.arange(count) % self.classes
        return self._on_device(images), self._on_device(labels)

    def _on_device(self, values: Tensor) -> Tensor:
        return values.to(self.ranks.device, non_blocking=True)


def schedule_of(config: RunConfig) -> Schedule:
    """Warm-up and decay in samples; both are given in epochs."""
    values = config.hyperparameters
    epoch = config.definition.train_samples
    base = peak = float(values["opt_base_learning_rate"])
    start = 0.0
    for_batch = int(values["opt_learning_rate_for_batch"])
    if for_batch:
        peak, start = linearly_scaled(base, config.global_batch_size, for_batch), base
    return Schedule(
        peak=peak,
        end=float(values["opt_end_learning_rate"]),
        start=start,
        warmup_samples=int(values["opt_learning_rate_warmup_epochs"]) * epoch,
        decay_samples=int(values["opt_learning_rate_decay_epochs"]) * epoch,
        decay=str(values["opt_learning_rate_decay_schedule"]),
        power=float(values["opt_learning_rate_decay_poly_power"]),
        collapse_samples=int(values["opt_collapse_epoch"]) * epoch,
        collapse_length_samples=int(values["opt_collapse_length_epochs"]) * epoch,
    )


def _sums_of_metrics(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Sums over the valid part of a batch, in float64: right at first guess, right among five
    guesses, cross-entropy, images."""
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    losses = cross_entropy(logits, labels, reduction="none").double()
    columns = [hits[:, 0].double(), hits.any(1).double(), losses, torch.ones_like(losses)]
    return torch.stack([column.where(valid, 0.0).sum() for column in columns])
