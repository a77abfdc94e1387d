"""What information matrices are good for: penalties, pruning, posteriors and two criteria."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cepheid.second_order.information import products
from cepheid.second_order.information.blocks import FisherBlocks, compute_cross_entropies
from cepheid.second_order.information.products import Batches, Losses
from cepheid.second_order.options import UseError


class ElasticPenalty:
    """A penalty that holds a network near the weights it has now, firmly where they matter.

    ½ · ``strength`` · (θ - θ*)ᵀ F (θ - θ*): elastic weight consolidation (Kirkpatrick et al. 2017,
    arXiv:1612.00796), with the Kronecker-factored blocks of Ritter et al. 2018 (arXiv:1805.07810)
    or their diagonals, as published first. Parameters without a block are free.

    Raises UseError for a negative strength, and for blocks of another model.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: FisherBlocks,
        strength: float = 1.0,
        is_diagonal: bool = False,
    ) -> None:
        if not strength >= 0:
            raise UseError(f"information: strength is {strength}; it must be 0 or more")
        self._blocks, self._strength = blocks, strength
        self._diagonal = blocks.find_diagonal() if is_diagonal else None
        trained = _find_parameters(model, blocks)
        self._parameters = {name: trained[name] for name in blocks.parameters}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}

    def __call__(self) -> Tensor:
        """Return the penalty of the present weights, a scalar with gradients."""
        moved = {name: p - self._kept[name] for name, p in self._parameters.items()}
        if self._diagonal is None:
            return 0.5 * self._strength * self._blocks.compute_quadratic(moved)
        squares = [(self._diagonal[name] * part.square()).sum() for name, part in moved.items()]
        return 0.5 * self._strength * sum(squares[1:], squares[0])


def compute_saliencies(
    model: nn.Module, blocks: FisherBlocks, damping: float | None = None
) -> dict[str, Tensor]:
    """Return by how much the loss rises if a parameter becomes 0, in the shapes of the parameters.

    Without ``damping`` the others stay as they are: ½ θ² F_ii (optimal brain damage, LeCun et al.
    1990). With it the others of the layer adapt: ½ θ² / [(F + λI)⁻¹]_ii (optimal brain surgeon,
    Hassibi et al. 1993). Both take the loss to be at its minimum. The result is of any shape.
    Raises UseError for blocks of another model.
    """
    found = _find_parameters(model, blocks)
    weights = {name: parameter.detach() for name, parameter in found.items()}
    if damping is None:
        stiffness = blocks.find_diagonal()
    else:
        inverses = blocks.find_inverse_diagonal(damping)
        stiffness = {name: 1 / inverse for name, inverse in inverses.items()}
    return {name: 0.5 * weights[name].square() * stiff for name, stiff in stiffness.items()}


