"""The sharded update does what the replicated one does, and its state fits any number of ranks."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from cepheid.reference.optim.lars import Lars
from cepheid.reference.run import checkpoint
from cepheid.reference.torch.parallel.mesh import RankMesh
from cepheid.reference.torch.parallel.sharded_update import ShardedUpdate
from cepheid.reference.torch.ranks.distributed import start_ranks
from tests.distributed import on_ranks

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lars": (Lars, {"lr": 0.5, "trust_coefficient": 0.1, "form": "unscaled", "corrected": True}),
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "adam": (Adam, {"lr": 0.01, "fused": True}),
}
BATCH = 8
EXACT = 1 + 1e-9  # in double precision
SMALL_BUCKET = 400  # bytes: several buckets, and weights larger than one


class Network(nn.Module):
    """Channels last, sizes that no number of ranks divides, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        self.norm = nn.GroupNorm(1, 5)
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(20, 3)
        nn.utils.convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, images: Any) -> Any:
        """Return (batch, 3), and a term with the first weights again."""
        hidden = self.norm(self.first(images)).flatten(1)
        return self.last(hidden) * self.scale + self.first.weight.square().mean()


def images() -> Any:
    return torch.randn(BATCH, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 3 + 2


def _groups(model: nn.Module, kind: str) -> list[dict[str, Any]]:
    weights = list(model.parameters())
    plain = {"adaptive": False} if kind == "lars" else {}
    return [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0, **plain},
    ]


