"""K-FAC, written from rules/from_scratch.md alone."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Factor:
    """A running average, its last two versions, and when it is refreshed next."""

    def __init__(self) -> None:
        self.versions: list[Tensor] = []
        self.due, self.intervals = 0, (1, 1)
        self.inverse: Any = None

    def refresh(self, new: Tensor, step: int, options: Mapping[str, Any]) -> None:
        olds, keep = self.versions[:2], options["kfac_average_decay"]
        new = keep * olds[0] + (1 - keep) * new if olds else new
        far = [
            float((new - old).norm() / old.norm()) >= options["kfac_stale_tolerance"]
            for old in olds
        ]
        far += [True] * (2 - len(olds))
        last, before = self.intervals
        following = max(1, last // 2) if far[0] else last if far[1] else last + before
        following = following if options["kfac_stale"] else 1
        self.versions, self.due, self.intervals = [new, *olds], step + following, (following, last)

    @property
    def average(self) -> Tensor:
        return self.versions[0]


class Curvature:
    """K-FAC of a network of convolutions, dense layers and batch norms."""

    def __init__(self, net: nn.Module, options: Mapping[str, Any]) -> None:
        self.options, self.step, self.seen = options, 0, dict[nn.Module, tuple[Tensor, Tensor]]()
        kinds = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
        self.factors = {m: (Factor(), Factor()) for m in net.modules() if isinstance(m, kinds)}
        for layer in self.factors:
            layer.register_forward_hook(self.watch)

    def watch(self, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep what comes in, and for each sample the gradient of the sum of all losses."""

        def keep(gradient: Tensor) -> None:
            self.seen[layer] = (inputs[0].detach(), gradient * len(gradient))

        output.register_hook(keep)

    def direct(self, rate: float) -> None:
        """Replace the gradients of the mean loss by directions."""
        with torch.no_grad():
            found: list[Any] = [(each, *self.find(each)) for each in self.factors]
            total = sum(float((gradient * direction).sum()) for _, gradient, direction in found)
            bound = (self.options["kfac_kl_clip"] / (rate**2 * total)) ** 0.5
            scale = min(1.0, bound) if self.options["kfac_rescaling"] == "kl_clip" else 1.0
            for layer, _, direction in found:
                weight, columns = layer.weight.grad, layer.weight[0].numel()
                weight.copy_((scale * direction[:, :columns]).view_as(weight))
                if layer.bias is not None:
                    layer.bias.grad.copy_(scale * direction[:, columns])
        self.step += 1

    def find(self, layer: Any) -> tuple[Tensor, Tensor]:
        """Return gradient and direction of a layer, (outputs, inputs)."""
        parts = [layer.weight.grad.reshape(len(layer.weight), -1)]
        if layer.bias is not None:
            parts.append(layer.bias.grad[:, None])
        gradient, damping = torch.cat(parts, 1), self.options["kfac_damping"]
        x, g = self.seen[layer]
        if isinstance(layer, nn.BatchNorm2d):
            return gradient, self.find_of_norm(layer, x, g, gradient)
        if g.dim() == 4:
            a = F.unfold(x, layer.kernel_size, padding=layer.padding, stride=layer.stride)
        else:
            a, g = F.pad(x, (0, 1), value=1.0)[..., None], g[..., None]
        g, factors = g.flatten(2), self.factors[layer]
        due = [each for each in factors if each.due <= self.step]
        new = [torch.einsum("nip,njp->ij", each, each) / len(x) for each in (a, g)]
        new[0] /= a.shape[2]
        for factor, batch in zip(factors, new, strict=True):
            if factor in due:
                factor.refresh(batch, self.step, self.options)
        pi = (factors[0].average.diagonal().mean() / factors[1].average.diagonal().mean()).sqrt()
        for factor, share in zip(factors, (pi, 1 / pi), strict=True):
            if factor in due:
                added = share * damping**0.5 * torch.eye(len(factor.average))
                factor.inverse = torch.linalg.inv(factor.average + added)
        return gradient, factors[1].inverse @ gradient @ factors[0].inverse

    def find_of_norm(self, layer: Any, x: Tensor, g: Tensor, gradient: Tensor) -> Any:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        white = (x - mean[:, None, None]) / (variance + layer.eps).sqrt()[:, None, None]
        of_factor, of_shift = (g * white).sum((2, 3)), g.sum((2, 3))
        (factor, _), pairs = self.factors[layer], (of_factor * of_shift).mean(0)
        if factor.due <= self.step:
            new = torch.stack([(of_factor**2).mean(0), pairs, (of_shift**2).mean(0)])
            factor.refresh(new, self.step, self.options)
        first, mixed, last = factor.average
        added = self.options["kfac_batch_norm_damping"] * self.options["kfac_damping"]
        rows = torch.stack([first + added, mixed], -1), torch.stack([mixed, last + added], -1)
        return torch.linalg.solve(torch.stack(rows, -2), gradient[..., None])[..., 0]
