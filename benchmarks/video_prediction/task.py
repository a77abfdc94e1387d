"""video_prediction in PyTorch: networks that grow, their losses, a step of two updates.

Inputs and targets are uint8 (n, time, y, x, channels). A step updates the critic, then the
generator through the updated critic.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.video_prediction import quality
from cepheid.benchmarks.video_prediction.growth import Videos
from cepheid.benchmarks.video_prediction.losses import BOTH, GENERATOR, Pass, compute_loss, scale
from cepheid.benchmarks.video_prediction.model import FutureGan, enlarge
from cepheid.reference.data.order import SampleStream
from cepheid.reference.torch.devices.values import widen
from cepheid.reference.torch.pieces import Pieces, cut
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Moment,
    Network,
    Norms,
    Recipe,
    Result,
    Seat,
    Update,
    Workload,
)
from cepheid.rules.errors import UserError

LOOKED = 16  # evaluation clips, of which the picture shows the best and the typical prediction


# Building and data:


def check(shape: Videos, seat: Seat) -> None:
    """Raise UserError where a rank's samples are no whole groups of ``gan_deviation_span``."""
    span = shape.values.gan_deviation_span
    if seat.batch % span:
        raise UserError(
            f"gan_deviation_span is {span}: a rank has {seat.batch} samples of a "
            f"step, expected a multiple of {span}; fix: choose another global_batch_size, or "
            "fewer ranks"
        )


def make_network(shape: Videos, norms: Norms) -> nn.Module:
    """Return generator and critic with the layers of all stages."""
    values = shape.values
    is_averaged = values.gan_average_half_life_samples > 0
    network = FutureGan(shape.facts, values.gan_deviation_span, is_averaged)
    network.next = Pass()  # type: ignore[assignment]
    return network


def make_optimizer(shape: Videos, network: nn.Module) -> Recipe:
    """Return Adam for both networks; it leaves alone the one that has no gradients."""
    options = {"fused": True, **shape.values.torch_options}
    return Recipe(torch.optim.Adam, [{"params": list(network.parameters())}], options)


class Clips:
    """The clips of a run: known frames, and those that follow."""

    def __init__(self, shape: Videos, seat: Seat) -> None:
        definition = shape.config.definition
        self.seat, self.train_samples = seat, definition.train_samples
        self.frames = seat.load().frames
        self.stream = SampleStream(shape.config.seed, self.train_samples)
        last = self.train_samples + definition.evaluation_samples
        self.evaluation_rows = np.arange(self.train_samples, last)
        self.times = [shape.facts["inputs"], shape.facts["outputs"]]

    def take(self, samples: int, size: int) -> Pieces:
        """Return this rank's share of the batch after ``samples``."""
        rows, _ = self.stream.take(self.seat.find_first(samples), self.seat.batch)
        return cut(*self.read(rows), size)

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return known frames of clips ``rows``, (n,), and those that follow: (n, time, …)."""
        clips = torch.from_numpy(np.ascontiguousarray(self.frames[rows]))
        past, future = clips.split(self.times, dim=1)
        return past, future


def make_noise(shape: Videos, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random frames, (count, time, y, x, channels) both."""
    size = (shape.pixels, shape.pixels, shape.facts["channels"])
    past, future = (
        torch.randint(
            0, 256, (count, shape.facts[name], *size), generator=generator, dtype=torch.uint8
        )
        for name in ("inputs", "outputs")
    )
    return past, future


# A step:


def place(shape: Videos, network: Any, moment: Moment) -> None:
    """Tell the networks where in the training a pass is."""
    network.next.samples, network.next.offset = moment.samples, moment.first - moment.samples


def run_step(trainer: Any, updated: Sequence[str] = BOTH) -> Tensor:
    """Update the networks in their order; return this rank's mean error of a pixel, a scalar."""
    now: Pass = trainer.model.next
    now.predicted = None
    for name in updated:
        now.trained = (name,)
        error: Tensor = trainer.loss_and_gradients()
        complete_gradients(trainer.model, name)
        with trainer.phase("communication"):
            trainer.sharing.reduce()
        with trainer.phase("update"):
            update(trainer, name)
    now.trained = BOTH
    return error


def complete_gradients(network: nn.Module, trained: str) -> None:
    """Leave gradients to one network only; those of its layers to come are zero."""
    for name, part in network.named_children():
        for parameter in part.parameters():
            if name != trained:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def update(trainer: Any, name: str) -> None:
    """Change the weights; count the samples with the generator's step.

    A new stage begins with an optimizer that has seen nothing, as published. Adam that has counted
    steps without gradients would change the new layers ten times too fast.
    """
    shape, optimizer = trainer.shape, trainer.optimizer
    after = trainer.samples + trainer.config.global_batch_size
    trainer.workload.prepare_update(shape, Update(after, optimizer.param_groups, trainer.clip))
    trainer.sharing.update(optimizer, trainer.scaler)
    if name == GENERATOR:
        average(shape, trainer.model, trainer.samples)
        number, trainer.samples = shape.find_stage(trainer.samples).number, after
        if shape.find_stage(after).number != number:
            optimizer.state.clear()


