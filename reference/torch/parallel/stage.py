"""The part of a model that one rank of a pipeline has."""

from torch import Tensor, nn


class Stage(nn.Module):
    """Consecutive layers of a model, which stay those of the model; a benchmark subclasses it.

    ``forward(*activations, inputs=…, targets=…)`` returns the activations for the next stage, or
    the logits. The first stage gets the inputs in their place. Its parameters and buffers are those
    that it uses.
    """

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return the activations that it gets for a micro-batch, (n, …), on the meta device."""
        raise NotImplementedError
