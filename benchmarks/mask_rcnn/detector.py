"""Mask R-CNN as one module: in training from images and their truth to losses, else to detections.

Training has two halves, so that two groups of ranks can share it: ``find`` makes maps and samples
proposals, ``learn`` trains the heads on them. All shapes are static, and nothing waits for a value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cepheid.benchmarks.mask_rcnn.model import Normalisation, Parts
from cepheid.reference.torch.detection.default_boxes import (
    PLAIN,
    AnchorLevel,
    clip_boxes,
    decode,
    encode,
    make_anchors,
    to_centres,
    to_corners,
)
from cepheid.reference.torch.detection.roi_align import align_boxes
from cepheid.reference.torch.detection.sampling import (
    Truth,
    average,
    crop_masks,
    draw_sample,
    draw_uniform,
    match_boxes,
    take_rows,
)
from cepheid.reference.torch.detection.suppression import select_by_class, select_proposals

OF_ANCHORS, OF_PROPOSALS = 0, 1  # purposes of random numbers


class MaskRCNN(Parts):
    """The network of a definition's ``facts``; ``seed`` is the run's, for its samples."""

    offset = 0.5  # of the places of a map from their corners

    def __init__(self, facts: Mapping[str, Any], normalisation: Normalisation, seed: int) -> None:
        super().__init__(facts, normalisation)
        self.facts, self.seed = facts, seed
        self.levels = list_levels(facts)
        self.counts = [level.count for level in self.levels]
        self.steps = [level.step for level in self.levels]
        self.candidates = int(facts["num_image_candidates"])
        self.anchors: Tensor
        self.register_buffer("anchors", make_anchors(self.levels), persistent=False)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each image, (n,); images are scaled, (n, 3, y, x)."""
        (first,) = self.first
        if first.partition is not None:
            return self.share(images, targets, first.partition)
        *maps, samples, losses = self.find(images, targets)
        return self.learn(maps, samples, losses, targets)

    # First half --------------------------------------------------------------------------------

    def find(self, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return the maps, samples of proposals, and the losses of the proposals.

        Samples are (n, s, 6): corners, and of each the number of its true box and its validity.
        Losses are (n,). ``targets`` are a packed ``Truth``.
        """
        maps, scores, codes = self.extract(images)
        return *maps, *self.judge(scores, codes, Truth.unpack(targets))

    def judge(self, scores: Tensor, codes: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
        """Return samples of proposals and their losses, as ``find``, for (n, k) and (n, k, 4)."""
        boxes, ranked = self.propose(scores.detach(), codes.detach(), truth.extents)
        samples = self.sample(boxes, ranked > -torch.inf, truth)
        return samples, self.compute_proposal_losses(scores, codes, truth)

    def propose(self, scores: Tensor, codes: Tensor, extents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best boxes of each image, (n, k, 4), with scores (n, k), -inf for none."""
        facts = self.facts
        boxes = clip_boxes(decode(codes, self.anchors, PLAIN), extents)
        return select_proposals(
            boxes,
            scores,
            self.counts,
            most_per_level=facts["most_per_level"][0 if self.training else 1],
            largest_overlap=facts["proposal_overlap"],
            most=self.candidates,
        )

    def compute_proposal_losses(self, scores: Tensor, codes: Tensor, truth: Truth) -> Tensor:
        """Return the loss of each image, (n,), from scores (n, k) and codes (n, k, 4)."""
        facts = self.facts
        corners = to_corners(self.anchors)
        found = match_boxes(
            truth.boxes,
            truth.labels,
            corners,
            least_positive=facts["anchor_overlaps"][1],
            most_negative=facts["anchor_overlaps"][0],
            has_claims=True,
        )
        is_inside = (corners[:, :2] >= 0).all(1) & (corners[:, 2:] <= truth.extents[:, None]).all(2)
        found = found.where(is_inside, -2)
        count = facts["anchors_per_image"]
        numbers = draw_uniform(truth.keys, found.shape[1], self.seed, OF_ANCHORS)
        sample = draw_sample(found, numbers, count, count // 2)
        scores, found = scores.gather(1, sample.places), found.gather(1, sample.places)
        entropies = functional.binary_cross_entropy_with_logits(
            scores, sample.is_positive.float(), reduction="none"
        )
        wanted = encode(take_rows(truth.boxes, found), self.anchors[sample.places], PLAIN)
        wanted = wanted.where(sample.is_positive[..., None], 0.0)
        distances = functional.smooth_l1_loss(
            take_rows(codes, sample.places), wanted, reduction="none", beta=1 / 9
        ).sum(2)
        return average(entropies, sample.is_valid) + average(
            distances, sample.is_valid, sample.is_positive
        )

    def sample(self, boxes: Tensor, is_valid: Tensor, truth: Truth) -> Tensor:
        """Return samples of proposals and true boxes, (n, s, 6) as in ``find``; positives first."""
        facts = self.facts
        boxes = torch.cat((boxes, truth.boxes), dim=1)
        is_valid = torch.cat((is_valid, truth.labels > 0), dim=1)
        least = facts["positive_overlap"]
        found = match_boxes(
            truth.boxes, truth.labels, boxes, least_positive=least, most_negative=least
        )
        numbers = draw_uniform(truth.keys, found.shape[1], self.seed, OF_PROPOSALS)
        count = facts["boxes_per_image"]
        chosen = draw_sample(found.where(is_valid, -2), numbers, count, self.count_positives())
        columns = (
            take_rows(boxes, chosen.places),
            found.gather(1, chosen.places)[..., None].where(chosen.is_positive[..., None], -1),
            chosen.is_valid[..., None],
        )
        return torch.cat([column.float() for column in columns], dim=2)

    def count_positives(self) -> int:
        """Return the largest number of positives among the samples of an image."""
        return int(self.facts["boxes_per_image"] * self.facts["positive_share"])

    # Second half -------------------------------------------------------------------------------

    def learn(
        self, maps: Sequence[Tensor], samples: Tensor, losses: Tensor, targets: Tensor
    ) -> Tensor:
        """Return the loss of each image, (n,), with ``losses`` of the proposals, (n,), added."""
        truth = Truth.unpack(targets)
        of_boxes = self.learn_boxes(maps, samples, truth)
        return losses + of_boxes + self.learn_masks(maps, samples, truth)

    def learn_boxes(self, maps: Sequence[Tensor], samples: Tensor, truth: Truth) -> Tensor:
        """Return the loss of the box head for each image, (n,); ``samples`` as in ``find``."""
        labels, own = find_true(samples, truth)
        return self.compute_box_losses(maps, samples[..., :4], labels, own, samples[..., 5] > 0)

    def learn_masks(self, maps: Sequence[Tensor], samples: Tensor, truth: Truth) -> Tensor:
        """Return the loss of the mask head for each image, (n,); ``samples`` as in ``find``."""
        samples = samples[:, : self.count_positives()]
        labels, own = find_true(samples, truth)
        found = samples[..., 4].long().clamp_min(0)[..., None]
        masks = truth.masks.flatten(2)
        masks = masks.gather(1, found.expand(-1, -1, masks.shape[2]))
        masks = masks.unflatten(2, truth.masks.shape[2:])
        return self.compute_mask_losses(maps, samples[..., :4], labels, own, masks)

    def compute_box_losses(
        self, maps: Sequence[Tensor], boxes: Tensor, labels: Tensor, own: Tensor, is_valid: Tensor
    ) -> Tensor:
        """Return the loss of classes and boxes of each image, (n,), for boxes (n, s, 4)."""
        logits, codes = self.box_head(self.align(maps, boxes, self.box_head.bins))
        entropies = functional.cross_entropy(logits, labels.flatten(), reduction="none")
        is_positive = labels > 0
        wanted = encode(own, to_centres(boxes)).where(is_positive[..., None], 0.0)
        of_label = codes.gather(1, labels.flatten()[:, None, None].expand(-1, 1, 4))[:, 0]
        distances = functional.smooth_l1_loss(
            of_label.view_as(wanted), wanted, reduction="none"
        ).sum(2)
        return average(entropies.view_as(labels), is_valid) + average(
            distances, is_valid, is_positive
        )

    def compute_mask_losses(
        self, maps: Sequence[Tensor], boxes: Tensor, labels: Tensor, own: Tensor, masks: Tensor
    ) -> Tensor:
        """Return the loss of the masks of each image, (n,), for boxes (n, p, 4).

        ``masks`` (n, p, s, s) lie in the true boxes ``own``, (n, p, 4).
        """
        logits = self.mask_head(self.align(maps, boxes, self.mask_head.bins))
        size = logits.shape[-1]
        of_label = logits[torch.arange(len(logits), device=logits.device), labels.flatten()]
        with torch.no_grad():
            wanted = crop_masks(masks.flatten(0, 1), own.flatten(0, 1), boxes.flatten(0, 1), size)
        entropies = functional.binary_cross_entropy_with_logits(
            of_label, wanted, reduction="none"
        ).mean((1, 2))
        return average(entropies.view_as(labels), labels > 0)

    def align(self, maps: Sequence[Tensor], boxes: Tensor, bins: int) -> Tensor:
        """Return the features of boxes (n, r, 4), (n × r, channels, bins, bins)."""
        used = len(maps) - self.coarser
        unit = self.facts["box_unit"]
        return align_boxes(
            maps[:used], self.steps[:used], boxes, bins, unit=unit, offset=self.offset
        )

    # On ranks that share images -----------------------------------------------------------------

    def share(self, images: Tensor, targets: Tensor, partition: Any) -> Tensor:
        """Return this rank's part of the losses of images, (n,), times the ranks of the replica.

        The ranks share the first stage by parts of the images and the proposals by images; one has
        the box head and another one the mask head (``place_heads``), as on the pods. So the mean
        over the ranks is the loss. All ranks pass through all that they exchange, and each has a
        gradient of each weight, if only zeros.
        """
        place, ranks = partition.place, partition.grid.parts
        maps, scores, codes = self.extract(images)
        own = slice(place, None, ranks)
        truth, mine = Truth.unpack(targets), Truth.unpack(targets[own])
        losses = scores.new_zeros(len(images))
        samples = scores.new_zeros(len(images), self.facts["boxes_per_image"], 6)
        if len(mine.keys):
            samples[own], losses[own] = self.judge(scores[own], codes[own], mine)
        samples = partition.add_up(samples.detach())
        of_boxes, of_masks = place_heads(ranks)
        if place == of_boxes:
            losses = losses + self.learn_boxes(maps, samples, truth)
        if place == of_masks:
            losses = losses + self.learn_masks(maps, samples, truth)
        heads = (*self.box_head.parameters(), *self.mask_head.parameters())
        touched = torch.stack([each.float().mean() for each in (*maps, scores, codes, *heads)])
        return ranks * losses + 0 * touched.sum()

    # Detection ---------------------------------------------------------------------------------

    def detect(self, images: Tensor, extents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return boxes (n, d, 4), labels and scores (n, d), masks (n, d, s, s) of detections.

        Where there is none the label is 0. Masks are the chance of each part of the box to belong
        to the object.
        """
        facts = self.facts
        maps, said, moved = self.extract(images)
        proposals, ranked = self.propose(said, moved, extents)
        logits, codes = self.box_head(self.align(maps, proposals, self.box_head.bins))
        boxes = decode(codes.unflatten(0, ranked.shape), to_centres(proposals)[:, :, None])
        scores = logits.softmax(1).unflatten(0, ranked.shape)
        scores = scores.where(ranked[..., None] > -torch.inf, 0.0)
        found, labels, best = select_by_class(
            clip_boxes(boxes.flatten(1, 2), extents).view_as(boxes)[:, :, 1:],
            scores[:, :, 1:],
            least_score=facts["least_score"],
            largest_overlap=facts["largest_overlap"],
            most=facts["most_per_image"],
        )
        masks = self.mask_head(self.align(maps, found, self.mask_head.bins))
        chosen = masks[torch.arange(len(masks), device=masks.device), labels.flatten()]
        return found, labels, best, chosen.sigmoid().unflatten(0, labels.shape)


def place_heads(ranks: int) -> tuple[int, int]:
    """Return which of the ``ranks`` of a replica have the box head and the mask head."""
    return 2 % ranks, 1 % ranks


def find_true(samples: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
    """Return the labels, (n, s), and the true boxes, (n, s, 4), of samples (n, s, 6)."""
    found = samples[..., 4].long()
    labels = truth.labels.gather(1, found.clamp_min(0)).where(found >= 0, 0)
    return labels, take_rows(truth.boxes, found)


def list_levels(facts: Mapping[str, Any]) -> list[AnchorLevel]:
    """Return the maps of the pyramid with their anchors."""
    levels, ratios = [], tuple(facts["anchor_ratios"])
    for number, size in enumerate(facts["anchor_sizes"]):
        step = 4 * 2**number
        cells = -(-facts["pixels"] // step)
        levels.append(AnchorLevel(cells, cells, step, size, ratios))
    return levels
