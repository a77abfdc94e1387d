"""ResNet-50 in stages of a pipeline: cut between its blocks."""

import torch
from torch import Tensor, nn

from cepheid.benchmarks.resnet50.model import Block, ResNet, scale_pixels
from cepheid.reference.torch.parallel.plan import Stage


class ResNetStage(Stage):
    """The blocks from ``first`` to ``last``; the stem belongs to the first, the classifier last.

    Stages pass features on, (n, y, x, channels), which are images with channels last in memory, in
    the type in which autocast computes.
    """

    def __init__(self, model: ResNet, first: int, last: int) -> None:
        super().__init__()
        blocks = list_blocks(model)
        self.first, self.last = first, last
        self.before = tuple(blocks[:first])  # not parts of this module
        self.blocks = nn.ModuleList(blocks[first:last])
        self.whole = (model,)
        if first == 0:
            self.stem = nn.ModuleList([model.conv1, model.bn1])
        self.is_last = last == len(blocks)
        if self.is_last:
            self.classifier = model.fc

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return what the stage gets for images (n, y, x, 3), on the meta device."""
        if self.first == 0:
            return (inputs,)
        count, *sizes, _ = inputs.shape
        # The stem, its pooling and each block with a stride halve an image, rounded up.
        strides = [2, 2, *(block.stride for block in self.before)]
        for stride in strides:
            sizes = [-(-size // stride) for size in sizes]
        dtype = find_type(next(self.blocks.parameters()).device)
        shape = (count, *sizes, self.before[-1].channels)
        return (torch.empty(shape, dtype=dtype, device="meta", requires_grad=True),)

    def forward(self, *features: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the features after the blocks, (n, y, x, channels), or the logits, (n, classes).

        ``inputs`` are uint8 images, (n, y, x, 3), and ``targets`` labels, (n,).
        """
        (model,) = self.whole
        if self.first == 0:
            images = model.stem(scale_pixels(inputs))
        else:
            images = features[0].permute(0, 3, 1, 2)
        for block in self.blocks:
            images = block(images)
        if self.is_last:
            return model.classify(images)
        return images.permute(0, 2, 3, 1).to(find_type(images.device)).contiguous()


def list_blocks(model: ResNet) -> list[Block]:
    """Return the blocks of all layers."""
    return [block for block in model.modules() if isinstance(block, Block)]


def find_type(device: torch.device) -> torch.dtype:
    """Return the type in which autocast computes on ``device`` now."""
    is_enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_enabled else torch.float32


def cut_stages(model: ResNet, stages: int) -> list[ResNetStage]:
    """Return ``stages`` equal parts of the blocks, whose number they divide."""
    size = len(list_blocks(model)) // stages
    return [ResNetStage(model, size * n, size * (n + 1)) for n in range(stages)]
