"""ssd: the network, its schedule, what it finds and refuses; the contract tests have the rest."""

from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cepheid.benchmarks.resnet50.model import ARCHITECTURES, ResNet
from cepheid.benchmarks.ssd import broken, pictures
from cepheid.benchmarks.ssd import task as ssd
from cepheid.benchmarks.ssd.model import SSD, compute_cells, join_maps
from cepheid.benchmarks.ssd.task import Objects, match
from cepheid.reference.data.scenes import make_truth
from cepheid.reference.run.config import configure
from cepheid.reference.torch.detection.default_boxes import Level, encode, make_default_boxes
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.data.coco import replica
from tests.tasks import EVALUATION, TRAIN, build, build_and_train, configure_small, take_batch

FULL, MINI = (definition.load("ssd", scale) for scale in ("full", "mini"))
EPOCH = 117_266  # training images of COCO 2017 that have boxes
small_config = partial(configure_small, "ssd")

# Network -----------------------------------------------------------------------------------------


def make_network(facts: Any, pixels: int) -> tuple[SSD, tuple[Level, ...]]:
    levels = Level.list_levels(facts, compute_cells(facts, pixels))
    return SSD(facts, levels), levels


def test_the_full_network_is_the_published_one() -> None:
    with torch.device("meta"):
        network, levels = make_network(FULL.model, 300)
        codes, logits = network(torch.empty(2, 3, 300, 300))
    counts = {
        name: sum(parameter.numel() for parameter in part.parameters())
        for name, part in network.named_children()
    }
    assert counts["backbone"] == 8_170_304
    assert counts["extras"] == 3_574_400
    assert counts["box_heads"] + counts["class_heads"] == 8_227_830
    assert [each.shape[2] for each in codes] == [38, 19, 10, 5, 3, 1]
    assert [level.cells for level in levels] == [38, 19, 10, 5, 3, 1]
    assert join_maps(codes, 4).shape == (2, 8732, 4)
    assert join_maps(logits, 81).shape == (2, 8732, 81)
    with torch.device("cpu"):
        assert len(make_default_boxes(300, levels)) == 8732


def test_the_backbone_has_the_names_and_shapes_of_torchvision() -> None:
    """As resnet50's networks have them (test_resnet50), here without the last stage and layer."""
    with torch.device("meta"):
        network, _ = make_network(FULL.model, 300)
        whole = ResNet(architecture=ARCHITECTURES["resnet34"])
    shapes, expected = (
        {name: tuple(p.shape) for name, p in each.named_parameters()}
        for each in (network.backbone, whole)
    )
    last = ("layer4.", "fc.")
    assert shapes == {name: shape for name, shape in expected.items() if not name.startswith(last)}


@pytest.mark.parametrize(
    ("facts", "pixels"), [(FULL.model, 257), (MINI.model, 64), (MINI.model, 75)]
)
def test_cells_are_those_of_the_maps(facts: Any, pixels: int) -> None:
    with torch.device("meta"):
        network, _ = make_network(facts, pixels)
        codes, _ = network(torch.empty(1, 3, pixels, pixels))
    assert [each.shape[2] for each in codes] == compute_cells(facts, pixels)


def test_images_that_leave_nothing_of_a_map_are_refused() -> None:
    with pytest.raises(UserError, match="200 × 200 pixels are too small for the 6 maps"):
        compute_cells(FULL.model, 200)


# Settings ----------------------------------------------------------------------------------------


def rate_at(samples: float, *overrides: str) -> float:
    values = Objects.read(configure(FULL, overrides=overrides)).values
    return float(values.compute_rate(round(samples)))


def test_the_schedule_and_the_evaluations_of_the_full_scale() -> None:
    batch = 896
    rates = [rate_at(batch * step) for step in (1, 325, 650, 651)]
    assert rates == pytest.approx([0.09 / 650, 0.045, 0.09, 0.09])
    drops = [rate_at(samples) for samples in (5_120_000, 5_121_000, 6_400_000, 6_401_000)]
    assert drops == pytest.approx([0.09, 0.009, 0.009, 0.0009])
    later = [f"opt_learning_rate_drop_stretch={3}"]
    assert rate_at(1.3 * 5_120_000, *later) == pytest.approx(0.09)
    assert rate_at(1.3 * 5_120_000 + 1, *later) == pytest.approx(0.009)
    # The MLPerf reference: base - (steps left) × base / (steps × 2 ** factor).
    half = rate_at(batch * 100, "opt_learning_rate_warmup_factor=1")
    assert half == pytest.approx(0.09 - 550 * 0.09 / (650 * 2))
    ends = [block.samples for block in FULL.schedule(32)]
    thousand_steps = (120, 160, 180, 200, 220, 240)
    assert {32_000 * steps for steps in thousand_steps} <= set(ends)
    assert FULL.data["train_samples"] == EPOCH


# Training on a few images ------------------------------------------------------------------------


def test_all_parameters_are_decayed(data_root: Path) -> None:
    (group,) = build(small_config(data_root)).optimizer.param_groups
    assert group["weight_decay"] == 5e-4
    assert sum(p.numel() for p in group["params"]) == MINI.model["parameters"]


# What it finds -----------------------------------------------------------------------------------


