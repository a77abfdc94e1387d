"""The base of tasks whose model several ranks can share, by its layers or by its matrices."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.parallel import model_parallel
from cepheid.reference.torch.parallel.model_parallel import SharedModel
from cepheid.reference.torch.parallel.pipeline import Pipeline
from cepheid.reference.torch.parallel.plan import Stage
from cepheid.reference.torch.pieces import Piece, Pieces, cut
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.task import TorchTask
from cepheid.rules.definition import Block

if TYPE_CHECKING:
    from cepheid.reference.torch.parallel.plan import TensorPlan


class ModelParallelTask(TorchTask):
    """A ``TorchTask`` that trains this rank's part of ``model``, if the settings share it.

    ``sharing`` is what the settings require (``model_parallel``). ``shared`` is this rank's part,
    or None. ``model`` is whole on every rank after each block.
    """

    shared: SharedModel | None = None

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        self.sharing = model_parallel.read_sharing(config)
        config = model_parallel.prepare(config, self.sharing)
        if self.sharing.ranks > 1:
            ranks = ranks.partition(self.sharing.ranks, self.sharing.setting)
        super().__init__(config, ranks)

    # A benchmark whose definition has such settings implements:

    def cut_stages(self) -> Sequence[Stage]:
        """Return the stages of a pipeline, ``sharing.stages`` parts of ``model``."""
        raise NotImplementedError

    def sum_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of samples or tokens, for logits (n, …), targets (n, …)."""
        raise NotImplementedError

    def count_losses(self, targets: Tensor) -> int:
        """Return the number of losses that ``sum_losses`` adds up for targets (n, …)."""
        return len(targets)

    def fill_micro_batches(self, piece: Piece) -> Piece:
        """Return ``piece`` with as many samples as equal micro-batches need, without a loss."""
        return piece

    def plan_matrices(self) -> "TensorPlan":
        """Return how the ranks of a replica share the matrices of ``model``."""
        raise NotImplementedError

    # For all:

    def share_model(self) -> SharedModel | None:
        """Set ``shared`` and return it; it is None if no ranks share the model."""
        if self.sharing.stages > 1:
            stages = self.cut_stages()
            self.shared = Pipeline(self.model, stages, self.ranks, self.sharing, self.sum_losses)
        elif self.sharing.tensor_ranks > 1:
            from cepheid.reference.torch.parallel.tensor_parallel import TensorParallel

            self.shared = TensorParallel(self.model, self.plan_matrices(), self.ranks)
        return self.shared

    def warm_up(self) -> None:
        """Warm up as ``TorchTask``; this rank's part is as built afterwards, too."""
        super().warm_up()
        if self.shared:
            self.shared.scatter_weights()

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss over the block, on every rank."""
        loss = super().train(block, on_samples)
        if self.shared:
            self.shared.gather_weights()
        return loss

    def run_pieces(self, pieces: Pieces, is_alone: bool = False) -> Tensor:
        """Run forward and backward on all pieces of a step; return the detached loss, a scalar.

        In a pipeline each piece flows in micro-batches, which ``unite`` treats as one batch.
        """
        if not isinstance(self.shared, Pipeline):
            return super().run_pieces(pieces, is_alone)
        losses = []
        for piece in pieces:
            full = self.fill_micro_batches(piece)
            size = len(full.targets) // self.sharing.micro_batches
            parts = cut(full.inputs, full.targets, size)
            factor = piece.weight / self.count_losses(piece.targets)
            with self.phase("pipeline"), self.autocast(), closing(self.unite(parts, False)) as each:
                losses.append(self.shared.run(full.inputs, full.targets, factor, each))
                next(each, None)  # all micro-batches are done
        return torch.stack(losses).sum()

    def share_gradients(self) -> None:
        """Average the gradients over the ranks, or those of this rank's part over the replicas."""
        if self.shared:
            self.shared.share_gradients()
        else:
            super().share_gradients()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, at any number of ranks; all ranks call it together."""
        state = super().state()
        if self.shared:
            state["optimizer"] = self.shared.gather_optimizer(state["optimizer"])
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        if not self.shared:
            super().restore(state)
            return
        part = self.shared.scatter_optimizer(state["optimizer"])
        super().restore({**state, "optimizer": part})
        self.shared.scatter_weights()
