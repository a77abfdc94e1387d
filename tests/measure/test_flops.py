"""Operations of a sample: definitions state what is counted, and what one counts by hand."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.measure.studies import flops
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.translation.sentences import NOISE_TOKENS
from cepheid.rules import definition as definitions
from cepheid.tools.measure.__main__ import main

OF_TEXT = {"gnmt", "transformer"}  # their samples have different lengths, so they need their data


def stated(name: str, scale: str) -> int | None:
    return definitions.load(name, scale).flops_per_sample


def convolve(side: int, kernel: int, before: int, after: int) -> int:
    """Operations of a convolution with ``side`` × ``side`` outputs: two for each product."""
    return 2 * side * side * kernel * kernel * before * after


def list_resnet50(pixels: int, width: int, classes: int, *, has_stem: bool) -> Iterator[int]:
    """The convolutions of ResNet-50 v1.5, by table 1 of He et al. 2015, and its linear layer.

    The ``stem`` halves the sides twice; the small version for small pictures has one of 3 × 3.
    """
    side = pixels // 2 if has_stem else pixels
    yield convolve(side, 7 if has_stem else 3, 3, width)
    side = side // 2 if has_stem else side
    channels = width
    for stage, units in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            yield convolve(side, 1, channels, inner)
            side //= stride
            yield convolve(side, 3, inner, inner)
            yield convolve(side, 1, inner, 4 * inner)
            if not unit:
                yield convolve(side, 1, channels, 4 * inner)
            channels = 4 * inner
    yield 2 * channels * classes


def list_trunk(filters: tuple[int, ...], pixels: int = 64) -> Iterator[int]:
    """The trunk of the network for shapes: two convolutions for each width.

    The images have six bands, and one of ones, by which the first norm is part of the convolution.
    """
    side, channels = pixels, 7
    for width in filters:
        yield convolve(side, 3, channels, width)
        side //= 2
        yield convolve(side, 3, width, width)
        channels = width


def list_shape_network(filters: tuple[int, ...]) -> Iterator[int]:
    """The trunk and a head of 5."""
    side = 64 // 2 ** len(filters)
    yield from (*list_trunk(filters), 2 * side * side * filters[-1] * 5)


def list_encoder(filters: tuple[int, ...], pixels: int) -> Iterator[int]:
    """The same trunk, a dense layer of 256, means and scales of 32 latents."""
    side = pixels // 2 ** len(filters)
    yield from (*list_trunk(filters, pixels), 2 * side * side * filters[-1] * 256)
    yield from (2 * 256 * 32, 2 * 256 * 32)


def list_decoder(filters: tuple[int, ...], pixels: int) -> Iterator[int]:
    """Two dense layers, a transposed convolution and one more for each width, and one to six bands.

    A transposed convolution has a product of its kernel with each pixel that goes in.
    """
    side, channels = pixels // 2 ** len(filters), filters[-1]
    yield from (2 * 32 * 256, 2 * 256 * side * side * channels)
    for width in reversed(filters):
        yield convolve(side, 3, channels, width)
        side *= 2
        yield convolve(side, 3, width, width)
        channels = width
    yield convolve(side, 3, channels, 6)


def list_flow() -> Iterator[int]:
    """Eight networks 32 → 256 → 256 → 64, of which training multiplies the masked weights too."""
    for _ in range(8):
        yield from (2 * 32 * 256, 2 * 256 * 256, 2 * 256 * 64)


def sample_flow() -> int:
    """Eight networks without the weights that their masks make 0.

    A unit of degree d sees what has degrees up to d, an output of feature f those below f.
    """
    degrees = [max(1, math.ceil(unit * 31 / 257)) for unit in range(1, 257)]
    inputs = sum(degrees)
    hidden = sum(before <= after for before in degrees for after in degrees)
    outputs = 2 * sum(degree < feature for degree in degrees for feature in range(1, 33))
    return 8 * 2 * (inputs + hidden + outputs)


def train(layers: Iterator[int]) -> int:
    """Forward, and twice as much backward; the gradient of the images is not needed."""
    first, *rest = layers
    return 2 * first + 3 * sum(rest)


def test_resnet50_and_the_trunk_of_mask_rcnn_by_hand() -> None:
    layers = list(list_resnet50(224, 64, 1000, has_stem=True))
    assert sum(layers) == 2 * 4_089_184_256  # 4.1 billion multiplications and additions
    assert stated("resnet50", "full") == train(iter(layers))
    definition = definitions.load("mask_rcnn", "full")
    trunk = train(list_resnet50(definition.model["pixels"], 64, 1000, has_stem=True))
    assert definition.flops_per_sample
    assert 0.3 < trunk / definition.flops_per_sample < 1


@pytest.mark.parametrize("name", ["galaxy_shape", "galaxy_bnn"])
def test_networks_of_galaxies_by_hand(name: str) -> None:
    """Both have the same layers; one draws its weights."""
    assert stated(name, "full") == train(list_shape_network((32, 64, 128, 256)))
    assert stated(name, "mini") == train(list_shape_network((16, 32, 64, 128)))


@pytest.mark.parametrize(
    ("scale", "filters", "pixels"), [("full", (32, 64, 128, 256), 64), ("mini", (16, 32, 64), 32)]
)
def test_autoencoder_flow_and_generation_by_hand(
    scale: str, filters: tuple[int, ...], pixels: int
) -> None:
    decoder = sum(list_decoder(filters, pixels))
    # The flow learns from latents through which no gradient goes back.
    training = train(list_encoder(filters, pixels)) + 3 * decoder + train(list_flow())
    assert stated("galaxy_vae", scale) == training
    assert stated("galaxy_generation", scale) == decoder + sample_flow()


@pytest.mark.parametrize("name", sorted({*definitions.names()} - OF_TEXT))
def test_what_is_counted_is_stated(name: str, tmp_path: Path) -> None:
    definition = definitions.load(name, "mini")
    if definition.flops_per_sample is None:
        pytest.skip("the definition states no operations")
    with start_ranks() as ranks:
        found = flops.count_flops(definition, ranks, tmp_path)
    assert found.total == definition.flops_per_sample
    if found.forward and definition.kind == "train":
        assert 2 < found.total / found.forward < 3.01
    assert sum(found.by_operator.values()) == pytest.approx(1)


@pytest.mark.parametrize("scale", ["mini", pytest.param("full", marks=pytest.mark.slow)])
def test_networks_that_grow_are_counted_in_each_stage(scale: str, tmp_path: Path) -> None:
    """Shapes alone decide, so the official size needs no arithmetic."""
    ranks = TorchRanks(0, 1, torch.device("meta"))
    found = flops.count_flops(definitions.load("video_prediction", scale), ranks, tmp_path)
    assert found.total == stated("video_prediction", scale)


def list_transformer(model: Mapping[str, Any], source: int, target: int) -> Iterator[int]:
    """The products of a pair of sentences in a Transformer, layer by layer."""
    width, forward = model["width"], model["feed_forward"]
    for _ in range(model["layers"]):
        yield 2 * source * 4 * width**2 + 4 * source**2 * width + 4 * source * width * forward
        yield 2 * target * 4 * width**2 + 4 * target**2 * width + 4 * target * width * forward
        yield 2 * (2 * target + 2 * source) * width**2 + 4 * source * target * width
    yield 2 * target * width * model["vocabulary"]


def list_gnmt(model: Mapping[str, Any], source: int, target: int) -> Iterator[int]:
    """The products of a pair of sentences in GNMT v2: four gates of an input and of a state."""
    width, upper = model["width"], model["layers"] - 1

    def recur(places: int, inputs: int) -> int:
        return int(2 * places * 4 * width * (inputs + width))

    yield 2 * recur(source, width) + recur(source, 2 * width) + (upper - 1) * recur(source, width)
    yield recur(target, width) + upper * recur(target, 2 * width)
    yield 2 * (source + target) * width**2  # keys and queries
    yield 2 * source * target * width  # what is read; energies are products with a vector
    yield 2 * target * width * model["vocabulary"]


@pytest.mark.parametrize(
    ("name", "list_layers"), [("transformer", list_transformer), ("gnmt", list_gnmt)]
)
def test_translations_by_hand(name: str, list_layers: Any, tmp_path: Path) -> None:
    mini, full = (definitions.load(name, scale) for scale in ("mini", "full"))
    with start_ranks() as ranks:
        found = flops.count_flops(mini, ranks, tmp_path, "synthetic")
    assert found.total == 3 * sum(list_layers(mini.model, *NOISE_TOKENS))
    assert full.flops_per_sample == 3 * sum(list_layers(full.model, *NOISE_TOKENS))


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["flops", "galaxy_shape"]) == 0
    printed = capsys.readouterr().out
    assert "158,134,272 operations for a sample (0.1581 GFLOP)" in printed
    assert "the definition states 158,134,272\n" in printed
    monkeypatch.setattr(flops, "TOLERANCE", -1.0)
    assert main(["flops", "galaxy_shape"]) == 1
    assert "which is another number" in capsys.readouterr().out
