"""K-FAC on several gloo ranks: equal to one rank, each switch within its bound, bytes counted."""

import copy
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.second_order import KFAC, Options
from cepheid.second_order.exchange import Exchange
from cepheid.second_order.number_formats import Format
from cepheid.second_order.options import UseError
from tests.distributed import on_ranks
from tests.second_order.test_number_formats import ERRORS

SAMPLES = 16
BASE = Options(average_decay=0.5, damping=0.1, symmetric=False)
ROUNDING = 1e-5  # of float32, in the norm of the whole update, relatively
VARIANTS = {
    "base": BASE,
    "not distributed": replace(BASE, distribute_inverse=False),
    "symmetric": replace(BASE, symmetric=True),
    "float21": replace(BASE, factor_format="float21"),
    "float16": replace(BASE, factor_format="float16"),
    "bfloat16": replace(BASE, factor_format="bfloat16"),
    "gradients in float16": replace(BASE, gradient_format="float16"),
    "gradients in bfloat16": replace(BASE, gradient_format="bfloat16", average_gradients=True),
    "overlap": replace(BASE, overlap=True),
    "averages gradients": replace(BASE, average_gradients=True, rescaling="kl_clip"),
    "stale": replace(BASE, stale=True, stale_tolerance=0.3),
    "stale everywhere": replace(
        BASE, stale=True, stale_tolerance=0.3, distribute_inverse=False, rescaling="norm"
    ),
    "shards": replace(BASE, shard_update=True, average_gradients=True),
    "all": replace(
        BASE, symmetric=True, factor_format="float21", overlap=True, stale=True,
        stale_tolerance=0.3, shard_update=True, average_gradients=True),
}  # fmt: skip
ON_FOUR = ["base", "not distributed", "symmetric", "all"]
STEPS = 4


def _network() -> nn.Module:
    """Its batch normalisation uses running statistics: those of a batch depend on the ranks."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(5, 6, 3, padding=1),
        nn.BatchNorm2d(6).eval(),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=2, padding=1, bias=False),
        nn.PReLU(),
        nn.Flatten(),
        nn.Linear(20, 3),
    )


def _linear() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(80, 3), nn.PReLU())


def _batch_norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(5).eval(), nn.PReLU(), nn.Flatten())


def _train(
    options: Options, rank: int, ranks: int, make: Callable[[], nn.Module] = _network
) -> dict[str, Any]:
    """Weights after some steps on this rank's share of the samples, and what was sent."""
    network = make()
    kfac = KFAC(network, options)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    share = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
    sent = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(SAMPLES, 5, 4, 4, generator=generator)[share]
        targets = torch.randint(3, (SAMPLES,), generator=generator)[share]
        optimizer.zero_grad()
        functional.cross_entropy(network(images), targets).backward()
        if ranks > 1 and not options.average_gradients:
            for parameter in network.parameters():
                assert parameter.grad is not None
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad.div_(ranks)
        kfac.step(learning_rate=0.05)
        optimizer.step()
        if options.shard_update:
            kfac.share_weights()
        sent.append(kfac.bytes_sent)
    return {
        "weights": torch.cat([parameter.detach().flatten() for parameter in network.parameters()]),
        "sent": sent,
        "intervals": kfac.intervals,
        "owners": kfac.owners,
        "state": kfac.state_dict(),
    }


def _all_variants(names: list[str], ranks_per_node: int) -> dict[str, dict[str, Any]]:
    with start_ranks() as ranks:
        place = ranks.rank, ranks.world_size
        nodes = {name: replace(VARIANTS[name], ranks_per_node=ranks_per_node) for name in names}
        return {name: _train(options, *place) for name, options in nodes.items()}


@functools.cache
def _alone(name: str) -> dict[str, Any]:
    return _train(VARIANTS[name], 0, 1)


@functools.cache
def _on_two_ranks() -> list[dict[str, dict[str, Any]]]:
    return on_ranks(2, _all_variants, list(VARIANTS), 0)


