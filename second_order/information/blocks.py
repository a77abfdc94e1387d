"""The information matrix of a network, block by block: one block for each layer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.second_order.errors import UseError, did_you_mean
from cepheid.second_order.fisher import refuse_one_logit
from cepheid.second_order.information.block import Block, KroneckerBlock, UnitBlock
from cepheid.second_order.layers import (
    BatchNormLayer,
    KroneckerLayer,
    Layer,
    find_layers,
)
from cepheid.second_order.observer import Observer, pause_all
from cepheid.second_order.options import Fisher, Options, Unsupported
from cepheid.second_order.statistic import Statistic

Batches = Iterable[tuple[Tensor, Tensor]]
Losses = Callable[[Tensor, Tensor], Tensor]
Vectors = Mapping[str, Tensor]

compute_cross_entropies: Losses = partial(functional.cross_entropy, reduction="none")


@dataclass(frozen=True)
class FisherBlocks:
    """The block-diagonal Fisher or Gauss-Newton matrix, the mean over ``samples``.

    Vectors are mappings from the names of parameters to tensors of their shapes, such as
    ``dict(model.named_parameters())``. Results have the names of the parameters that a block has;
    what else a vector has is left alone. ``left_out`` names the other layers, and says why.
    """

    blocks: Mapping[str, Block]
    left_out: Mapping[str, str]
    samples: int

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that have a block."""
        return tuple(name for block in self.blocks.values() for name in block.names)

    def multiply(self, vectors: Vectors) -> dict[str, Tensor]:
        """Return the product F v; shapes are those of ``vectors``."""
        return self._map(vectors, lambda block, vector: block.multiply(vector))

    def solve(self, vectors: Vectors, damping: float) -> dict[str, Tensor]:
        """Return (F + λI)⁻¹ v; shapes are those of ``vectors``.

        Of gradients these are the directions of the natural gradient. λ is added to each block as a
        whole, not split between its factors.
        """
        refuse_damping(damping)
        return self._map(vectors, lambda block, vector: block.solve(vector, damping))

    def compute_quadratic(self, vectors: Vectors) -> Tensor:
        """Return vᵀ F v, a scalar, through which gradients flow back to ``vectors``."""
        products = self.multiply(vectors)
        return torch.stack([(vectors[name] * products[name]).sum() for name in products]).sum()

    def find_largest_eigenvalues(self, count: int = 1) -> list[tuple[float, str]]:
        """Return the largest eigenvalues of all blocks, each with the layer that has it."""
        if count < 1:
            raise UseError(f"information: {count} eigenvalues; fix: choose 1 or more")
        found = []
        for name, block in self.blocks.items():
            values = block.eigenvalues()
            found += [(each, name) for each in values.topk(min(count, len(values)))[0].tolist()]
        return sorted(found, reverse=True)[:count]

    def find_diagonal(self) -> dict[str, Tensor]:
        """Return the diagonal, in the shapes of the parameters, of any shape."""
        return self._collect(lambda block: block.diagonal())

    def find_inverse_diagonal(self, damping: float) -> dict[str, Tensor]:
        """Return the diagonal of (F + λI)⁻¹, in the shapes of the parameters, of any shape."""
        refuse_damping(damping)
        return self._collect(lambda block: block.inverse_diagonal(damping))

    def _collect(self, compute: Callable[[Block], Tensor]) -> dict[str, Tensor]:
        parts = (block.split(compute(block)) for block in self.blocks.values())
        return {name: part for of_block in parts for name, part in of_block.items()}

    def _map(
        self, vectors: Vectors, compute: Callable[[Block, Tensor], Tensor]
    ) -> dict[str, Tensor]:
        missing = [name for name in self.parameters if name not in vectors]
        if missing:
            raise UseError(
                f'information: the vector has no "{missing[0]}"'
                f"{did_you_mean(missing[0], vectors)}; "
                "fix: give a tensor for every parameter with a block, as model.named_parameters() "
                "names them"
            )
        for block in self.blocks.values():
            for name, parameter in zip(block.names, block.layer.parameters, strict=True):
                refuse_shape(name, vectors[name], parameter)
        return self._collect(
            lambda block: compute(block, block.join([vectors[name] for name in block.names]))
        )


