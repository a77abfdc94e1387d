"""The base of all tasks that train on torch; benchmarks differ in model, data and metrics."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.task import BenchmarkTask
from cepheid.reference.torch import accumulation, execution, precision
from cepheid.reference.torch.compilation import Compiled
from cepheid.reference.torch.execution import explain_out_of_memory, seed_everything
from cepheid.reference.torch.pieces import Piece, Pieces, cut
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.definition import Block

Phase = Callable[[str], AbstractContextManager[object]]


class TorchTask(BenchmarkTask):
    """A task of the timed loop; a subclass adds model, optimizer, data and metrics.

    A subclass must implement the methods of the first section and may override the others.
    ``phase`` is entered around each part of a step: data, forward, backward, communication, update
    (``cepheid.measure.engine.turns``). A step takes this rank's share of the global
    batch in pieces of ``piece_size`` samples, usually one
    (``cepheid.reference.torch.accumulation``).
    """

    ranks: TorchRanks
    has_varying_shapes = False  # from batch to batch
    can_try_alone = True  # whether a rank needs no other one for a step on its samples

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        self.batch_per_rank = ranks.split_batch(config.global_batch_size)
        super().__init__(config, ranks)
        self.phase: Phase = nullcontext
        self.refuse_uneven_pieces()

    # A benchmark implements:

    def make_network(self) -> nn.Module:
        """Return the network of the definition, initialised from torch's global generator."""
        raise NotImplementedError

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the configuration for ``model``."""
        raise NotImplementedError

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's inputs and targets of the global batch that follows ``samples``.

        Both are (share, …).
        """
        raise NotImplementedError

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the real shapes, (count, …), without reading the dataset."""
        raise NotImplementedError

    def compute_loss(self, inputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss of a batch of ``next_batch``, a scalar with gradients."""
        raise NotImplementedError

    def open_data(self) -> None:
        """Touch the dataset for the first time."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Return all metrics over the whole evaluation set, the same on every rank."""
        raise NotImplementedError

    # A benchmark may override:

    def build(self) -> int:
        """Make model and optimizer from the seed; return the number of trainable parameters."""
        seed_everything(self.config.seed)
        self.model = self.make_network().to(self.ranks.device)
        self.optimizer = self.make_optimizer()
        requested = self.config.execution
        insist = requested.compile == "on"
        self.compiled_loss = Compiled(
            self.compute_loss, enabled=insist, insist=insist, dynamic=self.has_varying_shapes
        )
        self.compiled_predict = Compiled(self.predict, enabled=insist, insist=insist)
        self.use_execution(requested)
        return sum(parameter.numel() for parameter in self.model.parameters())

    def predict(self, inputs: Tensor, /) -> Any:
        """Return what an evaluation computes for inputs (batch, …): here what ``model`` returns."""
        with self.autocast():
            return self.model(inputs)

    def warm_up(self) -> None:
        """Choose the execution settings, then run one step and one prediction on noise.

        Weights, statistics and optimizer are as built afterwards. Raises UserError where step or
        prediction need more memory than there is.
        """
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        fits = self.fits_into_memory if self.can_try_alone else None
        requested = accumulation.fit_pieces(
            self.config.execution, self.make_smaller, fits, self.ranks
        )
        with self.explain_large_step(requested):
            self.step_on_noise(execution.autotune(requested, self.step_on_noise, self.ranks))
            self.optimizer.step()
        self.model.load_state_dict(before)  # a scaled loss has left weights that predict nothing
        self.model.eval()
        with explain_out_of_memory("an evaluation"), torch.no_grad():
            self.predict_noise()
        self.optimizer.zero_grad()
        self.optimizer.state.clear()

    def predict_noise(self) -> None:
        """Compute everything that an evaluation computes once, in its shapes."""
        self.compiled_predict(self.draw_noise(self.evaluation_batch)[0])

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device, ranks and execution, for readers of the log."""
        return {
            "framework": self.ranks.framework,
            "device": self.ranks.accelerator or "cpu",
            "ranks": self.ranks.world_size,
            "threads_per_rank": torch.get_num_threads(),
            "precision": str(self.precision).removeprefix("torch."),
            "training_step": self.compiled_loss.note,
            "evaluation": self.compiled_predict.note,
            "execution": asdict(self.execution),
        }

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss over the block, on every rank."""
        self.model.train()
        losses = []
        while self.samples < block.samples:
            losses.append(self.step())
            on_samples(self.samples)
        total = self.ranks.sum(torch.stack(losses).double().sum())
        return float(total) / len(losses) / self.ranks.world_size

    def step(self) -> Tensor:
        """Run one step on the next global batch; return this rank's detached loss, a scalar."""
        loss = self.loss_and_gradients()
        with self.phase("communication"):
            self.share_gradients()
        with self.phase("update"):
            self.apply_gradients()
        return loss

    def loss_and_gradients(self) -> Tensor:
        """Run forward and backward on this rank's share of the next global batch, piece by piece.

        Return the detached loss, a scalar.
        """
        with self.phase("data"):
            pieces = self.next_pieces()
        return self.run_pieces(pieces)

    def next_pieces(self) -> Pieces:
        """Return this rank's share of the global batch that follows ``samples``, in pieces."""
        return cut(*self.next_batch(), self.piece_size)

    def run_pieces(self, pieces: Pieces, is_alone: bool = False) -> Tensor:
        """Run forward and backward on all pieces of a step; return the detached loss, a scalar.

        With ``is_alone`` this rank exchanges nothing with the others.
        """
        losses = []
        with closing(self.unite(pieces, is_alone)) as united:
            for number, piece in enumerate(united, 1):
                is_last = number == len(pieces) and not is_alone
                with self.sync_gradients() if is_last else self.no_sync():
                    # DistributedDataParallel sends messages in its second forward pass.
                    with self.phase("forward"), detect_lost_rank():
                        loss: Tensor = self.compiled_loss(piece.inputs, piece.targets)
                        if piece.weight != 1:
                            loss = loss * piece.weight
                    with self.phase("backward"):
                        self.backward(loss)
                losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def unite(self, pieces: Pieces, is_alone: bool) -> Generator[Piece, None, None]:
        """Yield the pieces of a step, such that batch norms treat them as one batch.

        With ``is_alone`` this rank exchanges nothing with the others.
        """
        yield from pieces

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``, a scalar, to those of the parameters."""
        loss.backward()

    def sync_gradients(self) -> AbstractContextManager[object]:
        """Return the context of the last pass of a step, which may average the gradients."""
        return nullcontext()

    def no_sync(self) -> AbstractContextManager[object]:
        """Return the context of all passes before the last one, which average no gradients."""
        return nullcontext()

    def share_gradients(self) -> None:
        """Average the gradients over the ranks."""
        self.ranks.average_gradients(self.model.parameters())

    def apply_gradients(self) -> None:
        """Count the samples of the step, set its learning rates and change the weights."""
        self.samples += self.config.global_batch_size
        self.prepare_update()
        with detect_lost_rank():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def prepare_update(self) -> None:
        """Set the learning rate of the step that completes ``samples``; clip, where needed."""
        rate = self.learning_rate()
        if rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def learning_rate(self) -> float | None:
        """Return the learning rate of the step that completes ``samples``, or None to keep it."""
        return None

    def finish_phase(self) -> None:
        """Wait for the ends of a profiled phase: on this rank's device, and on all other ranks."""
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""
        self.ranks.barrier()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: weights, statistics, optimizer, samples trained."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples = int(state["samples"])

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on."""
        self.execution = settings
        execution.use_threads(settings)
        # An "auto" that autotuning has not replaced yet computes in float32.
        self.precision = precision.TYPES.get(settings.precision, torch.float32)
        self.compiled_loss.enabled = self.compiled_predict.enabled = settings.compile == "on"
        self.piece_size = accumulation.find_piece_size(settings, self.batch_per_rank)
        if self.piece_size < self.batch_per_rank:
            accumulation.refuse_other_norms(self.model)

    def step_on_noise(self, settings: Execution) -> str:
        """Run forward and backward on noise; return why compiling failed, or an empty string."""
        self.use_execution(settings)
        self.run_pieces(self.draw_noise_pieces())
        return self.compiled_loss.failure

    def list_piece_sizes(self) -> Sequence[int]:
        """Return the possible numbers of samples of a piece, from this rank's whole share down."""
        share = self.batch_per_rank
        pieces = [count for count in range(1, math.isqrt(share) + 1) if share % count == 0]
        return sorted({*pieces, *(share // count for count in pieces)}, reverse=True)

    def refuse_uneven_pieces(self) -> None:
        """Raise UserError where the pieces that the configuration requires are not possible."""
        accumulation.refuse_uneven_pieces(
            self.config.execution, self.list_piece_sizes(), "all pieces have the same size"
        )

    def make_smaller(self, settings: Execution) -> Execution | None:
        """Return ``settings`` with pieces of at most half the size, or None if there are none."""
        size = accumulation.find_piece_size(settings, self.batch_per_rank)
        smaller = next((each for each in self.list_piece_sizes() if each <= size / 2), None)
        if smaller is None:
            return None
        reason = f"a step on {size:,} samples at once needs more memory than there is"
        return settings.with_setting(accumulation.SETTING, str(smaller), reason)

    def fits_into_memory(self, settings: Execution) -> bool:
        """Try an eager step on noise; return True if it fits into the memory of this rank."""
        self.use_execution(settings.with_setting("compile", "off"))
        return accumulation.try_step(
            lambda: self.run_pieces(self.draw_noise_pieces(), is_alone=True), self.model
        )

    def explain_large_step(self, settings: Execution) -> AbstractContextManager[None]:
        """Return a context that raises UserError where a step does not fit into memory."""
        count = accumulation.find_piece_size(settings, self.batch_per_rank)
        fix = "choose a smaller global_batch_size, or more ranks"
        if smaller := self.make_smaller(settings):
            size = "auto" if self.can_try_alone else smaller.micro_batch
            fix += f", or take the samples in smaller pieces: --set {accumulation.SETTING}={size}"
        return explain_out_of_memory(f"a training step on {count:,} samples at once", fix)

    # For all:

    def split_for_evaluation(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield this rank's share of ``rows`` (n,) in batches of ``evaluation_batch`` at most."""
        share = rows[self.ranks.rank :: self.ranks.world_size]
        for first in range(0, len(share), self.evaluation_batch):
            yield share[first : first + self.evaluation_batch]

    @property
    def first_sample(self) -> int:
        """The place of this rank's first sample of the next global batch among all that train."""
        return self.samples + self.ranks.replica * self.batch_per_rank

    def draw_noise_pieces(self) -> Sequence[Piece]:
        """Return a piece of noise or two: the gradients of the first one need memory, too."""
        count = min(self.batch_per_rank, 2 * self.piece_size)
        return cut(*self.draw_noise(count), self.piece_size)

    def draw_noise(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the noise batch on this rank's device; torch's global generator stays as it is.

        Shapes are those of ``make_noise_batch``.
        """
        inputs, targets = self.make_noise_batch(count, torch.Generator().manual_seed(0))
        return self.to_device(inputs), self.to_device(targets)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs at the precision of the run."""
        return precision.autocast(self.precision, self.ranks.device)

    def to_device(self, values: Tensor | np.ndarray) -> Tensor:
        """Return ``values`` on this rank's device, in the same shape and type."""
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        return tensor.to(self.ranks.device, non_blocking=True)