@functools.cache
def _on_four_ranks() -> list[dict[str, dict[str, Any]]]:
    """Two nodes of two ranks; rank 3 owns the batch normalisation only."""
    return on_ranks(4, _all_variants, ON_FOUR, 2)


def _update(weights: Tensor) -> Tensor:
    start = torch.cat([parameter.detach().flatten() for parameter in _network().parameters()])
    return weights - start


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Of the updates since the start, relative to their norm."""
    updates = [_update(result["weights"]) for result in (found, expected)]
    return float((updates[0] - updates[1]).norm() / updates[1].norm())


def _float21_bound() -> float:
    """A perturbation of X by E moves (X + γI)⁻¹ by no more than ‖E‖ / γ, relatively; here, per
    step, for the worst of all factors, with ‖E‖ ≤ 2⁻¹³ ‖X‖_F, added up over steps and both
    factors of a layer."""
    worst = 0.0
    for name, saved in _alone("base")["state"]["factors"].items():
        damping, average = saved["tensors"][:2]
        floor = 0.1 if name.endswith(".F") else float(damping)
        worst = max(worst, ERRORS["float21"] * float(average.norm()) / floor)
    return 2 * STEPS * worst


def _find_bound(options: Options) -> float:
    """Of half precision the bound for the worst case is large; what is found is far below it."""
    if options.factor_format == "float21":
        return _float21_bound()
    error = ERRORS[options.factor_format] + 2 * ERRORS[options.gradient_format]
    return ROUNDING + STEPS * error


@pytest.mark.parametrize(
    ("ranks", "name"), [*product([2], VARIANTS), *product([4], ON_FOUR)], ids=str
)
def test_two_ranks_and_two_nodes_of_two_ranks_equal_one(ranks: int, name: str) -> None:
    results = [result[name] for result in (_on_two_ranks if ranks == 2 else _on_four_ranks)()]
    for result in results[1:]:
        assert torch.equal(results[0]["weights"], result["weights"])
        assert results[0]["intervals"] == result["intervals"]
    # In two levels float21 rounds twice.
    bound = ranks / 2 * _find_bound(VARIANTS[name])
    assert _difference(results[0], _alone(name)) <= bound


@pytest.mark.parametrize("name", ["not distributed", "overlap", "shards"])
def test_switches_that_change_no_bit(name: str) -> None:
    first = _on_two_ranks()[0]
    assert torch.equal(first["base"]["weights"], first[name]["weights"])


CLIPPED = {"clipped": replace(BASE, rescaling="kl_clip", kl_clip=1e-6)}
SMALL = {
    _linear: ("clipped", "shards", "averages gradients", "stale everywhere", "float21", "all"),
    _batch_norm: ("clipped", "shards"),
}


def _train_small() -> dict[Any, Tensor]:
    with start_ranks() as ranks:
        return {
            (make, name): _train((VARIANTS | CLIPPED)[name], ranks.rank, ranks.world_size, make)[
                "weights"
            ]
            for make, names in SMALL.items()
            for name in names
        }


def test_a_rank_that_owns_nothing_takes_part_in_every_switch() -> None:
    first, second = on_ranks(2, _train_small)
    for (make, name), weights in first.items():
        assert torch.equal(weights, second[make, name]), (make, name)
        options = (VARIANTS | CLIPPED)[name]
        alone = _train(options, 0, 1, make)["weights"]
        error = ERRORS[options.factor_format] + 2 * ERRORS[options.gradient_format]
        bound = 1e-5 + 20 * error  # of weights; a factor enters with its condition
        assert float((weights - alone).norm() / alone.norm()) <= bound, (make, name)


def _sum_in_all_formats() -> list[list[float]]:
    with start_ranks() as ranks:
        exchange = Exchange()
        noise = torch.Generator().manual_seed(ranks.rank)
        part = torch.randn(10_000, generator=noise).exp()  # positive: errors do not cancel
        sums = [exchange.start_sums([part.clone()], [0], "factors", form) for form in FORMATS]
        totals = [finish() or [part] for finish in sums]
        return [total.tolist() for (total,) in totals]


FORMATS: tuple[Format, ...] = ("float32", "float21", "float16", "bfloat16")


def test_a_sum_of_packed_numbers_is_within_its_bound_which_says_something() -> None:
    exact, *others = (torch.tensor(total) for total in on_ranks(2, _sum_in_all_formats)[0])
    for form, found in zip(FORMATS[1:], others, strict=True):
        error, bound = (found - exact) / exact, ERRORS[form]
        assert error.abs().max() <= bound + 1e-7
        assert error.abs().mean() > bound / 10
        assert abs(error.mean()) < bound / 50  # without float21's half bit it would be half of it
    assert _float21_bound() < 0.3


FORMATTED = [name for name in VARIANTS if "float" in name]


@pytest.mark.parametrize("name", FORMATTED)
def test_other_formats_are_really_used(name: str) -> None:
    first = _on_two_ranks()[0]
    other = "averages gradients" if VARIANTS[name].average_gradients else "base"
    assert _difference(first[name], first[other]) > 1e-6


@pytest.mark.parametrize("name", FORMATTED[:4])
def test_simulated_ranks_round_as_real_ones(name: str) -> None:
    """What is left is float32's rounding, which at times moves a number to the next one."""
    real = _on_two_ranks()[0]
    simulated = _train(replace(VARIANTS[name], simulated_ranks=2), 0, 1)
    cost = _difference(real[name], real["base"])
    assert _difference(simulated, real[name]) < max(ROUNDING, cost / 10)
    assert _difference(simulated, _alone("base")) == pytest.approx(cost, rel=0.1)


