"""The stable surface for vendors, and old gradients, both on a workload of one weight."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch import workload
from cepheid.reference.torch.devices.kinds import Processor
from cepheid.reference.torch.parallel.plan import TensorPlan
from cepheid.reference.torch.parallel.stale import delay_gradients
from cepheid.reference.torch.pieces import Pieces, cut
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.reference.torch.workload import Evaluation, Matrices, Norms, Recipe, Seat, Workload
from cepheid.rules import definition
from tests.distributed import on_ranks
from tests.tasks import build, count_versions, train

RATE, BATCH, STEPS = 0.5, 4, 8
MOMENTUM, MANY_STEPS = 0.9, 400
Weights = list[float]


@dataclass(frozen=True)
class Places:
    """Samples that lie at their place in the training, times a factor."""

    seat: Seat
    factor: float = 1.0

    def take(self, samples: int, size: int) -> Pieces:
        """Return ones and the places of this rank's samples, (n, 1) both."""
        first = self.seat.find_first(samples)
        places = first + torch.arange(self.seat.batch, dtype=torch.float32)[:, None]
        return cut(torch.ones_like(places), self.factor * places, size)


def make_network(shape: object, norms: Norms) -> nn.Module:
    """Return one weight, which is 1."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    return network


def descend(network: nn.Module, **options: float) -> Recipe:
    """Return gradient descent on the weight."""
    return Recipe(torch.optim.SGD, [{"params": list(network.parameters())}], options)


# The loss is the half square distance of the weight from each sample. The gradient of a batch is
# therefore the weight minus the mean place, and tells both. Ranks may share the update, or the
# model: a plan that cuts nothing lets every rank train a copy of the weight.
ONE_WEIGHT: Workload[Any] = Workload(
    read_shape=lambda config: config,
    make_network=make_network,
    matrices=Matrices(plan=lambda shape, network: TensorPlan({}, [], [])),
    make_optimizer=lambda shape, network: descend(network, lr=RATE),
    compute_loss=lambda shape, network, ones, places: (network(ones) - places).square().mean() / 2,
    predict=lambda shape, network, ones: network(ones),
    make_noise=lambda shape, count, generator: (torch.ones(count, 1), torch.ones(count, 1)),
    open_data=lambda shape, seat: Places(seat),
    prepare_update=lambda shape, update: None,
    evaluate=lambda shape, inference: Evaluation({}),
)


def add_momentum(rate: float) -> Workload[Any]:
    """Return the same with momentum as Adam forms it, and samples that all lie at 0."""
    options = {"lr": rate, "momentum": MOMENTUM, "dampening": MOMENTUM}
    return ONE_WEIGHT.vary(
        make_optimizer=lambda shape, network: descend(network, **options),
        open_data=lambda shape, seat: Places(seat, 0.0),
    )


def configure_one_weight(name: str = "galaxy_shape", *settings: str) -> RunConfig:
    """Return a configuration of any definition: only its batch size and settings matter."""
    overrides = ["compile=off", "precision=fp32", f"global_batch_size={BATCH}", *settings]
    chosen = definition.load(name, "mini")
    return configure(chosen, division="open", overrides=overrides, seed=1)


# The surface -------------------------------------------------------------------------------------

# What own code may rely on for a round. A new name is added here; one that goes stands in
# rules/CHANGES.md with what replaces it.
SURFACE = {
    "Data": "take",
    "Evaluation": "metrics details",
    "Inference": "predict functions network data seat size samples ranks to_device",
    "Inputs": "",
    "Maps": "averaged gathered",
    "Matrices": "plan counts",
    "Moment": "samples first count seat has_matrices",
    "Network": "call module autocast",
    "Norms": "make",
    "Passes": "limit make_smaller explain",
    "Piece": "inputs targets weight",
    "Ranks": "rank world_size partitions device is_first replica replicas ranks_per_node sum "
    "broadcast all_gather_object",
    "Recipe": "kind groups options",
    "Result": "inference details curve seconds data",
    "Seat": "ranks batch workers piece execution source folder load share pins find_first split",
    "Spans": "samples",
    "Stages": "cut sum_losses counts count_losses fill",
    "Update": "samples groups clip",
    "Workload": "read_shape make_network make_optimizer compute_loss predict make_noise open_data "
    "prepare_update evaluate evaluation_batch norms maps stages matrices passes functions "
    "make_preconditioner before_step before_piece after_update step noise_samples "
    "draw_other_noise predict_noise load_given measure_afterwards report pictures list_notes "
    "describe has_varying_shapes has_own_pace compiles_loss compiles_predict takes_whole_share "
    "vary",
}


@pytest.mark.parametrize("name", SURFACE)
def test_the_surface_for_vendors_keeps_its_names(name: str) -> None:
    kind = getattr(workload, name)
    fields = list(getattr(kind, "__dataclass_fields__", ()))
    others = [each for each in vars(kind) if not each.startswith("_") and each not in fields]
    assert set(SURFACE[name].split()) <= {*fields, *others}


def test_the_smallest_workload_trains_and_resumes() -> None:
    config = configure_one_weight()
    task, resumed = build(config, make=ONE_WEIGHT), build(config, make=ONE_WEIGHT)
    task.warm_up()
    assert task.model.weight.item() == 1
    train(task, 2 * BATCH)
    resumed.restore(task.state())
    assert resumed.samples == task.samples == 2 * BATCH
    assert resumed.model.weight.item() == task.model.weight.item() == pytest.approx(expect(0)[1])
    assert task.predict(torch.ones(3, 1)).shape == (3, 1)
    assert not hasattr(task, "report")


def test_ways_to_compute_are_compared_on_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing it takes longer than a step on a GPU, and would hide which way is the fastest."""
    monkeypatch.setattr(Processor, "list_precisions", lambda device: ("fp32", "bf16"))
    drawn: list[int] = []

    def draw(shape: Any, count: int, generator: torch.Generator) -> tuple[Any, Any]:
        drawn.append(count)
        return ONE_WEIGHT.make_noise(shape, count, generator)

    task = build(configure_one_weight("galaxy_shape", "precision=auto"),
                 make=ONE_WEIGHT.vary(make_noise=draw))  # fmt: skip
    task.warm_up()
    assert task.execution.because["precision"].startswith("fastest step")
    assert len(drawn) <= 4  # for memory, for all ways together, for the last step, for predictions
    assert "draw_noise" not in vars(task)


