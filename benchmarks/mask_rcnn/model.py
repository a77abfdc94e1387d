"""Mask R-CNN (He et al. 2017, arXiv:1703.06870) with feature pyramids, as in MLPerf training 0.6.

The backbone is that of resnet50 without its classifier. At full scale its norms are frozen, and so
are its stem and first stage.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.resnet50.model import Architecture, ResNet
from cepheid.reference.torch.parallel.plan import Enlarge

Maps = list[Tensor]
Normalisation = Callable[[int], nn.Module]


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
        self.enlarge = nn.ModuleList(Enlarge() for _ in before[1:])

    def forward(self, maps: Maps) -> Maps:
        """Return a map, (n, channels, y, x), for each one of the backbone."""
        merged: Maps = []
        for level in reversed(range(len(maps))):
            own = self.inner[level](maps[level])
            if merged:
                own = own + self.enlarge[level](merged[0], own)
            merged.insert(0, own)
        return [outer(each) for outer, each in zip(self.outer, merged, strict=True)]


class ProposalHead(nn.Module):
    """What each place of a map says about its anchors: a score and a code of four values."""

    def __init__(self, channels: int, per_place: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.scores = nn.Conv2d(channels, per_place, 1)
        self.codes = nn.Conv2d(channels, 4 * per_place, 1)

    def forward(self, maps: Maps) -> tuple[Maps, Maps]:
        """Return maps of scores, (n, per place, y, x), and of codes, (n, 4 × per place, y, x)."""
        hidden = [functional.relu(self.conv(features), inplace=True) for features in maps]
        return list(map(self.scores, hidden)), list(map(self.codes, hidden))


def list_places(maps: Maps, values: int) -> Tensor:
    """Return what maps say about each anchor, (n, k, values), in the order of the anchors."""
    rows = [each.permute(0, 2, 3, 1).reshape(len(each), -1, values) for each in maps]
    return torch.cat(rows, 1).float()


class Backbone(ResNet):
    """ResNet without its classifier, and the maps of its stages; modules have torchvision's names.

    ``frozen_stages`` counts the stem as one.
    """

    def __init__(
        self, width: int, blocks: Sequence[int], normalisation: Normalisation, frozen_stages: int
    ) -> None:
        architecture = Architecture(tuple(blocks))
        super().__init__(1, width, architecture, normalisation=normalisation)
        del self.fc
        self.channels = architecture.list_channels(width)
        stages = [getattr(self, f"layer{stage + 1}") for stage in range(len(blocks))]
        for stage in [nn.ModuleList([self.conv1, self.bn1]), *stages][:frozen_stages]:
            stage.requires_grad_(False)

    def extract(self, images: Tensor) -> Maps:
        """Return the maps of all stages of images, (n, 3, height, width)."""
        features, maps = self.stem(images), []
        for stage in range(1, self.stages + 1):
            features = getattr(self, f"layer{stage}")(features)
            maps.append(features)
        return maps


class BoxHead(nn.Module):
    """From the features of a box to logits of classes and a better box for each class."""

    def __init__(self, channels: int, bins: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.bins = bins
        self.first = nn.Linear(channels * bins**2, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.logits = nn.Linear(hidden, outputs)
        self.codes = nn.Linear(hidden, 4 * outputs)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map (d, channels, bins, bins) to logits (d, outputs) and codes (d, outputs, 4)."""
        hidden = functional.relu(self.first(features.flatten(1)))
        hidden = functional.relu(self.second(hidden))
        codes = self.codes(hidden)
        return self.logits(hidden).float(), codes.view(len(codes), -1, 4).float()


class MaskHead(nn.Module):
    """From the features of a box to a mask for each class, twice as fine."""

    def __init__(self, channels: int, bins: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.bins = bins
        self.layers = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers)
        )
        self.finer = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.masks = nn.Conv2d(channels, outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Map (d, channels, bins, bins) to logits (d, outputs, 2 × bins, 2 × bins)."""
        for layer in self.layers:
            features = functional.relu(layer(features), inplace=True)
        features = functional.relu(self.finer(features), inplace=True)
        return self.masks(features).float()


class FirstStage(nn.Module):
    """Backbone, pyramid and proposals: what ranks may compute on parts of the images.

    ``partition`` is this rank's place among those that do. Every ``coarser`` map is a part of the
    one before. Maps for the heads pass through ``handed``.
    """

    partition: Any = None

    def __init__(
        self, backbone: Backbone, pyramid: Pyramid, proposals: ProposalHead, coarser: int
    ) -> None:
        super().__init__()
        self.backbone, self.pyramid, self.proposals = backbone, pyramid, proposals
        self.coarser = nn.ModuleList(nn.MaxPool2d(1, stride=2) for _ in range(coarser))
        self.handed = nn.Identity()

    def forward(self, images: Tensor) -> tuple[Maps, Maps, Maps]:
        """Return the maps of the pyramid, (n, channels, y, x), and of ``ProposalHead``."""
        maps: Maps = self.pyramid(self.backbone.extract(images))
        for each in self.coarser:
            maps.append(each(maps[-1]))
        scores, codes = self.proposals(maps)
        return [self.handed(each) for each in maps], scores, codes


class Parts(nn.Module):
    """All parts of the network; ``facts`` are those of the definition's ``model``.

    ``first`` has the first stage, which is no child: weights keep the names of their parts.
    """

    def __init__(self, facts: Mapping[str, Any], normalisation: Normalisation) -> None:
        super().__init__()
        outputs, channels = facts["classes"] + 1, facts["pyramid_channels"]
        self.coarser = int(facts["coarser_maps"])
        self.backbone = Backbone(
            facts["width"], facts["blocks"], normalisation, facts["frozen_stages"]
        )
        self.pyramid = Pyramid(self.backbone.channels, channels)
        self.proposals = ProposalHead(channels, len(facts["anchor_ratios"]))
        self.first = (FirstStage(self.backbone, self.pyramid, self.proposals, self.coarser),)
        self.box_head = BoxHead(channels, facts["box_bins"], facts["box_hidden"], outputs)
        self.mask_head = MaskHead(channels, facts["mask_bins"], facts["mask_layers"], outputs)
        _initialize(self)

    def extract(self, images: Tensor) -> tuple[Maps, Tensor, Tensor]:
        """Return maps from the finest to the coarsest, and what they say of the anchors.

        Maps are (n, channels, y, x), scores (n, k), codes (n, k, 4).
        """
        (first,) = self.first
        maps, scores, codes = first(images)
        return maps, list_places(scores, 1).squeeze(2), list_places(codes, 4)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the first stage too."""
        self.first[0].training = mode
        return super().train(mode)


def _initialize(network: Parts) -> None:
    """Initialise what is behind the backbone as the MLPerf reference does."""
    for part in (network.pyramid, network.box_head):
        for module in part.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_uniform_(module.weight, a=1)
    for module in network.mask_head.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for module in (network.proposals.conv, network.proposals.scores, network.proposals.codes):
        nn.init.normal_(module.weight, std=0.01)
    nn.init.normal_(network.box_head.logits.weight, std=0.01)
    nn.init.normal_(network.box_head.codes.weight, std=0.001)
    for name, parameter in network.named_parameters():
        if name.endswith("bias") and not name.startswith("backbone"):
            nn.init.zeros_(parameter)
