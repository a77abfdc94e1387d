"""The base of tasks on images: batch norms normalise over spans, and ranks may share images."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.torch import accumulation
from cepheid.reference.torch.batch_norm import SpanBatchNorm2d, average_running_statistics
from cepheid.reference.torch.parallel.plan import STAGES
from cepheid.reference.torch.parallel.task import ParallelTask
from cepheid.reference.torch.pieces import Piece, Pieces
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.spatial.network import partition_network
from cepheid.rules.errors import UserError


class ImageTask(ParallelTask):
    """A ``ParallelTask`` whose definition has ``model_bn_span`` and square images.

    ``model_bn_span`` is the number of samples over which batch norms normalise; 0, and more
    than the global batch has, stand for the global batch. ``make_network`` uses
    ``make_normalisation`` for them and returns what ``partition`` returns, so that the ranks of a
    replica share its images where the execution setting ``spatial_partitions`` says so.
    """

    span: Span

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        self.grid = config.execution.parallelism.spatial_partitions
        super().__init__(config, ranks.partition(self.grid.parts, "spatial_partitions"))
        self.pixels = int(self.definition.model["pixels"])
        self.grid.check(self.pixels, self.pixels)
        self.can_try_alone = self.grid.parts == 1  # else ranks exchange rows in each pass
        self._find_pipeline_span()  # fails early

    def make_normalisation(self, **options: Any) -> partial[SpanBatchNorm2d]:
        """Set ``span`` and return what makes a batch norm for a number of channels.

        All ranks must call it. ``options`` are those of ``SpanBatchNorm2d``.
        """
        samples = self.hyperparameters.model_bn_span
        self.span = self._find_pipeline_span() or self.ranks.make_span(samples, self.batch_per_rank)
        return partial(SpanBatchNorm2d, over=self.span, **options)

    def partition(
        self, network: nn.Module, averaged: Sequence[str] = (), gathered: Sequence[str] = ()
    ) -> nn.Module:
        """Let ``network`` share its training images with the other ranks of the replica.

        ``averaged`` names the layers that take the mean over the last map, ``gathered`` those whose
        maps are the network's result.
        """
        shape = 3, self.pixels, self.pixels
        return partition_network(network, self.ranks, self.grid, shape, averaged, gathered)

    def average_statistics(self) -> None:
        """Average the running statistics of batch norms whose spans leave out other ranks."""
        if self.span.ranks < self.ranks.world_size:
            is_statistic = ("running_mean", "running_var")
            buffers = self.model.named_buffers()
            self.ranks.average(buffer for name, buffer in buffers if name.endswith(is_statistic))

    def list_piece_sizes(self) -> Sequence[int]:
        """Return the possible sizes of a piece: whole groups of ``model_bn_span`` samples."""
        span, share = self.hyperparameters.model_bn_span, self.batch_per_rank
        groups, _ = self.ranks.split_span(span, share)
        return [size for size in super().list_piece_sizes() if size % (share // groups) == 0]

    def refuse_uneven_pieces(self) -> None:
        """Raise UserError where pieces or spans of the configuration are not possible."""
        asked = self.config.execution.micro_batch
        is_divisor = asked.isdecimal() and int(asked) and self.batch_per_rank % int(asked) == 0
        accumulation.refuse_uneven_pieces(
            self.config.execution,
            self.list_piece_sizes(),
            "all have the same size, and batch norms normalise over whole groups of model_bn_span "
            f"samples, here {self._count_span()}",
            f"set model_bn_span={asked} too, which changes what is trained" if is_divisor else "",
        )

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on; norms know the groups of a piece."""
        super().use_execution(settings)
        groups = self.span.local_groups * self.piece_size // self.batch_per_rank
        groups = max(1, groups // self.sharing.micro_batches)
        for module in self.model.modules():
            if isinstance(module, SpanBatchNorm2d):
                module.over = replace(module.over, local_groups=groups)
                module.is_pipelined = self.sharing.stages > 1

    def unite(self, pieces: Pieces, is_alone: bool) -> Generator[Piece, None, None]:
        """Yield the pieces of a step; running statistics become those of all of them."""
        if len(pieces) == 1:
            return super().unite(pieces, is_alone)
        return average_running_statistics(self.model, pieces)

    def _count_span(self) -> int:
        """Return the samples over which batch norms normalise."""
        batch = self.config.global_batch_size
        return min(self.hyperparameters.model_bn_span or batch, batch)

    def _find_pipeline_span(self) -> Span | None:
        """Return the groups of ``model_bn_span`` samples in a replica's share in a pipeline.

        Raises UserError where they are not whole in each of equal micro-batches.
        """
        if self.sharing.stages == 1:
            return None
        share, count, span = self.batch_per_rank, self.sharing.micro_batches, self._count_span()
        if share % count or (share // count) % span:
            raise UserError(
                f"{STAGES}={self.sharing.stages}: {share} samples of a replica in {count} "
                f"micro-batches cannot be normalised over whole groups of model_bn_span={span}; "
                f"fix: choose the micro-batches (e.g. pipeline={self.sharing.stages}:gpipe:1) and "
                f"model_bn_span such that their product divides {share}"
            )
        return Span(share // span)
