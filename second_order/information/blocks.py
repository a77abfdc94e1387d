"""The information matrix of a network, one block for each layer, and what it is good for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.second_order.information import products
from cepheid.second_order.information.products import Batches, Losses, Vectors
from cepheid.second_order.layers import BatchNormLayer, KroneckerLayer, Layer, find_layers
from cepheid.second_order.observer import Observer
from cepheid.second_order.options import Fisher, Options, Unsupported, UseError, did_you_mean
from cepheid.second_order.statistic import (
    Factored,
    Statistic,
    factorize_eigen,
    precondition,
    precondition_unit_wise,
)

compute_cross_entropies: Losses = partial(functional.cross_entropy, reduction="none")


@dataclass(frozen=True, eq=False)
class Block(ABC):
    """A symmetric matrix over the parameters of ``layer``, which have ``names`` in the model.

    Vectors have the shape of the layer's gradient, ``layer.shape``; ``to_dense`` takes their
    elements row by row.
    """

    layer: Layer
    names: tuple[str, ...]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector in the shapes of the parameters, by name."""
        return dict(zip(self.names, self.layer.split_gradient(vector), strict=True))

    @abstractmethod
    def multiply(self, vector: Tensor) -> Tensor:
        """Return the product F v, in the same shape."""

    @abstractmethod
    def solve(self, vector: Tensor, damping: float) -> Tensor:
        """Return (F + λI)⁻¹ v exactly, in the same shape."""

    @abstractmethod
    def solve_root(self, vector: Tensor, damping: float) -> Tensor:
        """Return (F + λI)⁻¹ᐟ² v with the symmetric root, in the same shape."""

    @abstractmethod
    def trace_solved(self, other: Any, damping: float) -> Tensor:
        """Return the trace of (F + λI)⁻¹ G, a scalar, for the block G of the same layer."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return the diagonal, in the shape of a vector: ``layer.shape``, of any shape."""

    @abstractmethod
    def inverse_diagonal(self, damping: float) -> Tensor:
        """Return the diagonal of (F + λI)⁻¹, in the shape of a vector, of any shape."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """Return all eigenvalues, (n,), in no order."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Return the matrix, (n, n)."""


@dataclass(frozen=True, eq=False)
class KroneckerBlock(Block):
    """B ⊗ A of a Linear or Conv2d layer, with A of its inputs and B of its gradients."""

    inputs: Tensor
    outputs: Tensor

    @cached_property
    def _decomposed(self) -> tuple[Factored, Factored]:
        none = torch.zeros((), device=self.inputs.device)
        of_inputs, of_outputs = factorize_eigen([self.inputs, self.outputs], [none, none])
        return of_inputs, of_outputs

    @property
    def _values(self) -> Tensor:
        """Return the eigenvalues, (outputs, inputs)."""
        inputs, outputs = self._decomposed
        assert inputs.values is not None
        assert outputs.values is not None
        return torch.outer(outputs.values, inputs.values)

    def multiply(self, vector: Tensor) -> Tensor:
        """Return B V A for V (outputs, inputs)."""
        return self.outputs @ vector @ self.inputs

    def solve(self, vector: Tensor, damping: float) -> Tensor:
        """Return (B ⊗ A + λI)⁻¹ v for a vector (outputs, inputs), without splitting λ."""
        return precondition(vector, *self._decomposed, damping)

    def solve_root(self, vector: Tensor, damping: float) -> Tensor:
        """Return (B ⊗ A + λI)⁻¹ᐟ² v for a vector (outputs, inputs)."""
        inputs, outputs = (each.factor for each in self._decomposed)
        rotated = (outputs.T @ vector @ inputs) / (self._values + damping).sqrt()
        return outputs @ rotated @ inputs.T

    def trace_solved(self, other: "KroneckerBlock", damping: float) -> Tensor:
        """Return the trace of (B ⊗ A + λI)⁻¹ (D ⊗ C), a scalar, by the eigenvectors of B and A."""
        inputs, outputs = (each.factor for each in self._decomposed)
        of_inputs = (inputs * (other.inputs @ inputs)).sum(0)
        of_outputs = (outputs * (other.outputs @ outputs)).sum(0)
        return (torch.outer(of_outputs, of_inputs) / (self._values + damping)).sum()

    def diagonal(self) -> Tensor:
        """Return the diagonal, (outputs, inputs)."""
        return torch.outer(self.outputs.diagonal(), self.inputs.diagonal())

    def inverse_diagonal(self, damping: float) -> Tensor:
        """Return the diagonal of (B ⊗ A + λI)⁻¹, (outputs, inputs)."""
        inputs, outputs = self._decomposed
        return outputs.factor.square() @ (1 / (self._values + damping)) @ inputs.factor.square().T

    def eigenvalues(self) -> Tensor:
        """Return all products of an eigenvalue of B and one of A, (n,)."""
        return self._values.flatten()

    def to_dense(self) -> Tensor:
        """Return B ⊗ A, (n, n)."""
        return torch.kron(self.outputs, self.inputs)


