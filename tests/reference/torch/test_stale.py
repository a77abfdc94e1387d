"""Old gradients: which weights and which batch each update takes, on a model of one weight."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from reference.run.config import configure
from reference.torch.distributed import TorchRanks, start_ranks
from reference.torch.stale import delay_gradients
from reference.torch.task import TorchTask
from rules import definition
from rules.definition import Block
from tests.distributed import on_ranks

RATE, BATCH, STEPS = 0.5, 4, 8
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


def train_one_weight(delay: int) -> Weights:
    """Return the weight after each step."""
    config = configure(
        definition.load("galaxy_shape", "mini"),
        overrides=["compile=off", "precision=fp32", f"global_batch_size={BATCH}"],
        seed=1,
    )
    with start_ranks() as ranks:
        task = delay_gradients(OneWeight, delay)(config, ranks)
        task.build()
        weights = []
        for number in range(1, STEPS + 1):
            task.train(Block(number, task.samples, number * BATCH), lambda _: None)
            weights.append(task.model.weight.item())
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


def test_a_task_keeps_no_more_versions_than_it_needs() -> None:
    config = configure(definition.load("galaxy_shape", "mini"), overrides=["compile=off"], seed=1)
    task = delay_gradients(OneWeight, 2)(config, TorchRanks(0, 1, torch.device("cpu")))
    task.build()
    task.train(Block(1, 0, 6 * config.global_batch_size), lambda _: None)
    assert len(task.loss_and_gradients.versions) == 3
