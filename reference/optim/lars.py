"""LARS (You et al. 2017, arXiv:1708.03888) with either form of momentum, and SGD with both."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from cepheid.reference.optim.schedules import MomentumForm

FORMS: tuple[MomentumForm, ...] = ("scaled", "unscaled")
BUFFER = "momentum_buffer"


class Lars(Optimizer):
    """Momentum SGD whose rate is adapted to each tensor of weights.

    The rate of a tensor is λ = lr · η‖w‖ / (‖g‖ + β‖w‖ + ε), with the trust coefficient η and the
    weight decay β; lr alone where a norm is 0, and in groups with ``adaptive=False``, which is
    plain SGD. With ``scaled`` momentum (Kumar et al. 2019, arXiv:1909.09756, figure 5, as the
    MLPerf reference) v ← m v + (g + β w), w ← w − λ v: what is left of earlier steps is scaled
    with the rate of this one. With ``unscaled`` (figure 6, as You et al.) v ← m v + λ (g + β w),
    w ← w − v.

    ``corrected`` scales what unscaled momentum keeps by lr / (lr of the step before) (Goyal et
    al. 2017, arXiv:1706.02677, equation 10); without adaptation that makes the two forms equal.
    ``find_norms`` can be replaced where the tensors are parts of others.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 0.0,
        form: MomentumForm = "scaled",
        corrected: bool = False,
        adaptive: bool = True,
    ) -> None:
        if form not in FORMS:
            raise ValueError(f'form is "{form}", expected one of {", ".join(FORMS)}')
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "epsilon": epsilon,
            "form": form,
            "corrected": corrected,
            "adaptive": adaptive,
        }
        super().__init__(params, defaults)
        self.find_norms: Callable[[Sequence[Tensor]], Tensor] = find_norms

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all weights that have a gradient, group by group, all tensors at once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update(group, weights)
        return loss

    def _update(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        lr, decay, momentum = group["lr"], group["weight_decay"], group["momentum"]
        gradients: list[Tensor] = [weight.grad for weight in weights if weight.grad is not None]
        velocities = [self._find_velocity(weight) for weight in weights]
        rates = self._adapt_rates(group, weights, gradients) if group["adaptive"] else None
        if decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=decay))
        if group["form"] == "scaled":
            torch._foreach_mul_(velocities, momentum)
            torch._foreach_add_(velocities, gradients)
            if rates is None:
                torch._foreach_add_(weights, velocities, alpha=-lr)
            else:
                torch._foreach_addcmul_(weights, velocities, rates, value=-1)
            return
        torch._foreach_mul_(velocities, momentum * self._find_correction(group, weights[0]))
        if rates is None:
            torch._foreach_add_(velocities, gradients, alpha=lr)
        else:
            torch._foreach_addcmul_(velocities, gradients, rates)
        torch._foreach_sub_(weights, velocities)

    def _adapt_rates(
        self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        """Return λ of each tensor, scalars that are views of one tensor on the device."""
        weight_norms, gradient_norms = self.find_norms([*weights, *gradients]).chunk(2)
        decayed_norms = gradient_norms + group["weight_decay"] * weight_norms + group["epsilon"]
        ratios = group["trust_coefficient"] * weight_norms / decayed_norms
        is_defined = (weight_norms > 0) & (gradient_norms > 0)
        rates = group["lr"] * torch.where(is_defined, ratios, 1.0)
        return list(rates.unbind())

    def _find_velocity(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if BUFFER not in state:
            state[BUFFER] = torch.zeros_like(weight)
        return state[BUFFER]

    def _find_correction(self, group: dict[str, Any], first: Tensor) -> float:
        """Return the change of lr since the last step; it is kept with the group's first tensor."""
        if not group["corrected"]:
            return 1.0
        before = self.state[first].get("previous_lr", group["lr"])
        self.state[first]["previous_lr"] = group["lr"]
        return float(group["lr"] / before) if before else 1.0


def find_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norms of ``tensors`` of any shapes: (tensors,)."""
    return torch.stack(list(torch._foreach_norm(list(tensors))))
