"""What K-FAC sees of a model: inputs and gradients of its layers, pass by pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from cepheid.second_order import fisher
from cepheid.second_order.curvature import Phase
from cepheid.second_order.layers import Layer
from cepheid.second_order.options import Options, UseError, did_you_mean
from cepheid.second_order.statistic import Statistic


class Reader(Protocol):
    """What decides which factors are collected, and may send those of the inputs early."""

    @property
    def inputs_are_sent(self) -> bool:
        """True if it is too late for another forward pass of this step."""

    def is_due(self, statistic: Statistic) -> bool:
        """Return True if the factor is collected in this step."""

    def send_inputs(self) -> object:
        """Begin to send the factors of the inputs, which are complete."""

    def collect(self, layer: Layer, add: Callable[..., None], *values: Any) -> None:
        """Call ``add``, a method of the layer that adds to its factors, with values (n, …)."""


class Observer:
    """An observer of ``layers`` that adds what passes through them to their factors."""

    def __init__(
        self, layers: list[Layer], options: Options, reader: Reader, phase: Phase = nullcontext
    ) -> None:
        self.layers, self.options, self.phase = layers, options, phase
        self._reader = reader
        self._edges: list[tuple[Layer, tuple[Tensor, ...], torch.Size, GradientEdge]] = []
        self._is_accumulating = False
        self._is_paused = False
        self._weights: dict[Layer, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self._is_removed = False
        self._add_hooks()
        _OBSERVERS.add(self)

    def remove(self) -> None:
        """Remove the hooks from the model for good."""
        self._remove_hooks()
        self._is_removed = True

    def attach(self) -> None:
        """Observe the layers again after ``detach``, between two steps.

        Raises UseError if a pass that was not observed has left gradients.
        """
        if self._hooks or self._is_removed:
            return
        trained = next((layer for layer in self.layers if layer.is_trained), None)
        if trained is not None:
            raise UseError(
                f'K-FAC: attach: layer "{trained.label}" has a gradient of a pass that was not '
                "observed; fix: call attach before the first pass of a step, after zero_grad"
            )
        self._add_hooks()

    def _add_hooks(self) -> None:
        self._hooks = [
            layer.module.register_forward_hook(partial(self._after_forward, layer))
            for layer in self.layers
        ]

    def detach(self) -> None:
        """Leave the model without hooks, as ``torch.compile`` needs it, while nothing is due.

        Raises UseError between the first pass of a step and ``step``.
        """
        seen = next((layer for layer in self.layers if self._hooks and layer.samples), None)
        if seen is not None:
            raise UseError(
                f'K-FAC: detach: {seen.samples} samples passed through layer "{seen.label}" since '
                "the last step; fix: call step before, or run passes without a step in pause()"
            )
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def is_due(self) -> bool:
        """True if this step refreshes a factor, so that its passes must be observed."""
        due = (self._reader.is_due(each) for layer in self.layers for each in layer.statistics)
        return not self._is_removed and any(due)

    def _after_forward(
        self, layer: Layer, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if self._is_paused or not (torch.is_grad_enabled() and output.requires_grad):
            return
        # In the backward pass a checkpoint recomputes a pass that has been observed.
        if torch._C._current_graph_task_id() >= 0:
            return
        if not inputs:
            raise UseError(
                f'K-FAC: layer "{layer.label}" is called with its input by keyword; fix: give it '
                "by place"
            )
        if inputs[0].dim() <= layer.feature_axes:
            raise UseError(
                f'K-FAC: layer "{layer.label}" has an input of shape {tuple(inputs[0].shape)}, '
                "which has no dimension for the samples; fix: put it first, (1, …) for one sample"
            )
        if self._reader.inputs_are_sent:
            raise UseError(
                "K-FAC: a forward pass came after the factors of the inputs were sent; with "
                "overlap, wrap all but the last pass of a step in `with kfac.accumulate():`"
            )
        layer.samples += inputs[0].shape[0]
        due = [statistic for statistic in layer.statistics if self._reader.is_due(statistic)]
        if not due:
            return
        seen = inputs[0].detach()
        if any(statistic.of_inputs for statistic in due):
            with self.phase("factors"), _use_float32(seen):
                values = seen.float() if seen.is_floating_point() else seen
                weights = self._find_weights(layer, seen)
                self._reader.collect(layer, layer.collect_inputs, values, weights)
        if all(statistic.of_inputs for statistic in due):
            return
        with self.phase("factors"), torch.no_grad(), _use_float32(seen):
            kept = layer.summarize_inputs(seen)
        source, shape = _find_source(output), output.shape
        if self.options.fisher != "empirical":
            self._edges.append((layer, kept, shape, get_gradient_edge(source)))
        elif source is output:
            output.register_hook(partial(self._on_gradient, layer, kept))
        else:  # what changes the view changes this tensor, but not its node
            edge = get_gradient_edge(source)
            place = edge.output_nr  # the hook must not keep the node that keeps the hook
            edge.node.register_prehook(
                lambda gradients: self._on_gradient(layer, kept, gradients[place].reshape(shape))
            )

    def weigh(self, weights: Mapping[str, Tensor]) -> None:
        """Weigh the positions of the samples in the forward passes that follow, for the factor A.

        ``weights`` are (samples, …) by patterns of names of linear layers and embeddings, of which
        the first that matches a name counts; without a match all positions weigh the same. Padding
        weighs 0. A is the mean over samples of Σ w a aᵀ over the positions of each, on all ranks
        together, so the weights of all positions should add up to the number of samples. B needs
        none: what is padding for the loss has gradients of 0. Raises UseError for a pattern that
        matches no such layer.
        """
        self._weights = {}
        for pattern, values in weights.items():
            matching = [each for each in self.layers if fnmatchcase(each.name, pattern)]
            if not any(layer.takes_weights for layer in matching):
                names = [layer.name for layer in self.layers if layer.takes_weights]
                raise UseError(
                    f'K-FAC: weigh: "{pattern}" matches no linear layer or embedding of K-FAC'
                    f"{did_you_mean(pattern, names)}"
                )
            for layer in matching:
                if layer.takes_weights:
                    self._weights.setdefault(layer, values)

    def _find_weights(self, layer: Layer, inputs: Tensor) -> Tensor | None:
        """Return the weights of a layer's positions for inputs (n, …, d), if it has some."""
        weights = self._weights.get(layer)
        if weights is None:
            return None
        positions = inputs.shape[: inputs.ndim - layer.feature_axes]
        if weights.shape != positions:
            raise UseError(
                f'K-FAC: layer "{layer.label}" has weights of shape {tuple(weights.shape)}, but '
                f"its input has {tuple(positions)} positions; fix: call weigh before each forward "
                "pass, with the positions of that pass"
            )
        return weights

    def _on_gradient(self, layer: Layer, seen: tuple[Tensor, ...], gradients: Tensor) -> None:
        """Collect the gradient of an output; the gradient itself stays as it is."""
        layer.samples_with_gradients += len(gradients)
        if self.options.overlap and not self._is_accumulating:
            self._reader.send_inputs()
        with self.phase("factors"), torch.no_grad(), _use_float32(gradients):
            self._reader.collect(layer, layer.collect_outputs, seen, gradients.float())

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Ignore the passes in this block: they add nothing to the factors.

        ``step`` preconditions all gradients there are, those of such passes too.
        """
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def observe_sampled(self, loss: Tensor) -> None:
        """Run the backward pass for the true Fisher, before the real one.

        ``loss`` is the mean loss, a scalar, of targets drawn from the model's own predictions, as
        ``sample_cross_entropy`` computes it; scale it as the real loss. The gradients of the
        parameters do not change. Raises UseError without the option ``fisher="sampled"``.
        """
        if self.options.fisher != "sampled":
            raise UseError('K-FAC: observe_sampled needs the option fisher="sampled"')
        self._run_backward(loss, [None])

    def observe(
        self,
        outputs: Tensor,
        losses: fisher.Losses | None = None,
        *,
        share: float = 1.0,
        loss_scale: float = 1.0,
        noise: Tensor | None = None,
    ) -> None:
        """Run the backward passes for the Fisher matrix of the options, before the real one.

        ``outputs`` (n, classes) are the logits of a classifier, or with "gauss_newton" those of any
        model, (n, outputs), from which ``losses`` returns the loss of each sample, (n,). The
        gradients of the parameters do not change. If several passes make a step, ``share`` is the
        part of its samples that this one has; ``loss_scale`` is what the loss is multiplied by.
        ``noise`` in [0, 1), (n, ``fisher.count_noise``), decides what is drawn; without it torch's
        generator does.

        Raises UseError for the empirical Fisher, which needs none of this, for other shapes, and
        for an exact matrix of more than ``fisher.OUTPUTS_MAX`` outputs.
        """
        kind = self.options.fisher
        fisher.refuse_outputs(kind, outputs, losses)
        shape = len(outputs), fisher.count_noise(kind, self.options.fisher_samples, outputs)
        if noise is None:
            noise = torch.rand(shape, device=outputs.device)
        if noise.shape != shape:
            raise UseError(f"K-FAC: noise has shape {tuple(noise.shape)}, expected {shape}")
        factor = share * loss_scale / len(outputs)
        directions = fisher.make_directions(kind, outputs, losses, noise)
        self._run_backward(outputs, ((factor * each).to(outputs.dtype) for each in directions))

    def refuse_unobserved(self) -> None:
        """Raise UseError if a pass waits for ``observe``."""
        if self._edges:
            raise UseError(
                f'K-FAC: with fisher="{self.options.fisher}" call observe before the backward pass '
                "of the loss, with the outputs of the model, or observe_sampled before step"
            )

    def _run_backward(self, outputs: Tensor, directions: Iterable[Tensor | None]) -> None:
        """Collect the factors of gradients of a backward pass for each direction of ``outputs``."""
        observed, self._edges = self._edges, []
        if not observed:  # no factor of gradients is due
            return
        edges = [edge for *_, edge in observed]
        for direction in directions:
            gradients = torch.autograd.grad(
                outputs, edges, direction, retain_graph=True, allow_unused=True
            )
            for (layer, seen, shape, _), gradient in zip(observed, gradients, strict=True):
                if gradient is not None:
                    self._on_gradient(layer, seen, gradient.reshape(shape))

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Mark a pass that is not the last one of a step that accumulates gradients.

        Only ``overlap`` needs it, to know when the factors of the inputs are complete.
        """
        self._is_accumulating = True
        try:
            yield
        finally:
            self._is_accumulating = False


