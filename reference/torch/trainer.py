"""Train and evaluate any workload: the whole of a step lies in this file."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cepheid.reference.data import generators
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.task import BenchmarkTask
from cepheid.reference.torch import execution
from cepheid.reference.torch.devices.feeding import PiecesAhead
from cepheid.reference.torch.devices.graphs import CapturedPass
from cepheid.reference.torch.devices.values import to_device, widen
from cepheid.reference.torch.execution import Compiled, seed_everything
from cepheid.reference.torch.parallel.norms import make_norms, refuse_other_norms
from cepheid.reference.torch.parallel.sharing import arrange, make_sharing
from cepheid.reference.torch.pieces import Piece, Pieces
from cepheid.reference.torch.preconditioner import Preconditioner
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.warm_up import PieceRule, predict_noise, step_on_noise, warm_up
from cepheid.reference.torch.workload import (
    Both,
    Groups,
    Inference,
    Moment,
    Network,
    Result,
    Seat,
    Update,
    Workload,
)
from cepheid.rules.definition import Block

Phase = Callable[[str], AbstractContextManager[object]]


class Trainer(BenchmarkTask):
    """A task of ``cepheid.reference.run.train`` that trains a workload.

    ``step`` is the same for all workloads. What a workload computes is in its functions, how
    gradients and weights travel in ``sharing``, what batch norms normalise over in ``norms``, and
    what changes gradients before an update in ``preconditioner``. ``phase`` is entered around each
    part of a step: data, forward, backward, communication, update. Measurements ask for ``shared``
    and ``sharded``, what ranks share of the model or of the update, if they do.
    """

    ranks: TorchRanks

    def __init__(self, workload: Workload[Any], config: RunConfig, ranks: TorchRanks) -> None:
        self.arrangement = arrange(workload.maps, config, ranks)
        config, ranks = self.arrangement.config, self.arrangement.ranks
        self.workload, self.shape = workload, workload.read_shape(config)
        self.evaluation_batch = workload.evaluation_batch(self.shape)
        super().__init__(config, ranks)
        self.device = execution.find_device_for(config.execution, ranks)
        workers = execution.count_workers(ranks)
        self.batch_per_rank = share = ranks.split_batch(config.global_batch_size)
        source = generators.find_source(config.definition.data)
        self.seat = Seat(ranks, share, workers, share, config.execution, source, self.folder)
        workload.check(self.shape, self.seat)
        self.has_varying_shapes = workload.has_varying_shapes
        self._phase: Phase = nullcontext
        make = workload.make_preconditioner
        made = make(self.shape, self.seat) if make else None
        self.preconditioner: Preconditioner = made or Preconditioner()
        is_owned = self.preconditioner.shares_update
        self.sharing = make_sharing(
            workload, self.shape, self.arrangement, is_owned, lambda name: self.phase(name)
        )
        self.norms = make_norms(workload, self.shape, self.seat, self.arrangement.division)
        can_try_alone = self.sharing.can_try_alone
        self.piece_rule = PieceRule(workload, self.shape, self.seat, self.norms, can_try_alone)
        self.piece_rule.refuse_uneven(config.execution)
        self.given_digest: str | None = None
        self.details: Any = None
        self.curve: list[tuple[int, Mapping[str, float]]] = []
        self.seconds = {"training": 0.0, "evaluation": 0.0}
        self._offer_what_is_declared()

    def _offer_what_is_declared(self) -> None:
        """Have the methods of a workload that it may lack; the session asks for them by name."""
        if report := self.workload.report:
            self.report = partial(self.conclude, report)
        if pictures := self.workload.pictures:
            self.pictures = partial(self.conclude, pictures)
        if measure := self.workload.measure_afterwards:
            self.measure_afterwards = partial(measure, self)

    # A step:

    def step(self) -> Tensor:
        """Run one step on the next global batch; return this rank's detached loss, a scalar."""
        if self.workload.step:
            return self.workload.step(self)
        loss = self.loss_and_gradients()
        with self.phase("communication"):
            self.sharing.reduce()
        with self.phase("update"):
            self.apply_gradients()
        return loss

    def loss_and_gradients(self) -> Tensor:
        """Set the gradients of this rank's share of the next batch; return its loss, a scalar."""
        if self.workload.before_step:
            self.workload.before_step(self.shape, self.model, self.moment(self.seat.batch))
        with self.phase("data"):
            pieces = self.next_pieces()
        return self.accumulate(pieces)

    def next_pieces(self) -> Pieces:
        """Return this rank's share of the global batch that follows ``samples``, on the CPU."""
        return self.ahead.take(self.samples, self.piece_size)

    def accumulate(self, pieces: Pieces, is_alone: bool = False) -> Tensor:
        """Run forward and backward on all pieces of a step; return the detached loss, a scalar.

        With ``is_alone`` this rank exchanges nothing with the others.
        """
        if self.sharing.is_pipeline:
            return torch.stack([self.flow(piece) for piece in self.move(pieces)]).sum()
        self.preconditioner.prepare_step(len(pieces) * self.piece_size)
        losses: list[Tensor] = []
        done = 0
        with closing(self.unite(pieces, is_alone)) as united:
            for number, piece in enumerate(self.move(united), 1):
                count = len(piece.inputs)
                if self.workload.before_piece:
                    self.workload.before_piece(self.shape, self.model, self.moment(count, done))
                done += count
                with self.sync(is_last=number == len(pieces) and not is_alone):
                    losses.append(self.pass_both_ways(piece))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def pass_both_ways(self, piece: Piece) -> Tensor:
        """Run forward and backward on a piece; return its weighted loss, detached, a scalar."""
        if not self.captured.enabled:
            return self.run_pass(piece)
        with self.phase("graph"), detect_lost_rank():
            return self.captured(piece)

    def run_pass(self, piece: Piece) -> Tensor:
        """Return the same, a scalar, of one operation after the other."""
        with self.phase("forward"), detect_lost_rank():
            loss: Tensor = self.compiled_loss(piece.inputs, piece.targets)
            if piece.weight != 1:
                loss = loss * piece.weight
        with self.phase("backward"), detect_lost_rank():
            self.preconditioner.observe()
            self.scaler.scale(loss).backward()
            self.device.finish_step()
        return loss.detach()

    def flow(self, piece: Piece) -> Tensor:
        """Run a piece through a pipeline in micro-batches; return its loss, detached, a scalar."""
        with self.phase("pipeline"), self.autocast():
            return self.sharing.flow(piece, self.unite)

    def unite(self, pieces: Pieces, is_alone: bool = False) -> Generator[Piece, None, None]:
        """Yield the pieces such that norms treat them as one batch."""
        return self.norms.unite(self.model, pieces, self.pass_forward, is_alone)

    def apply_gradients(self) -> None:
        """Count the samples of the step, change the weights, and forget the gradients."""
        self.samples += self.config.global_batch_size
        groups = self.optimizer.param_groups
        self.workload.prepare_update(self.shape, Update(self.samples, groups, self.clip))
        self.preconditioner.precondition(self.optimizer, self.scaler)
        self.sharing.update(self.optimizer, self.scaler)
        self.preconditioner.finish_update()
        self.device.finish_step()
        if self.workload.after_update:
            self.workload.after_update(self.shape, self.model)

    # Its parts:

    def move(self, pieces: Pieces | Iterator[Piece]) -> Iterator[Piece]:
        """Yield the pieces, read in their phase, on this rank's device."""
        ahead = iter(pieces)
        while True:
            with self.phase("data"):
                piece = next(ahead, None)
                if piece is None:
                    return
                inputs, targets = self.to_device(piece.inputs), self.to_device(piece.targets)
            yield Piece(inputs, targets, piece.weight)

    @contextmanager
    def sync(self, is_last: bool) -> Iterator[None]:
        """Enter the context of a pass; in the last one of a step gradients may travel."""
        before_last = nullcontext() if is_last else self.preconditioner.accumulate()
        with self.sharing.sync(is_last), before_last:
            yield

    def pass_forward(self, inputs: Tensor) -> object:
        """Run a forward pass on inputs (n, …) for what sees them on the way."""
        with self.phase("forward"):
            return self.predict_eagerly(self.to_device(inputs))

    def clip(self, groups: Groups, limit: float) -> None:
        """Scale the gradients of the groups so that their norm together is at most ``limit``."""
        self.sharing.clip(self.scaler, groups, limit)

    def moment(self, count: int, done: int = 0) -> Moment:
        """Return the place of ``count`` samples that follow ``done`` of this rank's share."""
        first = self.seat.find_first(self.samples) + done
        has_matrices = self.arrangement.division.tensor_ranks > 1
        return Moment(self.samples, first, count, self.seat, has_matrices)

    # The task of the timed loop:

    def build(self) -> int:
        """Make network and optimizer from the seed; return the number of trainable parameters."""
        seed_everything(self.config.seed)
        workload, requested = self.workload, self.config.execution
        network = workload.make_network(self.shape, self.norms)
        self.model: Any = self.arrangement.partition(network).to(self.ranks.device)
        recipe = workload.make_optimizer(self.shape, self.model)
        self.optimizer = self.sharing.wrap(self.model, recipe)
        self.shared, self.sharded = self.sharing.shared, self.sharing.sharded
        called = self.preconditioner.wrap(self.sharing.network)
        trained = Network(called, self.model, self.autocast)
        self.evaluated = Network(self.model, self.model, self.autocast)
        insist = requested.compile == "on"
        compile_by = partial(Compiled, enabled=insist, insist=insist)
        self.compute_loss = partial(workload.compute_loss, self.shape, trained)
        self.compiled_loss = compile_by(self.compute_loss, dynamic=workload.has_varying_shapes)
        self.predict_eagerly = partial(workload.predict, self.shape, self.evaluated)
        self.compiled_predict = compile_by(self.predict_eagerly)
        self.functions = {
            name: compile_by(partial(function, self.shape, self.evaluated))
            for name, function in workload.functions.items()
        }
        self.captured = CapturedPass(self.device, self.model, self.run_pass)
        self.use_execution(requested)
        self.preconditioner.attach(self)
        return sum(parameter.numel() for parameter in self.model.parameters())

    def warm_up(self) -> None:
        """Load given weights, choose the execution settings, run one step and one prediction."""
        if self.workload.load_given:
            self.given_digest = self.workload.load_given(self.shape, self.model)
        warm_up(self)

    def open_data(self) -> None:
        """Touch the dataset for the first time."""
        seat = replace(self.seat, piece=self.piece_size, execution=self.execution)
        self.data = self.workload.open_data(self.shape, seat)
        self.ahead = PiecesAhead(self.device, self.data.take, self.config.global_batch_size)

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss over the block, on every rank."""
        started = time.monotonic()
        self.model.train()
        losses = []
        while self.samples < block.samples:
            losses.append(self.step())
            on_samples(self.samples)
        total = self.ranks.sum(widen(torch.stack(losses)).sum())
        self.sharing.gather()
        self.seconds["training"] += time.monotonic() - started
        return float(total) / len(losses) / self.ranks.world_size

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return all metrics over the whole evaluation set, the same on every rank."""
        started = time.monotonic()
        self.model.eval()
        self.norms.average_statistics(self.model)
        self.preconditioner.pause()
        evaluation = self.workload.evaluate(self.shape, self.infer())
        self.details = evaluation.details
        self.curve.append((self.samples, evaluation.metrics))
        self.seconds["evaluation"] += time.monotonic() - started
        return dict(evaluation.metrics)

    def predict(self, *inputs: Any) -> Any:
        """Return what the workload predicts for inputs (n, …), which may lie anywhere."""
        return self.compiled_predict(*map(self.to_device, inputs))

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device, ranks and execution, for readers of the log."""
        return execution.describe(self)

    def finish_phase(self) -> None:
        """Wait for the ends of a profiled phase, on all other ranks too if they keep in step."""
        wait = self.device.synchronize if self.workload.has_own_pace else self.synchronize
        wait()

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""
        self.ranks.barrier()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, at any number of ranks; all ranks call it together."""
        optimizer = self.sharing.gather_optimizer(self.optimizer.state_dict())
        return {
            "model": self.model.state_dict(),
            "optimizer": self.preconditioner.complete_optimizer(optimizer),
            "samples": self.samples,
            "loss_scale": self.scaler.state_dict(),
            **self.preconditioner.state(),
            **self.workload.save_data(getattr(self, "data", None)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        self.model.load_state_dict(state["model"])
        self.sharing.scatter()
        self.optimizer.load_state_dict(dict(self.sharing.scatter_optimizer(state["optimizer"])))
        self.samples = int(state["samples"])
        if state.get("loss_scale"):
            self.scaler.load_state_dict(state["loss_scale"])
        self.preconditioner.restore(state)
        self.workload.restore_data(getattr(self, "data", None), state)

    def list_notes(self) -> Sequence[str]:
        """Return what a plan should tell about the settings though it is allowed."""
        return self.workload.list_notes(self.shape, self.seat)

    @torch.no_grad()
    def conclude(self, show: Callable[..., Any], *arguments: Any) -> Any:
        """Return what ``show`` makes of what the run has left: a report or pictures."""
        self.model.eval()
        result = Result(self.infer(), self.details, self.curve, self.seconds, self.preconditioner)
        return show(self.shape, result, *arguments)

    def infer(self) -> Inference:
        """Return the network as it is now, for an evaluation."""
        data, size = getattr(self, "data", None), self.evaluation_batch
        return Inference(
            self.predict, self.functions, self.evaluated, data, self.seat, size, self.samples
        )

    # What the warm-up tries:

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on, with a new scaler."""
        self.execution = settings
        self.precision = execution.use_settings(settings, self.device)
        is_compiled = settings.compile == "on"
        self.captured.use_execution(settings)
        self.compiled_loss.enabled = is_compiled and self.workload.compiles_loss
        for compiled in (self.compiled_predict, *self.functions.values()):
            compiled.enabled = is_compiled and self.workload.compiles_predict
        self.piece_size = self.piece_rule.find_size(settings)
        if self.piece_size < self.seat.batch:
            refuse_other_norms(self.model)
        self.norms.use_pieces(self.model, self.piece_size)
        self.sharing.use_execution(is_compiled)
        self.scaler = self.sharing.make_scaler(self.precision is torch.float16)

    def step_on_noise(self, settings: Execution) -> str:
        """Run forward and backward on noise; return why that way to compute fails, or ""."""
        return step_on_noise(self, settings)

    def predict_noise(self) -> None:
        """Compute everything that an evaluation computes once, in its shapes."""
        predict_noise(self)

    def draw_noise(self, count: int) -> Both:
        """Return inputs and targets of noise, (count, …), on this rank's device."""
        inputs, targets = self.piece_rule.draw_noise(self.execution, count)
        return self.to_device(inputs), self.to_device(targets)

    @property
    def phase(self) -> Phase:
        """The context of each part of a step; a profiler sets it, and gradients travel apart."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase, self.sharing.is_timed = phase, phase is not nullcontext

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a network runs at the precision of the run."""
        return self.device.autocast(self.precision)

    def to_device(self, values: Any) -> Tensor:
        """Return ``values`` on this rank's device, in the same shape and type."""
        return to_device(values, self.ranks.device)
