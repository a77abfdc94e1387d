"""The layers that K-FAC has factors for, and what it keeps of each."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from cepheid.second_order import factors
from cepheid.second_order.exchange import estimate_inversion_cost
from cepheid.second_order.options import Options, UseError, did_you_mean
from cepheid.second_order.statistic import Statistic, precondition

KINDS = (nn.Linear, nn.Conv2d, nn.Embedding, _BatchNorm, nn.SyncBatchNorm)
FORWARDS = {kind.forward for kind in KINDS}
SKIPPED, NOT_TRAINED = LEFT_OUT_ON_PURPOSE = "skipped by name", "its weight is not trained"


class Layer(ABC):
    """A module with its statistics; its gradient as one matrix."""

    statistics: tuple[Statistic, ...]
    shape: tuple[int, int]  # of the gradient as a matrix
    feature_axes = 1  # of the inputs, after those of samples and positions
    takes_weights = False  # whether positions of the inputs may have weights

    def __init__(self, name: str, module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self.name, self.module, self.parameters = name, module, tuple(parameters)
        self.label = find_label(name, module)
        self.samples = 0  # since the last step
        self.samples_with_gradients = 0  # of these, where the factors of gradients are observed

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
    def is_trained(self) -> bool:
        """True if it has gradients that are not 0."""
        gradients = [parameter.grad for parameter in self.parameters]
        return self.has_gradient and any(bool(each.any()) for each in gradients if each is not None)

    @property
    def is_ready(self) -> bool:
        """True once all its factors are known."""
        return all(statistic.average is not None for statistic in self.statistics)

    def find_share(self, statistic: Statistic, loss_scale: float) -> float:
        """Return what makes a mean of a statistic's sum over the samples of this rank.

        The loss is the mean over samples, times ``loss_scale``, so the gradient of one of n samples
        is n times what the backward pass has.
        """
        return 1 / self.samples if statistic.of_inputs else self.samples / loss_scale**2

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
    """A layer whose Fisher block is taken as a Kronecker product, F ≈ B ⊗ A.

    Its gradient is a matrix: that of the weight and, in the last column, that of a trained bias.
    """

    has_diagonal_inputs = False

    def __init__(self, name: str, module: nn.Linear | nn.Conv2d | nn.Embedding) -> None:
        bias = getattr(module, "bias", None)
        self.with_bias = bias is not None and bias.requires_grad
        parameters = [module.weight, *([bias] if self.with_bias else [])]
        super().__init__(name, module, cast(list[nn.Parameter], parameters))
        outputs, inputs = self._flatten(module.weight.detach()).shape
        self.shape = outputs, inputs + self.with_bias
        is_matrix = not self.has_diagonal_inputs
        self.inputs = Statistic(f"{self.label}.A", self.shape[1], is_matrix, of_inputs=True, rows=1)
        self.outputs = Statistic(f"{self.label}.B", outputs, is_matrix=True, of_inputs=False)
        self.statistics = (self.inputs, self.outputs)

    def summarize_inputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return nothing for inputs of any shape: the factor of the gradients needs none."""
        return ()

    def collect_outputs(self, seen: tuple[Tensor, ...], gradients: Tensor) -> None:
        """Add the gradients of the outputs, (n, …, d), to their factor."""
        self.outputs.collect(factors.compute_linear_output_factor(gradients))

    def compute_direction(self, gradient: Tensor, damping: float) -> Tensor:
        """Return B⁻¹ G A⁻¹, (outputs, inputs), for a gradient G of the same shape."""
        assert self.inputs.factored is not None
        assert self.outputs.factored is not None
        steps = self.inputs.interval.steps, self.outputs.interval.steps
        return precondition(gradient, self.inputs.factored, self.outputs.factored, damping, steps)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join weight and bias to (outputs, inputs), with the bias as last column."""
        rows = self._flatten(parts[0].float())
        if self.with_bias:
            rows = torch.cat([rows, parts[1].float()[:, None]], dim=1)
        return rows

    def split_gradient(self, gradient: Tensor) -> list[Tensor]:
        """Return views of the gradient, (outputs, inputs), in the shapes of the parameters."""
        rows = self._unflatten(gradient[:, :-1] if self.with_bias else gradient)
        return [rows, gradient[:, -1]] if self.with_bias else [rows]

    @abstractmethod
    def _flatten(self, weight: Tensor) -> Tensor:
        """Return a weight of its own shape as (outputs, inputs)."""

    @abstractmethod
    def _unflatten(self, rows: Tensor) -> Tensor:
        """Return (outputs, inputs) in the shape of the weight."""


class LinearLayer(KroneckerLayer):
    """A linear layer, where positions of a sample count as their mean or with weights."""

    takes_weights = True

    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the inputs, (n, …, d), to their factor; ``weights`` are (n, …)."""
        found = factors.compute_linear_input_factor(inputs, self.with_bias, weights)
        self.inputs.collect(found)

    def _flatten(self, weight: Tensor) -> Tensor:
        return weight

    def _unflatten(self, rows: Tensor) -> Tensor:
        return rows


