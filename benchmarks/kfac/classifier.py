"""The task of resnet50 as a class, which kfac's task extends, and its broken variants."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.resnet50.hyperparameters import (
    Hyperparameters,
    ImageHyperparameters,
    make_schedule,
)
from cepheid.benchmarks.resnet50.model import (
    ARCHITECTURES,
    ResNet,
    is_exempt,
    scale_pixels,
    sum_metrics,
)
from cepheid.benchmarks.resnet50.stages import ResNetStage, cut_stages
from cepheid.reference.data import imagenet
from cepheid.reference.data.imagenet.crops import Cropping
from cepheid.reference.data.imagenet.loader import Loader, count_workers
from cepheid.reference.data.order import Share
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.optim.lars import Lars
from cepheid.reference.optim.schedules import Schedule
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.image_task import ImageTask
from cepheid.reference.torch.parallel.plan import STAGES, refuse_uneven_parts
from cepheid.reference.torch.pieces import Pieces, PiecesToRead
from cepheid.reference.torch.ranks.distributed import TorchRanks


class ResNet50(ImageTask):
    """The classification of an image."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: ImageHyperparameters
    evaluation_batch = 250

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        model = self.definition.model
        self.architecture = ARCHITECTURES[model.get("network", "resnet50")]
        refuse_uneven_parts(STAGES, self.sharing.stages, blocks=sum(self.architecture.blocks))
        self.schedule = self.make_schedule()
        crops = {"area": model["crop_area"], "aspect": model["crop_aspect"]}
        self.cropping = Cropping(self.pixels, model["evaluation_resize_pixels"], **crops)
        self.classes = int(model["classes"])

    def make_schedule(self) -> Schedule:
        """Return the learning-rate schedule of the configuration."""
        return make_schedule(self.config)

    def list_notes(self) -> Sequence[str]:
        """Return a note where the budget of a run ends before the learning rate has fallen."""
        epoch, budget = self.definition.train_samples, self.definition.timing.max_samples
        end = self.schedule.decay_samples
        if end <= budget:
            return []
        return [
            f"the learning rate falls until epoch {end / epoch:g}, but a run ends after "
            f"{budget / epoch:g} epochs"
        ]

    def make_network(self) -> nn.Module:
        """Return the network, channels last, with batch norms over ``model_bn_span`` samples."""
        model = self.definition.model
        network = ResNet(
            classes=self.classes,
            width=model["width"],
            architecture=self.architecture,
            variant=self.hyperparameters.model_variant,
            normalisation=self.make_normalisation(
                epsilon=model["batch_norm_epsilon"], momentum=model["batch_norm_momentum"]
            ),
        )
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return self.partition(network, averaged=["fc"])

    def cut_stages(self) -> Sequence[ResNetStage]:
        """Return equal numbers of blocks."""
        assert isinstance(self.model, ResNet)
        return cut_stages(self.model, self.sharing.stages)

    def sum_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of all images, for logits (n, classes), labels (n,)."""
        smoothing = self.hyperparameters.label_smoothing
        return cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")

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
        return [
            {"params": weights, "weight_decay": self.hyperparameters.opt_weight_decay, **decayed},
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
        workers = count_workers(has_gpu, ranks.ranks_per_node)
        share = Share(ranks.rank, ranks.world_size, self.batch_per_rank, ranks.partitions)
        parts = self.batch_per_rank // self.piece_size
        return Loader(self.images, cropping, self.config.seed, share, workers, has_gpu, parts)

    def next_pieces(self) -> Pieces:
        """Return this rank's share in pieces, read one by one: a large one need not fit."""
        if self.loader.part_samples != self.piece_size:  # chosen after the data were opened
            self._replace_loader(self.loader.cropping)
        return PiecesToRead(self.batch_per_rank // self.piece_size, self._read_in_phase)

    def _replace_loader(self, cropping: Cropping) -> None:
        self.loader.close()
        self.loader = self.make_loader(cropping)

    def _read_in_phase(self, number: int) -> tuple[Tensor, Tensor]:
        with self.phase("data"):
            return self.read_piece(number)

    def read_piece(self, number: int) -> tuple[Tensor, Tensor]:
        """Return images, uint8 (n, pixels, pixels, 3), and labels (n,) of a piece of the share."""
        after = self.samples + self.config.global_batch_size
        if self.schedule.is_collapsed(after) and self.loader.cropping == self.cropping:
            self._replace_loader(replace(self.cropping, area=(1.0, 1.0), aspect=(1, 1)))
        images, labels = self.loader.next_batch(self.samples, number)
        return self.to_device(images), self.to_device(labels)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images, uint8 (count, pixels, pixels, 3), and labels (count,)."""
        shape = (count, self.cropping.pixels, self.cropping.pixels, 3)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return images, torch.arange(count) % self.classes

    def compute_loss(self, images: Tensor, labels: Tensor, /) -> Tensor:
        """Return the mean cross-entropy of a batch, a scalar in nats, with label smoothing."""
        smoothing = self.hyperparameters.label_smoothing
        return cross_entropy(self.compute_logits(images), labels, label_smoothing=smoothing)

    def compute_logits(self, images: Tensor, /) -> Tensor:
        """Return the logits of images in training, float32 (batch, classes)."""
        with self.autocast():
            logits: Tensor = self.parallel(scale_pixels(images))
        return logits.float()

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
        self.average_statistics()
        sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        for batch in self.loader.evaluation_batches(self.evaluation_batch):
            images, labels, valid = map(self.to_device, batch)
            sums += sum_metrics(self.compiled_predict(images).float(), labels, valid)
        correct, correct_5, loss, count = self.ranks.sum(sums).tolist()
        assert count == self.definition.evaluation_samples
        sums_of = {"accuracy": correct, "accuracy_top5": correct_5, "loss": loss}
        return {metric: value / count for metric, value in sums_of.items()}


LINEAR_PEAK_RATE = 1e-3


class ShuffledLabels(ResNet50):
    """Training labels belong to other images: only the frequency of each class can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the training labels."""
        super().open_data()
        train = self.definition.train_samples
        labels = self.images.labels
        labels[:train] = make_generator(self.config.seed, "shuffled labels").permutation(
            labels[:train]
        )


class Frozen(broken.Frozen, ResNet50):
    """The weights stay as initialised."""


class Linear(ResNet50):
    """A linear model of the pixels at a suitable rate: without features it confuses the classes."""

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.schedule = replace(self.schedule, peak=LINEAR_PEAK_RATE)

    def make_network(self) -> nn.Module:
        """Return a linear layer from pixels to logits."""
        super().make_network()
        pixels = self.definition.model["pixels"]
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * pixels**2, self.classes))
