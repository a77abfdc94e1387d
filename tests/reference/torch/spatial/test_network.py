"""Partitioned networks: forward, gradients and statistics are those of one rank, but for rounding.

All are computed in double precision, so that nothing but rounding hides below the tolerance.
"""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cepheid.reference.run.execution import Grid
from cepheid.reference.torch.batch_norm import SpanBatchNorm2d
from cepheid.reference.torch.parallel.plan import Enlarge
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.spatial.exchange import split
from cepheid.reference.torch.spatial.network import partition_network
from cepheid.rules.errors import UserError
from tests.distributed import on_ranks

ROUNDING = 1e-10  # absolutely; all values are about 1
IMAGES = 4
CHANNELS = 3


class Wave(nn.Module):
    """The means of a function that shows a wrong value at any place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(CHANNELS, 2)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (n, CHANNELS, y, x) to (n, 2)."""
        scores: Tensor = self.fc(maps.sin().mean((2, 3)))
        return scores


@dataclass(frozen=True)
class Layer:
    """A layer of a case; ``padding`` is cut to what its kernel allows."""

    kind: str
    kernel: tuple[int, int]
    stride: int
    padding: int
    dilation: int
    rounds_up: bool

    def make(self) -> nn.Module:
        padding = min(self.padding, self.kernel[0] // 2), min(self.padding, self.kernel[1] // 2)
        if self.kind == "conv":
            return nn.Conv2d(CHANNELS, CHANNELS, self.kernel, self.stride, padding, self.dilation)
        if self.kind == "max":
            return nn.MaxPool2d(
                self.kernel, self.stride, padding, self.dilation, ceil_mode=self.rounds_up
            )
        return nn.AvgPool2d(self.kernel, self.stride, padding, self.rounds_up, self.dilation == 1)

    def shrink(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """The least size of the map after the layer; below 1 where it cannot be."""
        reaches = [self.dilation * (kernel - 1) + 1 for kernel in self.kernel]
        paddings = [min(self.padding, kernel // 2) for kernel in self.kernel]
        return tuple(
            (length + 2 * padding - reach) // self.stride + 1
            for length, padding, reach in zip(size, paddings, reaches, strict=True)
        )


@dataclass(frozen=True)
class Case:
    """Two layers with a batch norm between them, on images of one size."""

    size: tuple[int, int]
    layers: tuple[Layer, Layer]

    def make(self) -> nn.Module:
        torch.manual_seed(2)
        first, second = (layer.make() for layer in self.layers)
        norm = nn.BatchNorm2d(CHANNELS)
        return nn.Sequential(first, norm, nn.ReLU(inplace=True), second, Wave()).double()

    def is_possible(self) -> bool:
        """Whether no map becomes empty."""
        first, second = self.layers
        between = first.shrink(self.size)
        return min(*between, *second.shrink(between)) > 0


layers = st.builds(
    Layer,
    kind=st.sampled_from(["conv", "max", "avg"]),
    kernel=st.tuples(st.sampled_from([1, 2, 3, 7]), st.sampled_from([1, 3])),
    stride=st.sampled_from([1, 2, 3]),
    padding=st.sampled_from([0, 1, 3]),
    dilation=st.sampled_from([1, 2]),
    rounds_up=st.booleans(),
)


STEM = Layer("conv", (7, 7), 2, 3, 1, False), Layer("max", (3, 3), 2, 1, 1, False)
# The usual height that does not divide, and maps with fewer rows than parts after the first layer.
FIXED = [Case(size, STEM) for size in ((38, 38), (6, 5), (4, 4), (2, 2))]


def possible_cases(least: int) -> Any:
    sizes = st.tuples(st.integers(least, 19), st.integers(least, 12))
    return st.builds(Case, sizes, st.tuples(layers, layers)).filter(Case.is_possible)


def draw_images(size: tuple[int, int]) -> Tensor:
    noise = torch.Generator().manual_seed(1)
    images = torch.randn(IMAGES, CHANNELS, *size, generator=noise, dtype=torch.float64)
    leaf: Tensor = images.requires_grad_()
    return leaf


def train(network: nn.Module, images: Tensor, ranks: TorchRanks) -> list[Tensor]:
    """Scores, gradients of images and weights averaged as a task does it, and statistics."""
    mine = images.detach().chunk(ranks.replicas)[ranks.replica].requires_grad_()
    scores = network(mine)
    scores.square().mean().backward()
    assert mine.grad is not None
    if ranks.world_size > 1:
        ranks.average_gradients(network.parameters())
        ranks.average(b for b in network.buffers() if b.is_floating_point())
    of_images = ranks.sum(mine.grad) / ranks.partitions
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    statistics = [b for b in network.buffers() if b.is_floating_point()]
    return [scores.detach(), of_images, *gradients, *statistics]


ALONE = TorchRanks(0, 1, torch.device("cpu"))


def find_difference(case: Case, grid: Grid, ranks: TorchRanks) -> float:
    """The largest difference on any rank between the partitioned network and the whole one."""
    network, images = case.make(), draw_images(case.size)
    expected = train(copy.deepcopy(network), images, ALONE)
    partition_network(network, ranks, grid, (CHANNELS, *case.size), averaged=["4.fc"])
    found = train(network, images, ranks)
    largest = max(
        float((a - b).abs().max()) for a, b in zip(expected, found, strict=True) if a.numel()
    )
    everywhere: float = max(ranks.all_gather_object(largest))
    return everywhere


def _try_cases(cases: list[tuple[str, Case]]) -> list[float]:
    with start_ranks() as ranks:
        grids = [Grid.parse(name) for name, _ in cases]
        return [
            find_difference(case, grid, ranks.partition(grid.parts))
            for grid, (_, case) in zip(grids, cases, strict=True)
        ]


def draw_cases(grids: list[str], count: int) -> list[tuple[str, Case]]:
    """Cases for ranks, which must agree on them: processes of their own would draw others."""
    drawn: list[tuple[str, Case]] = []

    @settings(max_examples=count, phases=[Phase.generate])
    @given(st.tuples(st.sampled_from(grids), possible_cases(least=4)))
    def draw(case: tuple[str, Case]) -> None:
        drawn.append(case)

    draw()
    return drawn


@pytest.mark.parametrize(
    ("ranks", "grids", "count"),
    [(2, ["2", "1x2"], 12), pytest.param(4, ["4", "2x2", "1x4"], 100, marks=pytest.mark.slow)],
)
def test_several_ranks_compute_what_one_does(ranks: int, grids: list[str], count: int) -> None:
    fixed = [(grid, case) for grid in grids for case in FIXED if min(case.size) >= ranks]
    cases = [*draw_cases(grids, count), *fixed]
    differences = on_ranks(ranks, _try_cases, cases)[0]
    wrong = [pair for pair in zip(cases, differences, strict=True) if not pair[1] < ROUNDING]
    assert not wrong


def _try_spans(samples: int, name: str) -> float:
    """The difference where norms cover ``samples`` images, in part of a replica or several."""
    size = (5, 4)
    with start_ranks() as ranks:
        grid = Grid.parse(name)
        ranks = ranks.partition(grid.parts)

        def make(place: TorchRanks) -> nn.Module:
            torch.manual_seed(2)
            over = place.make_span(samples, place.split_batch(IMAGES))
            norm = SpanBatchNorm2d(CHANNELS, over, 1e-5, 0.1)
            conv = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)
            return nn.Sequential(conv, norm, Wave()).double()

        network, images = make(ranks), draw_images(size)
        expected = train(make(ALONE), images, ALONE)
        partition_network(network, ranks, grid, (CHANNELS, *size), averaged=["2.fc"])
        found = train(network, images, ranks)
        mine = expected[0].chunk(ranks.replicas)[ranks.replica]
        pairs = [(mine, found[0]), *zip(expected[2:], found[2:], strict=True)]
        return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("ranks", "samples", "grid"),
    [
        (2, 2, "2"),
        pytest.param(4, 4, "2", marks=pytest.mark.slow),
        pytest.param(4, 2, "2", marks=pytest.mark.slow),
    ],
)
def test_spans_of_batch_norm_are_counted_in_replicas(ranks: int, samples: int, grid: str) -> None:
    assert max(on_ranks(ranks, _try_spans, samples, grid)) < ROUNDING


class Pyramid(nn.Module):
    """Maps of several sizes, as a detector makes them; the last one has fewer rows than parts.

    ``shared`` sees them all, after each was enlarged to the next finer one and added to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1) for _ in range(3))
        kinds = (nn.BatchNorm2d(CHANNELS), nn.GroupNorm(1, CHANNELS), nn.GroupNorm(3, CHANNELS))
        self.norms = nn.ModuleList(kinds)
        self.heads = nn.ModuleList(nn.Conv2d(CHANNELS, 2, 3, padding=1) for _ in range(3))
        self.enlarge = nn.ModuleList(Enlarge() for _ in range(2))
        self.shared = nn.Conv2d(CHANNELS, 2, 3, padding=1)
        self.handed = nn.Identity()

    def forward(self, images: Tensor) -> list[Tensor]:
        """Map (n, CHANNELS, y, x) to two times three maps (n, 2, …)."""
        maps = [images]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            maps.append(norm(layer(maps[-1])).relu())
        _, fine, middle, coarse = maps
        middle = middle + self.enlarge[1](coarse, middle)
        fine = fine + self.enlarge[0](middle, fine)
        heads = [head(each) for head, each in zip(self.heads, maps[1:], strict=True)]
        return heads + [self.handed(self.shared(each)) for each in (fine, middle, coarse)]


class Scores(nn.Module):
    """What shows a wrong value at any place of the maps of a pyramid."""

    def __init__(self, pyramid: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, CHANNELS, y, x) to all values, (n, …)."""
        values: Tensor = torch.cat([each.flatten(1) for each in self.pyramid(images)], dim=1)
        return values.sin()


def _compare_pyramids(name: str) -> float:
    """The largest difference of what a network with several maps returns, and of gradients."""
    size = (15, 13)  # maps of 8 × 7, 4 × 4 and 2 × 2
    with start_ranks() as ranks:
        grid = Grid.parse(name)
        torch.manual_seed(2)
        network = Scores(Pyramid().double())
        expected = train(copy.deepcopy(network), draw_images(size), ALONE)
        ranks = ranks.partition(grid.parts)
        all_ranks = range(grid.parts)
        heads = dict.fromkeys([*(f"heads.{level}" for level in range(3)), "handed"], all_ranks)
        partition_network(network.pyramid, ranks, grid, (CHANNELS, *size), gathered=heads)
        found = train(network, draw_images(size), ranks)
        return max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    "grid", ["2", "1x2", *(pytest.param(grid, marks=pytest.mark.slow) for grid in ("4", "2x2"))]
)
def test_maps_of_several_sizes_are_gathered(grid: str) -> None:
    assert max(on_ranks(Grid.parse(grid).parts, _compare_pyramids, grid)) < ROUNDING


def _compare_evaluation() -> bool:
    """Whether the network in evaluation mode is as it was, on images of this rank alone."""
    case = Case((7, 6), (Layer("conv", (3, 3), 2, 1, 1, False), STEM[1]))
    with start_ranks() as ranks:
        whole = case.make().eval()
        network = partition_network(
            case.make(), ranks.partition(2), Grid(2), (CHANNELS, 7, 6), averaged=["4.fc"]
        )
        assert list(network.state_dict()) == list(whole.state_dict())
        network(draw_images((7, 6)))
        network.load_state_dict(whole.state_dict())
        images = draw_images((9, 9)) + ranks.rank
        return bool(torch.equal(network.eval()(images), whole(images)))


def test_evaluation_is_of_whole_images_on_each_rank() -> None:
    assert all(on_ranks(2, _compare_evaluation))


PAIR = TorchRanks(0, 2, torch.device("cpu"), partitions=2)


FIRST, LONG = nn.Conv2d(CHANNELS, CHANNELS, 3), nn.Conv2d(CHANNELS, CHANNELS, (2, 1))
POOL = nn.MaxPool2d(2)


@pytest.mark.parametrize(
    ("layer", "grid", "rows", "what"),
    [
        (nn.Flatten(), Grid(2), 8, "view"),
        (nn.Upsample(scale_factor=2), Grid(2), 8, "upsample"),
        (nn.Softmax(2), Grid(2), 8, "softmax"),
        (Wave(), Grid(2), 8, "mean"),
        (nn.Sequential(POOL, POOL), Grid(2), 8, "layer 1.0 sees maps of different sizes"),
        (nn.Sequential(LONG, LONG), Grid(2), 9, "1.0 sees maps of .* whose parts are equally"),
        (nn.ReLU(), Grid(4), 3, "images of 3 rows cannot be split into 4 parts"),
    ],
)
def test_networks_and_images_that_ranks_cannot_share_are_refused(
    layer: nn.Module, grid: Grid, rows: int, what: str
) -> None:
    network = nn.Sequential(FIRST, layer)
    with pytest.raises(UserError, match=what):
        partition_network(network, PAIR, grid, (CHANNELS, rows, 8))
    assert network.training
    assert type(network[0]) is nn.Conv2d


# Grids of ranks -----------------------------------------------------------------------------------


def test_the_last_parts_are_smaller() -> None:
    assert [len(part) for part in split(38, 4)] == [10, 10, 10, 8]
    assert [len(part) for part in split(5, 4)] == [1, 1, 1, 2]
    assert split(3, 4) == (range(3),) * 4


@given(st.integers(1, 300), st.integers(1, 8))
def test_parts_cover_an_axis_once_and_none_is_empty(size: int, parts: int) -> None:
    pieces = split(size, parts)
    assert len(pieces) == parts
    assert all(pieces)
    if size >= parts:
        assert [index for piece in pieces for index in piece] == list(range(size))
        assert max(map(len, pieces)) == -(-size // parts)


@pytest.mark.parametrize(("text", "grid"), [("1", Grid()), ("4", Grid(4)), ("2x2", Grid(2, 2))])
def test_settings_name_grids(text: str, grid: Grid) -> None:
    assert Grid.parse(text) == grid
    assert grid.parts == max(1, grid.rows * grid.columns)


def test_a_batch_is_shared_by_replicas_which_all_ranks_must_form() -> None:
    ranks = TorchRanks(3, 4, torch.device("cpu")).partition(2)
    assert (ranks.replica, ranks.replicas, ranks.split_batch(6)) == (1, 2, 3)
    with pytest.raises(UserError, match="2 replicas of 2 ranks: choose a multiple of 2"):
        ranks.split_batch(7)
    with pytest.raises(UserError, match="3 ranks cannot form replicas of 2 ranks"):
        TorchRanks(0, 3, torch.device("cpu")).partition(2)