def _log_out_of_range(scale: float) -> list[str]:
    """What K-FAC says of a layer whose factor of gradients has the square of this scale."""
    said: list[str] = []
    with start_ranks():
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("cepheid.second_order").addHandler(handler)
        torch.manual_seed(1)
        network = nn.Linear(3, 2)
        kfac = KFAC(network, Options(factor_format="float16", gradient_format="float16"))
        try:
            for _ in range(2):
                (scale * network(torch.ones(4, 3))).sum(1).mean().backward()
                kfac.step()
        except UseError as error:
            said.append(str(error))
        finally:
            logging.getLogger("cepheid.second_order").removeHandler(handler)
    return said


@pytest.mark.parametrize(("scale", "says"), [(1000.0, "holds at most 65,504"), (1e-5, "makes 0")])
def test_a_factor_that_float16_cannot_hold_is_named(scale: float, says: str) -> None:
    for rank, said in enumerate(on_ranks(2, _log_out_of_range, scale)):
        largest = f"{scale**2 / 2:.4g}"  # this rank's half of the mean
        named = [line for line in said if says in line and "Linear.B" in line]
        assert len(named) == 1  # not in every step
        assert f"its largest value on rank {rank} is {largest}" in named[0]
        assert 'fix: set factor_format to "bfloat16", "float21" or "float32"' in named[0]
    left_out = [line for line in said + _log_out_of_range(scale) if "left as" in line]
    assert len(left_out) == 0  # rank 1 owns nothing, and one rank sends nothing


def test_a_gradient_that_float16_cannot_hold_ends_the_training_on_all_ranks() -> None:
    for said in on_ranks(2, _log_out_of_range, 1e9):
        assert "the gradient of Linear is not finite after it was sent as float16" in said[-1]


def _refuse(function: Callable[[], object]) -> str:
    """Return what a function says that raises UseError, or nothing."""
    try:
        function()
    except UseError as error:
        return str(error)
    return ""


def _reach_unevenly(rank: int, is_first_skipped: bool) -> str:
    network = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    kfac = KFAC(network)
    outputs = network[0](torch.ones(2 if is_first_skipped else 2 + rank, 2))
    if not (is_first_skipped and rank == 1):
        outputs = network[1](outputs)
    outputs.sum().backward()
    return _refuse(kfac.step)


