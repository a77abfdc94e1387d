"""video_prediction in PyTorch: build, train, evaluate."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.video_prediction import quality
from cepheid.benchmarks.video_prediction.hyperparameters import Hyperparameters, Stage
from cepheid.benchmarks.video_prediction.model import FutureGan, compute_penalty, enlarge, mix, show
from cepheid.reference.data import videos
from cepheid.reference.data.order import SampleStream
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.report import Table
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.task import TorchTask
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CRITIC, GENERATOR = "critic", "generator"
BOTH = (CRITIC, GENERATOR)


def create(config: RunConfig, ranks: TorchRanks) -> "VideoPrediction":
    """Return the task for the timed loop."""
    return VideoPrediction(config, ranks)


class VideoPrediction(TorchTask):
    """The prediction of frames. Inputs and targets are uint8 (n, time, y, x, channels).

    A step updates the critic, then the generator through the updated critic. ``trained`` has the
    networks that get gradients: one at a time in a step, else both.
    """

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    model: FutureGan
    evaluation_batch = 100
    trained: Sequence[str] = BOTH
    updated: Sequence[str] = BOTH  # in a step, in this order
    predicted: Tensor | None = None  # by the critic's update, for the generator's
    shown = 4  # clips in the picture

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.facts = self.definition.model
        self.stages = len(self.facts["widths"])
        self.pixels = self.facts["first_pixels"] << (self.stages - 1)
        span = self.hyperparameters.gan_deviation_span
        if self.batch_per_rank % span:
            raise UserError(
                f"gan_deviation_span is {span}: a rank has {self.batch_per_rank} samples of a "
                f"step, expected a multiple of {span}; fix: choose another global_batch_size, or "
                "fewer ranks"
            )

    # Growth:

    @property
    def stage(self) -> Stage:
        """The stage of the step that follows ``samples``."""
        return self.hyperparameters.find_stage(self.samples, self.stages)

    def find_pixels(self, stage: Stage) -> int:
        """Return the side of the frames of a stage."""
        return int(self.facts["first_pixels"]) << stage.number

    def learning_rate(self) -> float:
        """Return the learning rate of the step that follows ``samples``; each stage lowers it."""
        values = self.hyperparameters
        factor = values.opt_learning_rate_growth_factor
        return values.opt_base_learning_rate * factor**self.stage.number

    # Building:

    def make_network(self) -> nn.Module:
        """Return generator and critic with the layers of all stages."""
        return FutureGan(self.facts, self.hyperparameters.gan_deviation_span)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam for both networks; it leaves alone the one that has no gradients."""
        parameters = self.model.parameters()
        return torch.optim.Adam(parameters, fused=True, **self.hyperparameters.torch_options)

    def warm_up(self) -> None:
        """Warm up in the last stage, which needs the most memory, then in all stages before it.

        So no stage allocates or chooses anything for the first time while the clock runs.
        """
        values = self.hyperparameters
        self.samples = values.find_start(self.stages - 1) + values.growth_fading_samples
        super().warm_up()
        for number in range(self.stages - 1, -1, -1):
            self.samples = values.find_start(number)  # old and new layers together
            self.step_on_noise(self.execution)
        self.optimizer.zero_grad()
        self.samples = 0

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on; only predictions are compiled."""
        super().use_execution(settings)
        self.compiled_loss.enabled = False

    def list_piece_sizes(self) -> Sequence[int]:
        """Return the only size of a piece: all clips, as shares of mixtures are drawn for all."""
        return (self.batch_per_rank,)

    # Data:

    def open_data(self) -> None:
        """Map the clips."""
        self.frames = videos.load(self.folder).frames
        self.stream = SampleStream(self.config.seed, self.definition.train_samples)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's share of known frames and of those that follow."""
        rows, _ = self.stream.take(self.first_sample, self.batch_per_rank)
        return self.read(self.training_rows[rows])

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return known frames of clips ``rows``, (n,), and those that follow."""
        clips = self.to_device(np.ascontiguousarray(self.frames[rows]))
        past, future = clips.split([self.facts["inputs"], self.facts["outputs"]], dim=1)
        return past, future

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random frames."""
        shape = (self.pixels, self.pixels, self.facts["channels"])
        past, future = (
            torch.randint(
                0, 256, (count, self.facts[name], *shape), generator=generator, dtype=torch.uint8
            )
            for name in ("inputs", "outputs")
        )
        return past, future

    def scale(self, frames: Tensor, stage: Stage) -> Tensor:
        """Return frames as networks of a stage see them, in [-1, 1]: (n, channels, time, y, x)."""
        scaled = frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
        return show(scaled, self.find_pixels(stage), stage)

    def draw_shares(self, count: int) -> Tensor:
        """Return a number in [0, 1) for each of ``count`` samples of this rank, (count,)."""
        random = make_generator(self.config.seed, "mixtures", self.samples)
        first = self.first_sample - self.samples
        return self.to_device(random.random(first + count, np.float32)[first:])

    # Training:

    def step(self) -> Tensor:
        """Update the critic, then the generator; return this rank's mean error of a pixel."""
        self.predicted = None
        for name in self.updated:
            self.trained = (name,)
            error = super().step()
        self.trained = BOTH
        return error

    def loss_and_gradients(self) -> Tensor:
        """Set the gradients of the networks in ``trained``; those of layers to come are zero."""
        error = super().loss_and_gradients()
        for name in self.trained:
            for parameter in getattr(self.model, name).parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return error

    def apply_gradients(self) -> None:
        """Change the weights; count the samples with the generator's step.

        A new stage begins with an optimizer that has seen nothing, as published. Adam that has
        counted steps without gradients would change the new layers ten times too fast.
        """
        self.prepare_update()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if GENERATOR in self.trained:
            number = self.stage.number
            self.samples += self.config.global_batch_size
            if self.stage.number != number:
                self.optimizer.state.clear()

    def compute_loss(self, past: Tensor, future: Tensor, /) -> Tensor:
        """Return the mean error of a pixel; its gradients are those of the losses of ``trained``.

        Losses of adversaries need not fall while both improve; the error of a pixel does.
        """
        stage = self.stage
        past, future = self.scale(past, stage), self.scale(future, stage)
        losses = []
        predicted = self.generate(past, stage)
        if CRITIC in self.trained:
            losses.append(self.compute_critic_loss(past, future, predicted.detach(), stage))
        error = (predicted - future).abs().mean()
        if GENERATOR in self.trained:
            losses.append(self.compute_generator_loss(past, predicted, error, stage))
        loss = torch.stack(losses).sum()
        shown: Tensor = loss + (error / 2 - loss).detach()
        return shown

    def generate(self, past: Tensor, stage: Stage) -> Tensor:
        """Return the frames that follow ``past``, in [-1, 1], both (n, channels, time, y, x).

        An update of the critic leaves the generator as it is, so that of the generator takes the
        same frames.
        """
        kept, self.predicted = self.predicted, None
        if kept is not None and self.trained == (GENERATOR,):
            return kept
        with self.autocast():
            frames: Tensor = self.model(past, stage).float()
        if self.trained == (CRITIC,):
            self.predicted = frames
        return frames

    def judge(self, clips: Tensor, stage: Stage) -> Tensor:
        """Return the critic's scores of clips (n, channels, time, y, x), (n,), in float32."""
        with self.autocast():
            scores: Tensor = self.model.critic(clips, stage)
        return scores.float()

    def compute_critic_loss(
        self, past: Tensor, future: Tensor, predicted: Tensor, stage: Stage
    ) -> Tensor:
        """Return the critic's loss: WGAN-GP (Gulrajani et al. 2017) with the drift term."""
        values = self.hyperparameters
        real, false = (torch.cat((past, frames), dim=2) for frames in (future, predicted))
        of_real, of_false = self.judge(torch.cat((real, false)), stage).chunk(2)
        drift = values.gan_drift_weight * of_real.square().mean()
        loss = of_false.mean() - of_real.mean() + drift
        interval = values.gan_penalty_interval_steps
        if self.samples // self.config.global_batch_size % interval == 0:
            mixed = mix(real, false, self.draw_shares(len(real)))
            penalty = compute_penalty(lambda clips: self.judge(clips, stage), mixed)
            loss = loss + interval * values.gan_penalty_weight * penalty
        return loss

    def compute_generator_loss(
        self, past: Tensor, predicted: Tensor, error: Tensor, stage: Stage
    ) -> Tensor:
        """Return the generator's loss; the critic's weights get no gradients from it."""
        critic = self.model.critic.requires_grad_(False)
        scores = self.judge(torch.cat((past, predicted), dim=2), stage)
        critic.requires_grad_(True)
        return self.hyperparameters.gan_pixel_weight * error - scores.mean()

    # Evaluation:

    def predict(self, inputs: Tensor, /) -> Tensor:
        """Return the frames that follow, in [0, 1], (n, channels, time, y, x), at full size."""
        stage = self.stage
        with self.autocast():
            frames: Tensor = self.model(self.scale(inputs, stage), stage)
        shown = (frames.float() / 2 + 0.5).clamp(0, 1)
        return enlarge(shown, self.pixels // self.find_pixels(stage))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return SSIM, sharpness and PSNR over the evaluation set, on every rank."""
        self.model.eval()
        share = self.split_for_evaluation(self.evaluation_rows)
        self.found = quality.summarize(self.ranks.sum(self.score(self.compiled_predict, share)))
        return dict(self.found)

    def score(self, predict: Callable[[Tensor], Tensor], batches: Iterable[np.ndarray]) -> Tensor:
        """Return the sums (5, time) of ``quality.measure`` over batches of rows (n,)."""
        total = torch.zeros(5, self.facts["outputs"], dtype=torch.float64)
        for rows in batches:
            past, future = self.read(rows)
            total += quality.measure(predict(past), self.as_truth(future)).cpu()
        return total

    def predict_simply(self, method: Callable[[Tensor, int], Tensor], inputs: Tensor) -> Tensor:
        """Return what ``method`` makes of the known frames; shapes are those of ``predict``."""
        return method(self.as_truth(inputs), self.facts["outputs"])

    def as_truth(self, frames: Tensor) -> Tensor:
        """Return frames in [0, 1], float64 (n, channels, time, y, x)."""
        return frames.permute(0, 4, 1, 2, 3).double() / 255

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the quality of the last prediction beside that of two that learn nothing."""
        rows, size = self.evaluation_rows, self.evaluation_batch
        batches = np.split(rows, range(size, len(rows), size))
        found = {"prediction": self.found}
        methods = {
            "last frame again": quality.copy_last,
            "last two frames extrapolated": quality.extrapolate,
        }
        for done, (name, method) in enumerate(methods.items(), 1):
            sums = self.score(partial(self.predict_simply, method), batches)
            found[name] = quality.summarize(sums)
            on_progress(done, len(methods))
        lines: list[Mapping[str, str | int | float]] = [
            {"prediction": name, **values} for name, values in found.items()
        ]
        return [Table("Quality beside that of predictions without learning", tuple(lines))]

    @torch.no_grad()
    def pictures(self) -> "Sequence[Figure]":
        """Return the figures of a moving picture of some evaluation clips."""
        from cepheid.benchmarks.video_prediction import pictures  # matplotlib is slow to import

        self.model.eval()
        past, true = self.read(self.evaluation_rows[: self.shown])
        predicted = (255 * self.predict(past)).round().byte().permute(0, 2, 3, 4, 1)
        return pictures.draw_moments(*(each.cpu().numpy() for each in (past, true, predicted)))
