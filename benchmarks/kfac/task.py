"""kfac in PyTorch: resnet50 with mixup and K-FAC as a preconditioner of its optimizer."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.benchmarks.kfac.after_run import SentBytes, make_report, measure_plain_update
from cepheid.benchmarks.kfac.classifier import ResNet50
from cepheid.benchmarks.kfac.hyperparameters import (
    HeldSchedule,
    Hyperparameters,
    Settings,
    make_damping_schedule,
    make_options,
    make_schedule,
)
from cepheid.benchmarks.kfac.model import RunningMixup, normalize_weights
from cepheid.benchmarks.kfac.pictures import erase_rectangles
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.optim.lars import BUFFER, Lars
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.report import Table
from cepheid.reference.torch.pieces import Pieces
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.second_order import KFAC
from cepheid.second_order.fisher import count_noise

COUNT_FLOPS_WITH = ("opt_preconditioner=none", "model_bn_span=0")
"""The settings with which the operations of the network alone are counted (``measure flops``)."""
NOTABLE_BYTES = 2**30  # of images, of which a plan tells


def create(config: RunConfig, ranks: TorchRanks) -> "PreconditionedResNet50":
    """Return the task for the timed loop."""
    return PreconditionedResNet50(config, ranks)


class PreconditionedResNet50(ResNet50):
    """The classification of an image, trained by SGD on gradients that K-FAC preconditions.

    With ``opt_preconditioner=none`` it trains on plain gradients and all else is equal. With
    ``weight_update=sharded`` this is Algorithm 1 of Ueno et al. 2020: gradients go to the owners of
    their layers with the factors, the owners update the weights and send them to all ranks.
    """

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.options = make_options(config, ranks)
        self.damping_schedule = make_damping_schedule(config)
        self.is_preconditioned = self.hyperparameters.opt_preconditioner == "kfac"
        self.is_sharded = self.is_preconditioned and self.options.shard_update
        self.mixup = RunningMixup(self.batch_per_rank)
        self.kfac: KFAC | None = None
        self.keeps_logits = self.is_preconditioned and self.options.fisher != "empirical"
        self.logits: Tensor | None = None
        self.observed = self.to_observe = 0  # samples of this step on this rank
        self.sent: Sequence[SentBytes] = ()  # by each rank in the last update

    def make_schedule(self) -> HeldSchedule:
        """Return the schedule: warm-up, a constant rate, decay; all given in epochs."""
        return make_schedule(self.config)

    def build(self) -> int:
        """Make model, optimizer and K-FAC; return the number of trainable parameters."""
        count = super().build()
        self.kfac = self.make_preconditioner()
        return count

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return SGD with either form of momentum; biases and batch norms are not decayed."""
        groups = self.make_parameter_groups()
        options: dict[str, Any] = {
            "lr": self.schedule.peak,
            "momentum": self.hyperparameters.opt_momentum,
            "form": self.hyperparameters.opt_momentum_form,
            "adaptive": False,
        }
        if not self.is_sharded:
            return self.make_parallel_optimizer(Lars, groups, **options)
        self.parallel = self.model  # K-FAC averages the gradients and shards the update itself
        return Lars(groups, **options)

    def make_preconditioner(self) -> KFAC | None:
        """Return K-FAC for the model before its first step, or None without a preconditioner."""
        if not self.is_preconditioned:
            return None
        products = self.config.execution.read(Settings).kfac_products
        of_model = "bf16" if self.precision is torch.bfloat16 else "fp32"
        is_half = (of_model if products == "as_model" else products) == "bf16"
        options = replace(self.options, bfloat16_products=is_half)
        return KFAC(self.model, options, self._communicate, lambda name: self.phase(name))

    @contextmanager
    def _communicate(self) -> Iterator[None]:
        with self.phase("communication"), detect_lost_rank():
            yield

    def warm_up(self) -> None:
        """Warm up as resnet50, then run one step of K-FAC and discard its effects.

        Execution settings are chosen without K-FAC: most steps leave most factors as they are.
        """
        if self.kfac is None:
            super().warm_up()
            return
        self.kfac.remove()
        super().warm_up()
        self.kfac = self.make_preconditioner()
        assert self.kfac is not None
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        self.step_on_noise(self.execution)
        self.scaler.unscale_(self.optimizer)
        self.kfac.step(self.schedule.peak, self.scaler.get_scale())
        self.kfac.remove()
        self.kfac = self.make_preconditioner()
        self.optimizer.zero_grad()
        self.optimizer.state.clear()
        self.model.load_state_dict(before)
        self.use_execution(self.execution)  # with a new scaler

    def fits_into_memory(self, settings: Execution) -> bool:
        """Try a step as resnet50, with the factors of K-FAC, which take memory too."""
        if self.kfac is None:
            return super().fits_into_memory(settings)
        self.kfac = self.make_preconditioner()
        assert self.kfac is not None
        try:
            return super().fits_into_memory(settings)
        finally:
            self.kfac.remove()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Enter the context of all passes before the last one of a step."""
        with super().no_sync(), self.kfac.accumulate() if self.kfac else nullcontext():
            yield

    def read_piece(self, number: int) -> tuple[Tensor, Tensor]:
        """Return images, (n, pixels, pixels, 3), and labels of a piece of the share.

        They are those of resnet50, with erased rectangles, or with mixup both are mixed and
        float32, and the labels are probabilities, (n, classes).
        """
        images, labels = super().read_piece(number)
        values, seed = self.hyperparameters, self.config.seed
        first = number * len(images)
        if probability := values.random_erasing_probability:
            noise = make_generator(seed, "erasing", self.samples)
            of_rank = self.ranks.rank * self.batch_per_rank
            batch = self.config.global_batch_size
            erase_rectangles(images, probability, noise, of_rank + first, batch)
        if not values.mixup_alpha:
            return images, labels
        mixing = make_generator(seed, "mixup", self.samples)
        share = float(mixing.beta(values.mixup_alpha, values.mixup_alpha))
        return self.mixup.mix((images, self._spread(labels)), self.samples, first, share)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images, (count, pixels, pixels, 3), and labels as ``read_piece`` does.

        Their types are the same, so that what is compiled in the warm-up serves in training.
        """
        images, labels = super().make_noise_batch(count, generator)
        if not self.hyperparameters.mixup_alpha:
            return images, labels
        return images.float(), self._spread(labels)

    def _spread(self, labels: Tensor) -> Tensor:
        """Return probabilities, float32 (n, classes), for labels (n,)."""
        return functional.one_hot(labels, self.classes).float()

    def run_pieces(self, pieces: Pieces, is_alone: bool = False) -> Tensor:
        """Run the pieces as resnet50, and count their samples; return the loss, a scalar."""
        self.observed, self.to_observe = 0, len(pieces) * self.piece_size
        if self.execution.compile == "on":
            self._choose_compiled()
        return super().run_pieces(pieces, is_alone)

    def _choose_compiled(self) -> None:
        """Run the passes of a step eagerly if K-FAC must see its layers, else compiled."""
        is_due = self.kfac is not None and self.kfac.is_due
        self.compiled_loss.enabled = not is_due
        if self.kfac is not None and is_due:
            self.kfac.attach()
        elif self.kfac is not None:
            self.kfac.detach()

    def compute_logits(self, images: Tensor, /) -> Tensor:
        """Return the logits as resnet50, float32 (batch, classes), and keep them for K-FAC."""
        logits = super().compute_logits(images)
        if self.keeps_logits:
            self.logits = logits
        return logits

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``, a scalar, after those of drawn or all labels for K-FAC."""
        if self.kfac is not None and self.logits is not None:
            with detect_lost_rank():
                self._observe(self.kfac, self.logits)
            self.logits = None
        super().backward(loss)

    def _observe(self, kfac: KFAC, logits: Tensor) -> None:
        """Let K-FAC run its own backward passes, with noise that is keyed by step and sample."""
        count = count_noise(self.options.fisher, self.options.fisher_samples, logits)
        first, samples = self.ranks.replica * self.batch_per_rank + self.observed, len(logits)
        drawn = make_generator(self.config.seed, "fisher", self.samples)
        noise = drawn.random((self.config.global_batch_size, count), np.float32)
        # Labels and their smoothing add to the cross-entropy only what is linear in the logits.
        losses = partial(torch.logsumexp, dim=1) if self.options.fisher == "gauss_newton" else None
        kfac.observe(
            logits,
            losses,
            share=samples / self.to_observe,
            loss_scale=self.scaler.get_scale(),
            noise=self.to_device(noise[first : first + samples]),
        )
        self.observed += samples

    def share_gradients(self) -> None:
        """Average the gradients for a profiler; with a sharded update their owners do that."""
        if not self.is_sharded:
            super().share_gradients()

    def apply_gradients(self) -> None:
        """Precondition the gradients, step, and normalise the weights."""
        self.samples += self.config.global_batch_size
        rate = self.schedule.rate(self.samples)
        self._set_rate(rate)
        if self.kfac is not None:
            self.scaler.unscale_(self.optimizer)
            self.kfac.damping = self.damping_schedule.find_damping(self.samples)
            self.kfac.step(rate, self.scaler.get_scale())
        with detect_lost_rank():
            self.scaler.step(self.optimizer)
        if self.kfac is not None and self.is_sharded:
            self.kfac.share_weights()
        self.scaler.update()
        if self.hyperparameters.opt_weight_normalisation:
            normalize_weights(self.model)
        self.optimizer.zero_grad()

    def _set_rate(self, rate: float) -> None:
        momentum = self.hyperparameters.opt_momentum
        if self.hyperparameters.opt_momentum_follows_rate:
            momentum *= min(1.0, rate / self.schedule.peak)
        for group in self.optimizer.param_groups:
            group["lr"], group["momentum"] = rate, momentum

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of resnet50; a compiled network is evaluated without hooks."""
        if self.kfac is not None and self.execution.compile == "on":
            self.kfac.detach()  # until a step in which a factor is due
        return super().evaluate()

    def implementation(self) -> Mapping[str, Any]:
        """Return the facts of resnet50; with K-FAC only some training steps are compiled."""
        facts = super().implementation()
        if not self.is_preconditioned or self.execution.compile != "on":
            return facts
        return {**facts, "training_step": "compiled where no factor is due"}

    def measure_afterwards(self) -> Mapping[str, float]:
        """Measure an update without K-FAC, on the pictures that would come next."""
        if self.kfac is None:
            return {}
        self.sent = self.ranks.all_gather_object(self.kfac.bytes_sent)
        kfac, self.kfac = self.kfac, None
        kfac.detach()  # a plain update has no hooks, which would also break compiled code
        try:
            return {"plain_update_ms": measure_plain_update(self)}
        finally:
            kfac.attach()
            self.kfac = kfac

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return how stale factors were, which rank inverts how much, and what ranks sent."""
        on_progress(self.samples, self.samples)  # the numbers were counted during training
        return make_report(self.kfac, self.sent) if self.kfac is not None else ()

    def list_notes(self) -> Sequence[str]:
        """Return the notes of resnet50, and the memory that mixup of a large share takes."""
        notes = super().list_notes()
        mixed = 4 * self.batch_per_rank * self.pixels**2 * 3  # bytes
        if not self.hyperparameters.mixup_alpha or mixed < NOTABLE_BYTES:
            return notes
        held = (
            f"mixup keeps a rank's images of the step before, {mixed / 2**30:.1f} GiB, in memory "
            f"or, in pieces (micro_batch), in a file in {tempfile.gettempdir()} (TMPDIR)"
        )
        return [*notes, held]

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, with the factors and the mixed batch.

        All ranks call it together. Of several ranks each has only its share of the mixed batch,
        which is left out.
        """
        state = super().state()
        kfac = self.kfac.state_dict() if self.kfac is not None else {}
        is_alone = self.ranks.world_size == 1
        if self.is_sharded and self.samples:
            state["optimizer"] = self._complete_momentum(state["optimizer"])
        return {**state, "kfac": kfac, "mixed": list(self.mixup.batch or ()) if is_alone else []}

    def _complete_momentum(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of the optimizer with the momentum of all layers, from their owners."""
        assert self.kfac is not None
        own = {weight: values[BUFFER] for weight, values in self.optimizer.state.items()}
        gathered = self.kfac.gather_owned(own)
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        momentum = {
            place: {BUFFER: gathered[weight]}
            for place, weight in enumerate(weights)
            if weight in gathered
        }
        return {**state, "state": {**state["state"], **momentum}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        super().restore(state)
        if self.kfac is not None and state.get("kfac"):
            self.kfac.load_state_dict(state["kfac"])
        if mixed := state.get("mixed"):
            self.mixup.resume(*mixed)