_OBSERVERS: WeakSet[Observer] = WeakSet()  # all that there are


@contextmanager
def pause_all() -> Iterator[None]:
    """Let no observer that exists already see the passes in this block, of whichever model."""
    with ExitStack() as paused:
        for observer in list(_OBSERVERS):
            paused.enter_context(observer.pause())
        yield


def sample_cross_entropy(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the mean cross-entropy of labels drawn from the predictions, a scalar.

    ``logits`` has shape (n, classes). The second moment of the gradients of this loss is the true
    Fisher matrix of a classifier.
    """
    probabilities = logits.detach().float().softmax(1)
    drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return functional.cross_entropy(logits, drawn)


def _find_source(output: Tensor) -> Tensor:
    """Return the tensor, (…, d), whose gradient is that of an output, (n, …, d), in any case.

    It is what the output is a view of: an operation in place, such as an activation, takes a view
    out of the graph. ``Linear`` with a bias returns a view for more than two dimensions. A view in
    another order of the values, such as a transposed one, stands for itself.
    """
    base = output._base
    if base is None or base.numel() != output.numel():
        return output
    return base if base.is_contiguous() and output.is_contiguous() else output


def _use_float32(values: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which factors are computed in float32, whatever the layers use."""
    kind = values.device.type
    has_autocast = torch.amp.is_autocast_available(kind)  # "meta" has none
    return torch.autocast(kind, enabled=False) if has_autocast else nullcontext()
