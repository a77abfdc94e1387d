"""The measurement `information`: Fisher matrices of a small network against other libraries."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cepheid.benchmarks.kfac.peer import compare_directions
from cepheid.measure.engine.memory import measure_peak_bytes
from cepheid.measure.engine.subject import MIB, Measurement, Row, Subject
from cepheid.measure.engine.turns import find_middle_half, time_once
from cepheid.second_order import information

SAMPLES, PIXELS, CLASSES = 64, 16, 10
CHANNELS = (3, 16, 32, 64)
OURS_BLOCKS, OURS_PRODUCT = "blocks, cepheid", "product with the whole matrix, cepheid"
PEER_BLOCKS, PEER_PRODUCT = "blocks, curvlinops", "product with the whole matrix, curvlinops"
BACKPACK = "blocks, BackPACK (KFLR)"
PEER_DIRECTION = "direction of two linear layers, kfac-pytorch (eigen-decompositions)"

Batch = tuple[Tensor, Tensor]
Job = Callable[[], Tensor]


def make_network() -> nn.Sequential:
    """Return convolutions and a linear layer without biases, which all libraries know."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.ReLU()]
    features = CHANNELS[-1] * (PIXELS // 2 ** (len(CHANNELS) - 1)) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES, bias=False))


def _multiply(
    make_matrix: Callable[..., Any], model: nn.Module, batch: Batch, vectors: dict[str, Tensor]
) -> Tensor:
    """Return the product with blocks, or the whole matrix, that are made anew, flat."""
    products = make_matrix(model, [batch]).multiply(vectors)
    return torch.cat([products[name].flatten() for name in vectors])


def _multiply_peer(kind: str, model: nn.Module, batch: Batch, vectors: dict[str, Tensor]) -> Tensor:
    """Return the product that curvlinops computes, flat; its loss is the mean, as ours is."""
    import curvlinops

    facts = model, nn.CrossEntropyLoss(), list(model.parameters()), [batch]
    operator = (
        curvlinops.KFACLinearOperator(*facts, fisher_type="type-2", check_deterministic=False)
        if kind == "blocks"
        else curvlinops.GGNLinearOperator(*facts, check_deterministic=False)
    )
    products = operator @ list(vectors.values())
    return torch.cat([product.flatten() for product in products])


def _multiply_backpack(
    model: nn.Module, loss: nn.Module, batch: Batch, vectors: dict[str, Tensor]
) -> Tensor:
    """Return the product with the factors of BackPACK, flat, for an extended model and loss."""
    from backpack import backpack
    from backpack.extensions import KFLR

    inputs, targets = batch
    model.zero_grad()
    with backpack(KFLR()):
        loss(model(inputs), targets).backward()
    products = []
    for name, parameter in model.named_parameters():
        outputs, others = parameter.kflr  # type: ignore[attr-defined]
        products.append((outputs @ vectors[name].flatten(1) @ others).flatten())
    return torch.cat(products).detach()


def list_jobs(vectors: dict[str, Tensor], model: nn.Module, batch: Batch) -> Mapping[str, Job]:
    """Return what is timed, ours first, with the libraries that are installed.

    ``vectors`` have the same shapes as the parameters, ``batch`` has images (n, 3, y, x).
    """
    jobs: dict[str, Job] = {
        OURS_BLOCKS: partial(_multiply, information.fisher_blocks, model, batch, vectors),
        OURS_PRODUCT: partial(_multiply, information.FisherProducts, model, batch, vectors),
    }
    if find_spec("curvlinops"):
        jobs[PEER_BLOCKS] = partial(_multiply_peer, "blocks", model, batch, vectors)
        jobs[PEER_PRODUCT] = partial(_multiply_peer, "whole", model, batch, vectors)
    if find_spec("backpack"):
        from backpack import extend

        own, loss = extend(make_network()), extend(nn.CrossEntropyLoss())
        jobs[BACKPACK] = partial(_multiply_backpack, own, loss, batch, vectors)
    return jobs


def compare_information(subject: Subject) -> Measurement:
    """Compare blocks, products and directions with those of other libraries, if installed."""
    generator = torch.Generator().manual_seed(2)
    model = make_network()
    images = torch.randn(SAMPLES, 3, PIXELS, PIXELS, generator=generator)
    batch = images, torch.randint(CLASSES, (SAMPLES,), generator=generator)
    vectors = {
        name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()
    }
    jobs = list_jobs(vectors, model, batch)
    results = {name: job().detach() for name, job in jobs.items()}
    measures = {name: partial(time_once, job) for name, job in jobs.items()}
    timings = subject.time("blocks and products", measures)
    rows: list[Row] = []
    facts: dict[str, dict[str, Any]] = {}
    last = list(vectors.values())[-1].numel()
    for timing in timings:
        ours = OURS_PRODUCT if "whole" in timing.label else OURS_BLOCKS
        # BackPACK approximates convolutions in another way; the linear layer comes last.
        compared = slice(-last if timing.label == BACKPACK else None, None)
        found, expected = results[timing.label][compared], results[ours][compared]
        difference = float((found - expected).norm() / expected.norm())
        what = "the linear layer differs" if timing.label == BACKPACK else "differs"
        low, high = (1000 * seconds for seconds in find_middle_half(timing.seconds))
        memory = measure_peak_bytes(jobs[timing.label])
        text = (
            f"{1000 * timing.median_seconds:.1f} ms ({low:.1f} to {high:.1f}), "
            f"{memory / MIB:.1f} MiB"
        )
        beside = f"{what} from ours by {difference:.1e}" if timing.label != ours else ""
        rows.append(Row(timing.label, text, beside))
        facts[timing.label] = {
            "seconds": timing.seconds,
            "difference": difference,
            "peak_bytes": memory,
        }
    if find_spec("kfac"):
        facts[PEER_DIRECTION] = {"difference": compare_directions()}
        difference = facts[PEER_DIRECTION]["difference"]
        rows.append(Row(PEER_DIRECTION, f"differs from ours by {difference:.1e}"))
    peers = {PEER_PRODUCT: "curvlinops", BACKPACK: "backpack", PEER_DIRECTION: "kfac"}
    for name, package in peers.items():
        if name not in facts:
            rows.append(Row(name, f"left out: {package} is not installed; see the README"))
    return Measurement(rows, facts)
