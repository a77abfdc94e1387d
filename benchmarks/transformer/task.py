"""transformer in PyTorch: build, train, evaluate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cepheid.benchmarks.transformer.model import Shape, Transformer
from cepheid.benchmarks.transformer.stages import TransformerStage, cut_stages
from cepheid.reference.data.wmt.vocabulary import PADDING
from cepheid.reference.optim.schedules import inverse_square_root
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.accumulation import Piece
from cepheid.reference.torch.distributed import TorchRanks
from cepheid.reference.torch.parallel.model_parallel import (
    STAGES,
    TENSOR_RANKS,
    refuse_uneven_parts,
)
from cepheid.reference.torch.translation.task import TranslationHyperparameters, TranslationTask
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.torch.parallel.tensor_parallel import TensorPlan


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(TranslationHyperparameters):
    """The hyperparameters of transformer."""

    opt_learning_rate_warmup_samples: int


def create(config: RunConfig, ranks: TorchRanks) -> "Translation":
    """Return the task for the timed loop."""
    if config.execution.own.get("opt_preconditioner") == "kfac":
        from cepheid.benchmarks.transformer.preconditioned import PreconditionedTranslation

        return PreconditionedTranslation(config, ranks)
    settings = [key for key in config.definition.variants if key.startswith("kfac_")]
    for key in filter(config.execution.own.__contains__, settings):
        raise UserError(
            f"--set {key}: it has no effect without opt_preconditioner=kfac; fix: set it too"
        )
    return Translation(config, ranks)


class Translation(TranslationTask):
    """Translation from English to German."""

    hyperparameter_type = Hyperparameters
    hyperparameters: Hyperparameters
    model: Transformer

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        model = self.definition.model
        sizes = ("vocabulary", "width", "heads", "feed_forward", "layers", "norm", "dropout")
        self.shape = Shape(**{key: model[key] for key in sizes})
        refuse_uneven_parts(STAGES, self.sharing.stages, layers=2 * self.shape.layers)
        tensor_ranks = self.sharing.tensor_ranks
        refuse_uneven_parts(
            TENSOR_RANKS, tensor_ranks, heads=self.shape.heads, hidden_units=self.shape.feed_forward
        )

    def make_network(self) -> nn.Module:
        """Return the Transformer of the definition."""
        return Transformer(self.shape)

    def cut_stages(self) -> Sequence[TransformerStage]:
        """Return equal numbers of layers."""
        return cut_stages(self.model, self.sharing.stages)

    def plan_matrices(self) -> "TensorPlan":
        """Return how the ranks of a replica share heads and hidden units."""
        from cepheid.benchmarks.transformer.matrices import plan_matrices  # takes long to import

        return plan_matrices(self.model)

    def learning_rate(self) -> float:
        """Return the learning rate of the step that completes ``samples``."""
        return inverse_square_root(
            self.samples,
            peak=self.hyperparameters.opt_base_learning_rate,
            warmup_samples=self.hyperparameters.opt_learning_rate_warmup_samples,
        )

    def compute_loss(self, source: Tensor, target: Tensor, /) -> Tensor:
        """Return the mean cross-entropy of tokens, both (sentences, places), with smoothing."""
        with self.autocast():
            logits = self.parallel(source, target)
        return cross_entropy(
            logits.float().flatten(0, 1),
            target.flatten(),
            ignore_index=PADDING,
            label_smoothing=self.hyperparameters.label_smoothing,
        )

    def count_losses(self, targets: Tensor) -> int:
        """Return the number of tokens of ``targets``, (sentences, places)."""
        return int((targets != PADDING).sum())

    def fill_micro_batches(self, piece: Piece) -> Piece:
        """Return ``piece`` with further sentences; their targets are padding, without a loss."""
        missing = -len(piece.targets) % self.sharing.micro_batches
        if not missing:
            return piece
        sources = piece.inputs[:1].expand(missing, -1)
        targets = torch.full_like(piece.targets[:1], PADDING).expand(missing, -1)
        return Piece(
            torch.cat([piece.inputs, sources]), torch.cat([piece.targets, targets]), piece.weight
        )
