"""Products with the whole Fisher or Gauss-Newton matrix, without its elements.

Nothing is approximated: every parameter of every layer takes part, and blocks of different layers
too. A product takes a pass forward with tangents and a pass back for each batch (Schraudolph 2002,
doi:10.1162/08997660260028683).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

from cepheid.second_order.fisher import refuse_one_logit
from cepheid.second_order.observer import pause_all
from cepheid.second_order.options import UseError, did_you_mean

Batches = Iterable[tuple[Tensor, Tensor]]
Losses = Callable[[Tensor, Tensor], Tensor]
Vectors = Mapping[str, Tensor]


class FisherProducts:
    """The matrix E[Jᵀ H J] of ``model`` over all samples of ``data``, for products.

    H is the Fisher matrix of a softmax of the outputs, (n, classes), or with ``losses`` the Hessian
    of the loss of each sample, (n,), with respect to the outputs, (n, …). The model is evaluated as
    after ``model.eval()``. ``data`` are batches of inputs and targets, (n, …) both, which are kept.
    """

    def __init__(self, model: nn.Module, data: Batches, losses: Losses | None = None) -> None:
        self._model, self._losses, self._data = model, losses, list(check_batches(data))
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._weights = {name: parameter.detach() for name, parameter in trained.items()}
        self._samples = sum(len(inputs) for inputs, _ in self._data)

    @property
    def size(self) -> int:
        """The number of parameters: rows and columns of the matrix."""
        return sum(weight.numel() for weight in self._weights.values())

    @torch.no_grad()
    def multiply(self, vectors: Vectors) -> dict[str, Tensor]:
        """Return F v; shapes are those of the parameters. A parameter that is missing counts as 0.

        Raises UseError for a name that is no parameter of the model, and for another shape.
        """
        for name, vector in vectors.items():
            if name not in self._weights:
                raise UseError(
                    f'information: "{name}" is no parameter that is trained'
                    f"{did_you_mean(name, self._weights)}"
                )
            refuse_shape(name, vector, self._weights[name])
        zeros = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        direction, total = zeros | dict(vectors), zeros
        with evaluate(self._model):
            for inputs, targets in self._data:
                product = self._multiply_batch(inputs, targets, direction)
                total = {name: total[name] + part for name, part in product.items()}
        return {name: part / self._samples for name, part in total.items()}

    def _multiply_batch(
        self, inputs: Tensor, targets: Tensor, direction: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return Σ Jᵀ H J v over the samples of a batch."""

        def predict(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(self._model, weights, (inputs,))

        try:
            outputs, moved = jvp(predict, (self._weights,), (dict(direction),))  # type: ignore[misc]
        except NotImplementedError as error:
            raise UseError(
                f"information: an operation of the model has no derivative in forward mode ({error}"
                "); fix: use fisher_blocks, or write the layer with other operations"
            ) from error
        refuse_outputs(outputs, self._losses is not None)
        if self._losses is None:
            probabilities = outputs.softmax(1)
            curved = probabilities * (moved - (probabilities * moved).sum(1, keepdim=True))
        else:
            losses = self._losses
            gradient = grad(lambda values: sum_losses(losses, values, targets))
            curved = jvp(gradient, (outputs,), (moved,))[1]
        return vjp(predict, self._weights)[1](curved)[0]

    def find_largest_eigenvalues(self, count: int = 1, seed: int = 0) -> list[float]:
        """Return the largest eigenvalues, by Lanczos iterations (ARPACK) from a seeded start."""
        from scipy.sparse.linalg import LinearOperator, eigsh

        if not 1 <= count < self.size:
            raise UseError(
                f"information: {count} eigenvalues of a matrix with {self.size} rows; fix: choose "
                f"a number from 1 to {self.size - 1}"
            )
        shape = self.size, self.size
        operator = LinearOperator(shape, matvec=self._multiply_flat, dtype=np.float64)
        start = np.random.default_rng(seed).standard_normal(self.size)
        values = eigsh(operator, k=count, which="LA", v0=start, return_eigenvectors=False)
        return sorted(map(float, values), reverse=True)

    def _multiply_flat(self, flat: np.ndarray) -> np.ndarray:
        first = next(iter(self._weights.values()))
        whole = torch.from_numpy(flat.ravel()).to(first)
        parts = whole.split([weight.numel() for weight in self._weights.values()])
        vectors = {
            name: part.view(weight.shape)
            for part, (name, weight) in zip(parts, self._weights.items(), strict=True)
        }
        product = self.multiply(vectors)
        flat_product = torch.cat([product[name].flatten() for name in self._weights])
        return flat_product.double().cpu().numpy()


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


def refuse_damping(damping: float, name: str = "damping") -> None:
    """Raise UseError that names it unless ``damping`` is above 0."""
    if not damping > 0:
        raise UseError(f"information: {name} is {damping}; it must be above 0")
