"""The layers that K-FAC has factors for, and what it keeps of each."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reference.optim.kfac import factors, inverse, symmetric
from reference.optim.kfac.inverse import Factored
from reference.optim.kfac.options import Options
from reference.optim.kfac.owners import estimate_inversion_cost
from reference.optim.kfac.staleness import Interval
from rules.errors import UserError, did_you_mean


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
        return symmetric.pack(values) if self.is_matrix and triangle else values.flatten()

    def count_packed(self, triangle: bool) -> int:
        """Return how many numbers are sent."""
        rows, columns = self.shape
        return symmetric.count_packed(columns) if self.is_matrix and triangle else rows * columns

    def unpack(self, flat: Tensor, triangle: bool) -> Tensor:
        """Return the packed matrix in its own shape."""
        if self.is_matrix and triangle:
            return symmetric.unpack(flat, self.size)
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


class Layer(ABC):
    """A module with its statistics; its gradient as one matrix."""

    statistics: tuple[Statistic, ...]
    shape: tuple[int, int]  # of the gradient as a matrix

    def __init__(self, name: str, module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self.name, self.module, self.parameters = name, module, tuple(parameters)
        self.samples = 0  # since the last step

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.parameters[0].device

    @property
    def cost(self) -> float:
        """The cost of the inverses, up to a constant."""
        matrices = [statistic.size for statistic in self.statistics if statistic.is_matrix]
        return estimate_inversion_cost(matrices) + sum(
            parameter.numel() for parameter in self.parameters
        )

    @property
    def has_gradient(self) -> bool:
        """True after a backward pass that reached the layer."""
        return all(parameter.grad is not None for parameter in self.parameters)

    @property
    def is_ready(self) -> bool:
        """True once all its factors are known."""
        return all(statistic.average is not None for statistic in self.statistics)

    @property
    def takes_weights(self) -> bool:
        """True if positions of the inputs may have weights."""
        return False

    @abstractmethod
    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the inputs of a forward pass, (n, …), to their factor.

        ``weights`` are those of their positions where ``takes_weights`` is True.
        """

    @property
    def averages(self) -> list[Tensor]:
        """The running averages of the statistics that are known, each of its own shape."""
        return [stat.average for stat in self.statistics if stat.average is not None]

    @abstractmethod
    def summarize_inputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return what the factor of the gradients needs of the inputs (n, …) of a forward pass."""

    @abstractmethod
    def collect_outputs(self, seen: tuple[Tensor, ...], gradients: Tensor) -> None:
        """Add the gradients with respect to the outputs, (n, …), to their factor."""

    def gradient(self) -> Tensor:
        """Return the gradient of all its parameters, float32, in the order of the factors.

        Its shape is ``shape``: (outputs, inputs) or (2, channels).
        """
        gradients = [parameter.grad for parameter in self.parameters]
        return self.join([gradient for gradient in gradients if gradient is not None])

    @abstractmethod
    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join tensors in the shapes of the parameters to one of shape ``shape``, float32."""

    @abstractmethod
    def split_gradient(self, gradient: Tensor) -> list[Tensor]:
        """Return views of a gradient from ``gradient()`` in the shapes of the parameters."""