def average(shape: Videos, network: Any, samples: int) -> None:
    """Let the averages follow the step after ``samples``; those of the first are its weights."""
    if network.averages is not None:
        half_lives = shape.config.global_batch_size / shape.values.gan_average_half_life_samples
        network.averages.follow(network.generator, 1 - 0.5**half_lives if samples else 1.0)


def prepare_update(shape: Videos, update: Update) -> None:
    """Set the learning rate of the step; it falls with each stage and with time."""
    stage = shape.find_stage(update.samples - shape.config.global_batch_size)
    for group in update.groups:
        group["lr"] = shape.values.compute_rate(update.samples, stage)


# Evaluation:


def predict(shape: Videos, network: Network, past: Tensor) -> Tensor:
    """Return the frames that follow, in [0, 1], (n, channels, time, y, x), at full size."""
    stage = shape.find_stage(network.module.next.samples)
    with network.autocast():
        frames: Tensor = network.module(scale(shape, past, stage), stage)
    shown = (frames.float() / 2 + 0.5).clamp(0, 1)
    return enlarge(shown, shape.pixels // shape.find_pixels(stage))


def predict_noise(shape: Videos, inference: Inference, noise: tuple[Tensor, Tensor]) -> None:
    """Predict and judge once in the stage of the warm-up; shapes are those of ``make_noise``."""
    inference.network.module.next.samples = inference.samples
    past, future = map(inference.to_device, noise)
    quality.measure(as_truth(past), inference(past), as_truth(future))


def evaluate(shape: Videos, inference: Inference) -> Evaluation:
    """Return the metrics of ``quality`` over the evaluation set, on every rank."""
    rows = inference.data.evaluation_rows
    total = inference.make_sums(quality.count_sums(shape.facts["outputs"]))
    with take_evaluated(inference):
        for some in inference.seat.split(rows, inference.size):
            past, future = map(inference.to_device, inference.data.read(some))
            total += quality.measure(as_truth(past), inference(past), as_truth(future))
    return Evaluation(quality.summarize(inference.ranks.sum(total), len(rows)))


@contextmanager
def take_evaluated(inference: Inference) -> Iterator[None]:
    """Predict as after the samples of now, with averaged weights where there are some."""
    network = inference.network.module
    network.next.samples = inference.samples
    with network.averages.stand_in(network.generator) if network.averages else nullcontext():
        yield


def as_truth(frames: Tensor) -> Tensor:
    """Return frames in [0, 1], float64 (n, channels, time, y, x)."""
    return widen(frames.permute(0, 4, 1, 2, 3)) / 255


def draw_moments(shape: Videos, result: Result) -> Any:
    """Return the figures of a moving picture of the best and the typical of some predictions."""
    from cepheid.benchmarks.video_prediction import pictures  # matplotlib is slow to import

    inference = result.inference
    past, true = map(inference.to_device, result.data.read(result.data.evaluation_rows[:LOOKED]))
    with take_evaluated(inference):
        frames = 255 * predict(shape, inference.network, past)
    predicted = frames.round().byte().permute(0, 2, 3, 4, 1)
    order = (predicted.float() - true.float()).square().flatten(1).mean(dim=1).argsort()
    chosen = order[[0, len(order) // 2]]
    return pictures.draw_moments(*(each[chosen].cpu().numpy() for each in (past, true, predicted)))


def list_noise_samples(shape: Videos) -> Sequence[int]:
    """Return a place in the last stage, which needs the most memory, then the start of each stage.

    There old and new layers work together. So no stage allocates or chooses anything for the first
    time while the clock runs.
    """
    starts = shape.list_starts()
    return [starts[0] + shape.values.growth_fading_samples, *starts]


WORKLOAD: Workload[Videos] = Workload(
    read_shape=Videos.read,
    check=check,
    make_network=make_network,
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    make_noise=make_noise,
    noise_samples=list_noise_samples,
    predict_noise=predict_noise,
    open_data=Clips,
    before_piece=place,
    step=run_step,
    prepare_update=prepare_update,
    evaluate=evaluate,
    evaluation_batch=lambda shape: 100,
    pictures=draw_moments,
    compiles_loss=False,
    takes_whole_share=True,  # shares of mixtures are drawn for all clips
)
