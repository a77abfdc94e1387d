"""The shape network in stages of a pipeline: cut between its blocks, so that larger batches fit."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_shape.model import (
    ShapeNetwork,
    make_lower_triangular,
    negative_log_likelihood,
)
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch.parallel.plan import Stage

LAYERS = 4  # of a block of the trunk
Price = Callable[[nn.Module], Tensor]


class ShapeStage(Stage):
    """The blocks from ``first`` to ``last`` of the trunk; the head belongs to the last stage.

    Stages pass features on, (n, y, x, channels), with channels last in memory, and where there is
    one the ``price`` of the weights before them, (n,): what they add to the loss of each sample.
    """

    def __init__(
        self, model: ShapeNetwork, blocks: range, shape: Galaxies, price: Price | None
    ) -> None:
        super().__init__()
        self.blocks, self.shape, self.price = blocks, shape, price
        self.layers = model.trunk[LAYERS * blocks.start : LAYERS * blocks.stop]
        self.is_last = blocks.stop * LAYERS == len(model.trunk)
        if self.is_last:
            self.head = model.head
        self.whole = (model,)

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return stamps (n, bands, y, x), or features and prices, on the meta device."""
        if self.blocks.start == 0:
            return (inputs,)
        count, _, side, _ = inputs.shape
        side //= 2**self.blocks.start
        channels = self.shape.definition.model["filters"][self.blocks.start - 1]
        shapes = [(count, side, side, channels), *([(count,)] if self.price else [])]
        return tuple(torch.empty(each, device="meta", requires_grad=True) for each in shapes)

    def forward(self, *activations: Tensor, inputs: Tensor, targets: Tensor) -> object:
        """Return features and prices, or the entries of the head with the prices behind them."""
        (model,) = self.whole
        if self.blocks.start == 0:
            images = inputs.float()
            features, *prices = model.scale_input(images), images.new_zeros(len(images))
        else:
            features, *prices = activations[0].permute(0, 3, 1, 2), *activations[1:]
        features = self.layers(features)
        if self.price:
            prices = [prices[0] + self.price(self)]
        if not self.is_last:
            features = features.permute(0, 2, 3, 1).float().contiguous()
            return (features, *prices) if self.price else features
        entries = self.head(features.flatten(1)).float()
        return torch.cat((entries, prices[0][:, None]), 1) if self.price else entries


def cut_stages(
    shape: Galaxies, model: ShapeNetwork, count: int, price: Price | None = None
) -> Sequence[ShapeStage]:
    """Return ``count`` stages with about as many blocks each."""
    blocks = len(model.trunk) // LAYERS
    bounds = [blocks * number // count for number in range(count + 1)]
    parts = map(range, bounds[:-1], bounds[1:])
    return [ShapeStage(model, part, shape, price) for part in parts]


def sum_losses(shape: Galaxies, entries: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses of what the last stage returns, for labels (n, d)."""
    size = shape.targets
    outputs = size + size * (size + 1) // 2
    scale = make_lower_triangular(entries[:, size:outputs], size)
    return (
        negative_log_likelihood(entries[:, :size], scale, labels).sum() + entries[:, outputs:].sum()
    )