class Training:
    """Steps of the small network on this rank, with a sharded update on several ranks."""

    def __init__(self, ranks: Any, kind: str, rows: int = 1, is_ahead: bool = False) -> None:
        torch.manual_seed(0)
        self.ranks, self.model = ranks, Network()
        share = ranks.split_batch(BATCH)
        self.mine = images()[ranks.rank * share : (ranks.rank + 1) * share]
        optimizer, options = KINDS[kind]
        self.sharded = None
        if ranks.world_size == 1:
            self.optimizer = optimizer(_groups(self.model, kind), **options)
            return
        mesh = RankMesh(ranks, (rows, ranks.world_size // rows))
        self.sharded = ShardedUpdate(
            self.model,
            mesh,
            optimizer,
            _groups(self.model, kind),
            phase=lambda _: nullcontext(),
            bucket_bytes=SMALL_BUCKET,
            is_ahead=is_ahead,
            **options,
        )
        self.optimizer = self.sharded.optimizer

    def step(self, number: int, passes: int = 1) -> None:
        """Take a step with a rate of its own, in ``passes`` parts of the batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (number + 1)
        parts = self.mine.chunk(passes)
        for part in parts:
            is_last = part is parts[-1]
            context = self.sharded.no_sync() if self.sharded and not is_last else nullcontext()
            with context:
                (self.model(part).pow(2).mean() / passes).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> list[float]:
        """All weights, once they have arrived."""
        state = self.model.state_dict()
        return [float(v) for v in torch.cat([value.flatten() for value in state.values()])]


def _train(kind: str, rows: int, is_ahead: bool, passes: int) -> tuple[list[float], Any, int]:
    """Weights and optimizer state after three steps, and the bytes of state on this rank."""
    with start_ranks() as ranks:
        training = Training(ranks, kind, rows, is_ahead)
        for number in range(3):
            training.step(number, passes)
        own = [v for s in training.optimizer.state.values() for v in s.values()]
        count = sum(v.numel() for v in own if torch.is_tensor(v) and v.ndim)
        return training.weights(), _as_numbers(training.optimizer.state_dict()), count


def _as_numbers(state_dict: Any) -> dict[str, list[float]]:
    return {
        f"{place} {key}": torch.as_tensor(value).double().flatten().tolist()
        for place, values in state_dict["state"].items()
        for key, value in values.items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("world_size", "rows", "kind", "is_ahead", "passes"),
    [
        (2, 1, "lars", False, 1),
        (2, 2, "adam", True, 2),
        pytest.param(4, 2, "lars", True, 1, marks=pytest.mark.slow),
        pytest.param(4, 1, "sgd", False, 2, marks=pytest.mark.slow),
    ],
)
def test_several_ranks_update_as_one_does(
    world_size: int, rows: int, kind: str, is_ahead: bool, passes: int
) -> None:
    weights, state, count = _train(kind, 1, False, 1)
    together = on_ranks(world_size, _train, kind, rows, is_ahead, passes)
    for other_weights, other_state, other_count in together:
        assert other_weights == pytest.approx(weights, rel=1e-4, abs=1e-6)
        assert other_weights == together[0][0]
        assert other_state.keys() == state.keys()
        for key, values in state.items():
            assert other_state[key] == pytest.approx(values, rel=1e-3, abs=1e-5), key
        assert other_count < count / world_size + 60  # weights of a few elements do not divide


def _save(kind: str, path: Path) -> None:
    """Take two steps and save weights and optimizer; all ranks give their part."""
    with start_ranks() as ranks:
        training = Training(ranks, kind)
        for number in range(2):
            training.step(number)
        state = {"model": training.model.state_dict(), "optim": training.optimizer.state_dict()}
        if ranks.is_first:
            checkpoint.save(path, state)


def _resume(kind: str, path: Path | None) -> list[float]:
    """The weights after four steps, or after two more than those that were saved."""
    with start_ranks() as ranks:
        training = Training(ranks, kind)
        if path:
            state = checkpoint.load(path)
            training.model.load_state_dict(state["model"])
            training.optimizer.load_state_dict(state["optim"])
        for number in range(2 if path else 0, 4):
            training.step(number)
        return training.weights()


@pytest.mark.parametrize("kind", ["lars", "adam"])
def test_training_resumes_on_any_number_of_ranks(kind: str, tmp_path: Path) -> None:
    straight = on_ranks(2, _resume, kind, None)[0]
    on_ranks(2, _save, kind, tmp_path / "two.pt")
    assert on_ranks(2, _resume, kind, tmp_path / "two.pt")[1] == straight  # bit for bit
    assert _resume(kind, tmp_path / "two.pt") == pytest.approx(straight, rel=1e-4, abs=1e-6)
    _save(kind, tmp_path / "one.pt")
    resumed = on_ranks(2, _resume, kind, tmp_path / "one.pt")[0]
    assert resumed == pytest.approx(straight, rel=1e-4, abs=1e-6)


class Odd(nn.Module):
    """A frozen weight, a scalar, a weight of another type, and one that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 3).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.exact = nn.Parameter(torch.tensor([EXACT], dtype=torch.float64))
        self.head = nn.Linear(3, 2)
        self.auxiliary = nn.Linear(2, 9)

    def forward(self, inputs: Any) -> Any:
        """Return (batch, 9) in training and else (batch, 2)."""
        hidden = self.head(self.frozen(inputs)) * self.scale
        return (self.auxiliary(hidden) if self.training else hidden) + 0 * self.exact.sum()


def _train_odd(kind: str) -> tuple[list[float], float]:
    """Weights after two steps with a reload between them; the largest one after loading zeros."""
    with start_ranks() as ranks:
        torch.manual_seed(0)
        model = Odd()
        share = ranks.split_batch(BATCH)
        mine = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(1))
        mine = mine[ranks.rank * share :][:share]
        make, options = KINDS[kind]
        weights = list(model.parameters())
        plain = {} if kind == "adam" else {"momentum": 0.0}  # has no state
        groups: list[dict[str, Any]] = [
            {"params": [weight for weight in weights if weight.ndim > 1]},
            {"params": [weight for weight in weights if weight.ndim <= 1], **plain},
        ]
        if ranks.world_size > 1:
            mesh = RankMesh(ranks, (1, ranks.world_size))
            make = partial(
                ShardedUpdate, model, mesh, make, phase=lambda _: nullcontext(), is_ahead=True
            )
            optimizer = make(groups, bucket_bytes=40, **options).optimizer
        else:
            optimizer = make(groups, **options)
        for _ in range(2):
            model(mine).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.load_state_dict(optimizer.state_dict())
        trained = [float(v) for value in model.state_dict().values() for v in value.flatten()]
        zeros = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
        model(mine).square().mean().backward()
        optimizer.step()
        model.eval()(mine)  # the weights that only training needs are still on their way
        model.load_state_dict(zeros)
        return trained, max(float(value.abs().max()) for value in model.state_dict().values())


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_odd_weights_are_updated_as_on_one_rank(kind: str) -> None:
    trained, _ = _train_odd(kind)
    for weights, largest in on_ranks(2, _train_odd, kind):
        assert weights == pytest.approx(trained, rel=1e-6)
        assert weights[1] == trained[1] == EXACT
        assert largest == 0


def _leave_out_a_weight() -> str:
    with start_ranks() as ranks:
        model = Odd()
        groups = [{"params": list(model.parameters())}]
        mesh = RankMesh(ranks, (1, 2))
        ShardedUpdate(model, mesh, SGD, groups, lambda _: nullcontext(), SMALL_BUCKET, lr=0.1)
        with pytest.raises(RuntimeError) as raised:
            model.eval()(torch.ones(2, 4)).sum().backward()
        return str(raised.value)


def test_a_weight_without_gradient_and_an_optimizer_of_whole_weights_are_refused() -> None:
    """As zeros it would be decayed, which one rank does not do."""
    for message in on_ranks(2, _leave_out_a_weight):
        assert "auxiliary.bias has no gradient" in message
        assert "fix: " in message
    from torch.optim import Adafactor

    model = Network()
    with pytest.raises(TypeError, match="whole weights"):
        ShardedUpdate(model, None, Adafactor, _groups(model, "sgd"), lambda _: nullcontext(), 400)  # type: ignore[arg-type]