@dataclass(frozen=True, eq=False)
class UnitBlock(Block):
    """The 2 × 2 matrix of scale and shift of each channel of a batch normalisation.

    ``fisher`` is (3, channels): the products scale · scale, scale · shift and shift · shift.
    """

    fisher: Tensor

    def _make_matrices(self) -> Tensor:
        """Return the matrix of each channel, (channels, 2, 2)."""
        scale, mixed, shift = self.fisher
        return torch.stack([torch.stack([scale, mixed], 1), torch.stack([mixed, shift], 1)], 1)

    def multiply(self, vector: Tensor) -> Tensor:
        """Return the products of each channel, (2, channels)."""
        return torch.einsum("cij,jc->ic", self._make_matrices(), vector)

    def solve(self, vector: Tensor, damping: float) -> Tensor:
        """Return (F + λI)⁻¹ v of each channel, (2, channels)."""
        return precondition_unit_wise(vector, self.fisher, damping)

    def solve_root(self, vector: Tensor, damping: float) -> Tensor:
        """Return (F + λI)⁻¹ᐟ² v of each channel, (2, channels)."""
        values, vectors = torch.linalg.eigh(self._make_matrices())
        roots = (values.clamp(min=0) + damping).rsqrt()
        return torch.einsum("cij,cj,ckj,kc->ic", vectors, roots, vectors, vector)

    def trace_solved(self, other: "UnitBlock", damping: float) -> Tensor:
        """Return the sum over channels of the traces of (F + λI)⁻¹ G."""
        columns = other._make_matrices().permute(1, 2, 0)  # (2, 2, channels)
        solved = [self.solve(columns[:, place], damping)[place] for place in (0, 1)]
        return torch.stack(solved).sum()

    def diagonal(self) -> Tensor:
        """Return the diagonal, (2, channels)."""
        return self.fisher[::2]

    def inverse_diagonal(self, damping: float) -> Tensor:
        """Return the diagonal of the inverse of each channel, (2, channels)."""
        channels = self.layer.shape[1]
        one = torch.eye(2, device=self.fisher.device)[:, :, None].expand(-1, -1, channels)
        return torch.stack([self.solve(one[place], damping)[place] for place in (0, 1)])

    def eigenvalues(self) -> Tensor:
        """Return both eigenvalues of each channel, (n,)."""
        return torch.linalg.eigvalsh(self._make_matrices()).clamp(min=0).flatten()

    def to_dense(self) -> Tensor:
        """Return the matrix, (n, n): first all scales, then all shifts."""
        scale, mixed, shift = (row.diag() for row in self.fisher)
        return torch.cat([torch.cat([scale, mixed], 1), torch.cat([mixed, shift], 1)])


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
        products.refuse_damping(damping)
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
        products.refuse_damping(damping)
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
                products.refuse_shape(name, vectors[name], parameter)
        return self._collect(
            lambda block: compute(block, block.layer.join([vectors[name] for name in block.names]))
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
    with products.evaluate(model), torch.enable_grad():
        observer = Observer(layers, options, _Everything())
        try:
            for inputs, targets in products.check_batches(data):
                outputs = model(inputs)
                products.refuse_outputs(outputs, reads_losses)
                count += len(outputs)
                if fisher == "empirical":
                    observer.observe_sampled(products.sum_losses(losses, outputs, targets))
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


def _swap(losses: Losses) -> Losses:
    return lambda targets, outputs: losses(outputs, targets)
