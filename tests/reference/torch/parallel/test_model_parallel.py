"""Ranks that share a model compute what one rank computes, and refuse what they cannot share."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.reference.run import checkpoint
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.parallel.plan import Sharing
from cepheid.reference.torch.parallel.tensor_parallel import ColumnLinear, Cut, TensorParallel
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules.definition import BENCHMARKS_VARIABLE, Block
from cepheid.rules.errors import UserError
from tests import tiny
from tests.distributed import on_ranks
from tests.processes import cepheid, run_ranks
from tests.tasks import build, copy_weights
from tests.test_benchmark_contract import configuration

GENTLE = "opt_base_learning_rate=0.002"  # so that what differs by rounding stays so
HALVES = ["pipeline=2:1f1b:2"]
NORMS = "model_bn_span=2"
ON_TWO = {
    # Passes of 3 and fewer sentences: micro-batches are filled up, and shapes change in a step.
    "transformer, 1f1b": ("transformer", ["pipeline=2", "pass_tokens=512"]),
    "transformer, tensors": ("transformer", ["tensor_ranks=2"]),
    "resnet50, 1f1b": ("resnet50", [*HALVES, NORMS]),
    "galaxy_bnn, gpipe": ("galaxy_bnn", ["pipeline=2:gpipe:1"]),
}
ON_FOUR = {
    "transformer, 2 replicas": ("transformer", HALVES),
    "transformer, 4 stages": ("transformer", ["pipeline=4"]),
    "transformer, 2 replicas, tensors": ("transformer", ["tensor_ranks=2"]),
    "transformer, 4 parts of tensors": ("transformer", ["tensor_ranks=4"]),
    "resnet50, 2 replicas": ("resnet50", [*HALVES, NORMS]),
    "resnet50, 4 stages": ("resnet50", ["pipeline=4", "model_bn_span=2"]),
    "galaxy_shape, 4 stages": ("galaxy_shape", ["pipeline=4"]),
    "galaxy_bnn, 2 replicas": ("galaxy_bnn", HALVES),
}
ALONE = ("pipeline", "tensor")  # settings that one rank leaves out


def _train(task: Any, number: int) -> float:
    loss: float = task.train(Block(number, 16 * number - 16, 16 * number), lambda _: None)
    return loss


def _train_all(
    cases: dict[str, tuple[str, list[str]]], data_root: Path, folder: Path
) -> dict[str, Any]:
    """Losses, quality, weights of each case; also when it goes on from its checkpoint."""
    results = {}
    with start_ranks() as ranks:
        for case, (name, settings) in cases.items():
            config = configuration(name, data_root, GENTLE, *settings, seed=5)
            task = build(config, ranks)
            task.predict_noise = lambda: None  # a search of its longest translation takes seconds
            task.warm_up()
            losses = [_train(task, 1)]
            state = task.state()
            if ranks.is_first:
                checkpoint.save(folder / f"{case}.pt", state)
            ranks.barrier()
            losses.append(_train(task, 2))
            task.evaluation_batch = 4
            resumed = build(config, ranks)
            resumed.model.train()
            for precision in ("bf16", "fp32"):  # as autotuning tries them, on the same shapes
                resumed.step_on_noise(resumed.execution.with_setting("precision", precision))
            resumed.restore(checkpoint.load(folder / f"{case}.pt"))
            losses.append(_train(resumed, 2))
            results[case] = losses, task.evaluate(), _sample(copy_weights(task))
    return results


def _sample(weights: Mapping[str, Any]) -> list[float]:
    flat = torch.cat([values.detach().float().flatten() for values in weights.values()])
    values: list[float] = flat[::97].tolist()
    return values


def _assert_as_alone(
    cases: dict[str, tuple[str, list[str]]], world_size: int, data_root: Path, folder: Path
) -> None:
    for name in {name for name, _ in cases.values()}:
        configuration(name, data_root)  # data are prepared before the ranks start
    first, *others = on_ranks(world_size, _train_all, cases, data_root, folder)
    assert all(other == first for other in others), "the ranks disagree"
    for case, (name, settings) in cases.items():
        own = [setting for setting in settings if not setting.startswith(ALONE)]
        config = configuration(name, data_root, GENTLE, *own, seed=5)
        alone, resumed = build(config), build(config)
        expected = [_train(alone, 1), _train(alone, 2)]
        alone.evaluation_batch = 4
        (one, two, two_again), quality, weights = first[case]
        assert [one, two] == pytest.approx(expected, rel=1e-5), case
        assert two_again == pytest.approx(two, rel=1e-6), f"{case}: from a checkpoint"
        assert quality == pytest.approx(alone.evaluate(), rel=1e-4), case
        assert weights == pytest.approx(_sample(copy_weights(alone)), rel=1e-4, abs=1e-5), case
        resumed.restore(checkpoint.load(folder / f"{case}.pt"))
        assert _train(resumed, 2) == pytest.approx(two, rel=1e-5), f"{case}: alone from then on"


def test_two_ranks_share_a_model(data_root: Path, tmp_path: Path) -> None:
    _assert_as_alone(ON_TWO, 2, data_root, tmp_path)


@pytest.mark.slow
def test_four_ranks_share_a_model_or_two_replicas(data_root: Path, tmp_path: Path) -> None:
    _assert_as_alone(ON_FOUR, 4, data_root, tmp_path)


@pytest.mark.parametrize(("dim", "matrices"), [(0, 1), (0, 3), (1, 1), (1, 2)])
def test_parts_make_a_whole(dim: int, matrices: int) -> None:
    whole = torch.arange(72.0).view(12, 6).movedim(0, dim)
    cut = Cut(dim, matrices, 2)
    parts = [cut.take(whole, number) for number in range(2)]
    for matrix, *halves in zip(
        whole.chunk(matrices, dim), *(part.chunk(matrices, dim) for part in parts), strict=True
    ):
        assert torch.equal(torch.cat(halves, dim), matrix)
    assert torch.equal(cut.join(torch.stack(parts)), whole)


def test_a_part_of_frozen_weights_is_frozen() -> None:
    whole = torch.nn.Linear(2, 4)
    whole.weight.requires_grad_(False)
    part: Any = TensorParallel.__new__(TensorParallel)
    part.within, part.number, part.cuts, part.copy = None, 1, {}, torch.nn.Sequential(whole)
    part._replace_layer("0", ColumnLinear, dict.fromkeys(("weight", "bias"), Cut(0, 1, 2)))
    layer = part.copy[0]
    assert [p.requires_grad for p in (layer.weight, layer.bias)] == [False, True]
    assert torch.equal(layer.weight, whole.weight[2:])


@pytest.mark.parametrize(
    ("name", "world_size", "settings", "message"),
    [
        ("transformer", 2, ["pipeline=4"], "pipeline: 2 ranks cannot form replicas of 4 ranks"),
        ("transformer", 1, ["tensor_ranks=2"], "1 rank cannot form replicas of 2"),
        ("transformer", 3, ["pipeline=3"], "4 layers cannot be cut into 3 equal parts"),
        ("transformer", 12, ["pipeline=12:1f1b:16"], "choose one of 1, 2, 4$"),
        ("transformer", 8, ["tensor_ranks=8"], "4 heads cannot be cut into 8 equal parts"),
        ("transformer", 4, ["pipeline=2", "tensor_ranks=2"], "leave one of them at 1"),
        ("transformer", 4, ["pipeline=4:1f1b:2"], "cannot fill 4"),
        ("resnet50", 2, ["all_reduce=mesh:3"], "2 ranks do not fill 3 rows evenly"),
        ("transformer", 2, ["tensor_ranks=2", "compile=on"], "together with compile=on"),
        ("transformer", 2, ["tensor_ranks=2", "weight_update=sharded"], "leave it out"),
        ("transformer", 2, ["pipeline=2", "micro_batch=2"], "with micro_batch=2"),
        ("resnet50", 2, ["pipeline=2", "precision=fp16"], "with precision=fp16"),
        ("resnet50", 2, ["pipeline=2", "all_reduce=two_level"], "all_reduce=two_level"),
        ("resnet50", 2, ["pipeline=2"], "whole groups of model_bn_span=8"),
        ("resnet50", 8, ["pipeline=2", NORMS], "of pipeline=4: 2 samples of a replica cannot"),
    ],
)
def test_models_that_ranks_cannot_share_are_refused(
    name: str, world_size: int, settings: list[str], message: str, data_root: Path
) -> None:
    module = importlib.import_module(f"cepheid.benchmarks.{name}.task")
    ranks = TorchRanks(0, world_size, torch.device("cpu"))
    with pytest.raises(UserError, match=message) as raised:
        find_create(module)(configuration(name, data_root, *settings), ranks)
    assert "fix: " in str(raised.value)


def test_a_run_of_two_stages_passes_the_checker(data_root: Path, tmp_path: Path) -> None:
    sizes = {"data": tiny.SIZES, "timing": tiny.TIMING, "data_digest": None}
    folder = tiny.folder_of("transformer", reachable=True, **sizes)
    environment, output = {BENCHMARKS_VARIABLE: str(folder)}, tmp_path / "out"
    line = "run transformer --scale mini --runs 1 --set precision=fp32 --set pipeline=2"
    arguments = [*line.split(), "--data", data_root, "--output", output]
    both = run_ranks(2, "cepheid.tools.cli:console", *arguments, environment=environment)
    assert [rank.returncode for rank in both] == [0, 0], both[0].stderr
    (log,) = output.glob("results/*/*/result_0.txt")
    assert '"pipeline": "2:1f1b:4"' in log.read_text()
    checked = cepheid("check", log, environment=environment)
    assert checked.returncode == 0, checked.stdout
    (weights,) = output.rglob("*.pt")
    state = checkpoint.load(weights)
    assert len(state["optimizer"]["state"]) == len(state["model"]), "of all parameters"


def test_sharing_has_one_setting() -> None:
    assert Sharing(stages=2).setting == "pipeline"
    assert Sharing(tensor_ranks=2).setting == "tensor_ranks"
