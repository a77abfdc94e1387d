"""mask_rcnn: the network, its schedule, what it finds and refuses; the contract has the rest."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cepheid.benchmarks.mask_rcnn import broken
from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN
from cepheid.benchmarks.mask_rcnn.model import FrozenNorm
from cepheid.benchmarks.mask_rcnn.task import read_shape
from cepheid.reference.run.config import configure
from cepheid.reference.torch.detection.default_boxes import compute_overlaps, encode, to_corners
from cepheid.reference.torch.detection.sampling import Truth, draw_uniform
from cepheid.reference.torch.images import scale_pixels
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests import tasks
from tests.reference.data.coco import replica

FULL, MINI = (definition.load("mask_rcnn", scale) for scale in ("full", "mini"))
small_config = partial(tasks.configure_small, "mask_rcnn")


# Network -----------------------------------------------------------------------------------------


def test_the_full_network_is_the_published_one() -> None:
    facts = {**FULL.model, "num_image_candidates": 1000}
    with torch.device("meta"):
        network = MaskRCNN(facts, FrozenNorm, seed=1)
        maps, *_ = network.extract(torch.empty(1, 3, 1344, 1344))
    assert [each.shape[-1] for each in maps] == [336, 168, 84, 42, 21]

    def count(part: nn.Module, is_trained: bool | None = None) -> int:
        found = [p for p in part.parameters() if is_trained in (None, p.requires_grad)]
        return sum(parameter.numel() for parameter in found)

    assert {name: count(part) for name, part in network.named_children()} == {
        "backbone": 23_454_912,
        "pyramid": 3_344_384,
        "proposals": 593_935,
        "box_head": 14_310_805,
        "mask_head": 2_643_537,
    }
    assert count(network) == 44_347_573
    assert count(network, is_trained=False) == 222_400
    frozen = [
        buffer for name, buffer in network.named_buffers() if name.endswith(("weight", "bias"))
    ]
    assert sum(buffer.numel() for buffer in frozen) == 53_120


def test_a_frozen_norm_is_a_batch_norm_in_evaluation() -> None:
    theirs, ours = nn.BatchNorm2d(3).eval(), FrozenNorm(3)
    for tensor in theirs.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 2)
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if "tracked" not in k})
    images = torch.randn(2, 3, 4, 4)
    assert torch.allclose(ours(images), theirs(images), atol=1e-6)
    assert not list(ours.parameters())


# Training on a few images ------------------------------------------------------------------------


def test_biases_learn_twice_as_fast_and_do_not_decay(data_root: Path) -> None:
    task = tasks.build(small_config(data_root))
    task.step()
    weights, biases = task.optimizer.param_groups
    assert biases["lr"] == 2 * weights["lr"] == 2 * task.shape.values.compute_rate(8)
    assert (weights["weight_decay"], biases["weight_decay"]) == (1e-4, 0)
    named = {id(p): name for name, p in task.model.named_parameters()}
    assert all(named[id(p)].endswith("bias") for p in biases["params"])
    assert len(weights["params"]) + len(biases["params"]) == len(named)


def rate_at(step: int, *overrides: str) -> float:
    config = configure(FULL, overrides=overrides)
    return float(read_shape(config).values.compute_rate(step * config.global_batch_size))


def test_the_schedules_of_the_full_scale_are_the_published_ones() -> None:
    rates = [rate_at(step) for step in (1, 625, 12_000, 12_001, 16_000, 16_001)]
    assert rates == pytest.approx([0.12 / 625, 0.12, 0.12, 0.012, 0.012, 0.0012])
    large = [
        "global_batch_size=192",
        "opt_base_learning_rate=0.24",
        "opt_learning_rate_warmup_steps=1250",
        "opt_learning_rate_drop_stretch=4",
    ]
    assert [rate_at(step, *large) for step in (1250, 7000, 7001, 9333, 9334)] == pytest.approx(
        [0.24, 0.24, 0.024, 0.024, 0.0024]
    )
    with pytest.raises(UserError, match="opt_learning_rate_drop_stretch"):
        rate_at(1, "opt_learning_rate_drop_stretch=11")


# What it learns ----------------------------------------------------------------------------------


def test_a_truth_can_be_packed(data_root: Path) -> None:
    _, targets = tasks.take_batch(tasks.build(small_config(data_root)))
    truth = Truth.unpack(targets)
    assert torch.equal(truth.pack(), targets)
    assert truth.keys.tolist() == list(range(8))
    assert truth.masks.shape[2:] == (28, 28)
    inside = truth.labels > 0
    assert (truth.masks[inside].flatten(1).sum(1) > 0).all()
    assert (truth.boxes[inside] <= 64).all()


def test_the_losses_of_proposals_are_those_of_a_loop(data_root: Path) -> None:
    task = tasks.build(small_config(data_root))
    images, targets = tasks.take_batch(task)
    network, truth = task.model, Truth.unpack(targets)
    _, scores, codes = network.extract(scale_pixels(task.model, images))
    scores, codes = scores + torch.randn_like(scores), codes + torch.randn_like(codes)
    found = network.compute_proposal_losses(scores, codes, truth)
    anchors = to_corners(network.anchors)
    is_inside = ((anchors >= 0) & (anchors <= 64)).all(1)
    numbers = draw_uniform(truth.keys, len(anchors), 3, 0)
    for image in range(3):
        boxes = truth.boxes[image][truth.labels[image] > 0]
        overlaps = compute_overlaps(boxes, anchors)
        best, of_box = overlaps.max(0)
        is_claimed = (overlaps == overlaps.amax(1, keepdim=True)).any(0)
        order = numbers[image].argsort(descending=True).tolist()
        usable = [k for k in order if is_inside[k]]
        positives = [k for k in usable if best[k] >= 0.7 or is_claimed[k]][:32]
        negatives = [k for k in usable if best[k] < 0.3 and not is_claimed[k]]
        negatives = negatives[: 64 - len(positives)]
        expected = 0.0
        for k in positives + negatives:
            chance = scores[image, k].sigmoid().item()
            expected -= math.log(chance if k in positives else 1 - chance)
        for k in positives:
            wanted = encode(boxes[of_box[k]], network.anchors[k], (1.0, 1.0))
            for gap in (codes[image, k] - wanted).abs().tolist():
                expected += gap**2 / 2 * 9 if gap < 1 / 9 else gap - 1 / 18
        assert found[image].item() == pytest.approx(expected / 64, rel=1e-4)


# What it finds -----------------------------------------------------------------------------------


def say_the_truth(task: Any, shift: float = 0.0) -> Callable[..., Any]:
    """A prediction that knows the objects of the evaluation set; ``shift`` is in pixels."""
    train, images = task.definition.train_samples, task.data.images
    known = {images.images[train + k].tobytes(): train + k for k in range(tasks.EVALUATION)}

    def predict(batch: Tensor, extents: Tensor) -> tuple[Tensor, ...]:
        rows = np.array([known[image.numpy().tobytes()] for image in batch])
        labels = torch.from_numpy(images.labels[rows])
        masks = torch.from_numpy(images.read_mask_crops(rows, 64)).float()
        return 64 * torch.from_numpy(images.boxes[rows]) + shift, labels, 0.9 * (labels > 0), masks

    return predict


def test_who_knows_all_objects_has_a_precision_of_one(data_root: Path) -> None:
    task = tasks.build(small_config(data_root))
    task.evaluation_batch = 4  # the last batch is filled up with images that do not count
    task.compiled_predict = say_the_truth(task)
    quality = task.evaluate()
    assert quality["ap"] == pytest.approx(1)
    assert quality["mask_ap"] > 0.97  # pasting rounds
    task.compiled_predict = say_the_truth(task, shift=1)
    quality = task.evaluate()
    assert 0.1 < quality["mask_ap"] < quality["ap"] < 0.9


def test_the_picture_shows_found_and_true_masks(data_root: Path) -> None:
    task = tasks.build(small_config(data_root))
    task.compiled_predict = say_the_truth(task)
    task.evaluate()
    scenes, found, true = np.reshape(task.pictures().axes, (3, -1))
    assert [len(axes.images) for axes in scenes] == [1] * len(scenes)
    for ours, theirs in zip(found, true, strict=True):
        assert len(ours.images) == len(theirs.images) > 1
        for one, other in zip(ours.images[1:], theirs.images[1:], strict=True):
            assert (one.get_array() != other.get_array()).mean() < 0.02
    (table,) = task.report(lambda done, total: None)
    assert {row["objects"]: row["mask_ap"] for row in table.rows}["arc"] > 0.97


def test_full_scale_trains_on_photographs_as_coco_has_them(tmp_path: Path) -> None:
    """A narrow network; images, proposals and heads are those of full scale."""
    replica.write_replica(tmp_path)
    narrow: dict[str, Any] = {
        "classes": len(replica.CATEGORIES),
        "pixels": 128,
        "shorter_side": 80,
        "longer_side": 128,
        "width": 4,
        "blocks": [1, 1, 1, 1],
        "pyramid_channels": 8,
        "box_hidden": 16,
        "boxes_per_image": 32,
        "anchor_sizes": [8, 16, 32, 64, 128],
        "box_unit": 14,
        "most_per_level": [100, 50],
    }
    samples = replica.TRAIN, replica.EVALUATION
    settings = ("global_batch_size=4",)
    config = tasks.configure_small(FULL, tmp_path, *settings, samples=samples, **narrow)
    task = tasks.build_and_train(config, samples=4)
    task.evaluation_batch = 4
    _, targets = tasks.take_batch(task)
    truth = Truth.unpack(targets)
    assert truth.masks.shape[2:] == (112, 112)
    assert (truth.extents.amin(1) <= 80).all()
    assert (truth.boxes[..., 2:].amax(1) <= truth.extents + 0.1).all()
    quality = task.evaluate()
    assert 0 <= quality["mask_ap"] <= quality["mask_ap50"] <= 1
    *reached, found = task.details
    task.details = (*reached, dataclasses.replace(found, scores=np.ones_like(found.scores)))
    assert len(task.pictures().axes) == 6
    with pytest.raises(UserError, match=r"resnet50-0676ba61\.pth: the training starts from"):
        task.warm_up()


# Broken variants ---------------------------------------------------------------------------------


def test_broken_variants_are_broken_as_they_say(data_root: Path) -> None:
    config = small_config(data_root)
    correct = tasks.build(config)
    images, targets = tasks.take_batch(correct)
    other = tasks.build(config, make=broken.VARIANTS["shuffled_targets"])
    rows = np.arange(tasks.TRAIN)
    _, labels = other.data.loader.images.read_boxes(rows)
    true = correct.data.images.labels[: tasks.TRAIN]
    assert sorted(labels.tolist()) == sorted(true.tolist()) != labels.tolist()
    crops = other.data.loader.images.read_mask_crops(rows, 8)
    assert np.array_equal(crops.any((2, 3)), labels > 0)
    boxes = torch.tensor([[[9.0, 9.0, 17.0, 31.0]]])
    maps = [torch.randn(1, 32, 16, 16), torch.randn(1, 32, 8, 8)]
    moved = torch.tensor([[[8.0, 8.0, 16.0, 32.0]]])  # a place is four pixels
    rounded = tasks.build(config, make=broken.VARIANTS["quantized"]).model
    assert torch.equal(rounded.align(maps, boxes, 5), rounded.align(maps, moved, 5))
    assert not torch.allclose(correct.model.align(maps, boxes, 5), rounded.align(maps, boxes, 5))
    anywhere: Any = tasks.build(config, make=broken.VARIANTS["random_proposals"]).model
    scores, codes = torch.randn(2, 960), torch.zeros(2, 960, 4)
    drawn, _ = anywhere.propose(scores, codes, torch.full((2, 2), 64.0))
    sides = drawn[..., 2:] - drawn[..., :2]
    assert drawn.shape == (2, 40, 4)
    assert sides.min() >= 8
    assert sides.max() <= 32
    assert not torch.equal(drawn[0], drawn[1])
    mixed: Any = tasks.build(config, make=broken.VARIANTS["shuffled_instances"]).model
    *found, samples, losses = correct.model.find(scale_pixels(correct.model, images), targets)
    assert not torch.allclose(
        mixed.learn(found, samples, losses, targets),
        correct.model.learn(found, samples, losses, targets),
    )
    for variant, share in (("box_masks", 1.0), ("elliptic_masks", math.pi / 4)):
        *_, masks = tasks.build(config, make=broken.VARIANTS[variant]).predict(images)
        assert masks.mean().item() == pytest.approx(share, abs=0.02)
        assert set(masks.unique().tolist()) <= {0.0, 1.0}