# Old gradients -----------------------------------------------------------------------------------


def train_one_weight(delay: int) -> Weights:
    """Return the weight after each step."""
    with start_ranks() as ranks:
        task = build(configure_one_weight(), ranks, delay_gradients(ONE_WEIGHT, delay))
        weights = []
        for number in range(1, STEPS + 1):
            train(task, number * BATCH)
            weights.append(task.model.weight.item())
    return weights


def share_one_weight(delay: int) -> dict[str, float]:
    """Return the last weight by the way in which the ranks share the work."""
    weights = {}
    with start_ranks() as ranks:
        ways = ("all_reduce=flat", "weight_update=sharded", "weight_update=overlapped")
        for setting in (*ways, "tensor_ranks=2"):
            config = configure_one_weight("transformer", setting)
            task = build(config, ranks, delay_gradients(ONE_WEIGHT, delay))
            train(task, STEPS * BATCH)
            weights[setting] = task.model.weight.item()
    return weights


def expect(delay: int) -> Weights:
    """Return the weight after each step, from the definition of staleness alone."""
    weights = [1.0]
    for step in range(STEPS):
        old = weights[max(0, step - delay)]
        mean_place = step * BATCH + (BATCH - 1) / 2
        weights.append(weights[-1] - RATE * (old - mean_place))
    return weights[1:]


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_an_update_takes_the_gradient_at_the_weights_of_that_many_updates_ago(delay: int) -> None:
    assert train_one_weight(delay) == pytest.approx(expect(delay))
    assert expect(delay) != pytest.approx(expect(delay + 1))


def test_ranks_that_share_work_agree_with_one_which_keeps_no_needless_versions() -> None:
    first, second = on_ranks(2, share_one_weight, 2)
    assert first == second == pytest.approx(dict.fromkeys(first, expect(2)[-1]))
    task = build(configure_one_weight(), make=delay_gradients(ONE_WEIGHT, 2))
    train(task, 6 * BATCH)
    assert count_versions(task) == 3


# docs/scaling/staleness.md: the largest rate times curvature, here 1, at which nothing diverges.
@pytest.mark.parametrize(("delay", "limit"), [(0, 38), (1, 1.0), (4, 0.265), (16, 0.075)])
def test_a_delay_bounds_the_rate_with_momentum(delay: int, limit: float) -> None:
    for factor, has_converged in ((0.6, True), (1.4, False)):
        make = delay_gradients(add_momentum(factor * limit), delay)
        task = build(configure_one_weight(), make=make)
        train(task, MANY_STEPS * BATCH)
        assert (abs(task.model.weight.item()) < 0.5) == has_converged
