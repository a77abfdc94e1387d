"""mask_rcnn on two groups of ranks: one finds features and proposals, one has the heads.

The graph is split as in Kumar et al. 2019 (arXiv:1909.09756), and runs as a pipeline: the heads
train on one part of the batch while the other group finds the proposals of the next one.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN
from cepheid.benchmarks.resnet50.stages import find_type
from cepheid.reference.torch.images import scale_pixels
from cepheid.reference.torch.parallel.plan import Stage


class FeatureStage(Stage):
    """Backbone, pyramid and proposals, with their loss."""

    def __init__(self, model: MaskRCNN) -> None:
        super().__init__()
        self.parts = nn.ModuleList([model.backbone, model.pyramid, model.proposals])
        self.whole = (model,)

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return the images, (n, y, x, 3)."""
        return (inputs,)

    def forward(self, *_: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return maps, samples of proposals (n, s, 6) and the losses of proposals (n,)."""
        (model,) = self.whole
        *maps, samples, losses = model.find(scale_pixels(model, inputs), targets)
        kind = find_type(inputs.device)
        maps = [each.to(kind).contiguous() for each in maps]
        # The schedule returns a gradient for whatever travels: here zeros.
        return *maps, samples + 0 * losses[:, None, None], losses


class HeadStage(Stage):
    """The box head and the mask head, with their losses."""

    def __init__(self, model: MaskRCNN) -> None:
        super().__init__()
        self.parts = nn.ModuleList([model.box_head, model.mask_head])
        self.whole = (model,)

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return maps (n, channels, y, x), samples and losses, on the meta device."""
        (model,) = self.whole
        count, channels = len(inputs), model.facts["pyramid_channels"]
        options: dict[str, Any] = {"device": "meta", "requires_grad": True}
        kind = find_type(next(self.parts.parameters()).device)
        maps = [
            torch.empty(count, channels, level.rows, level.columns, dtype=kind, **options)
            for level in model.levels
        ]
        samples = torch.empty(count, model.facts["boxes_per_image"], 6, **options)
        return *maps, samples, torch.empty(count, **options)

    def forward(self, *activations: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each image, (n,)."""
        (model,) = self.whole
        *maps, samples, losses = activations
        return model.learn(maps, samples.detach(), losses, targets)