def _differ() -> list[str]:
    """What is said where ranks reach other layers, where their models and options differ, and where
    a node should have three."""
    with start_ranks() as ranks:
        said = [_reach_unevenly(ranks.rank, is_first_skipped) for is_first_skipped in (True, False)]
        for what in ("nothing", "model", "options"):
            network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            options = Options()
            if what == "model" and ranks.rank:
                network.append(nn.Linear(2, 2))
            elif what == "options" and ranks.rank:
                options = Options(symmetric=False, skip=("1",))
            said.append(_refuse(partial(KFAC, network, options)))
        said.append(_refuse(partial(KFAC, _network(), Options(ranks_per_node=3))))
    return said


def test_ranks_that_differ_or_do_not_fill_their_nodes_are_named_on_all() -> None:
    """Those that reach other layers, have another model or other options."""
    for skipped, uneven, alike, model, options, nodes in on_ranks(2, _differ):
        assert "2 ranks do not fill whole nodes" in nodes
        assert 'layer "1" was not reached by all ranks alike: rank 0 2 samples, ' in skipped
        assert "rank 1 0 samples and no gradient; fix: pass as many samples" in skipped
        assert 'layer "0" was not reached by all ranks alike: rank 0 2 samples, rank 1 3' in uneven
        assert alike == ""
        assert model.startswith("K-FAC: the model: not the same on all ranks; fix: give every rank")
        assert options.startswith("K-FAC: skip, symmetric, the model: not the same on all ranks")


def test_stale_factors_spare_refreshes_on_all_ranks_alike() -> None:
    first = _on_two_ranks()[0]
    refreshes = [interval.refreshes for interval in first["stale"]["intervals"].values()]
    assert min(refreshes) < STEPS
    assert first["stale"]["intervals"] == _alone("stale")["intervals"]


UNEVEN, UNEVEN_OWNERS = (4, 1, 7, 0, 2, 3), (0, 0, 2, 1, 2, 1)  # rank 3 of 4 owns nothing


def _gather_unevenly(ranks_per_node: int) -> dict[str, Any]:
    """What the collectives of one all-gather return and send, as torch.distributed sees them."""
    calls: list[tuple[str, int]] = []

    def count(name: str) -> None:
        collective = getattr(dist, name)

        def call(*arguments: Any, **named: Any) -> Any:
            _, own, _, to_each = (*arguments, None, None, None)[:4]
            rows = own if isinstance(own, Tensor) else torch.empty(0)
            assert to_each is None or sum(to_each) == len(rows)
            calls.append((name, rows.numel() * rows.element_size()))
            return collective(*arguments, **named)

        setattr(dist, name, call)

    with start_ranks() as ranks:
        exchange = Exchange(ranks_per_node)
        for name in ("broadcast", "all_gather", "all_to_all_single", "all_reduce"):
            count(name)
        owners = [owner % ranks.world_size for owner in UNEVEN_OWNERS]
        parts = [
            torch.full((size,), float(owner == ranks.rank) * (place + 1))
            for place, (size, owner) in enumerate(zip(UNEVEN, owners, strict=True))
        ]
        found = exchange.gather(parts, owners, "weights")
        return {
            "values": [part.tolist() for part in found],
            "calls": calls,
            "sent": dict(exchange.sent),
        }


@pytest.mark.parametrize(("world_size", "ranks_per_node"), [(2, 0), (4, 0), (4, 2)])
def test_an_uneven_gather_is_one_collective_in_each_level(
    world_size: int, ranks_per_node: int
) -> None:
    results = on_ranks(world_size, _gather_unevenly, ranks_per_node)
    levels = 2 if ranks_per_node else 1
    numbers = sum(UNEVEN)
    for result in results:
        assert result["values"] == [[place + 1.0] * size for place, size in enumerate(UNEVEN)]
        assert [name for name, _ in result["calls"]] == ["all_to_all_single"] * levels
        assert sum(count for _, count in result["calls"]) == sum(result["sent"].values())
    sent = {
        level: sum(result["sent"].get(("weights", level), 0) for result in results)
        for level in ("all", "node", "between nodes")
    }
    if ranks_per_node:  # once to the other node, then from each rank to the other one of its node
        assert sent == {"all": 0, "node": 4 * 2 * numbers, "between nodes": 4 * numbers}
    else:
        assert sent == {"all": 4 * (world_size - 1) * numbers, "node": 0, "between nodes": 0}


