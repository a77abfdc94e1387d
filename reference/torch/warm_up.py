"""Warm a trainer up before the clock starts: choose pieces and settings, and try a step on noise.

A step takes this rank's share of the global batch in pieces, usually one. ``PieceRule`` knows which
pieces are possible; the warm-up chooses among them by what fits into memory, and among the other
execution settings by time. The mathematics is the same whatever is chosen. The trainer of these
functions is a ``cepheid.reference.torch.trainer.Trainer``, which imports this module.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cepheid.reference.run.execution import Execution
from cepheid.reference.torch import execution
from cepheid.reference.torch.devices.graphs import try_graph
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.execution import explain_out_of_memory
from cepheid.reference.torch.parallel.norms import SETTING, TrainerNorms
from cepheid.reference.torch.pieces import Piece, cut
from cepheid.reference.torch.workload import Both, Seat, Workload


@dataclass(frozen=True)
class PieceRule:
    """Which pieces of a rank's share of a step are possible.

    ``can_try_alone`` says that a rank needs no other one for a step on its samples.
    """

    workload: Workload[Any]
    shape: Any
    seat: Seat
    norms: TrainerNorms
    can_try_alone: bool

    def list_sizes(self) -> Sequence[int]:
        """Return the possible numbers of samples of a piece, from this rank's whole share down."""
        share = self.seat.batch
        if self.workload.takes_whole_share:
            return (share,)
        pieces = [count for count in range(1, math.isqrt(share) + 1) if share % count == 0]
        sizes = sorted({*pieces, *(share // count for count in pieces)}, reverse=True)
        return self.norms.list_sizes(sizes)

    def refuse_uneven(self, settings: Execution) -> None:
        """Raise UserError where the settings ask for pieces that are not possible."""
        if self.workload.passes is None:
            self.norms.refuse_uneven(settings, self.list_sizes())

    def find_size(self, settings: Execution) -> int:
        """Return the samples of a piece by the settings; without a number it is the whole share."""
        size, share = settings.micro_batch, self.seat.batch
        return min(int(size), share) if size.isdecimal() else share

    def make_smaller(self, settings: Execution) -> Execution | None:
        """Return ``settings`` with pieces of at most half the size, or None if there are none."""
        if self.workload.passes:
            return self.workload.passes.make_smaller(self.shape, settings)
        size = self.find_size(settings)
        smaller = next((each for each in self.list_sizes() if each <= size / 2), None)
        if smaller is None:
            return None
        reason = f"a step on {size:,} samples at once needs more memory than there is"
        return settings.with_setting(SETTING, str(smaller), reason)

    def explain_large_step(self, settings: Execution) -> AbstractContextManager[None]:
        """Return a context that raises UserError where a step does not fit into memory."""
        device = find_device(self.seat.ranks.device)
        if self.workload.passes:
            return explain_out_of_memory(
                device, *self.workload.passes.explain(self.shape, settings)
            )
        fix = "choose a smaller global_batch_size, or more ranks"
        if smaller := self.make_smaller(settings):
            size = "auto" if self.can_try_alone else smaller.micro_batch
            fix += f", or take the samples in smaller pieces: --set {SETTING}={size}"
        count = self.find_size(settings)
        return explain_out_of_memory(device, f"a training step on {count:,} samples at once", fix)

    def draw_noise(self, settings: Execution, count: int) -> Both:
        """Return inputs and targets of noise, (count, …), or as many as a pass may have at most.

        torch's global generator stays as it is.
        """
        if self.workload.passes:
            count = self.workload.passes.limit(self.shape, settings, count)
        return self.workload.make_noise(self.shape, count, torch.Generator().manual_seed(0))


def warm_up(trainer: Any) -> None:
    """Choose the execution settings of a trainer; run one step and one prediction on noise.

    Weights, statistics and optimizer are as built afterwards. Raises UserError where step or
    prediction need more memory than there is.
    """
    rule, preconditioner = trainer.piece_rule, trainer.preconditioner
    preconditioner.detach()
    first, *others = trainer.workload.noise_samples(trainer.shape)
    with as_built(trainer):
        trainer.samples = first
        settings = fit_pieces(trainer)
        with rule.explain_large_step(settings):
            with one_noise(trainer):
                settings = execution.autotune(settings, trainer.step_on_noise, trainer.ranks)
            trainer.step_on_noise(settings)
            trainer.optimizer.step()
        step_on_other_noise(trainer, others)
    trainer.model.eval()
    trainer.samples = first
    with explain_out_of_memory(trainer.device, "an evaluation"), torch.no_grad():
        trainer.predict_noise()
    trainer.samples = 0
    preconditioner.attach(trainer)
    if preconditioner.rehearses:
        with as_built(trainer):
            preconditioner.rehearse(lambda: trainer.step_on_noise(trainer.execution))


@contextmanager
def one_noise(trainer: Any) -> Iterator[None]:
    """Draw noise once for all steps in the context: on a GPU drawing takes longer than a step."""
    trainer.draw_noise = cache(trainer.draw_noise)
    try:
        yield
    finally:
        del trainer.draw_noise


@contextmanager
def as_built(trainer: Any) -> Iterator[None]:
    """Train in the context; afterwards weights, statistics and optimizer are as before."""
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.model.train()
    yield
    trainer.model.load_state_dict(before)  # a scaled loss has left weights that predict nothing
    trainer.sharing.scatter()
    trainer.optimizer.zero_grad()
    trainer.optimizer.state.clear()
    trainer.use_execution(trainer.execution)  # with a new scaler


def step_on_other_noise(trainer: Any, places: Sequence[int]) -> None:
    """Run further steps on noise: elsewhere in the training, and for another graph."""
    for trainer.samples in places:
        trainer.step_on_noise(trainer.execution)
    draw = trainer.workload.draw_other_noise
    if draw and trainer.execution.compile == "on":
        noise = draw(trainer.shape, torch.Generator().manual_seed(0))
        trainer.compiled_loss(*map(trainer.to_device, noise)).backward()


def fit_pieces(trainer: Any) -> Execution:
    """Return the requested settings with the largest pieces for which a step fits into memory.

    A step must fit on all ranks. Where none can try one alone, because several compute the same
    samples, the share stays whole. Only ``auto`` is replaced. The smallest pieces are not tried:
    the warm-up explains what to do where they do not fit either.
    """
    rule: PieceRule = trainer.piece_rule
    requested: Execution = trainer.config.execution
    if requested.micro_batch != "auto":
        return requested
    if not rule.can_try_alone:
        return requested.with_setting(SETTING, "whole", "a rank cannot try a step alone")
    settings = requested.with_setting(SETTING, "whole", "the whole share of a rank fits")
    while smaller := rule.make_smaller(settings):
        if trainer.ranks.is_true_everywhere(fits_into_memory(trainer, settings)):
            return settings
        settings = smaller
    if settings.micro_batch == "whole":
        return settings.with_setting(SETTING, "whole", "the only candidate")
    return settings


def fits_into_memory(trainer: Any, settings: Execution) -> bool:
    """Try an eager step on noise; return True if it fits into the memory of this rank.

    Memory for two more values of each parameter is kept free: that is the state of Adam.
    """
    fits = True
    reserved: list[Tensor] = []
    trainer.preconditioner.attach(trainer)
    try:
        trainer.use_execution(settings.with_setting("compile", "off"))
        reserved += (torch.empty_like(p) for p in trainer.model.parameters() for _ in range(2))
        trainer.accumulate(draw_noise_pieces(trainer), is_alone=True)
    except RuntimeError as error:
        if not trainer.device.is_out_of_memory(error):
            raise
        fits = False
    finally:
        trainer.preconditioner.detach()
    reserved.clear()
    trainer.model.zero_grad()
    trainer.device.release()  # the pieces of memory of this try do not fit the next one
    return fits


def step_on_noise(trainer: Any, settings: Execution) -> str:
    """Run forward and backward on noise; return why that way to compute fails, or ""."""
    trainer.use_execution(settings)
    pieces = draw_noise_pieces(trainer)
    if trainer.captured.enabled and (why := try_graph(trainer, settings, pieces[0])):
        return why
    trainer.accumulate(pieces)
    return str(trainer.compiled_loss.failure)


def predict_noise(trainer: Any) -> None:
    """Compute everything that an evaluation computes once, in its shapes."""
    noise = trainer.draw_noise(trainer.evaluation_batch)
    if trainer.workload.predict_noise:
        trainer.workload.predict_noise(trainer.shape, trainer.infer(), noise)
    else:
        trainer.compiled_predict(noise[0])


def draw_noise_pieces(trainer: Any) -> Sequence[Piece]:
    """Return a piece of noise or two: the gradients of the first one need memory, too."""
    count = min(trainer.seat.batch, 2 * trainer.piece_size)
    inputs, targets = trainer.draw_noise(count)
    return cut(inputs, targets, trainer.piece_size)
