"""transformer in PyTorch: translation from English to German."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cepheid.benchmarks.transformer.model import Shape, Transformer
from cepheid.benchmarks.transformer.sharing import cut_stages, plan_matrices
from cepheid.reference.data.sentences.batches import PADDING, Batch, Pass
from cepheid.reference.optim.schedules import inverse_square_root
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.pieces import Piece
from cepheid.reference.torch.translation.sentences import (
    Corpus,
    Translation,
    TranslationHyperparameters,
    make_workload,
    read_search,
    sum_losses,
)
from cepheid.reference.torch.workload import (
    Matrices,
    Network,
    Norms,
    Seat,
    Stages,
    Update,
    Workload,
)


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(TranslationHyperparameters):
    """The hyperparameters of transformer."""

    opt_learning_rate_warmup_samples: int


@dataclass(frozen=True, kw_only=True)
class Sentences(Translation):
    """The facts of transformer."""

    values: Hyperparameters
    sizes: Shape


def read_shape(config: RunConfig) -> Sentences:
    """Return the facts of a configuration."""
    facts = config.definition.model
    sizes = ("vocabulary", "width", "heads", "feed_forward", "layers", "norm", "dropout")
    return Sentences(
        config=config,
        values=config.read(Hyperparameters),
        sizes=Shape(**{key: facts[key] for key in sizes}),
        search=read_search(config),
    )


def make_network(shape: Sentences, norms: Norms) -> nn.Module:
    """Return the Transformer of the definition."""
    return Transformer(shape.sizes)


def prepare_update(shape: Sentences, update: Update) -> None:
    """Set the learning rate."""
    for group in update.groups:
        group["lr"] = inverse_square_root(
            update.samples,
            peak=shape.values.opt_base_learning_rate,
            warmup_samples=shape.values.opt_learning_rate_warmup_samples,
        )


def open_data(shape: Sentences, seat: Seat) -> Corpus:
    """Map the sentences; a pass weighs as much as its tokens in the mean loss."""

    def weigh(block: Pass, batch: Batch) -> float:
        return block.target_tokens / batch.target_tokens

    return Corpus(shape, seat, weigh)


def compute_loss(shape: Sentences, network: Network, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of tokens, both (sentences, places), with smoothing."""
    return cross_entropy(
        network(source, target).float().flatten(0, 1),
        target.flatten(),
        ignore_index=PADDING,
        label_smoothing=shape.values.label_smoothing,
    )


def fill_micro_batches(piece: Piece, micro_batches: int) -> Piece:
    """Return ``piece`` with further sentences; their targets are padding, without a loss."""
    missing = -len(piece.targets) % micro_batches
    if not missing:
        return piece
    sources = piece.inputs[:1].expand(missing, -1)
    targets = torch.full_like(piece.targets[:1], PADDING).expand(missing, -1)
    return Piece(
        torch.cat([piece.inputs, sources]), torch.cat([piece.targets, targets]), piece.weight
    )


def count_tokens(targets: Tensor) -> Tensor:
    """Count the tokens of ``targets``, (sentences, places), that have a loss, on their device."""
    return (targets != PADDING).sum()


WORKLOAD: Workload[Sentences] = make_workload(
    read_shape=read_shape,
    make_network=make_network,
    stages=Stages(
        cut=lambda shape, network, count: cut_stages(network, count),
        sum_losses=sum_losses,
        counts=lambda shape: {"layers": 2 * shape.sizes.layers},
        count_losses=count_tokens,
        fill=fill_micro_batches,
    ),
    matrices=Matrices(
        plan=lambda shape, network: plan_matrices(network),
        counts=lambda shape: {"heads": shape.sizes.heads, "hidden_units": shape.sizes.feed_forward},
    ),
    compute_loss=compute_loss,
    open_data=open_data,
    prepare_update=prepare_update,
)
