"""Damped inverses of the factors, equal sizes together, and gradients multiplied by them."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rules.errors import UserError

DAMPING_RAISES_MAX = 8  # each time tenfold
EXPLICIT_FROM_STEPS = 4  # of 1,152 rows and 128 columns: 11 ms once against 2.5 ms in each step
BFLOAT16_FROM = 2**21  # multiplications; below, float32 takes less than the conversions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Factored:
    """A damped matrix in a form that is cheap to apply the inverse of.

    With Cholesky ``factor`` is the lower triangle L of X + ``damping`` I = L Lᵀ, and ``values`` is
    None; else X = Q diag(``values``) Qᵀ with Q the ``factor``, undamped. Large ``products`` with
    explicit inverses are made in that dtype.
    """

    factor: Tensor
    damping: Tensor
    values: Tensor | None = None
    products: torch.dtype = torch.float32
    _explicit: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def explicit(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The inverse of the damped matrix itself, from its Cholesky factor; made once."""
        if dtype not in self._explicit:
            self._explicit[dtype] = torch.cholesky_inverse(self.factor).to(dtype)
        return self._explicit[dtype]


def shared_damping(
    averages: Sequence[Tensor], damping: float, pi_correction: bool
) -> tuple[Tensor, Tensor]:
    """What to add to the diagonals of A and B, ``averages``: π√λ and √λ/π, scalars.

    π = √((tr A / dim A) / (tr B / dim B)) (Martens & Grosse 2015, arXiv:1503.05671, section 6.3,
    with the trace norm); 1 without the correction and where a trace is 0.
    """
    root = damping**0.5
    pi = torch.ones((), device=averages[0].device)
    if pi_correction:
        means = [matrix.diagonal().mean() for matrix in averages]
        ratio = torch.sqrt(means[0] / means[1])
        pi = torch.where((means[0] > 0) & (means[1] > 0) & ratio.isfinite(), ratio, pi)
    return pi * root, root / pi


def cholesky(
    names: Sequence[str],
    matrices: Sequence[Tensor],
    dampings: Sequence[Tensor],
    products: torch.dtype = torch.float32,
) -> list[Factored]:
    """Each matrix with its damping, factored, for products in that dtype.

    Where a matrix is not positive definite even so, its damping is raised tenfold, up to
    ``DAMPING_RAISES_MAX`` times, with a warning. Raises UserError that names the factor after that.
    """
    results: dict[int, Factored] = {}
    dampings = list(dampings)
    waiting = list(range(len(matrices)))
    for raises in range(DAMPING_RAISES_MAX + 1):
        results |= _damped_and_factored(waiting, matrices, dampings, products)
        waiting = [index for index in waiting if index not in results]
        if raises < DAMPING_RAISES_MAX:
            for index in waiting:
                dampings[index] = dampings[index] * 10
                logger.warning(
                    "K-FAC: %s is singular; its damping is raised to %.3g",
                    names[index],
                    dampings[index],
                )
    if waiting:
        raise UserError(
            f"K-FAC: {names[waiting[0]]} cannot be inverted even with its damping raised "
            f"{DAMPING_RAISES_MAX} times: raise damping, or leave the layer out with skip"
        )
    return [results[index] for index in range(len(matrices))]


def _damped_and_factored(
    indices: Sequence[int],
    matrices: Sequence[Tensor],
    dampings: Sequence[Tensor],
    products: torch.dtype,
) -> dict[int, Factored]:
    """Of those matrices that are positive definite with their damping, by index."""
    tried: list[int] = []
    factors: list[Tensor] = []
    failures: list[Tensor] = []
    for batch in _of_equal_size(indices, matrices):
        added = torch.stack([dampings[index] for index in batch])
        stacked = torch.stack([matrices[index] for index in batch])
        stacked.diagonal(dim1=-2, dim2=-1).add_(added[:, None])
        lower, failed = torch.linalg.cholesky_ex(stacked)
        tried += batch
        factors += lower.unbind()
        failures.append(failed)
    failed_at = torch.cat(failures).tolist() if failures else []  # waits for the device, once
    return {
        index: Factored(factor, dampings[index], products=products)
        for index, factor, failed in zip(tried, factors, failed_at, strict=True)
        if not failed
    }


def eigen(matrices: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Factored]:
    """Each matrix in its eigenvectors; eigenvalues that rounding made negative are 0."""
    results: dict[int, Factored] = {}
    for batch in _of_equal_size(range(len(matrices)), matrices):
        values, vectors = torch.linalg.eigh(torch.stack([matrices[index] for index in batch]))
        for place, index in enumerate(batch):
            results[index] = Factored(vectors[place], dampings[index], values[place].clamp(min=0))
    return [results[index] for index in range(len(matrices))]


def _of_equal_size(indices: Sequence[int], matrices: Sequence[Tensor]) -> list[list[int]]:
    by_size: dict[int, list[int]] = defaultdict(list)
    for index in indices:
        by_size[matrices[index].shape[0]].append(index)
    return list(by_size.values())


def preconditioned(
    gradient: Tensor,
    inputs: Factored,
    outputs: Factored,
    damping: float,
    steps: tuple[int, int] = (1, 1),
) -> Tensor:
    """B⁻¹ G A⁻¹ for a gradient G, (outputs, inputs), with both factors damped; with
    eigen-decompositions (B ⊗ A + λI)⁻¹ G, without splitting λ. ``steps`` is for how many of them
    the factors of inputs and outputs stay as they are."""
    if inputs.values is None or outputs.values is None:
        half = _solved(inputs, gradient.T, steps[0]).T
        return _solved(outputs, half, steps[1]).float()
    rotated = outputs.factor.T @ gradient @ inputs.factor
    rotated = rotated / (outputs.values[:, None] * inputs.values + damping)
    return outputs.factor @ rotated @ inputs.factor.T


def _solved(factored: Factored, right: Tensor, steps: int) -> Tensor:
    """By triangular solves; by the explicit inverse, whose products are faster, where making it
    pays: for more columns than rows, or for some steps."""
    rows, columns = right.shape
    if columns < rows and steps < EXPLICIT_FROM_STEPS:
        return torch.cholesky_solve(right.float(), factored.factor)
    if rows * rows * columns < BFLOAT16_FROM:
        return factored.explicit() @ right.float()
    return factored.explicit(factored.products) @ right.to(factored.products)


def unit_wise(gradient: Tensor, fisher: Tensor, damping: float) -> Tensor:
    """(F + λI)⁻¹ g of each channel: gradient (2, c) of scale and shift, Fisher (3, c) as of
    ``factors.batch_norm``."""
    scale, mixed, shift = fisher[0] + damping, fisher[1], fisher[2] + damping
    # F₁₁F₂₂ ≥ F₁₂² but for rounding, which may not leave less than damping alone makes of it.
    floor = damping * (fisher[0] + fisher[2] + damping)
    determinant = torch.maximum(scale * shift - mixed.square(), floor)
    return (
        torch.stack(
            [shift * gradient[0] - mixed * gradient[1], scale * gradient[1] - mixed * gradient[0]]
        )
        / determinant
    )
