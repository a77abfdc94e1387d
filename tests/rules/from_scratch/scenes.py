"""SSD and Mask R-CNN, written from rules/from_scratch.md alone. Boxes are corners, or centres."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.rules.from_scratch.layers import Residual, ResNet50, lay, norm, plain, smooth


def even_biases(layer: nn.Conv2d) -> Any:
    """Return a Glorot layer whose biases are even in ±1/√inputs."""
    return lay(layer, "glorot", ((3 * layer.weight[0].numel()) ** -0.5, 0.0, True))


class SSD(nn.Module):
    """Images to codes (n, boxes, 4) and logits (n, boxes, classes + 1)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        stem, classes = model["stem"], model["classes"] + 1
        channels = stem["channels"]
        self.backbone = nn.Sequential(
            plain(3, channels, stem["kernel"], 2), norm(channels, 1.0), nn.ReLU()
        )
        if stem["pooled"]:
            self.backbone.append(nn.MaxPool2d(3, 2, 1))
        for outputs, blocks, stride in model["stages"]:
            for block in range(blocks):
                layers = [(outputs, 3, 1 if block else stride), (outputs, 3, 1)]
                self.backbone.append(Residual(channels, layers, 1.0))
                channels = outputs
        self.extras, widths, bias = nn.ModuleList(), [channels], not model["normalised"]
        for inner, outputs, stride, padding in model["extras"]:
            steps: list[nn.Module] = []
            for layer in (
                nn.Conv2d(widths[-1], inner, 1, bias=bias),
                nn.Conv2d(inner, outputs, 3, stride, padding, bias=bias),
            ):
                norms = [] if bias else [norm(layer.out_channels, 1.0)]
                steps += [even_biases(layer), *norms, nn.ReLU()]
            self.extras.append(nn.Sequential(*steps))
            widths.append(outputs)
        counts = [2 + 2 * len(ratios) for ratios in model["ratios"]]
        self.heads: Any = nn.ModuleList(
            nn.ModuleList(
                even_biases(nn.Conv2d(width, count * values, 3, padding=1))
                for width, count in zip(widths, counts, strict=True)
            )
            for values in (4, classes)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Return codes, logits and the sides of the maps."""
        maps = [self.backbone(x)]
        for extra in self.extras:
            maps.append(extra(maps[-1]))
        codes, logits = (
            torch.cat([list_places(layer(each)) for layer, each in zip(part, maps, strict=True)], 1)
            for part in self.heads
        )
        classes = logits.numel() * 4 // codes.numel()
        sides = [each.shape[-1] for each in maps]
        return codes.unflatten(1, (-1, 4)), logits.unflatten(1, (-1, classes)), sides


def list_places(maps: Tensor) -> Tensor:
    """Return (n, places × values) of maps (n, values, y, x)."""
    return maps.permute(0, 2, 3, 1).flatten(1)


def lay_out(side: int, step: float, shapes: list[tuple[float, float]]) -> list[Any]:
    """Return boxes of shapes (width, height) at all places of a map, centres."""
    middle = [(place + 0.5) * step for place in range(side)]
    return [(x, y, w, h) for y in middle for x in middle for w, h in shapes]


def list_defaults(model: Any, sides: list[int]) -> Any:
    """Return the default boxes, centres in shares of the side."""
    boxes, sizes = [], model["sizes"]
    for place, (side, ratios) in enumerate(zip(sides, model["ratios"], strict=True)):
        s, between = sizes[place], math.sqrt(sizes[place] * sizes[place + 1])
        shapes = [(s, s), (between, between)]
        for r in ratios:
            shapes += [(s * r**0.5, s / r**0.5), (s / r**0.5, s * r**0.5)]
        boxes += lay_out(side, model["steps"][place], shapes)
    return (torch.tensor(boxes) / model["pixels"]).clamp(0, 1)


def to_corners(boxes: Tensor) -> Tensor:
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def to_centres(boxes: Tensor) -> Tensor:
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)


def measure_areas(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def measure_overlaps(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    shared = measure_areas(torch.cat([low, high], -1))
    return shared / (measure_areas(a)[:, None] + measure_areas(b) - shared)


def encode(boxes: Tensor, anchors: Tensor, units: tuple[float, float]) -> Tensor:
    """Return the codes of boxes, corners, for anchors, centres."""
    boxes = to_centres(boxes)
    offsets = (boxes[:, :2] - anchors[:, :2]) / anchors[:, 2:] / units[0]
    return torch.cat([offsets, (boxes[:, 2:] / anchors[:, 2:]).log() / units[1]], 1)


def decode(codes: Tensor, anchors: Tensor, units: tuple[float, float]) -> Tensor:
    """Return the boxes, corners, of codes for anchors, centres."""
    middle = codes[..., :2] * units[0] * anchors[..., 2:] + anchors[..., :2]
    size = (codes[..., 2:] * units[1]).clamp(max=4.135).exp() * anchors[..., 2:]
    return to_corners(torch.cat([middle, size], -1))


def suppress(boxes: Tensor, scores: Tensor, largest: float, most: int, is_strict: bool) -> Any:
    """Return the numbers of boxes that stay, from the best on."""
    kept: list[int] = []
    for number in scores.argsort(descending=True)[:most].tolist():
        overlaps = measure_overlaps(boxes[number : number + 1], boxes[kept])
        if bool((overlaps <= largest if is_strict else overlaps < largest).all()):
            kept.append(number)
    return kept


def select(boxes: Tensor, scores: Tensor, model: Any, most: int, is_strict: bool) -> list[Any]:
    """Return score, label and box of detections, of boxes (n, classes, 4), scores (n, classes)."""
    found = []
    for label in range(scores.shape[1]):
        passing = scores[:, label] > model["least_score"]
        own, said = boxes[passing, label], scores[passing, label]
        for number in suppress(own, said, model["largest_overlap"], most, is_strict):
            found.append((float(said[number]), label + 1, own[number]))
    found.sort(key=lambda each: -each[0])
    return found[: model["most_per_image"]]


def ssd_loss(model: Any, codes: Tensor, logits: Tensor, truth: Tensor, defaults: Tensor) -> Tensor:
    """Return the loss of one image with ``truth`` (n, 5), corners and labels."""
    boxes, labels = truth[:, :4], truth[:, 4].long()
    overlaps = measure_overlaps(to_corners(defaults), boxes)
    best, owner = overlaps.max(1)
    owner[best <= model["least_overlap"]] = -1
    for number in range(len(boxes)):
        owner[overlaps[:, number].argmax()] = number
    positive = owner >= 0
    each = F.cross_entropy(logits, labels[owner].where(positive, 0), reduction="none")
    count = int(positive.sum())
    hardest = each[~positive].sort(descending=True).values
    wanted = encode(boxes[owner], defaults, (0.1, 0.2))[positive]
    total = smooth(codes[positive] - wanted, 1.0).sum() + each[positive].sum()
    return (total + hardest[: model["negatives_per_positive"] * count].sum()) / count


class MaskRCNN(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        width, wide, classes = model["width"], model["pyramid_channels"], model["classes"] + 1
        self.model, bins, hidden = model, model["box_bins"], model["box_hidden"]

        def even(layer: Any) -> Any:
            return lay(layer, "lecun")

        self.body = ResNet50(
            width, model["blocks"], 0, make_frozen if model["frozen_norms"] else make_group_norm
        )
        channels = [4 * width * 2**stage for stage in range(len(model["blocks"]))]
        self.inner = nn.ModuleList(even(nn.Conv2d(each, wide, 1)) for each in channels)
        self.outer = nn.ModuleList(even(nn.Conv2d(wide, wide, 3, padding=1)) for _ in channels)
        count = len(model["anchor_ratios"])
        self.proposals = nn.ModuleList(
            [nn.Conv2d(wide, wide, 3, padding=1), nn.Conv2d(wide, count, 1)]
        )
        self.proposals.append(nn.Conv2d(wide, 4 * count, 1))
        for layer in self.proposals:
            lay(layer, 0.01)
        self.hidden = nn.ModuleList([even(nn.Linear(wide * bins**2, hidden))])
        self.hidden.append(even(nn.Linear(hidden, hidden)))
        self.classes = lay(nn.Linear(hidden, classes), 0.01)
        self.codes = lay(nn.Linear(hidden, 4 * classes), 0.001)
        steps: list[nn.Module] = []
        for _ in range(model["mask_layers"]):
            steps += [lay(nn.Conv2d(wide, wide, 3, padding=1), "outputs"), nn.ReLU()]
        steps += [lay(nn.ConvTranspose2d(wide, wide, 2, 2), "outputs"), nn.ReLU()]
        self.masks = nn.Sequential(*steps, lay(nn.Conv2d(wide, classes, 1), "outputs"))

    def find_maps(self, x: Tensor) -> list[Tensor]:
        maps = [layer(each) for layer, each in zip(self.inner, self.body.maps(x), strict=True)]
        for place in range(len(maps) - 2, -1, -1):
            maps[place] = maps[place] + F.interpolate(maps[place + 1], scale_factor=2)
        maps = [layer(each) for layer, each in zip(self.outer, maps, strict=True)]
        for _ in range(self.model["coarser_maps"]):
            maps.append(maps[-1][:, :, ::2, ::2])
        return maps

    def observe(self, x: Tensor) -> tuple[list[Any], list[Tensor]]:
        """Return maps, logits and codes of all levels for each image, and the anchors."""
        maps, model, anchors = self.find_maps(x), self.model, []
        hidden = [F.relu(self.proposals[0](each)) for each in maps]
        for level, each in enumerate(maps):
            roots = [(r**0.5, model["anchor_sizes"][level]) for r in model["anchor_ratios"]]
            shapes = [(s / root, s * root) for root, s in roots]
            anchors.append(torch.tensor(lay_out(each.shape[-1], 4 * 2**level, shapes)))
        logits, codes = (
            [list_places(self.proposals[part](each)) for each in hidden] for part in (1, 2)
        )
        of_images = zip(
            zip(*maps, strict=True),
            zip(*logits, strict=True),
            zip(*codes, strict=True),
            strict=True,
        )
        return list(of_images), anchors

    def forward(self, x: Tensor, truths: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Return the mean loss where all anchors and boxes are sampled.

        Truths are corners in pixels, labels, and masks within the boxes.
        """
        (images, anchors), losses = self.observe(x), []
        for (maps, logits, codes), truth in zip(images, truths, strict=True):
            loss = self.learn_proposals(
                torch.cat(anchors), torch.cat(logits), torch.cat(codes), truth
            )
            with torch.no_grad():
                boxes = torch.cat([self.propose(anchors, logits, codes, 0), truth[0]])
            losses.append(loss + self.learn_boxes(maps, boxes, truth))
        return torch.stack(losses).mean()

    def detect(self, x: Tensor) -> list[Any]:
        """Return the detections of each image, and the pixels of their masks."""
        (images, anchors), model, found = self.observe(x), self.model, []
        whole = torch.tensor([[0.0, 0.0, model["pixels"], model["pixels"]]])
        for maps, logits, codes in images:
            boxes = self.propose(anchors, logits, codes, 1)
            said, coded = self.describe(maps, boxes)
            moved = decode(coded, to_centres(boxes)[:, None], (0.1, 0.2)).clamp(0, model["pixels"])
            chosen = select(moved[:, 1:], said.softmax(1)[:, 1:], model, len(boxes), True)
            own, labels = torch.stack([box for _, _, box in chosen]), [each[1] for each in chosen]
            masks = self.masks(self.align(maps, own, model["mask_bins"]))
            seen = masks[torch.arange(len(own)), labels].sigmoid()
            pixels = cut_masks(seen, own, whole.expand(len(own), -1), model["pixels"])
            found.append((chosen, pixels))
        return found

    def learn_proposals(self, anchors: Tensor, logits: Tensor, codes: Tensor, truth: Any) -> Any:
        corners, model = to_corners(anchors), self.model
        overlaps = measure_overlaps(corners, truth[0])
        best, owner = overlaps.max(1)
        claimed = ((overlaps == overlaps.amax(0)) & (overlaps > 0)).any(1)
        positive = claimed | (best >= model["anchor_overlaps"][1])
        inside = ((corners >= 0) & (corners <= model["pixels"])).all(1)
        sampled = inside & (positive | (best < model["anchor_overlaps"][0]))
        entropies = F.binary_cross_entropy_with_logits(
            logits, positive.to(logits.dtype), reduction="none"
        )
        chosen = sampled & positive
        wanted = encode(truth[0][owner], anchors, (1.0, 1.0))
        distances = smooth(codes.view(-1, 4) - wanted, 1 / 9).sum(1)
        return (entropies[sampled].sum() + distances[chosen].sum()) / sampled.sum()

    def propose(self, anchors: Any, logits: Any, codes: Any, phase: int) -> Tensor:
        """Return the proposed boxes of an image, in training (0) or evaluation (1)."""
        model, found = self.model, []
        for anchor, score, code in zip(anchors, logits, codes, strict=True):
            boxes = decode(code.view(-1, 4), anchor, (1.0, 1.0)).clamp(0, model["pixels"])
            most = model["most_per_level"][phase]
            for number in suppress(boxes, score, model["proposal_overlap"], most, True):
                found.append((float(score[number]), boxes[number]))
        found.sort(key=lambda each: -each[0])
        return torch.stack([box for _, box in found[: model["num_image_candidates"]]])

    def describe(self, maps: Any, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, classes) and codes (n, classes, 4) of boxes."""
        x = self.align(maps, boxes, self.model["box_bins"]).flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.classes(x), self.codes(x).unflatten(1, (-1, 4))

    def learn_boxes(self, maps: Any, boxes: Tensor, truth: Any) -> Tensor:
        best, owner = measure_overlaps(boxes, truth[0]).max(1)
        positive = best >= self.model["positive_overlap"]
        labels = truth[1][owner].where(positive, 0)
        logits, codes = self.describe(maps, boxes)
        entropies = F.cross_entropy(logits, labels, reduction="none")
        codes = codes[torch.arange(len(boxes)), labels]
        wanted = encode(truth[0][owner], to_centres(boxes), (0.1, 0.2))
        distances = smooth(codes - wanted, 1.0).sum(1)[positive].sum()
        loss = (entropies.sum() + distances) / len(boxes)
        boxes, owner, labels = boxes[positive], owner[positive], labels[positive]
        masks = self.masks(self.align(maps, boxes, self.model["mask_bins"]))
        masks = masks[torch.arange(len(boxes)), labels]
        wanted = cut_masks(truth[2][owner], truth[0][owner], boxes, masks.shape[-1])
        return loss + F.binary_cross_entropy_with_logits(masks, wanted)

    def align(self, maps: Any, boxes: Tensor, bins: int) -> Tensor:
        """Return the features of boxes (n, 4), (n, channels, bins, bins)."""
        used, found = len(maps) - self.model["coarser_maps"], []
        for box in boxes:
            level = math.log2(float(measure_areas(box)) ** 0.5 / self.model["box_unit"] + 1e-6)
            k = min(max(math.floor(level), 0), used - 1)
            step, height = 4 * 2**k, maps[k].shape[-1]
            parts = (torch.arange(2 * bins) + 0.5) / (2 * bins)
            x, y = (
                ((box[a] + (box[a + 2] - box[a]) * parts) / step - 0.5).clamp(0, height - 1)
                for a in (0, 1)
            )
            rows, columns = (
                (1 - (each[:, None] - torch.arange(height)).abs()).clamp(min=0) for each in (y, x)
            )
            found.append(F.avg_pool2d(rows @ maps[k] @ columns.T, 2))
        return torch.stack(found)


def cut_masks(masks: Tensor, own: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Return masks (n, s, s) of boxes ``own`` at the centres of the parts of other boxes."""
    parts, side = (torch.arange(size) + 0.5) / size, masks.shape[-1]
    weights = []
    for axis in (1, 0):
        low, high = boxes[:, axis, None], boxes[:, axis + 2, None]
        point = low + (high - low) * parts
        share = (point - own[:, axis, None]) / (own[:, axis + 2] - own[:, axis])[:, None]
        distance = (share * side - 0.5)[..., None] - torch.arange(side)
        weights.append((1 - distance.abs()).clamp(min=0))
    return (weights[0] @ masks @ weights[1].mT >= 0.5).to(boxes.dtype)


def make_group_norm(channels: int, factor: float) -> Any:
    return norm(channels, factor, partial(nn.GroupNorm, 8))


def make_frozen(channels: int, factor: float) -> nn.Module:
    """Return a norm without parameters; what it is given is not copied here."""
    return nn.BatchNorm2d(channels, affine=False)