def say_the_truth(task: Any, shift: float = 0.0) -> Callable[[Tensor], Any]:
    """A prediction that knows the boxes of the evaluation set; ``shift`` is in shares of a side."""
    train, images = task.definition.train_samples, task.data.images
    known = {images.images[train + k].tobytes(): train + k for k in range(EVALUATION)}

    def predict(batch: Tensor) -> tuple[Tensor, Tensor]:
        boxes = torch.zeros(len(batch), 8, 4)
        scores = torch.zeros(len(batch), 8, 3)
        for place, image in enumerate(batch):
            row = known[image.numpy().tobytes()]
            boxes[place] = torch.from_numpy(images.boxes[row]) + shift
            for number, label in enumerate(images.labels[row]):
                scores[place, number, label - 1] = 0.9 if label else 0.0
        return boxes, scores

    return predict


def test_true_boxes_have_a_precision_of_one(data_root: Path) -> None:
    task = build(small_config(data_root))
    task.evaluation_batch = 4  # the last batch is filled up with images that do not count
    task.compiled_predict = say_the_truth(task)
    assert task.evaluate() == pytest.approx({"ap": 1, "ap50": 1, "ap75": 1})
    objects = int((task.data.images.labels[TRAIN:] > 0).sum())
    assert len(task.details[1].scores) == objects
    task.compiled_predict = say_the_truth(task, shift=0.03)
    quality = task.evaluate()
    assert 0.1 < quality["ap"] < 0.9
    assert quality["ap75"] < quality["ap50"]


def test_codes_of_the_targets_are_decoded_to_the_targets(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build(small_config(data_root))
    images, targets = take_batch(task)
    matches = match(task.shape, task.model.defaults, targets)
    logits = torch.nn.functional.one_hot(matches.labels, 4) * 20.0
    monkeypatch.setattr(ssd, "compute_maps", lambda *_: (matches.codes, logits))
    boxes, scores = task.predict(images)
    found = scores.amax(dim=2) > 0.99
    assert torch.equal(found, matches.labels > 0)
    for image in range(len(images)):
        true = targets[image][targets[image, :, 4] > 0]
        distances = (boxes[image][found[image]][:, None] - true[None, :, :4]).abs().amax(2)
        assert distances.amin(1).max() < 1e-5  # each positive box is one of the image's
        assert distances.amin(0).max() < 1e-5  # and none is missing


def test_the_picture_shows_true_and_found_boxes(data_root: Path) -> None:
    task = build(small_config(data_root))
    task.compiled_predict = say_the_truth(task)
    task.evaluate()
    figure = task.pictures()
    numbers = pictures.choose_images(make_truth(task.data.images))
    assert len(set(numbers.tolist())) == len(figure.axes) == 4
    shown = [int((task.data.images.labels[TRAIN + k] > 0).sum()) for k in numbers]
    assert [len(axes.patches) for axes in figure.axes] == [2 * count for count in shown]
    (table,) = task.report(lambda done, total: None)
    assert {row["objects"]: row["ap"] for row in table.rows}["arc"] == pytest.approx(1)


def test_full_scale_trains_on_photographs_as_coco_has_them(tmp_path: Path) -> None:
    """A narrow network; images, boxes, augmentation and maps are those of full scale."""
    replica.write_replica(tmp_path)
    narrow: dict[str, Any] = {
        "classes": len(replica.CATEGORIES),
        "stem": {"channels": 4, "kernel": 7, "pooled": True},
        "stages": [[4, 1, 1], [8, 1, 2], [8, 1, 1]],
        "extras": [[4, 8, stride, padding] for _, _, stride, padding in FULL.model["extras"]],
    }
    settings, samples = (
        ("global_batch_size=4", "model_bn_span=0"),
        (replica.TRAIN, replica.EVALUATION),
    )
    config = configure_small(FULL, tmp_path, *settings, samples=samples, **narrow)
    task = build_and_train(config, samples=4)
    assert len(task.model.defaults) == 8732
    assert astuple(task.data.loader.variation.strengths) == (0.125, 0.5, 0.5, 0.05)
    quality = task.evaluate()
    assert 0 <= quality["ap"] <= quality["ap50"] <= 1
    assert len(task.data.images.compose_pictures(np.arange(9, 13), config.definition.data)) == 4
    with pytest.raises(UserError, match=r"resnet34-b627a593\.pth: the training starts from"):
        task.warm_up()


# Broken variants ---------------------------------------------------------------------------------


def test_broken_variants_are_broken_as_they_say(data_root: Path) -> None:
    config = small_config(data_root)
    correct = build(config)
    images, targets = take_batch(correct)
    _, shifted = take_batch(build(config, make=broken.VARIANTS["shifted_boxes"]))
    sizes = targets[..., 2:4] - targets[..., :2]
    assert torch.allclose(shifted[..., :2] - targets[..., :2], sizes / 2)
    assert torch.allclose(shifted[..., 2:4] - shifted[..., :2], sizes)
    mixed = build(config, make=broken.VARIANTS["shuffled_classes"])
    _, labels = mixed.data.loader.images.read_boxes(np.arange(TRAIN))
    true = correct.data.images.labels[:TRAIN]
    assert np.array_equal(np.sort(labels), np.sort(true))
    assert (labels != true).any(axis=1).mean() > 0.5
    other = build(config, make=broken.VARIANTS["shuffled_targets"])
    _, labels = other.data.loader.images.read_boxes(np.arange(TRAIN))
    assert sorted(labels.tolist()) == sorted(true.tolist()) != labels.tolist()
    coarse = build(config, make=broken.VARIANTS["coarse_features"])
    assert len(coarse.model.defaults) == coarse.predict(images)[0].shape[1] == 64
    fixed = build(config, make=broken.VARIANTS["no_localization"])
    boxes, _ = fixed.predict(images)
    assert encode(boxes, fixed.model.defaults).abs().max() < 1e-3