@dataclass(frozen=True)
class LaplacePosterior:
    """The Gaussian posterior N(θ*, (n F + τI)⁻¹) of the weights that ``blocks`` cover.

    F is the mean over the n samples of ``blocks``, best "exact" or "gauss_newton" at weights θ*
    that were trained to a minimum, and τ is ``prior_precision``, that of a Gaussian prior around 0
    (Ritter et al. 2018, "A Scalable Laplace Approximation for Neural Networks", ICLR). Other
    parameters are certain. Raises UseError for a precision that is not positive, and for blocks of
    another model.
    """

    model: nn.Module
    blocks: FisherBlocks
    prior_precision: float

    def __post_init__(self) -> None:
        products.refuse_damping(self.prior_precision, "prior_precision")
        _find_parameters(self.model, self.blocks)

    @property
    def _damping(self) -> float:
        return self.prior_precision / self.blocks.samples

    def find_variances(self) -> dict[str, Tensor]:
        """Return the variance of each weight, in the shapes of the parameters."""
        inverses = self.blocks.find_inverse_diagonal(self._damping)
        return {name: inverse / self.blocks.samples for name, inverse in inverses.items()}

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw weights, in the shapes of the parameters, by name, for ``functional_call``.

        ``generator`` is one of the device that the weights are on.
        """
        weights = _find_parameters(self.model, self.blocks)
        drawn: dict[str, Tensor] = {}
        for block in self.blocks.blocks.values():
            means = [weights[name].detach() for name in block.names]
            mean = block.layer.join(means)
            noise = torch.empty_like(mean).normal_(generator=generator)
            moved = block.solve_root(noise, self._damping) / math.sqrt(self.blocks.samples)
            drawn |= block.split(mean + moved)
        return drawn

    def compute_log_evidence(self, mean_loss: float) -> float:
        """Return the logarithm of the evidence, by which prior precisions and networks compare.

        ``mean_loss`` is the mean of the negative log-likelihood over the samples. The result is
        -n loss - ½ τ |θ*|² - ½ log det (F n / τ + I) (MacKay 1992,
        doi:10.1162/neco.1992.4.3.448).
        """
        weights = _find_parameters(self.model, self.blocks)
        squares = sum(
            float(weights[name].detach().square().sum()) for name in self.blocks.parameters
        )
        volume = sum(
            float((block.eigenvalues().double() / self._damping).log1p().sum())
            for block in self.blocks.blocks.values()
        )
        loss = self.blocks.samples * mean_loss
        return -loss - 0.5 * self.prior_precision * squares - 0.5 * volume


def compute_takeuchi_trace(
    curvature: FisherBlocks, gradients: FisherBlocks, damping: float
) -> float:
    """Return tr((F + λI)⁻¹ C), the effective number of parameters of Takeuchi (1976).

    F is ``curvature``, "exact" or "gauss_newton", and C is ``gradients``, "empirical", both of the
    same model and data. Divided by the number of samples, it estimates by how much the loss of
    unseen samples exceeds that of seen ones (Thomas et al. 2020, arXiv:1906.07774).
    Raises UseError for a damping that is not positive, and for blocks of other layers.
    """
    products.refuse_damping(damping)
    if curvature.parameters != gradients.parameters:
        raise UseError(
            "information: the two matrices have blocks of different layers; fix: compute both of "
            "the same model, with the same skip"
        )
    pairs = ((block, gradients.blocks[name]) for name, block in curvature.blocks.items())
    return sum(float(block.trace_solved(other, damping)) for block, other in pairs)


def compute_noise_scale(
    model: nn.Module,
    data: Batches,
    losses: Losses = compute_cross_entropies,
    curvature: FisherBlocks | None = None,
) -> float:
    """Return the gradient noise scale in samples: batches far below it waste no sample.

    tr(H Σ) / Gᵀ H G with the mean G and the covariance Σ of the gradients of single samples, both
    estimated without bias, and H the ``curvature`` of the layers that it has, or the identity
    (McCandlish et al. 2018, arXiv:1812.06162, eq. 2.8 and 2.9). ``losses`` returns the loss of each
    sample, (n,). The model is evaluated as after ``model.eval()``. Where the mean cannot be told
    from 0 with so few samples, the result is infinite. Raises UseError for fewer than two samples.
    """
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def compute_loss(weights: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, weights, (inputs[None],))
        return products.sum_losses(losses, outputs, target[None])

    def measure(vector: dict[str, Tensor]) -> Tensor:
        if curvature:
            return curvature.compute_quadratic(vector)
        return torch.stack([part.square().sum() for part in vector.values()]).sum()

    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count, squares = 0, 0.0
    with products.evaluate(model):
        for inputs, targets in products.check_batches(data):
            of_each = vmap(grad(compute_loss), (None, 0, 0))(weights, inputs, targets)
            for place in range(len(inputs)):
                single = {name: parts[place] for name, parts in of_each.items()}
                total = {name: total[name] + part for name, part in single.items()}
                squares += float(measure(single))
            count += len(inputs)
    if count < 2:
        raise UseError("information: a noise scale needs two samples or more; data has one")
    of_mean = float(measure({name: part / count for name, part in total.items()}))
    noise = (squares - count * of_mean) / (count - 1)
    signal = of_mean - noise / count
    return noise / signal if signal > 0 else math.inf


def _find_parameters(model: nn.Module, blocks: FisherBlocks) -> dict[str, nn.Parameter]:
    """Return the parameters by name. Raises UseError if one that has a block is missing."""
    parameters = dict(model.named_parameters())
    for name in blocks.parameters:
        if name not in parameters:
            raise UseError(
                f'information: the blocks have "{name}", which the model lacks; fix: give the '
                "model that they were computed of"
            )
    return parameters
