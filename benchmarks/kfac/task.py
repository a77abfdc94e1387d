"""kfac in PyTorch: resnet50 with mixup and K-FAC as a preconditioner of its optimizer."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.kfac.after_run import make_report, measure_afterwards
from cepheid.benchmarks.kfac.hyperparameters import (
    DampingSchedule,
    Hyperparameters,
    Settings,
    make_damping_schedule,
    make_options,
    make_schedule,
)
from cepheid.benchmarks.kfac.model import RunningMixup, erase_rectangles, normalize_weights
from cepheid.benchmarks.kfac.preconditioner import KfacPreconditioner
from cepheid.benchmarks.resnet50 import task as resnet50
from cepheid.benchmarks.resnet50.task import Batches, Photographs, list_groups, make_photographs
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.optim.lars import Lars
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table
from cepheid.reference.torch.devices.values import to_device
from cepheid.reference.torch.workload import OnProgress, Recipe, Result, Seat, Update, Workload

COUNT_FLOPS_WITH = ("opt_preconditioner=none", "model_bn_span=0")
"""The settings with which the operations of the network alone are counted (``measure flops``)."""
NOTABLE_BYTES = 2**30  # of images, of which a plan tells


@dataclass(frozen=True)
class Facts(Photographs):
    """The facts of kfac: those of resnet50, and how damping changes over a run."""

    values: Hyperparameters
    damping: DampingSchedule

    @classmethod
    def read(cls, config: RunConfig) -> "Facts":
        """Return the facts of a configuration."""
        values = config.read(Hyperparameters)
        photographs = make_photographs(config, values, make_schedule(config))
        return cls(**vars(photographs), damping=make_damping_schedule(config))


def make_preconditioner(shape: Facts, seat: Seat) -> KfacPreconditioner | None:
    """Return K-FAC, or None; raise UserError for settings that exclude each other."""
    ranks: Any = seat.ranks
    options = make_options(shape.config, ranks)
    if shape.values.opt_preconditioner == "none":
        return None
    products = shape.config.execution.read(Settings).kfac_products
    return KfacPreconditioner(options, shape.damping.find_damping, products)


def make_optimizer(shape: Facts, model: nn.Module) -> Recipe:
    """Return SGD with either form of momentum; biases and batch norms are not decayed."""
    values = shape.values
    options = {"lr": shape.schedule.peak, "momentum": values.opt_momentum}
    form = {"form": values.opt_momentum_form, "adaptive": False}
    return Recipe(Lars, list_groups(shape, model), {**options, **form})


def prepare_update(shape: Facts, update: Update) -> None:
    """Set the rate, and the momentum where it follows the rate."""
    rate, momentum = shape.schedule.rate(update.samples), shape.values.opt_momentum
    if shape.values.opt_momentum_follows_rate:
        momentum *= min(1.0, rate / shape.schedule.peak)
    for group in update.groups:
        group["lr"], group["momentum"] = rate, momentum


def finish_update(shape: Facts, model: nn.Module) -> None:
    """Normalise the weights, where that is chosen."""
    if shape.values.opt_weight_normalisation:
        normalize_weights(model)


class MixedBatches(Batches):
    """The packed images, with erased rectangles and mixed with those of the step before.

    With mixup images are float32, and labels are probabilities, float32 (n, classes).
    """

    shape: Facts

    def __init__(self, shape: Facts, seat: Seat) -> None:
        super().__init__(shape, seat)
        self.mixup = RunningMixup(seat.batch)

    def read_piece(self, samples: int, size: int, number: int) -> tuple[Tensor, Tensor]:
        """Return images, (n, pixels, pixels, 3), and labels of a piece, on this rank's device."""
        device, values, seed = self.seat.ranks.device, self.shape.values, self.shape.config.seed
        images, labels = (
            to_device(each, device) for each in super().read_piece(samples, size, number)
        )
        first = number * len(images)
        if probability := values.random_erasing_probability:
            noise = make_generator(seed, "erasing", samples)
            of_rank = self.seat.ranks.rank * self.seat.batch
            batch = self.shape.config.global_batch_size
            erase_rectangles(images, probability, noise, of_rank + first, batch)
        if not values.mixup_alpha:
            return images, labels
        mixing = make_generator(seed, "mixup", samples)
        share = float(mixing.beta(values.mixup_alpha, values.mixup_alpha))
        return self.mixup.mix((images, spread(self.shape, labels)), samples, first, share)


def save_data(data: MixedBatches | None) -> Mapping[str, Any]:
    """Return the mixed batch; of several ranks each has only its share, which is left out."""
    if data is None or data.seat.ranks.world_size > 1:
        return {"mixed": []}
    return {"mixed": list(data.mixup.batch or ())}


def restore_data(data: MixedBatches | None, state: Mapping[str, Any]) -> None:
    """Let the mixing go on from the batch of a state."""
    mixed = state.get("mixed")
    if data is not None and mixed:
        data.mixup.resume(*mixed)


def spread(shape: Facts, labels: Tensor) -> Tensor:
    """Return probabilities, float32 (n, classes), for labels (n,)."""
    return functional.one_hot(labels, shape.classes).float()


def make_noise(shape: Facts, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random images, (count, pixels, pixels, 3), and labels of the types of batches.

    So what is compiled in the warm-up serves in training.
    """
    images, labels = resnet50.make_noise(shape, count, generator)
    if not shape.values.mixup_alpha:
        return images, labels
    return images.float(), spread(shape, labels)


def report(shape: Facts, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return how stale factors were, which rank inverts how much, and what ranks sent."""
    samples = result.inference.samples
    on_progress(samples, samples)  # the numbers were counted during training
    if not isinstance(result.preconditioner, KfacPreconditioner):
        return ()
    return make_report(result.preconditioner)


def list_notes(shape: Facts, seat: Seat) -> Sequence[str]:
    """Return the notes of resnet50, and the memory that mixup of a large share takes."""
    notes = resnet50.list_notes(shape, seat)
    mixed = 4 * seat.batch * shape.cropping.pixels**2 * 3  # bytes
    if not shape.values.mixup_alpha or mixed < NOTABLE_BYTES:
        return notes
    held = (
        f"mixup keeps a rank's images of the step before, {mixed / 2**30:.1f} GiB, in memory "
        f"or, in pieces (micro_batch), in a file in {tempfile.gettempdir()} (TMPDIR)"
    )
    return [*notes, held]


WORKLOAD: Workload[Any] = resnet50.WORKLOAD.vary(
    read_shape=Facts.read,
    make_optimizer=make_optimizer,
    make_preconditioner=make_preconditioner,
    make_noise=make_noise,
    open_data=MixedBatches,
    save_data=save_data,
    restore_data=restore_data,
    prepare_update=prepare_update,
    after_update=finish_update,
    measure_afterwards=measure_afterwards,
    report=report,
    list_notes=list_notes,
)
