"""What an information matrix is good for: remembering an earlier task, choosing what to prune."""

from torch import Tensor, nn

from cepheid.second_order.errors import UseError
from cepheid.second_order.information.blocks import FisherBlocks


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
