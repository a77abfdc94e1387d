"""transformer in PyTorch: build, train, evaluate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cepheid.benchmarks.transformer.model import Shape, Transformer
from cepheid.benchmarks.transformer.stages import TransformerStage, cut_stages
from cepheid.reference.data.wmt.sentence_batches import Batch
from cepheid.reference.data.wmt.vocabulary import PADDING
from cepheid.reference.optim.schedules import inverse_square_root
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.parallel.plan import STAGES, TENSOR_RANKS, refuse_uneven_parts
from cepheid.reference.torch.pieces import Piece
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.translation.task import TranslationHyperparameters, TranslationTask
from cepheid.rules.errors import UserError
from cepheid.second_order import KFAC, Options
from cepheid.second_order.layers import find_layers

if TYPE_CHECKING:
    from cepheid.reference.torch.parallel.plan import TensorPlan

WHOLE = "it observes whole layers"
NEEDS = {  # by setting: the value that K-FAC needs, and why
    "weight_update": (
        "replicated",
        "it needs the whole gradients of a layer on the rank that owns it",
    ),
    "pipeline": ("1", WHOLE),
    "tensor_ranks": ("1", WHOLE),
    "compile": ("off", "it observes layers with hooks, which a compiled model does not run"),
}
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Variants:
    """What the open division may choose: K-FAC for linear layers, and its settings."""

    opt_preconditioner: Literal["none", "kfac"]
    kfac_learning_rate: float
    kfac_damping: float
    kfac_kl_clip: float


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(TranslationHyperparameters):
    """The hyperparameters of transformer."""

    opt_learning_rate_warmup_samples: int


def create(config: RunConfig, ranks: TorchRanks) -> "Translation":
    """Return the task for the timed loop."""
    if config.read_variants(Variants).opt_preconditioner == "kfac":
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


class PreconditionedTranslation(Translation):
    """Translation with K-FAC and SGD for its linear layers, a choice of the open division.

    All other parameters stay with Adam: layer norms, and the matrix that embeds both languages and
    gives the logits.

    A sample is a sentence: A is the mean over the tokens of all sentences of a batch, padding left
    out, B the sum over the tokens of a sentence.
    """

    kfac: KFAC | None = None  # not before the data are open: the warm-up leaves no trace
    batch: Batch

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        execution = config.execution
        for setting, (value, why) in NEEDS.items():
            place = execution if setting == "compile" else execution.parallelism
            if (chosen := str(getattr(place, setting))) != value:
                raise UserError(
                    f"--set {setting}={chosen}: K-FAC needs {setting}={value}, because {why}; "
                    "fix: leave the setting out"
                )
        chosen_variants = config.read_variants(Variants)
        self.peak = chosen_variants.kfac_learning_rate
        self.options = Options(
            damping=chosen_variants.kfac_damping,
            average_decay=0.9,
            rescaling="kl_clip",
            kl_clip=chosen_variants.kfac_kl_clip,
            stale=True,
            stale_tolerance=1.0,
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam for what K-FAC has no factors for, and make SGD for the rest."""
        layers, _ = find_layers(self.model, self.options)
        inside = [parameter for layer in layers for parameter in layer.parameters]
        known = set(inside)
        others = [parameter for parameter in self.model.parameters() if parameter not in known]
        self.sgd = torch.optim.SGD(inside, self.peak, momentum=MOMENTUM)
        options = self.hyperparameters.torch_options
        groups = [{"params": others}]
        return self.make_parallel_optimizer(torch.optim.Adam, groups, fused=True, **options)

    def open_data(self) -> None:
        """Map the sentences, and let K-FAC observe the model from now on."""
        super().open_data()
        self.model.zero_grad()
        self.kfac = KFAC(self.model, self.options, detect_lost_rank, lambda name: self.phase(name))

    def next_share(self) -> Batch:
        """Return this rank's share of the global batch that follows ``samples``."""
        self.batch = super().next_share()
        return self.batch

    def compute_loss(self, source: Tensor, target: Tensor, /) -> Tensor:
        """Return the loss as without K-FAC, a scalar; padding weighs nothing in the factors."""
        if self.kfac is not None:
            sentences = self.config.global_batch_size
            of_source = (source != PADDING) * (sentences / self.batch.source_tokens)
            of_target = (target != PADDING) * (sentences / self.batch.target_tokens)
            self.kfac.weigh(
                {"encoder.*": of_source, "decoder.*.source.inputs": of_source, "*": of_target}
            )
        return super().compute_loss(source, target)

    def prepare_update(self) -> None:
        """Set the rates of the step that completes ``samples``, and update the linear layers."""
        super().prepare_update()
        if self.kfac is None:
            return
        rate = self.peak * self.learning_rate() / self.hyperparameters.opt_base_learning_rate
        self.kfac.step(rate)
        self.sgd.param_groups[0]["lr"] = rate
        self.sgd.step()
        self.sgd.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, with that of K-FAC; all ranks call it together."""
        kfac = self.kfac.state_dict() if self.kfac else {}
        return {**super().state(), "sgd": self.sgd.state_dict(), "kfac": kfac}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        super().restore(state)
        self.sgd.load_state_dict(state["sgd"])
        if self.kfac is not None and state["kfac"]:
            self.kfac.load_state_dict(state["kfac"])