class ConvolutionLayer(KroneckerLayer):
    """A convolution, whose inputs are what its window covers, the channel last."""

    feature_axes = 3

    def __init__(self, name: str, module: nn.Conv2d) -> None:
        super().__init__(name, module)
        self._window = factors.make_window(module)

    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the inputs, (n, c, y, x), to their factor."""
        found = factors.compute_convolution_input_factor(inputs, self._window, self.with_bias)
        self.inputs.collect(found)

    def collect_outputs(self, seen: tuple[Tensor, ...], gradients: Tensor) -> None:
        """Add the gradients of the outputs, (n, c, y, x), to their factor."""
        self.outputs.collect(factors.compute_convolution_output_factor(gradients))

    def _flatten(self, weight: Tensor) -> Tensor:
        return weight.permute(0, 2, 3, 1).flatten(1)

    def _unflatten(self, rows: Tensor) -> Tensor:
        outputs, channels, *kernel = self.parameters[0].shape
        return rows.view(outputs, *kernel, channels).permute(0, 3, 1, 2)


class EmbeddingLayer(KroneckerLayer):
    """An embedding, whose A is diagonal and has the frequencies of the rows.

    The rows are the inputs, of which a position has one.
    """

    takes_weights = True
    has_diagonal_inputs = True
    feature_axes = 0

    def collect_inputs(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the numbers of rows, (n, …), to their frequencies; ``weights`` have their shape."""
        self.inputs.collect(factors.compute_frequencies(inputs, self.inputs.size, weights))

    def _flatten(self, weight: Tensor) -> Tensor:
        return weight.T

    def _unflatten(self, rows: Tensor) -> Tensor:
        return rows.T


class BatchNormLayer(Layer):
    """A batch normalisation, with a 2 × 2 Fisher for scale and shift of each channel.

    What it normalises by is what the module says in ``batch_moments``, (groups, channels) each of
    mean and variance, where it has other groups than the samples of this rank.
    """

    def __init__(self, name: str, module: _BatchNorm) -> None:
        super().__init__(name, module, [module.weight, module.bias])
        self._module = module
        self.shape = (2, module.num_features)
        channels = module.num_features
        self.fisher = Statistic(f"{self.label}.F", channels, is_matrix=False, of_inputs=False)
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

    The layers are in the model's order; there are none of the types ``without``. Raises UseError
    if a pattern to skip matches nothing, if the options refuse unsupported layers and there is one,
    or if no layer is left.
    """
    found: list[Layer] = []
    left_out: dict[str, str] = {}
    names = [name for name, module in model.named_modules() if list(module.parameters())]
    for pattern in options.skip:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UseError(
                f'K-FAC: skip "{pattern}" matches no layer{did_you_mean(pattern, names)}'
            )
    users = _find_users(model)
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        sharing = next((user for p in own for user in users[p] if user != name), None)
        if any(_is_within(name, pattern) for pattern in options.skip):
            left_out[name] = SKIPPED
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
            raise UseError(
                f'K-FAC: layer "{find_label(name, module)}" ({type(module).__name__}) is not '
                f"supported: {reason}; fix: "
                'skip it by name, or set unsupported to "skip"'
            )
    if not found:
        reasons = [f'; "{find_label(name, model)}": {reason}' for name, reason in left_out.items()][
            :3
        ]
        raise UseError(
            "K-FAC: no layer to precondition (Linear, Conv2d, Embedding, BatchNorm)"
            + "".join(reasons)
        )
    return found, left_out


def find_label(name: str, module: nn.Module) -> str:
    """Return the name by which messages call a module: that of its class if it is the whole."""
    return name or type(module).__name__


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
    if type(module).forward not in FORWARDS and not hasattr(module, "batch_moments"):
        return f"{type(module).__name__} has a forward of its own"
    if is_lazy(module.weight):
        return "its shape is not known yet; pass a batch through the model before"
    if module.weight is None or not module.weight.requires_grad:
        return NOT_TRAINED
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
    if isinstance(module, nn.Conv2d):
        return ConvolutionLayer(name, module)
    assert isinstance(module, nn.Linear)
    return LinearLayer(name, module)