class KroneckerLayer(Layer):
    """Linear or Conv2d: F ≈ B ⊗ A."""

    feature_axes = 1  # of the inputs, after those of samples and positions

    def __init__(self, name: str, module: nn.Linear | nn.Conv2d) -> None:
        self.with_bias = module.bias is not None and module.bias.requires_grad
        parameters = [cast(nn.Parameter, module.weight)]
        if module.bias is not None and self.with_bias:
            parameters.append(cast(nn.Parameter, module.bias))
        super().__init__(name, module, parameters)
        outputs, inputs = module.weight.shape[0], module.weight[0].numel() + self.with_bias
        self.shape = (outputs, inputs)
        self.inputs = Statistic(f"{name}.A", inputs, is_matrix=True, of_inputs=True)
        self.outputs = Statistic(f"{name}.B", outputs, is_matrix=True, of_inputs=False)
        self.statistics = (self.inputs, self.outputs)
        self._window = factors.make_window(module) if isinstance(module, nn.Conv2d) else None

    @property
    def takes_weights(self) -> bool:
        """True for linear layers, whose positions may be padding."""
        return self._window is None

    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the inputs, (n, c, y, x) or (n, …, d), to their factor; ``weights`` are (n, …)."""
        if self._window:
            found = factors.compute_convolution_input_factor(inputs, self._window, self.with_bias)
        else:
            found = factors.compute_linear_input_factor(inputs, self.with_bias, weights)
        self.inputs.collect(found)

    def summarize_inputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return nothing for inputs of any shape: the factor of the gradients needs none."""
        return ()

    def collect_outputs(self, seen: tuple[Tensor, ...], gradients: Tensor) -> None:
        """Add the gradients of the outputs, (n, c, y, x) or (n, …, d), to their factor."""
        if self._window:
            self.outputs.collect(factors.compute_convolution_output_factor(gradients))
        else:
            self.outputs.collect(factors.compute_linear_output_factor(gradients))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join weight and bias to (outputs, inputs), with the bias as last column."""
        weight = parts[0].float()
        rows = weight.permute(0, 2, 3, 1).flatten(1) if self._window else weight
        if self.with_bias:
            rows = torch.cat([rows, parts[1].float()[:, None]], dim=1)
        return rows

    def split_gradient(self, gradient: Tensor) -> list[Tensor]:
        """Return views of the gradient, (outputs, inputs), in the shapes of the parameters."""
        rows = gradient[:, :-1] if self.with_bias else gradient
        if self._window:
            outputs, channels, *kernel = self.parameters[0].shape
            rows = rows.view(outputs, *kernel, channels).permute(0, 3, 1, 2)
        return [rows, gradient[:, -1]] if self.with_bias else [rows]

    def compute_direction(self, gradient: Tensor, damping: float) -> Tensor:
        """Return B⁻¹ G A⁻¹, (outputs, inputs), for a gradient G of the same shape."""
        assert self.inputs.factored is not None
        assert self.outputs.factored is not None
        steps = self.inputs.interval.steps, self.outputs.interval.steps
        return inverse.precondition(
            gradient, self.inputs.factored, self.outputs.factored, damping, steps
        )


class EmbeddingLayer(KroneckerLayer):
    """Embedding: F ≈ B ⊗ A, where A is diagonal and has the frequencies of the rows.

    The rows are the inputs, of which a position has one.
    """

    feature_axes = 0

    def __init__(self, name: str, module: nn.Embedding) -> None:
        Layer.__init__(self, name, module, [cast(nn.Parameter, module.weight)])
        size, width = module.weight.shape
        self.with_bias, self._window, self.shape = False, None, (width, size)
        self.inputs = Statistic(f"{name}.A", size, is_matrix=False, of_inputs=True, rows=1)
        self.outputs = Statistic(f"{name}.B", width, is_matrix=True, of_inputs=False)
        self.statistics = (self.inputs, self.outputs)

    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the numbers of rows, (n, …), to their frequencies; ``weights`` have their shape."""
        self.inputs.collect(factors.compute_frequencies(inputs, self.inputs.size, weights))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the weight as (width, rows)."""
        return parts[0].float().T

    def split_gradient(self, gradient: Tensor) -> list[Tensor]:
        """Return a view of the gradient, (width, rows), in the shape of the weight."""
        return [gradient.T]


class BatchNormLayer(Layer):
    """Batch normalisation: a 2 × 2 Fisher for scale and shift of each channel.

    What it normalises by is what the module says in ``batch_moments``, (groups, channels) each of
    mean and variance, where it has other groups than the samples of this rank.
    """

    def __init__(self, name: str, module: _BatchNorm) -> None:
        super().__init__(name, module, [module.weight, module.bias])
        self._module = module
        self.shape = (2, module.num_features)
        self.fisher = Statistic(f"{name}.F", module.num_features, is_matrix=False, of_inputs=False)
        self.statistics = (self.fisher,)

    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Do nothing: the inputs, (n, c, …), alone have no factor."""

    def summarize_inputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs, (n, c, …), with mean and deviation of each channel."""
        module = self._module
        moments = getattr(module, "batch_moments", None)
        if module.training and moments is not None:
            mean, variance = (
                each.repeat_interleave(len(inputs) // len(each), dim=0) for each in moments
            )
        elif module.training or module.running_mean is None or module.running_var is None:
            mean, variance = factors.compute_moments(inputs.float())
        else:
            mean, variance = module.running_mean, module.running_var
        return inputs, mean, torch.sqrt(variance + module.eps)

    def collect_outputs(self, seen: tuple[Tensor, ...], gradients: Tensor) -> None:
        """Add the gradients with respect to the outputs, (n, c, …), to the factor."""
        inputs, mean, deviation = seen
        self.fisher.collect(
            factors.compute_batch_norm_fisher(inputs.float(), gradients, mean, deviation)
        )

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join scale and shift to (2, channels)."""
        return torch.stack([part.float() for part in parts])

    def split_gradient(self, gradient: Tensor) -> list[Tensor]:
        """Return views of the gradient, (2, channels), for scale and shift."""
        return list(gradient.unbind())


