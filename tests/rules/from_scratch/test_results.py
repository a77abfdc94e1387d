"""What networks of rules/from_scratch.md find, generate and learn with K-FAC is the reference's."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cepheid.rules import definition
from tests.rules.from_scratch import curvature, galaxies, scenes
from tests.rules.from_scratch.layers import ResNet50, doubles, measure_entropies
from tests.rules.from_scratch.test_networks import Norms, copy_reference, open_reference, scale
from tests.rules.test_from_scratch import page


@doubles()
def test_detections_are_those_of_the_reference() -> None:
    """That of ssd also compares the running statistics of its norms after a step."""
    from cepheid.reference.torch.detection import sampling, suppression

    ssd, mask = copy_reference("ssd"), copy_reference("mask_rcnn")
    for each in (ssd.ours, ssd.theirs, mask.ours, mask.theirs):
        each.eval()
    with torch.no_grad():
        pixels = ssd.batch[0]
        chosen = {
            key: ssd.model[key] for key in ("least_score", "largest_overlap", "most_per_class")
        }
        seen = suppression.select_detections(
            *ssd.predict(pixels), **chosen, most=ssd.model["most_per_image"]
        )
        codes, logits, sides = ssd.ours(scale(pixels, ssd.model))
        boxes = scenes.decode(codes, scenes.list_defaults(ssd.model, sides), (0.1, 0.2))
        own = []
        for mine, said in zip(boxes, logits.softmax(2), strict=True):
            of_classes = mine[:, None].expand(-1, said.shape[1] - 1, -1)
            most = ssd.model["most_per_class"]
            own += scenes.select(of_classes, said[:, 1:], ssd.model, most, False)
        compare(own, seen.scores, seen.labels, seen.boxes)
        images = mask.ours.detect(scale(mask.batch[0], mask.model))
        for (found, visible), *other in zip(images, *mask.predict(mask.batch[0]), strict=True):
            corners, labels, scores, drawn = (each[other[1] > 0] for each in other)
            compare(found, scores, labels, corners)
            theirs = sampling.paste_masks(drawn, corners, 64, 64) >= 0.5
            assert torch.equal(visible > 0, theirs)


def compare(found: Any, scores: Tensor, labels: Tensor, boxes: Tensor) -> None:
    """Compare detections, of which there are some, with those of the reference."""
    own_scores, own_labels, own_boxes = zip(*found, strict=True)
    assert torch.allclose(torch.tensor(own_scores), scores, rtol=1e-8)
    assert own_labels == tuple(labels.tolist())
    assert torch.allclose(torch.stack(own_boxes), boxes, atol=1e-8)


@doubles()
def test_given_weights_generate_the_same_galaxies() -> None:
    from cepheid.benchmarks.galaxy_generation.model import Generative
    from cepheid.benchmarks.galaxy_generation.weights import read_weights
    from cepheid.benchmarks.galaxy_generation.weights_file import find_path

    chosen = definition.load("galaxy_generation", "mini")
    ours, theirs = galaxies.Generative(dict(chosen.model)), Generative(chosen.model, chosen.data)
    theirs.load_state_dict(read_weights(find_path("mini"), None).tensors)
    given = page.read_weights(find_path("mini"))
    both = ("weight", "bias")
    blocks = [f"decoder.blocks.{place}" for place in range(4 * len(chosen.model["filters"]) + 1)]
    layers = [f"decoder.dense_{place}" for place in (1, 2)]
    names = ["decoder.slope_1", "decoder.slope_2"]
    names += [f"{layer}.{part}" for layer in layers for part in both]
    names += [f"{layer}.{part}" for layer in blocks[:-1:2] for part in both]
    names += [f"{layer}.slope" for layer in blocks[1::2]]
    names += [f"{blocks[-1]}.{part}" for part in both]
    for net in range(8):
        for layer in ("hidden.0", "hidden.1", "output"):
            names += [f"flow.layers.{net}.{layer}.{part}" for part in both]
    assert sum(value.numel() for value in ours.parameters()) == chosen.model["parameters"]
    with torch.no_grad():
        for value, name in zip(ours.parameters(), names, strict=True):
            value.copy_(torch.tensor(given[name]))
        noise = torch.randn(5, chosen.model["latents"])
        expected = theirs.decoder.make_images(theirs.flow.sample(noise))
        assert torch.allclose(ours(noise), expected, rtol=1e-6, atol=1e-6)


def test_directions_of_kfac_are_those_of_the_reference() -> None:
    from cepheid.benchmarks.kfac.hyperparameters import make_options
    from cepheid.second_order import KFAC
    from tests.tasks import ALONE

    _, shape, _ = open_reference("kfac")
    values = {**shape.config.hyperparameters, "kfac_stale_tolerance": 0.6}
    torch.manual_seed(2)
    ours, theirs = nets = [ResNet50(4, (1, 1), 5) for _ in range(2)]
    theirs.load_state_dict(ours.state_dict())
    options = dataclasses.replace(make_options(shape.config, ALONE), stale_tolerance=0.6)
    kfac, own = KFAC(theirs, options), curvature.Curvature(ours, values)
    for _ in range(12):
        images, labels, rate = torch.randn(6, 3, 20, 20), torch.randint(5, (6,)), 0.5
        for net in nets:
            net.zero_grad()
            measure_entropies(net(images), labels, 0.1).mean().backward()
        own.direct(rate)
        kfac.step(rate)
        for mine, other in zip(*(net.parameters() for net in nets), strict=True):
            assert mine.grad is not None
            assert other.grad is not None
            size = float(other.grad.norm())
            assert torch.allclose(mine.grad, other.grad, rtol=1e-3, atol=1e-4 * size)
            for value in (mine, other):
                value.data -= 0.1 * other.grad
    expected = [interval.steps for interval in kfac.intervals.values()]
    assert len(set(expected)) > 2
    found = [f.intervals[0] for pair_ in own.factors.values() for f in pair_ if f.versions]
    assert sorted(found) == sorted(expected)


def test_given_weights_of_chest_xray_are_read_as_the_page_says() -> None:
    workload, shape, _ = open_reference("chest_xray")
    state = workload.make_network(shape, Norms("chest_xray")).state_dict()
    given = page.read_weights(definition.BENCHMARKS / "chest_xray" / "weights" / "mini.safetensors")
    assert {name for name in state if "tracked" not in name} == {*given, "fc.weight", "fc.bias"}
    for name, value in given.items():
        assert torch.equal(state[name], torch.tensor(value)), name