def _bytes(results: list[dict[str, dict[str, Any]]], name: str, purpose: str, level: str) -> int:
    return sum(result[name]["sent"][0].get((purpose, level), 0) for result in results)


def _numbers() -> tuple[int, int]:
    """In all factors, full and as triangles."""
    full = triangles = 0
    for saved in _alone("base")["state"]["factors"].values():
        rows, columns = saved["tensors"][1].shape
        full += rows * columns
        triangles += columns * (columns + 1) // 2 if rows == columns else rows * columns
    return full, triangles


def test_bytes_are_those_of_the_numbers_sent() -> None:
    results = _on_two_ranks()
    full, triangles = _numbers()
    assert _bytes(results, "base", "factors", "all") == 4 * full  # from each rank the other's
    assert _bytes(results, "symmetric", "factors", "all") == 4 * triangles
    float21 = _bytes(results, "float21", "factors", "all")
    both = _bytes(results, "all", "factors", "all")
    assert 0 <= float21 - 8 * full / 3 < 4 * 8  # at most a word is not full, per owner and phase
    assert 0 <= both - 8 * triangles / 3 < 4 * 8
    weights = _alone("base")["weights"].numel() - 1  # without the slope of the PReLU
    assert _bytes(results, "base", "gradients", "all") == 4 * weights
    assert _bytes(results, "shards", "weights", "all") == 4 * weights
    # To the owners, and the slope of the PReLU to everybody.
    assert _bytes(results, "shards", "gradients", "all") == 4 * weights + 2 * 4
    # Both ways: to the owner and from there to all.
    assert _bytes(results, "not distributed", "factors", "all") == 2 * 4 * full
    assert _bytes(results, "stale", "intervals", "all") > 0


def test_only_one_share_of_each_node_leaves_it() -> None:
    results = _on_four_ranks()
    full, _ = _numbers()
    assert _bytes(results, "base", "factors", "node") == 4 * full * 2  # two nodes, one level
    assert _bytes(results, "base", "factors", "between nodes") == 4 * full
    weights = _alone("base")["weights"].numel() - 1
    assert _bytes(results, "base", "gradients", "between nodes") == 4 * weights
    assert _bytes(results, "base", "gradients", "node") == 4 * weights * 2


def test_a_state_of_two_ranks_loads_on_one() -> None:
    state = _on_two_ranks()[1]["stale"]["state"]
    kfac = KFAC(_network(), VARIANTS["stale"])
    kfac.load_state_dict(copy.deepcopy(state))
    assert kfac.intervals == _alone("stale")["intervals"]
    for name, saved in kfac.state_dict()["factors"].items():
        expected = _alone("stale")["state"]["factors"][name]["tensors"]
        torch.testing.assert_close(saved["tensors"], expected, rtol=1e-4, atol=1e-5, equal_nan=True)


class LostError(Exception):
    """What the caller makes of a rank that is gone."""


@contextmanager
def _guard() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostError(str(error)) from error


def test_a_rank_that_is_gone_is_noticed() -> None:
    """In the exchange that overlaps the backward pass, and in the one of a step."""
    for overlap in (True, False):
        remaining, gone = on_ranks(2, _with_a_rank_that_leaves, overlap)
        assert remaining.startswith("LostError: ")
        assert gone == "left"


def _with_a_rank_that_leaves(overlap: bool) -> str:
    with start_ranks() as ranks:
        network = _network()
        kfac = KFAC(network, Options(overlap=overlap), guard=_guard)
        for step in range(2):
            if step == 1 and ranks.rank == 1:
                return "left"
            try:
                network(torch.randn(2, 5, 4, 4)).sum().backward()
                kfac.step()
            except LostError as error:
                return f"LostError: {error}"
    return "nothing was noticed"
