"""What detectors with feature pyramids share: frozen norms, the pyramid, the proposal network."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Maps = list[Tensor]


class FrozenNorm(nn.Module):
    """A batch norm whose scale, shift and statistics are given and stay; all are buffers."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(channels))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Scale and shift (n, channels, y, x)."""
        values: Mapping[str, Any] = self._buffers
        scale = values["weight"] * (values["running_var"] + self.epsilon).rsqrt()
        shift = values["bias"] - values["running_mean"] * scale
        return features * scale[:, None, None] + shift[:, None, None]


class Pyramid(nn.Module):
    """Maps of equal channels, to which the coarser ones add (Lin et al. 2017, arXiv:1612.03144)."""

    def __init__(self, before: Sequence[int], channels: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(each, channels, 1) for each in before)
        self.outer = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in before)

    def forward(self, maps: Maps) -> Maps:
        """Return a map, (n, channels, y, x), for each one of the backbone."""
        merged: Maps = []
        for inner, features in zip(reversed(self.inner), reversed(maps), strict=True):
            own = inner(features)
            if merged:
                own = own + functional.interpolate(merged[0], own.shape[-2:], mode="nearest")
            merged.insert(0, own)
        return [outer(each) for outer, each in zip(self.outer, merged, strict=True)]


class ProposalHead(nn.Module):
    """What each place of a map says about its anchors: a score and a code of four values."""

    def __init__(self, channels: int, per_place: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.scores = nn.Conv2d(channels, per_place, 1)
        self.codes = nn.Conv2d(channels, 4 * per_place, 1)

    def forward(self, maps: Maps) -> tuple[Tensor, Tensor]:
        """Return scores (n, k) and codes (n, k, 4), in the order of the anchors."""
        scores, codes = [], []
        for features in maps:
            hidden = functional.relu(self.conv(features), inplace=True)
            scores.append(self.scores(hidden).permute(0, 2, 3, 1).flatten(1))
            codes.append(self.codes(hidden).permute(0, 2, 3, 1).reshape(len(hidden), -1, 4))
        return torch.cat(scores, 1).float(), torch.cat(codes, 1).float()