def fisher_blocks(
    model: nn.Module,
    data: Batches,
    *,
    fisher: Fisher = "exact",
    losses: Losses | None = None,
    samples: int = 1,
    skip: tuple[str, ...] = (),
    unsupported: Unsupported = "skip",
) -> FisherBlocks:
    """Return the information matrix of each layer, as the mean over all samples of ``data``.

    ``data`` are batches of inputs and targets, (n, …) both. ``model`` is evaluated as after
    ``model.eval()``, so that samples do not depend on each other; its mode, its gradients and its
    statistics stay as they are, and so does a ``KFAC`` that is attached to it. ``fisher`` is that
    of ``Options``: "exact" and "sampled" (with so many ``samples`` of each) take the outputs as
    logits of a classifier and read no targets; "empirical" and "gauss_newton" read ``losses``,
    which returns the loss of each sample, (n,), from outputs and targets (default: cross-entropy).

    Raises UseError for data without samples, outputs that are not finite or no logits, losses of
    another shape or without effect, or layers that are not supported, with
    ``unsupported="refuse"``.
    """
    reads_losses = fisher in ("empirical", "gauss_newton")
    if losses is not None and not reads_losses:
        raise UseError(
            f'information: losses have no effect with fisher="{fisher}", which takes the outputs '
            'as logits; fix: leave them out, or set fisher="gauss_newton"'
        )
    if samples != 1 and fisher != "sampled":
        raise UseError(
            f'information: samples is {samples}, but nothing is drawn with fisher="{fisher}"; '
            'fix: leave it out, or set fisher="sampled"'
        )
    losses = losses or compute_cross_entropies
    # The gradients of any losses are observed as those of drawn targets are.
    kind: Fisher = "sampled" if fisher == "empirical" else fisher
    options = Options(fisher=kind, fisher_samples=samples, skip=skip, unsupported=unsupported)
    layers, left_out = find_layers(model, options, without=(nn.Embedding,))
    count = 0
    with evaluate(model), torch.enable_grad():
        observer = Observer(layers, options, _Everything())
        try:
            for inputs, targets in check_batches(data):
                outputs = model(inputs)
                refuse_outputs(outputs, reads_losses)
                count += len(outputs)
                if fisher == "empirical":
                    observer.observe_sampled(sum_losses(losses, outputs, targets))
                else:
                    of_batch = partial(_swap(losses), targets) if reads_losses else None
                    observer.observe(outputs, of_batch, share=len(outputs))
        finally:
            observer.remove()
    names = {parameter: name for name, parameter in model.named_parameters()}
    blocks = {}
    for layer in layers:
        if any(statistic.collected is None for statistic in layer.statistics):
            left_out[layer.name] = "no sample reached it"
            continue
        blocks[layer.name] = _make_block(layer, tuple(names[p] for p in layer.parameters), count)
    return FisherBlocks(blocks, left_out, count)


def _make_block(layer: Layer, names: tuple[str, ...], count: int) -> Block:
    """Return the block of means: a layer that a sample reaches twice counts it twice."""
    means = [
        statistic.collected * layer.find_share(statistic, count)  # losses were added up
        for statistic in layer.statistics
        if statistic.collected is not None
    ]
    if isinstance(layer, KroneckerLayer):
        return KroneckerBlock(layer, names, *means)
    assert isinstance(layer, BatchNormLayer)
    return UnitBlock(layer, names, *means)


class _Everything:
    """A reader that collects every factor and sends nothing."""

    inputs_are_sent = False

    def is_due(self, statistic: Statistic) -> bool:
        """Return True."""
        return True

    def send_inputs(self) -> None:
        """Do nothing."""

    def collect(self, layer: Layer, add: Callable[..., None], *values: Any) -> None:
        """Call ``add``, a method of the layer that adds to its factors, with values (n, …)."""
        add(*values)


def sum_losses(losses: Losses, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the losses of all samples, a scalar, for outputs and targets (n, …)."""
    of_each = losses(outputs, targets)
    if of_each.shape != outputs.shape[:1]:
        raise UseError(
            f"information: losses returned shape {tuple(of_each.shape)}, expected "
            f'{tuple(outputs.shape[:1])}, the loss of each sample; fix: use reduction="none" and '
            "sum over all but the first dimension"
        )
    return of_each.sum()


def _swap(losses: Losses) -> Losses:
    return lambda targets, outputs: losses(outputs, targets)


def check_batches(data: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches, (n, …) both.

    Raises UseError without any sample, and for what is no pair of inputs and targets.
    """
    fix = "fix: give batches (inputs, targets)"
    count = 0
    for number, batch in enumerate(data):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise UseError(f"information: batch {number} of data is no pair; {fix}")
        inputs, targets = batch
        if len(inputs) != len(targets):
            raise UseError(
                f"information: batch {number} of data has {len(inputs)} inputs and {len(targets)} "
                "targets; expected as many"
            )
        if len(inputs):
            count += len(inputs)
            yield inputs, targets
    if not count:
        raise UseError(f"information: data has no samples; {fix}")


def refuse_outputs(outputs: Tensor, reads_losses: bool) -> None:
    """Raise UseError for outputs (n, …) of which no information matrix can be made."""
    if not isinstance(outputs, Tensor):
        raise UseError(
            f"information: the model returned {type(outputs).__name__}, expected a tensor; fix: "
            "wrap it in a module that returns its outputs alone"
        )
    if not outputs.isfinite().all():
        raise UseError(
            "information: outputs of the model are not finite; fix: look for NaN in the data and "
            "in the weights"
        )
    if reads_losses:
        return
    if outputs.ndim != 2:
        raise UseError(
            f"information: the model returned outputs of shape {tuple(outputs.shape)}, expected "
            "logits (samples, classes); fix: give losses that return the loss of each sample"
        )
    refuse_one_logit("information", outputs)


@contextmanager
def evaluate(model: nn.Module) -> Iterator[None]:
    """Put all modules into the mode of evaluation within the context, where no KFAC observes."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with pause_all():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def refuse_shape(name: str, vector: Any, parameter: Tensor) -> None:
    """Raise UseError unless ``vector`` is a tensor of the shape of the parameter, of any shape."""
    if not isinstance(vector, Tensor):
        raise UseError(
            f'information: the vector has {type(vector).__name__} for "{name}"; expected a tensor; '
            "fix: call backward() first where these are gradients"
        )
    if vector.shape != parameter.shape:
        raise UseError(
            f'information: the vector has shape {tuple(vector.shape)} for "{name}", expected '
            f"{tuple(parameter.shape)}"
        )


def refuse_damping(damping: float) -> None:
    """Raise UseError unless ``damping`` is above 0."""
    if not damping > 0:
        raise UseError(f"information: damping is {damping}; it must be above 0")
