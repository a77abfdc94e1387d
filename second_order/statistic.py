"""One factor of a layer: what is collected, its average, its damped inverse, and when it is due.

Inverses of equal sizes are computed together. The interval between two refreshes adapts to how
much the factor changes, after Osawa et al. 2020 (arXiv:2002.06015), whose rule compares a refreshed
matrix with its two predecessors by the relative Frobenius distance.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cepheid.second_order.number_formats import count_triangle, pack_triangle, unpack_triangle
from cepheid.second_order.options import UseError

DAMPING_RAISES_MAX = 8  # each time tenfold
EXPLICIT_FROM_STEPS = 4  # of 1,152 rows and 128 columns: 11 ms once against 2.5 ms in each step
BFLOAT16_FROM = 2**21  # multiplications; below, float32 takes less than the conversions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Factored:
    """A damped matrix in a form that is cheap to apply the inverse of.

    With Cholesky ``factor`` is the lower triangle L of X + ``damping`` I = L Lᵀ, and ``values`` is
    None; else X = Q diag(``values``) Qᵀ with Q the ``factor``, undamped. Large ``products`` with
    explicit inverses are made in that dtype. Of a diagonal X, ``factor`` is the diagonal of
    X + ``damping`` I, (n,), and with eigenvalues ``values`` is that of X.
    """

    factor: Tensor
    damping: Tensor
    values: Tensor | None = None
    products: torch.dtype = torch.float32
    _explicit: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def compute_inverse(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the inverse of the damped matrix, (n, n); it is computed once."""
        if dtype not in self._explicit:
            self._explicit[dtype] = torch.cholesky_inverse(self.factor).to(dtype)
        return self._explicit[dtype]


@dataclass(frozen=True)
class Interval:
    """The steps between two refreshes of one factor, and its history."""

    steps: int = 1
    previous_steps: int = 1
    due: int = 0  # the step at which it is refreshed next
    refreshes: int = 0
    # From the version before, at the last refresh; not known, or not asked for, it is infinite.
    distance: float = field(default=math.inf, compare=False)

    def record_refresh(self, step: int, steps: int, distance: float = math.inf) -> "Interval":
        """Return the interval after a refresh at ``step``; the next one follows in ``steps``."""
        return Interval(steps, self.steps, step + steps, self.refreshes + 1, distance)

    def record_failure(self, step: int) -> "Interval":
        """Return the interval after a failure at ``step``; the next step tries again."""
        return replace(self, due=step + 1)