def find_layers(
    model: nn.Module, options: Options, without: tuple[type[nn.Module], ...] = ()
) -> tuple[list[Layer], dict[str, str]]:
    """Return the layers that K-FAC preconditions, and why other layers are left out, by name.

    The layers are in the model's order; there are none of the types ``without``. Raises UserError
    if a pattern to skip matches nothing, if the options refuse unsupported layers and there is one,
    or if no layer is left.
    """
    found: list[Layer] = []
    left_out: dict[str, str] = {}
    names = [name for name, module in model.named_modules() if list(module.parameters())]
    for pattern in options.skip:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f'K-FAC: skip "{pattern}" matches no layer{did_you_mean(pattern, names)}'
            )
    users = _find_users(model)
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        sharing = next((user for p in own for user in users[p] if user != name), None)
        if any(_is_within(name, pattern) for pattern in options.skip):
            left_out[name] = "skipped by name"
            continue
        reason = f"shares a parameter with {sharing}" if sharing else explain_unsupported(module)
        if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention):
            reason = "MultiheadAttention uses its weight without calling it"
        if isinstance(module, without):
            reason = f"no block for {type(module).__name__}"
        if reason is None:
            found.append(_make_layer(name, module))
            continue
        left_out[name] = reason
        if options.unsupported == "refuse":
            raise UserError(
                f'K-FAC: layer "{name}" ({type(module).__name__}) is not supported: {reason}; '
                'skip it by name, or set unsupported to "skip"'
            )
    if not found:
        raise UserError("K-FAC: no layer to precondition (Linear, Conv2d, Embedding, BatchNorm)")
    return found, left_out


def _find_users(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Return the modules that have each parameter; a shared parameter has several."""
    users: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, module in model.named_modules():
        for _, parameter in module.named_parameters(recurse=False):
            users[parameter].append(name)
    return users


def _is_within(name: str, pattern: str) -> bool:
    """Return True if the pattern matches the name or the name of an enclosing module."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def explain_unsupported(module: nn.Module) -> str | None:
    """Return why K-FAC has no factors for a module with parameters, or None if it has."""
    if not isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding | _BatchNorm):
        return f"no factors for {type(module).__name__}"
    if module.weight is None or not module.weight.requires_grad:
        return "its weight is not trained"
    if not module.weight.is_leaf:
        return "its weight is computed from other parameters"
    if isinstance(module, _BatchNorm) and not module.bias.requires_grad:
        return "its shift is not trained"
    if isinstance(module, nn.Embedding) and (
        module.sparse or module.scale_grad_by_freq or module.max_norm is not None
    ):
        return "an embedding with sparse or scaled gradients, or a largest norm"
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        return "an embedding with padding_idx, whose row has no gradient; weigh its positions 0"
    if isinstance(module, nn.Conv2d):
        if module.groups != 1:
            return f"a convolution in {module.groups} groups"
        if module.padding_mode != "zeros":
            return f"a convolution that pads with {module.padding_mode}"
    return None


def _make_layer(name: str, module: nn.Module) -> Layer:
    if isinstance(module, _BatchNorm):
        return BatchNormLayer(name, module)
    if isinstance(module, nn.Embedding):
        return EmbeddingLayer(name, module)
    assert isinstance(module, nn.Linear | nn.Conv2d)
    return KroneckerLayer(name, module)
