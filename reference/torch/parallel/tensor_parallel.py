"""Tensor parallelism: each rank of a replica has a part of every large matrix.

Of two linear layers in a row, the first one is cut by its outputs, column-wise, and the second one
by its inputs, row-wise, so that one sum over the ranks after both suffices, and one in the backward
pass (Shoeybi et al. 2019, arXiv:1909.08053). torch's own ``parallelize_module`` gives the same
numbers, but DTensor works the placements of each operation out anew for each new shape, and nearly
every pass of sentences has another one: docs/scaling/model-parallel.md has the times.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.parallel.model_parallel import SharedModel
from cepheid.reference.torch.parallel.plan import TensorPlan
from cepheid.reference.torch.ranks.collectives import all_gather, all_reduce
from cepheid.reference.torch.ranks.distributed import TorchRanks


@dataclass(frozen=True)
class Cut:
    """How a tensor is divided: by dimension ``dim``, each of its ``matrices`` into ``parts``."""

    dim: int
    matrices: int
    parts: int

    def take(self, whole: Tensor, number: int) -> Tensor:
        """Return part ``number`` of ``whole``, of any shape."""
        dim = self.dim
        parts: Tensor = whole.unflatten(dim, (self.matrices, self.parts, -1))
        return parts.select(dim + 1, number).flatten(dim, dim + 1).contiguous()

    def join(self, parts: Tensor) -> Tensor:
        """Return the whole tensor for all its parts, stacked: (parts, …)."""
        dim = self.dim
        matrices = [part.unflatten(dim, (self.matrices, -1)) for part in parts]
        return torch.stack(matrices, dim + 1).flatten(dim, dim + 2)


class TensorParallel(SharedModel):
    """A copy of the model in which each rank of a replica has its part of the matrices."""

    def __init__(self, model: nn.Module, plan: TensorPlan, ranks: TorchRanks) -> None:
        super().__init__(model, ranks)
        self.parts, self.number = ranks.partitions, ranks.rank % ranks.partitions
        self.cuts: dict[str, Cut] = {}
        self.copy = copy.deepcopy(model)
        self._cut_layers(plan)
        self.whole = dict(model.named_parameters())
        self.own = dict(self.copy.named_parameters())
        self._updated: list[str] = []  # in the order of the optimizer

    @property
    def network(self) -> nn.Module:
        """What computes a loss in training: the copy."""
        return self.copy

    def select(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return ``groups`` with this rank's parts in place of the whole parameters."""
        names = {id(parameter): name for name, parameter in self.whole.items()}
        chosen = [[names[id(p)] for p in group["params"]] for group in groups]
        self._updated = [name for group in chosen for name in group]
        return [
            {**group, "params": [self.own[name] for name in mine]}
            for group, mine in zip(groups, chosen, strict=True)
        ]

    def list_trained(self) -> list[nn.Parameter]:
        """Return this rank's parts of the parameters."""
        return list(self.own.values())

    @torch.no_grad()
    def gather_weights(self) -> None:
        """Make ``model`` whole on every rank."""
        for name, whole in self.whole.items():
            whole.copy_(self._join(name, self.own[name]))

    @torch.no_grad()
    def scatter_weights(self) -> None:
        """Train on from the weights of ``model``; gradients become None."""
        for name, whole in self.whole.items():
            self.own[name].copy_(self._take(name, whole))
        self.copy.zero_grad()

    def gather_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of this rank's optimizer completed to that of the whole model."""
        return {**state, "state": self._convert(state["state"], self._join)}

    def scatter_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return this rank's part of the state of an optimizer of the whole model."""
        return {**state, "state": self._convert(state["state"], self._take)}

    def _convert(
        self, states: Mapping[int, Any], convert: Callable[[str, Tensor], Tensor]
    ) -> dict[int, Any]:
        """Return the states of all parameters with their tensors converted, but for scalars."""
        return {
            key: {
                what: convert(self._updated[key], value)
                if isinstance(value, Tensor) and value.ndim
                else value
                for what, value in own.items()
            }
            for key, own in states.items()
        }

    def _join(self, name: str, part: Tensor) -> Tensor:
        """Return the whole tensor for this rank's part of what belongs to a parameter."""
        cut = self.cuts.get(name)
        return cut.join(all_gather(part, self.within)) if cut else part

    def _take(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor that belongs to a parameter."""
        cut = self.cuts.get(name)
        return cut.take(whole, self.number) if cut else whole

    def _cut_layers(self, plan: TensorPlan) -> None:
        for name, matrices in plan.columns.items():
            cut = Cut(0, matrices, self.parts)
            self._replace_layer(name, ColumnLinear, {"weight": cut, "bias": cut})
        for name in plan.rows:
            self._replace_layer(name, RowLinear, {"weight": Cut(1, 1, self.parts)})
        for name in plan.inner:
            module: Any = self.copy.get_submodule(name)
            if hasattr(module, "heads"):
                module.heads //= self.parts
            self._vary_dropout(module)

    def _replace_layer(self, name: str, kind: "type[PartLinear]", cuts: Mapping[str, Cut]) -> None:
        """Put this rank's part of a linear layer into the place of the layer."""
        whole = self.copy.get_submodule(name)
        part = kind(self.within)
        for key, parameter in whole.named_parameters():
            if cut := cuts.get(key):
                self.cuts[f"{name}.{key}"] = cut
                own = cut.take(parameter.detach(), self.number)
                parameter = nn.Parameter(own, parameter.requires_grad)
            part.register_parameter(key, parameter)
        self.copy.set_submodule(name, part)

    def _vary_dropout(self, module: Any) -> None:
        """Give what ``module`` drops its own noise on each rank; otherwise the ranks have one."""
        forward = module.forward
        device = find_device(self.ranks.device)

        def vary(*arguments: Any, **named: Any) -> Any:
            if not (module.training and module.dropout):
                return forward(*arguments, **named)
            seed = int(torch.randint(2**62, ()))
            with device.fork_rng():
                torch.manual_seed(seed + self.number)
                return forward(*arguments, **named)

        module.forward = vary


class PartLinear(nn.Module):
    """This rank's part of a linear layer that the ranks of ``group`` share."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.register_parameter("bias", None)


class ColumnLinear(PartLinear):
    """Some outputs of a linear layer, for inputs that are equal on all ranks."""

    def forward(self, states: Tensor) -> Tensor:
        """Return this rank's outputs, (…, outputs / ranks), of ``states``, (…, inputs)."""
        return linear(_SumBackward.apply(states, self.group), self.weight, self.bias)


class RowLinear(PartLinear):
    """All outputs of a linear layer, of which each rank has some inputs."""

    def forward(self, states: Tensor) -> Tensor:
        """Return all outputs, (…, outputs), of this rank's ``states``, (…, inputs / ranks)."""
        total: Tensor = _SumForward.apply(linear(states, self.weight), self.group)
        return total if self.bias is None else total + self.bias


class _SumBackward(torch.autograd.Function):
    """The tensor itself; its gradient is the sum of those of all ranks."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: Any) -> Tensor:
        context.group = group
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, context.group), None


class _SumForward(torch.autograd.Function):
    """The sum of the tensors of all ranks; each of them gets the gradient of the sum."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: Any) -> Tensor:
        return _sum(values, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _sum(values: Tensor, group: Any) -> Tensor:
    return all_reduce(values.clone(memory_format=torch.contiguous_format), group)