def compute_steps_to_next(
    interval: Interval, one_before: float, two_before: float, tolerance: float
) -> int:
    """Return the interval until the next refresh, in steps.

    The last refresh moved the factor by these relative distances from the two before it. With Δ₋₁
    and Δ₋₂ the last two intervals, the result is max(1, ⌊Δ₋₁ / 2⌋) if the matrix differs from the
    previous one by ``tolerance`` or more, Δ₋₁ if it differs only from the one before that, and
    Δ₋₁ + Δ₋₂ if it is similar to both. An unknown distance is infinite.
    """
    if not one_before < tolerance:
        return max(1, interval.steps // 2)
    if not two_before < tolerance:
        return interval.steps
    return interval.steps + interval.previous_steps


@dataclass(eq=False)
class Statistic:
    """One factor: a symmetric matrix, (size, size), or ``rows`` numbers of each of ``size`` units.

    The unit-wise Fisher of a batch normalisation has three, a diagonal matrix one.

    ``collected`` is this rank's sum over the samples since the last step. On ranks that invert it,
    ``average`` is the running average, ``before`` are the two that it replaced, newest first.
    """

    name: str
    size: int
    is_matrix: bool
    of_inputs: bool
    collected: Tensor | None = None
    average: Tensor | None = None
    before: list[Tensor] = field(default_factory=list)
    factored: Factored | None = None
    interval: Interval = field(default_factory=Interval)
    non_finite: int = 0  # batches in a row that were left out
    rows: int = 3

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the factor."""
        return (self.size if self.is_matrix else self.rows, self.size)

    def pack(self, values: Tensor, triangle: bool) -> Tensor:
        """Return the factor as a flat float32 tensor, for sending.

        ``triangle`` keeps only the upper triangle of a matrix.
        """
        return pack_triangle(values) if self.is_matrix and triangle else values.flatten()

    def count_packed(self, triangle: bool) -> int:
        """Return how many numbers are sent."""
        rows, columns = self.shape
        return count_triangle(columns) if self.is_matrix and triangle else rows * columns

    def unpack(self, flat: Tensor, triangle: bool) -> Tensor:
        """Return the packed matrix in its own shape."""
        if self.is_matrix and triangle:
            return unpack_triangle(flat, self.size)
        return flat.view(self.shape)

    def dump_state(self) -> list[Tensor]:
        """Return the part of a saved state: the damping of the inverse, the average, earlier ones.

        The damping is NaN without an inverse. The result is empty if the factor is not known yet.
        """
        if self.average is None:
            return []
        nan = torch.full((), float("nan"), device=self.average.device)
        damping = nan if self.factored is None else self.factored.damping
        return [damping, self.average, *self.before]

    def allocate_state(self, count: int, device: torch.device) -> list[Tensor]:
        """Return empty tensors of the ``count`` shapes that ``dump_state`` of another rank has."""
        shapes = [(), *[self.shape] * (count - 1)] if count else []
        return [torch.empty(shape, device=device) for shape in shapes]

    def forget(self) -> None:
        """Forget everything about the factor, as before the first batch."""
        self.collected = self.average = self.factored = None
        self.before, self.non_finite = [], 0

    def collect(self, values: Tensor) -> None:
        """Add the sum over some samples."""
        self.collected = values if self.collected is None else self.collected + values


def split_damping(
    averages: Sequence[Tensor], damping: float, pi_correction: bool
) -> tuple[Tensor, Tensor]:
    """Return the numbers to add to the diagonals of A and B: π√λ and √λ/π, scalars.

    π = √((tr A / dim A) / (tr B / dim B)) (Martens & Grosse 2015, arXiv:1503.05671, section 6.3,
    with the trace norm). It is 1 without the correction, or if a trace is 0. ``averages`` are A and
    B, square matrices.
    """
    root = damping**0.5
    pi = torch.ones((), device=averages[0].device)
    if pi_correction:
        means = [get_diagonal(matrix).mean() for matrix in averages]
        ratio = torch.sqrt(means[0] / means[1])
        pi = torch.where((means[0] > 0) & (means[1] > 0) & ratio.isfinite(), ratio, pi)
    return pi * root, root / pi


def get_diagonal(matrix: Tensor) -> Tensor:
    """Return the diagonal, (n,), of a square matrix, (n, n), or of one that is diagonal, (1, n)."""
    return matrix.diagonal() if matrix.shape[0] == matrix.shape[1] else matrix[0]


def is_diagonal(matrix: Tensor) -> bool:
    """Return True for (1, n), the diagonal of a matrix that has nothing else."""
    return matrix.shape[0] < matrix.shape[1]


def factorize_cholesky(
    names: Sequence[str],
    matrices: Sequence[Tensor],
    dampings: Sequence[Tensor],
    products: torch.dtype = torch.float32,
) -> list[Factored]:
    """Factorize each matrix, (n, n), with its damping, for products in that dtype.

    If a damped matrix is not positive definite, its damping is raised tenfold, up to
    ``DAMPING_RAISES_MAX`` times, with a warning. Raises UseError that names the factor after that.
    """
    results = {
        index: Factored(matrix[0] + dampings[index], dampings[index])
        for index, matrix in enumerate(matrices)
        if is_diagonal(matrix)
    }
    dampings = list(dampings)
    waiting = [index for index in range(len(matrices)) if index not in results]
    for raises in range(DAMPING_RAISES_MAX + 1):
        results |= _factorize_damped(waiting, matrices, dampings, products)
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
        raise UseError(
            f"K-FAC: {names[waiting[0]]} cannot be inverted even with its damping raised "
            f"{DAMPING_RAISES_MAX} times: raise damping, or leave the layer out with skip"
        )
    return [results[index] for index in range(len(matrices))]


def _factorize_damped(
    indices: Sequence[int],
    matrices: Sequence[Tensor],
    dampings: Sequence[Tensor],
    products: torch.dtype,
) -> dict[int, Factored]:
    """Return the factors of the matrices that are positive definite with damping, by index."""
    tried: list[int] = []
    factors: list[Tensor] = []
    failures: list[Tensor] = []
    for batch in _group_by_size(indices, matrices):
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


def factorize_eigen(matrices: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Factored]:
    """Decompose each matrix, (n, n), into eigenvectors and eigenvalues.

    Eigenvalues that rounding made negative are set to 0.
    """
    results = {
        index: Factored(matrix[0] + dampings[index], dampings[index], matrix[0].clamp(min=0))
        for index, matrix in enumerate(matrices)
        if is_diagonal(matrix)
    }
    waiting = [index for index in range(len(matrices)) if index not in results]
    for batch in _group_by_size(waiting, matrices):
        values, vectors = torch.linalg.eigh(torch.stack([matrices[index] for index in batch]))
        for place, index in enumerate(batch):
            results[index] = Factored(vectors[place], dampings[index], values[place].clamp(min=0))
    return [results[index] for index in range(len(matrices))]


def _group_by_size(indices: Sequence[int], matrices: Sequence[Tensor]) -> list[list[int]]:
    by_size: dict[int, list[int]] = defaultdict(list)
    for index in indices:
        by_size[matrices[index].shape[0]].append(index)
    return list(by_size.values())


def precondition(
    gradient: Tensor,
    inputs: Factored,
    outputs: Factored,
    damping: float,
    steps: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return B⁻¹ G A⁻¹ for a gradient G, both (outputs, inputs), with damped factors A and B.

    With eigen-decompositions it is (B ⊗ A + λI)⁻¹ G, without splitting λ. ``steps`` are the numbers
    of steps for which the factors of inputs and outputs stay the same.
    """
    if inputs.values is None or outputs.values is None:
        half = _apply_inverse(inputs, gradient, steps[0], from_left=False)
        return _apply_inverse(outputs, half, steps[1], from_left=True).float()
    rotated = outputs.factor.T @ gradient
    curvature = outputs.values[:, None] * inputs.values + damping
    if inputs.factor.ndim == 1:  # diagonal
        return outputs.factor @ (rotated / curvature)
    return outputs.factor @ (rotated @ inputs.factor / curvature) @ inputs.factor.T


def _apply_inverse(factored: Factored, matrix: Tensor, steps: int, from_left: bool) -> Tensor:
    """Return X⁻¹ M, or M X⁻¹, by triangular solves or by the explicit inverse if that is faster.

    Products with the explicit inverse are faster. Computing it pays if there are more columns of M
    than rows of X, or if it is used for several steps.
    """
    factor = factored.factor
    rows = factor.shape[0]
    columns = matrix.numel() // rows
    if factor.ndim == 1:
        return matrix / (factor[:, None] if from_left else factor)
    if columns < rows and steps < EXPLICIT_FROM_STEPS:
        return _solve(factor, matrix.float(), from_left)
    is_large = rows * rows * columns >= BFLOAT16_FROM
    dtype = factored.products if is_large else torch.float32
    explicit, matrix = factored.compute_inverse(dtype), matrix.to(dtype)
    return explicit @ matrix if from_left else matrix @ explicit


def _solve(lower: Tensor, matrix: Tensor, from_left: bool) -> Tensor:
    """Return (L Lᵀ)⁻¹ M, or M (L Lᵀ)⁻¹, which needs no transposed copies, for a triangle L."""
    if from_left:
        return torch.cholesky_solve(matrix, lower)
    half = torch.linalg.solve_triangular(lower.mT, matrix, upper=True, left=False)
    return torch.linalg.solve_triangular(lower, half, upper=False, left=False)


def precondition_unit_wise(gradient: Tensor, fisher: Tensor, damping: float) -> Tensor:
    """Return (F + λI)⁻¹ g of each channel, (2, c).

    ``gradient`` holds those of scale and shift, (2, c), and ``fisher`` the products that
    ``factors.compute_batch_norm_fisher`` returns, (3, c).
    """
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
