"""Layers as rules/from_scratch.md describes them; each tensor has the law of its first values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@contextmanager
def doubles() -> Iterator[None]:
    """Let everything, the reference too, compute in double precision."""
    read: Any = torch.from_numpy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(
            torch, "from_numpy", lambda x: read(x.astype(float) if x.dtype.kind == "f" else x)
        )
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def begin(tensor: Tensor, deviation: float, mean: float = 0.0, is_even: bool = False) -> Any:
    """Say how a tensor begins: evenly or normally, with a deviation and a mean."""
    tensor.law = (deviation, mean, is_even)  # type: ignore[attr-defined]
    return tensor


def make(*shape: int, deviation: float = 0.0, mean: float = 0.0, is_even: bool = False) -> Any:
    return begin(nn.Parameter(torch.zeros(shape)), deviation, mean, is_even)


def lay(layer: Any, law: str | float, bias: Sequence[Any] = (0.0,)) -> Any:
    """Say how a layer begins: its law, or a deviation; biases as in ``begin``."""
    places = layer.weight[0, 0].numel()
    outputs, inputs = (places * side for side in layer.weight.shape[:2])
    if isinstance(layer, nn.ConvTranspose2d):
        outputs, inputs = inputs, outputs
    counts = {"glorot": inputs + outputs, "he": inputs, "lecun": 2 * inputs, "outputs": outputs}
    deviation = (2 / counts[law]) ** 0.5 if isinstance(law, str) else law
    begin(layer.weight, deviation, 0.0, law in ("glorot", "he", "lecun"))
    if layer.bias is not None:
        begin(layer.bias, *bias)
    return layer


def norm(channels: int, factor: float, kind: Any = nn.BatchNorm2d) -> Any:
    layer = kind(channels)
    begin(layer.weight, 0.0, factor)
    begin(layer.bias, 0.0)
    return layer


def plain(channels: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    return lay(nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, bias=False), "outputs")


class Residual(nn.Module):
    """A block of convolutions (outputs, kernel, stride) and norms, beside a shortcut."""

    def __init__(
        self,
        channels: int,
        layers: Sequence[tuple[int, int, int]],
        last: float,
        make_norm: Any = norm,
        averages: bool = False,
    ) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        width, stride = channels, max(stride for _, _, stride in layers)
        for place, (outputs, kernel, step) in enumerate(layers, 1):
            factor = last if place == len(layers) else 1.0
            steps += [plain(width, outputs, kernel, step), make_norm(outputs, factor), nn.ReLU()]
            width = outputs
        self.steps, self.shortcut = nn.Sequential(*steps[:-1]), nn.Sequential()
        if averages and stride > 1:
            self.shortcut.append(nn.AvgPool2d(2))
        if stride > 1 or width != channels:
            self.shortcut.append(plain(channels, width, 1, 1 if averages else stride))
            self.shortcut.append(make_norm(width, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.steps(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """The stages of ResNet-50, v1.5 or d, and where there are outputs a classifier."""

    def __init__(
        self,
        width: int,
        blocks: Sequence[int],
        outputs: int,
        make_norm: Any = norm,
        is_d: bool = False,
    ) -> None:
        super().__init__()
        half, steps = width // 2, [plain(3, width, 7, 2)]
        if is_d:
            steps = [plain(3, half, 3, 2), make_norm(half, 1.0), nn.ReLU(), plain(half, half, 3)]
            steps += [make_norm(half, 1.0), nn.ReLU(), plain(half, width, 3)]
        steps += [make_norm(width, 1.0), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        self.stem, self.stages, channels = nn.Sequential(*steps), nn.ModuleList(), width
        for stage, count in enumerate(blocks):
            inner, units = width * 2**stage, []
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers = [(inner, 1, 1), (inner, 3, stride), (4 * inner, 1, 1)]
                units.append(Residual(channels, layers, 0.0, make_norm, is_d))
                channels = 4 * inner
            self.stages.append(nn.Sequential(*units))
        self.classifier = lay(nn.Linear(channels, outputs), 0.01) if outputs else None

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the last maps of each stage."""
        found = [self.stem(x)]
        for stage in self.stages:
            found.append(stage(found[-1]))
        return found[1:]

    def forward(self, x: Tensor) -> Any:
        assert self.classifier is not None
        return self.classifier(self.maps(x)[-1].mean((2, 3)))


def smooth(x: Tensor, beta: float) -> Tensor:
    return torch.where(x.abs() < beta, x**2 / (2 * beta), x.abs() - beta / 2)


def measure_entropies(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the cross-entropies against smoothed labels, in the shape of the labels."""
    classes = logits.shape[-1]
    targets = (1 - smoothing) * F.one_hot(labels, classes) + smoothing / classes
    return -(targets * logits.log_softmax(-1)).sum(-1)
