"""Old gradients: which weights and which batch each update takes, on a model of one weight."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch.parallel.plan import TensorPlan
from cepheid.reference.torch.parallel.task import ParallelTask
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.stale import delay_gradients
from cepheid.reference.torch.task import TorchTask
from cepheid.rules import definition
from cepheid.rules.definition import Block
from tests.distributed import on_ranks
from tests.tasks import count_versions

RATE, BATCH, STEPS = 0.5, 4, 8
MOMENTUM, MANY_STEPS = 0.9, 400
ALONE = TorchRanks(0, 1, torch.device("cpu"))
Weights = list[float]


class OneWeight(TorchTask):
    """The loss is the half square distance of the weight from each sample, which is its place.

    The gradient of a batch is therefore the weight minus the mean place, and tells both.
    """

    def make_network(self) -> nn.Module:
        """Return one weight, which is 1."""
        network = nn.Linear(1, 1, bias=False)
        nn.init.ones_(network.weight)
        return network

    def make_optimizer(self) -> Optimizer:
        """Return plain gradient descent."""
        return SGD(self.model.parameters(), lr=RATE)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the places of this rank's samples."""
        places = self.first_sample + torch.arange(self.batch_per_rank, dtype=torch.float32)
        return torch.ones_like(places)[:, None], places[:, None]

    def compute_loss(self, inputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean over the samples."""
        loss: Tensor = (self.model(inputs) - targets).square().mean() / 2
        return loss


class SharedWeight(OneWeight, ParallelTask):
    """The same as a task whose ranks may share the update or the model."""

    def make_optimizer(self) -> Optimizer:
        """Return plain gradient descent."""
        groups = [{"params": list(self.model.parameters())}]
        return self.make_parallel_optimizer(SGD, groups, lr=RATE)

    def compute_loss(self, inputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean over the samples."""
        loss: Tensor = (self.parallel(inputs) - targets).square().mean() / 2
        return loss

    def plan_matrices(self) -> TensorPlan:
        """Return a plan that cuts nothing: every rank trains a copy of the weight."""
        return TensorPlan({}, [], [])


class WithMomentum(OneWeight):
    """The same with momentum as Adam forms it, and samples that all lie at 0."""

    rate = RATE

    def make_optimizer(self) -> Optimizer:
        """Return gradient descent along the moving average of the gradients."""
        parameters = self.model.parameters()
        return SGD(parameters, lr=self.rate, momentum=MOMENTUM, dampening=MOMENTUM)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return nothing but zeros as places."""
        inputs, places = super().next_batch()
        return inputs, torch.zeros_like(places)


def configure_one_weight(name: str = "galaxy_shape", *settings: str) -> RunConfig:
    """Return a configuration of any definition: only its batch size and settings matter."""
    overrides = ["compile=off", "precision=fp32", f"global_batch_size={BATCH}", *settings]
    chosen = definition.load(name, "mini")
    return configure(chosen, division="open", overrides=overrides, seed=1)


def train_one_weight(delay: int) -> Weights:
    """Return the weight after each step."""
    with start_ranks() as ranks:
        task = delay_gradients(OneWeight, delay)(configure_one_weight(), ranks)
        task.build()
        weights = []
        for number in range(1, STEPS + 1):
            task.train(Block(number, task.samples, number * BATCH), lambda _: None)
            weights.append(task.model.weight.item())
    return weights


def share_one_weight(delay: int) -> dict[str, float]:
    """Return the last weight by the way in which the ranks share the work."""
    weights = {}
    with start_ranks() as ranks:
        for setting in ("weight_update=sharded", "weight_update=overlapped", "tensor_ranks=2"):
            config = configure_one_weight("transformer", setting)
            task = delay_gradients(SharedWeight, delay)(config, ranks)
            task.build()
            task.train(Block(1, 0, STEPS * BATCH), lambda _: None)
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


def test_ranks_agree_with_one_rank() -> None:
    first, second = on_ranks(2, train_one_weight, 2)
    assert first == second == pytest.approx(expect(2))


def test_ranks_that_share_an_update_or_a_model_agree_with_one_rank() -> None:
    first, second = on_ranks(2, share_one_weight, 2)
    assert first == second == pytest.approx(dict.fromkeys(first, expect(2)[-1]))


def test_a_task_keeps_no_more_versions_than_it_needs() -> None:
    task = delay_gradients(OneWeight, 2)(configure_one_weight(), ALONE)
    task.build()
    task.train(Block(1, 0, 6 * BATCH), lambda _: None)
    assert count_versions(task) == 3


# docs/scaling.md says so: the largest rate times curvature, here 1, at which nothing diverges.
@pytest.mark.parametrize(("delay", "limit"), [(0, 38), (1, 1.0), (4, 0.265), (16, 0.075)])
def test_a_delay_bounds_the_rate_with_momentum(
    delay: int, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor, has_converged in ((0.6, True), (1.4, False)):
        monkeypatch.setattr(WithMomentum, "rate", factor * limit)
        task = delay_gradients(WithMomentum, delay)(configure_one_weight(), ALONE)
        task.build()
        task.train(Block(1, 0, MANY_STEPS * BATCH), lambda _: None)
        assert (abs(task.model.weight.item()) < 0.5) == has_converged
