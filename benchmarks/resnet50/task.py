"""resnet50 in PyTorch: the classification of an image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    Architecture,
    ResNet,
    is_exempt,
    scale_pixels,
    sum_metrics,
)
from cepheid.benchmarks.resnet50.stages import cut_stages
from cepheid.reference.data.image_files.crops import Cropping
from cepheid.reference.data.image_files.loader import Loader
from cepheid.reference.optim.lars import Lars
from cepheid.reference.optim.schedules import Schedule
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.images import draw_images
from cepheid.reference.torch.pieces import Pieces, PiecesToRead
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Maps,
    Network,
    Norms,
    Recipe,
    Seat,
    Spans,
    Stages,
    Update,
    Workload,
)


@dataclass(frozen=True)
class Photographs:
    """The facts of a benchmark that classifies photographs."""

    config: RunConfig
    values: ImageHyperparameters
    schedule: Schedule
    architecture: Architecture
    cropping: Cropping
    classes: int

    @classmethod
    def read(cls, config: RunConfig) -> "Photographs":
        """Return the facts of a configuration of resnet50."""
        values = config.read(Hyperparameters)
        return make_photographs(config, values, make_schedule(config))


def make_photographs(
    config: RunConfig, values: ImageHyperparameters, schedule: Schedule
) -> Photographs:
    """Return the facts of a configuration with these hyperparameters."""
    model = config.definition.model
    architecture = ARCHITECTURES[model.get("network", "resnet50")]
    crops = {"area": model["crop_area"], "aspect": model["crop_aspect"]}
    cropping = Cropping(int(model["pixels"]), model["evaluation_resize_pixels"], **crops)
    return Photographs(config, values, schedule, architecture, cropping, int(model["classes"]))


def list_notes(shape: Photographs, seat: Seat) -> Sequence[str]:
    """Return a note where the budget of a run ends before the learning rate has fallen."""
    definition, end = shape.config.definition, shape.schedule.decay_samples
    epoch, budget = definition.train_samples, definition.timing.max_samples
    if end <= budget:
        return []
    return [
        f"the learning rate falls until epoch {end / epoch:g}, but a run ends after "
        f"{budget / epoch:g} epochs"
    ]


def make_network(shape: Photographs, norms: Norms) -> nn.Module:
    """Return the network, channels last, with batch norms over ``model_bn_span`` samples."""
    model = shape.config.definition.model
    network = ResNet(
        classes=shape.classes,
        width=model["width"],
        architecture=shape.architecture,
        variant=shape.values.model_variant,
        normalisation=norms.make(**shape.config.norm_options),
    )
    convert_conv2d_weight_memory_format(network, torch.channels_last)
    return network


def make_optimizer(shape: Photographs, model: nn.Module) -> Recipe:
    """Return SGD or LARS; biases and batch norms are neither decayed nor adapted."""
    values = shape.values
    assert isinstance(values, Hyperparameters)
    options = {"lr": shape.schedule.peak, "momentum": values.opt_momentum}
    if values.opt_name == "sgd" and values.opt_momentum_form == "scaled":
        return Recipe(torch.optim.SGD, list_groups(shape, model), {"fused": True, **options})
    of_lars = {
        "trust_coefficient": values.lars_trust_coefficient,
        "epsilon": values.lars_epsilon,
        "form": values.opt_momentum_form,
        "corrected": values.opt_momentum_correction,
    }
    groups = list_groups(shape, model, adaptive=values.opt_name == "lars")
    return Recipe(Lars, groups, {**of_lars, **options})


def list_groups(shape: Photographs, model: nn.Module, **decayed: Any) -> list[dict[str, Any]]:
    """Return the weights and the parameters exempt from decay, as two groups.

    ``decayed`` are options of the first group; in the second one they are False.
    """
    weights = [p for p in model.parameters() if not is_exempt(p)]
    exempt = [p for p in model.parameters() if is_exempt(p)]
    return [
        {"params": weights, "weight_decay": shape.values.opt_weight_decay, **decayed},
        {"params": exempt, "weight_decay": 0.0, **dict.fromkeys(decayed, False)},
    ]


def prepare_update(shape: Photographs, update: Update) -> None:
    """Set rate and weight decay."""
    rate = shape.schedule.rate(update.samples)
    decay = shape.values.opt_weight_decay * shape.schedule.weight_decay_factor(update.samples)
    for group, of_group in zip(update.groups, (decay, 0.0), strict=True):
        group["lr"], group["weight_decay"] = rate, of_group


class Batches:
    """The packed images; threads that decode them wait for the first batch."""

    def __init__(self, shape: Photographs, seat: Seat) -> None:
        self.shape, self.seat = shape, seat
        self.images = seat.load()
        self.loader = self._make_loader(shape.cropping, seat.piece)

    def take(self, samples: int, size: int) -> Pieces:
        """Return this rank's share in pieces, read one by one: a large one need not fit."""
        return PiecesToRead(self.seat.batch // size, partial(self.read_piece, samples, size))

    def read_piece(self, samples: int, size: int, number: int) -> tuple[Tensor, Tensor]:
        """Return images, uint8 (n, pixels, pixels, 3), and labels (n,) of a piece of the share."""
        cropping = self.shape.cropping
        if self.shape.schedule.is_collapsed(samples + self.shape.config.global_batch_size):
            cropping = replace(cropping, area=(1.0, 1.0), aspect=(1, 1))
        if (self.loader.variation, self.loader.part_samples) != (cropping, size):
            self.loader.close()
            self.loader = self._make_loader(cropping, size)
        return self.loader.next_batch(samples, number)

    def _make_loader(self, cropping: Cropping, size: int) -> Loader:
        seat, parts = self.seat, self.seat.batch // size
        seed = self.shape.config.seed
        return Loader(self.images, cropping, seed, seat.share, seat.workers, seat.pins, parts)


def make_noise(shape: Photographs, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random images, uint8 (count, pixels, pixels, 3), and labels (count,)."""
    images = draw_images(count, shape.cropping.pixels, generator)
    return images, torch.arange(count) % shape.classes


def compute_loss(shape: Photographs, network: Network, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch, a scalar in nats, with label smoothing."""
    logits = network(scale_pixels(images)).float()
    return cross_entropy(logits, labels, label_smoothing=shape.values.label_smoothing)


def sum_losses(shape: Photographs, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses of all images, for logits (n, classes), labels (n,)."""
    smoothing = shape.values.label_smoothing
    return cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


def predict(shape: Photographs, network: Network, images: Tensor) -> Tensor:
    """Return the logits of images, (batch, classes)."""
    return network(scale_pixels(images))


def evaluate(shape: Photographs, inference: Inference) -> Evaluation:
    """Return top-1 and top-5 accuracy and the mean cross-entropy in nats.

    Each image of the validation set counts once, whatever the number of ranks.
    """
    sums = inference.make_sums(4)
    for images, *others in inference.data.loader.evaluation_batches(inference.size):
        labels, valid = map(inference.to_device, others)
        sums += sum_metrics(inference(images).float(), labels, valid)
    correct, correct_5, loss, count = inference.ranks.sum(sums).tolist()
    assert count == shape.config.definition.evaluation_samples
    sums_of = {"accuracy": correct, "accuracy_top5": correct_5, "loss": loss}
    return Evaluation({metric: value / count for metric, value in sums_of.items()})


WORKLOAD: Workload[Photographs] = Workload(
    read_shape=Photographs.read,
    make_network=make_network,
    norms=lambda shape: Spans(shape.values.model_bn_span),
    maps=Maps(averaged=lambda network: ["fc"]),
    stages=Stages(
        cut=lambda shape, network, count: cut_stages(network, count),
        sum_losses=sum_losses,
        counts=lambda shape: {"blocks": sum(shape.architecture.blocks)},
    ),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    make_noise=make_noise,
    open_data=Batches,
    is_static=True,
    prepare_update=prepare_update,
    evaluate=evaluate,
    evaluation_batch=lambda shape: 250,
    list_notes=list_notes,
)
