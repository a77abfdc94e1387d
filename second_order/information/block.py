"""The information matrix of one layer, in the form of its factors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cepheid.second_order import inverse
from cepheid.second_order.layers import Layer


@dataclass(frozen=True, eq=False)
class Block(ABC):
    """A symmetric matrix over the parameters of ``layer``, which have ``names`` in the model.

    Vectors have the shape of the layer's gradient, ``layer.shape``; ``to_dense`` takes their
    elements row by row.
    """

    layer: Layer
    names: tuple[str, ...]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join tensors in the shapes of the parameters to a vector of shape ``layer.shape``."""
        return self.layer.join(parts)

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
    def _decomposed(self) -> tuple[inverse.Factored, inverse.Factored]:
        none = torch.zeros((), device=self.inputs.device)
        of_inputs, of_outputs = inverse.factorize_eigen([self.inputs, self.outputs], [none, none])
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
        return inverse.precondition(vector, *self._decomposed, damping)

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

    def _make_matrices(self, damping: float = 0.0) -> Tensor:
        """Return the damped matrix of each channel, (channels, 2, 2)."""
        scale, mixed, shift = self.fisher
        rows = [torch.stack([scale + damping, mixed], 1), torch.stack([mixed, shift + damping], 1)]
        return torch.stack(rows, 1)

    def multiply(self, vector: Tensor) -> Tensor:
        """Return the products of each channel, (2, channels)."""
        return torch.einsum("cij,jc->ic", self._make_matrices(), vector)

    def solve(self, vector: Tensor, damping: float) -> Tensor:
        """Return (F + λI)⁻¹ v of each channel, (2, channels)."""
        return inverse.precondition_unit_wise(vector, self.fisher, damping)

    def diagonal(self) -> Tensor:
        """Return the diagonal, (2, channels)."""
        return self.fisher[::2]

    def inverse_diagonal(self, damping: float) -> Tensor:
        """Return the diagonal of the inverse of each channel, (2, channels)."""
        one = torch.eye(2, device=self.fisher.device)[:, :, None].expand(
            -1, -1, self.layer.shape[1]
        )
        return torch.stack([self.solve(one[place], damping)[place] for place in (0, 1)])

    def eigenvalues(self) -> Tensor:
        """Return both eigenvalues of each channel, (n,)."""
        values: Tensor = torch.linalg.eigvalsh(self._make_matrices())
        return values.clamp(min=0).flatten()

    def to_dense(self) -> Tensor:
        """Return the matrix, (n, n): first all scales, then all shifts."""
        scale, mixed, shift = (row.diag() for row in self.fisher)
        return torch.cat([torch.cat([scale, mixed], 1), torch.cat([mixed, shift], 1)])
