"""Gradients of a model's outputs whose second moments are the Fisher or Gauss-Newton matrix.

For each sample let f be the outputs of the model and H the Fisher matrix of the distribution that
they describe, or the Hessian of the sample's loss with respect to f. The matrix of the parameters
is then E[Jᵀ H J] with the Jacobian J of f. Each function yields vectors v for all samples at once,
with Σ v vᵀ = H, in the mean over the noise or exactly; a backward pass from each gives the
gradients that K-FAC makes factors of (Martens 2020, arXiv:1412.1193, sections 5 and 9; the exact
form is called KFLR by Botev et al. 2017, arXiv:1706.03662).

For softmax with cross-entropy H = diag(p) - p pᵀ is also the Hessian of the loss, whatever the
labels are, so the Gauss-Newton matrix differs from the Fisher matrix for other losses only.

Samples may depend on each other, as in a batch normalisation in training. A backward pass mixes
their gradients then. Random signs of each sample make the mean of these mixed products 0.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from cepheid.second_order.options import Fisher, UseError

OUTPUTS_MAX = 128  # of an exact matrix: each takes a backward pass
NEGATIVE_SHARE_MAX = 1e-4  # of a Hessian's eigenvalues, relative to the largest: rounding

Losses = Callable[[Tensor], Tensor]


def count_noise(kind: Fisher, drawn: int, outputs: Tensor) -> int:
    """Return the random numbers for each sample of outputs (n, d), of which ``drawn`` are drawn."""
    return {"sampled": drawn, "exact": outputs.shape[1] - 1}.get(kind, outputs.shape[1])


def refuse_outputs(kind: Fisher, outputs: Tensor, losses: Losses | None) -> None:
    """Raise UseError for outputs, expected (n, d), or losses that do not fit the Fisher matrix."""
    if kind == "empirical":
        raise UseError('K-FAC: observe has no use with fisher="empirical"; leave it out')
    if (losses is None) == (kind == "gauss_newton"):
        verb, fix = ("needs", "give") if losses is None else ("takes no", "leave out")
        raise UseError(
            f'K-FAC: observe {verb} losses with fisher="{kind}"; fix: {fix} a function that '
            "returns the loss of each sample from the outputs"
        )
    if outputs.ndim != 2:
        raise UseError(
            f"K-FAC: observe got outputs of shape {tuple(outputs.shape)}; expected (samples, "
            "outputs)"
        )
    if kind != "gauss_newton":
        refuse_one_logit("K-FAC", outputs)
    if kind != "sampled":
        refuse_many(kind, outputs.shape[1])


def refuse_one_logit(who: str, outputs: Tensor) -> None:
    """Raise UseError for logits (n, 1), of which no softmax can be made."""
    if outputs.shape[-1] < 2:
        raise UseError(
            f"{who}: the model has one output, and a softmax of one logit is always 1; fix: "
            "take the Gauss-Newton matrix and give losses, such as those of binary_cross_entropy"
        )


def refuse_many(kind: Fisher, outputs: int) -> None:
    """Raise UseError if an exact matrix would take more backward passes than ``OUTPUTS_MAX``."""
    if outputs > OUTPUTS_MAX:
        raise UseError(
            f'K-FAC: fisher="{kind}" takes a backward pass for each of {outputs:,} outputs, more '
            f'than {OUTPUTS_MAX}; fix: set fisher="sampled"'
        )


def make_directions(
    kind: Fisher, outputs: Tensor, losses: Losses | None, noise: Tensor
) -> Iterator[Tensor]:
    """Yield the vectors v, (n, d) each, of the matrix of the outputs, (n, d)."""
    if losses is not None:
        return make_loss_roots(outputs, losses, noise)
    make = draw_label_gradients if kind == "sampled" else make_softmax_roots
    return make(outputs, noise)


def draw_label_gradients(logits: Tensor, noise: Tensor) -> Iterator[Tensor]:
    """Yield the gradients of -log p of labels that are drawn from the predictions.

    ``logits`` are (n, classes) and so are the gradients. ``noise`` in [0, 1), (n, k), decides the k
    labels of each sample. The gradients are divided by √k, so that their products add up to a mean.
    """
    probabilities = logits.detach().float().softmax(1)
    steps = probabilities.cumsum(1)
    for drawn in noise.to(steps).unbind(1):
        labels = (steps <= drawn[:, None] * steps[:, -1:]).sum(1).clamp(max=logits.shape[1] - 1)
        chosen = torch.nn.functional.one_hot(labels, logits.shape[1])
        yield (probabilities - chosen) / noise.shape[1] ** 0.5


def make_softmax_roots(logits: Tensor, noise: Tensor) -> Iterator[Tensor]:
    """Yield classes - 1 vectors, (n, classes), with Σ v vᵀ = diag(p) - p pᵀ exactly.

    With q = √p the matrix is D (I - q qᵀ) D, D = diag(q). The vectors are D u for an orthonormal
    basis u of all that is orthogonal to q, by a Householder reflection that maps q to the first
    axis. ``noise`` in [0, 1), (n, classes - 1), decides the signs.
    """
    root = logits.detach().float().softmax(1).sqrt()
    normal = root.clone()
    normal[:, 0] += 1  # no cancellation: q is not negative
    for place, drawn in enumerate(noise.to(root).unbind(1), 1):
        along = -normal * (root[:, place] / (1 + root[:, 0]))[:, None]
        along[:, place] += 1
        yield root * along * _draw_signs(drawn)


def make_loss_roots(outputs: Tensor, losses: Losses, noise: Tensor) -> Iterator[Tensor]:
    """Yield vectors of the shape of ``outputs``, (n, d), with Σ v vᵀ = each sample's Hessian.

    They are the columns of its symmetric square root. ``losses`` returns the loss of each sample,
    (n,), from outputs. ``noise`` in [0, 1), (n, d), decides the signs. Raises UseError if
    a Hessian has a negative eigenvalue: the loss is not convex in the outputs, and has no
    Gauss-Newton matrix.
    """
    values, vectors = torch.linalg.eigh(_compute_hessians(outputs, losses))
    lowest, highest = float(values.min()), float(values.abs().max())
    if lowest < -NEGATIVE_SHARE_MAX * highest:
        raise UseError(
            f"K-FAC: the Hessian of the loss has an eigenvalue of {lowest:.3g} beside one of "
            f"{highest:.3g}: the loss is not convex in the outputs of the model, so it has no "
            'Gauss-Newton matrix; fix: choose fisher="sampled" with the losses of drawn targets'
        )
    # What rounding leaves of an eigenvalue of 0 would have a root of some 1e-4 of the largest.
    floor = values.shape[1] * torch.finfo(values.dtype).eps * values[:, -1:]
    values = torch.where(values > floor, values, 0.0)
    # The symmetric root: it does not depend on the choice of eigenvectors, and so of the rank.
    roots = vectors * values.sqrt()[:, None, :] @ vectors.mT
    for root, drawn in zip(roots.unbind(2), noise.to(roots).unbind(1), strict=True):
        yield root * _draw_signs(drawn)


def _compute_hessians(outputs: Tensor, losses: Losses) -> Tensor:
    """Return the Hessian of each sample's loss, (n, d, d), for outputs (n, d)."""
    with torch.enable_grad():
        free = outputs.detach().float().requires_grad_()
        of_each = losses(free)
        if of_each.shape != free.shape[:1]:
            raise UseError(
                f"K-FAC: losses returned shape {tuple(of_each.shape)} for outputs of shape "
                f"{tuple(free.shape)}; expected the loss of each sample, {tuple(free.shape[:1])}; "
                'fix: use reduction="none" and sum over all but the first dimension'
            )
        (gradients,) = torch.autograd.grad(of_each.sum(), free, create_graph=True)
        if not gradients.requires_grad:  # a linear loss
            return free.new_zeros(*free.shape, free.shape[1])
        rows = [
            torch.autograd.grad(column.sum(), free, retain_graph=True, allow_unused=True)[0]
            for column in gradients.unbind(1)
        ]
    return torch.stack([torch.zeros_like(free) if row is None else row for row in rows], 1).detach()


def _draw_signs(drawn: Tensor) -> Tensor:
    """Return 1 or -1 for each sample, (n, 1), from numbers in [0, 1), (n,)."""
    return torch.where(drawn < 0.5, -1.0, 1.0)[:, None]
