"""What batch norms normalise over: nothing, spans of samples, or the inputs of the global batch."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from cepheid.reference.run.execution import Execution
from cepheid.reference.torch.batch_norm import (
    GroupBatchNorm2d,
    SpanBatchNorm2d,
    average_running_statistics,
)
from cepheid.reference.torch.parallel.plan import STAGES, Sharing
from cepheid.reference.torch.pieces import Piece, Pieces
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.workload import Seat, Spans, Workload
from cepheid.rules.errors import UserError

SETTING = "micro_batch"  # the samples of a piece


class TrainerNorms:
    """The norms of a network that normalises no samples together."""

    def make(self, **options: Any) -> Callable[[int], nn.Module]:
        """Return what makes a norm for a number of channels. All ranks call it."""
        raise NotImplementedError("the workload declares no norms")

    def list_sizes(self, sizes: Sequence[int]) -> Sequence[int]:
        """Return those of the sizes of a piece that the norms allow."""
        return sizes

    def refuse_uneven(self, settings: Execution, sizes: Sequence[int]) -> None:
        """Raise UserError where the settings ask for a piece of another size."""
        _refuse_uneven_pieces(settings, sizes, "all pieces have the same size")

    def use_pieces(self, model: nn.Module, size: int) -> None:
        """Normalise pieces of ``size`` samples from now on."""

    def unite(
        self, model: nn.Module, pieces: Pieces, run: Callable[[Any], object], is_alone: bool
    ) -> Generator[Piece, None, None]:
        """Yield the pieces of a step, such that the norms treat them as one batch.

        ``run`` is a forward pass on inputs. With ``is_alone`` ranks exchange nothing.
        """
        yield from pieces

    def average_statistics(self, model: nn.Module) -> None:
        """Make the running statistics those of all ranks, before an evaluation."""


class SpanNorms(TrainerNorms):
    """Norms over spans of ``span`` samples, 0 for the global batch (``SpanBatchNorm2d``).

    Raises UserError where a pipeline cuts spans.
    """

    def __init__(self, span: int, seat: Seat, sharing: Sharing) -> None:
        self._span, self._seat, self._sharing = span, seat, sharing
        self._ranks: Any = seat.ranks
        self._total = seat.batch * seat.ranks.replicas
        self._of_pipeline = self._find_pipeline_span()

    @override
    def make(self, **options: Any) -> Callable[[int], nn.Module]:
        share = self._seat.batch
        self._over: Span = self._of_pipeline or self._ranks.make_span(self._span, share)
        return partial(SpanBatchNorm2d, over=self._over, **options)

    @override
    def list_sizes(self, sizes: Sequence[int]) -> Sequence[int]:
        share = self._seat.batch
        groups, _ = self._ranks.split_span(self._span, share)
        return [size for size in sizes if size % (share // groups) == 0]

    @override
    def refuse_uneven(self, settings: Execution, sizes: Sequence[int]) -> None:
        asked = settings.micro_batch
        is_divisor = asked.isdecimal() and int(asked) and self._seat.batch % int(asked) == 0
        _refuse_uneven_pieces(
            settings,
            sizes,
            "all have the same size, and batch norms normalise over whole groups of model_bn_span "
            f"samples, here {self._count_span()}",
            f"set model_bn_span={asked} too, which changes what is trained" if is_divisor else "",
        )

    @override
    def use_pieces(self, model: nn.Module, size: int) -> None:
        groups = self._over.local_groups * size // self._seat.batch
        groups = max(1, groups // self._sharing.micro_batches)
        for module in model.modules():
            if isinstance(module, SpanBatchNorm2d):
                module.over = replace(module.over, local_groups=groups)
                module.is_pipelined = self._sharing.stages > 1

    @override
    def unite(
        self, model: nn.Module, pieces: Pieces, run: Callable[[Any], object], is_alone: bool
    ) -> Generator[Piece, None, None]:
        if len(pieces) > 1:
            return average_running_statistics(model, pieces)
        return super().unite(model, pieces, run, is_alone)

    @override
    def average_statistics(self, model: nn.Module) -> None:
        if self._over.ranks < self._ranks.world_size:  # spans leave out other ranks
            is_statistic = ("running_mean", "running_var")
            buffers = model.named_buffers()
            self._ranks.average(each for name, each in buffers if name.endswith(is_statistic))

    def _count_span(self) -> int:
        """Return the samples over which batch norms normalise."""
        return min(self._span or self._total, self._total)

    def _find_pipeline_span(self) -> Span | None:
        """Return the groups of a span in a replica's share, whole in each micro-batch."""
        if self._sharing.stages == 1:
            return None
        share, count, span = self._seat.batch, self._sharing.micro_batches, self._count_span()
        if share % count or (share // count) % span:
            raise UserError(
                f"{STAGES}={self._sharing.stages}: {share} samples of a replica in {count} "
                f"micro-batches cannot be normalised over whole groups of model_bn_span={span}; "
                f"fix: choose the micro-batches (e.g. pipeline={self._sharing.stages}:gpipe:1) and "
                f"model_bn_span such that their product divides {share}"
            )
        return Span(share // span)


class InputNorms(TrainerNorms):
    """A norm of the network's inputs over the global batch (``GroupBatchNorm2d``)."""

    def __init__(self, seat: Seat, is_pipelined: bool) -> None:
        self._is_single, self._is_pipelined = seat.ranks.world_size == 1, is_pipelined

    @override
    def make(self, **options: Any) -> Callable[[int], nn.Module]:
        return partial(GroupBatchNorm2d, **options)

    @override
    def unite(
        self, model: nn.Module, pieces: Pieces, run: Callable[[Any], object], is_alone: bool
    ) -> Generator[Piece, None, None]:
        # The norm takes the moments of all pieces in a pass of its own. It needs no gradient of
        # its inputs, so that they pass through it twice and nothing else.
        # Of a pipeline only the first stage passes the norm.
        is_one_batch = len(pieces) == 1 and (not is_alone or self._is_single)
        is_one_batch = is_one_batch and not self._is_pipelined
        norms = [each for each in model.modules() if isinstance(each, GroupBatchNorm2d)]
        with ExitStack() as stack:
            for norm in [] if is_one_batch else norms:
                passes = (partial(run, piece.inputs) for piece in pieces)
                stack.enter_context(norm.unite(passes, is_alone))
            yield from pieces


def make_norms(workload: Workload[Any], shape: Any, seat: Seat, sharing: Sharing) -> TrainerNorms:
    """Return the norms that a workload declares."""
    declared = workload.norms(shape)
    if isinstance(declared, Spans):
        return SpanNorms(declared.samples, seat, sharing)
    return TrainerNorms() if declared is None else InputNorms(seat, sharing.stages > 1)


def refuse_other_norms(model: nn.Module) -> None:
    """Raise UserError where a batch norm of ``model`` would normalise over a piece alone."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, SpanBatchNorm2d):
            raise UserError(
                f'{SETTING}: layer "{name}" ({type(module).__name__}) would normalise over the '
                f"samples of a piece, not of the batch; fix: set {SETTING}=whole, or use a norm "
                "of cepheid.reference.torch.batch_norm"
            )


def _refuse_uneven_pieces(
    settings: Execution, sizes: Sequence[int], why: str, other_fix: str = ""
) -> None:
    """Raise UserError unless the pieces of ``settings`` have one of the possible ``sizes``.

    The sizes go from the rank's whole share down. ``why`` says what limits them, ``other_fix`` what
    would make the pieces possible.
    """
    wanted = settings.micro_batch
    if not wanted.isdecimal() or int(wanted) in sizes:
        return
    above = [size for size in sizes if size > int(wanted)][-1:]
    below = [size for size in sizes if size < int(wanted)][:1]
    nearest = " or ".join(map(str, below + above))
    raise UserError(
        f"--set {SETTING}={wanted}: a rank's {sizes[0]} samples of a step cannot be taken in such "
        f"pieces: {why}; fix: set {SETTING} to {nearest}, or leave it out"
        f"{other_fix and f', or {other_fix}'}"
    )
