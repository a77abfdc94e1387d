"""A step in pieces is the step: norms, K-FAC, noise, ranks; pieces that fit, and those that cannot.

The contract tests compare pieces and the whole for each benchmark; here is what they leave out.
"""

import collections
import dataclasses
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.distributed import on_ranks, send_messages
from tests.tasks import assert_alike, assert_same, build, copy_weights, look_at_step, shrink, train
from tests.test_benchmark_contract import configuration

SPAN = "model_bn_span=2"  # so that batch norms of resnet50 and kfac allow pieces
GENTLE = "opt_base_learning_rate=0.002"  # so that what differs by rounding stays so


def narrow(name: str, data_root: Path, *settings: str) -> RunConfig:
    """A configuration of resnet50 or kfac with a network of a quarter of the width."""
    config = configuration(name, data_root, *settings)
    return dataclasses.replace(config, definition=shrink(config.definition, width=4))


@pytest.mark.parametrize("micro_batch", [2, 4])
def test_norms_keep_their_span(micro_batch: int, data_root: Path) -> None:
    """Statistics, too: they are those of one step, not of several."""
    whole, pieces = (
        build(narrow("resnet50", data_root, SPAN, f"micro_batch={size}"))
        for size in ("whole", micro_batch)
    )
    (loss, values), (loss_of_pieces, of_pieces) = map(look_at_step, (whole, pieces))
    assert loss_of_pieces == pytest.approx(loss, rel=1e-5)
    assert_alike(values, of_pieces, "resnet50")


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_kfac_takes_the_factors_of_all_pieces(overlap: str, data_root: Path) -> None:
    both = []
    for size in ("whole", 4):
        config = narrow("kfac", data_root, SPAN, GENTLE, "kfac_stale=false", f"micro_batch={size}")
        settings = {**config.execution.own, "kfac_overlap": overlap}
        execution = dataclasses.replace(config.execution, own=settings)
        task = build(dataclasses.replace(config, execution=execution))
        train(task, 16)
        statistics = task.preconditioner.kfac.curvature.layer_of
        both.append((copy_weights(task), {f.name: f.average for f in statistics}))
    (weights, factors), (weights_of_pieces, factors_of_pieces) = both
    assert_alike(factors, factors_of_pieces, "factors")
    assert_alike(weights, weights_of_pieces, "weights", 1e-3)


@pytest.mark.parametrize("name", ["resnet50", "kfac"])
def test_a_scaled_loss_is_scaled_in_pieces_too(name: str, data_root: Path) -> None:
    settings = [SPAN, "precision=fp16", "micro_batch=4"]
    task = build(narrow(name, data_root, *settings))
    task.warm_up()
    task.model.train()
    before = copy_weights(task)
    assert task.scaler.is_enabled()
    task.step()
    moved = max(
        float((value - before[key]).abs().max()) for key, value in copy_weights(task).items()
    )
    assert 0 < moved < 10


def test_a_run_goes_on_in_pieces_bit_for_bit(data_root: Path) -> None:
    config = configuration("galaxy_bnn", data_root, "micro_batch=4")
    straight, half = build(config), build(config)
    train(straight, 32)
    train(half, 16)
    resumed = build(config)
    resumed.restore(half.state())
    train(resumed, 32)
    assert_same(copy_weights(straight), copy_weights(resumed), "going on in pieces")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("galaxy_shape", []), ("resnet50", [SPAN])])
def test_a_compiled_step_takes_pieces(
    name: str, settings: list[str], data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced and differentiated as by ``compile=on``, but without the minutes of a C++ compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    make = narrow if name == "resnet50" else configuration
    eager = build(make(name, data_root, *settings, "micro_batch=whole"))
    compiled = build(make(name, data_root, *settings, "micro_batch=2", "compile=on"))
    (loss, values), (loss_of_pieces, of_pieces) = map(look_at_step, (eager, compiled))
    assert compiled.implementation()["training_step"] == "compiled"
    assert loss_of_pieces == pytest.approx(loss, rel=1e-5)
    assert_alike(values, of_pieces, name)


# Several ranks ----------------------------------------------------------------------------------

COLLECTIVES = [
    name for name in dir(dist) if name.startswith(("all_", "reduce", "broadcast", "gather"))
]


def _count_calls(calls: collections.Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def count(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            calls[key] += 1
            return function(*arguments, **options)

        return counted

    for key in COLLECTIVES:
        if callable(function := getattr(dist, key)):
            monkeypatch.setattr(dist, key, count(key, function))


Step = tuple[float, dict[str, list[float]], dict[str, int]]


def _steps_on_this_rank(name: str, data_root: Path, settings: list[str]) -> list[Step]:
    """The loss of a step, some gradients and how often ranks exchange: whole, then in pieces."""
    steps = []
    with start_ranks() as ranks:
        for size in ("whole", 2):
            make = narrow if name == "resnet50" else configuration
            task = build(make(name, data_root, *settings, f"micro_batch={size}"), ranks)
            calls: collections.Counter[str] = collections.Counter()
            with pytest.MonkeyPatch.context() as monkeypatch, send_messages():
                _count_calls(calls, monkeypatch)
                loss, values = look_at_step(task)
            total = float(ranks.sum(torch.tensor(loss))) / ranks.world_size
            some = {key: value.double().flatten()[::29].tolist() for key, value in values.items()}
            steps.append((total, some, dict(calls)))
    return steps


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("galaxy_shape", []),
        ("resnet50", [SPAN, "all_reduce=mesh:2"]),  # whose calls come from Python
        ("resnet50", [SPAN, "spatial_partitions=2"]),
    ],
)
def test_ranks_take_pieces(name: str, settings: list[str], data_root: Path) -> None:
    configuration(name, data_root)
    (whole, pieces), _ = on_ranks(2, _steps_on_this_rank, name, data_root, settings)
    assert pieces[0] == pytest.approx(whole[0], rel=1e-5)
    for key, values in whole[1].items():
        assert pieces[1][key] == pytest.approx(values, rel=1e-3, abs=1e-5), key
    if "spatial_partitions=2" not in settings:  # they exchange rows of each piece
        assert pieces[2] == whole[2]
        assert sum(whole[2].values()) > 0


UPDATES = [("replicated", "whole"), ("sharded", "2"), ("overlapped", "2")]


def _train_with_shared_updates(data_root: Path) -> list[list[float]]:
    """Some weights after two steps, by the kind of update and the size of pieces."""
    found = []
    with start_ranks() as ranks:
        for update, size in UPDATES:
            settings = [SPAN, GENTLE, f"weight_update={update}", f"micro_batch={size}"]
            task = build(narrow("resnet50", data_root, *settings), ranks)
            assert (task.sharded is None) == (update == "replicated")
            for compiling in ("on", "off"):  # as autotuning does, which may choose the latter
                task.use_execution(task.execution.with_setting("compile", compiling))
            assert task.sharded is None or task.sharded.is_ahead == (update == "overlapped")
            train(task, 16)
            weights = torch.cat([value.flatten() for value in copy_weights(task).values()])
            found.append(weights[::29].tolist())
    return found


def test_shared_updates_take_pieces(data_root: Path) -> None:
    """The gradients of all pieces count, and once."""
    configuration("resnet50", data_root)
    (whole, *in_pieces), _ = on_ranks(2, _train_with_shared_updates, data_root)
    for weights in in_pieces:
        assert weights == pytest.approx(whole, rel=1e-3, abs=1e-5)


# Memory -----------------------------------------------------------------------------------------


def limit_memory(name: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loss need more memory than there is if its inputs have more ``numbers``."""
    module: Any = importlib.import_module(f"cepheid.benchmarks.{name}.task")
    workload = module.WORKLOAD

    def compute_small_loss(shape: Any, network: Any, inputs: Any, targets: Any) -> Any:
        if inputs.numel() > numbers:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate …")
        return workload.compute_loss(shape, network, inputs, targets)

    monkeypatch.setattr(module, "WORKLOAD", workload.vary(compute_loss=compute_small_loss))


PIXELS = {"galaxy_shape": 6 * 64 * 64, "kfac": 3 * 40 * 40}


@pytest.mark.parametrize(
    ("name", "fits", "size", "because"),
    [
        ("galaxy_shape", 3, "2", "a step on 4 samples at once needs more"),
        ("kfac", 3, "2", "a step on 4 samples at once needs more"),
        ("galaxy_shape", 8, "whole", "the whole share of a rank fits"),
    ],
)
def test_pieces_shrink_until_a_step_fits(
    name: str, fits: int, size: str, because: str, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(name, fits * PIXELS[name], monkeypatch)
    is_kfac = name == "kfac"
    task = build(narrow(name, data_root, SPAN) if is_kfac else configuration(name, data_root))
    before = copy_weights(task)
    task.warm_up()
    assert_same(before, copy_weights(task), "weights before and after")
    execution = task.implementation()["execution"]
    assert execution["micro_batch"] == size
    assert execution["because"]["micro_batch"].startswith(because)
    assert task.step().isfinite()


def test_a_pass_of_sentences_shrinks_by_tokens(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory("transformer", 40 * 23, monkeypatch)
    config = configuration("transformer", data_root, "pass_tokens=4096")
    batch = {**config.hyperparameters, "global_batch_size": 512}
    task = build(dataclasses.replace(config, hyperparameters=batch))
    task.warm_up()
    execution = task.implementation()["execution"]
    assert execution["own"]["pass_tokens"] == "1024"
    assert "2,048 tokens needs more" in execution["because"]["pass_tokens"]
    task.open_data()
    assert task.data.pass_tokens == 1024  # of which 21 sentences are 23 long


def test_a_step_that_fits_nowhere_names_the_way_out(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory("galaxy_shape", 0, monkeypatch)
    for setting, fix in (("auto", "more ranks"), ("4", "pieces: --set micro_batch=auto")):
        task = build(configuration("galaxy_shape", data_root, f"micro_batch={setting}"))
        with pytest.raises(UserError, match=f"on [14] samples at once needs .*{fix}$"):
            task.warm_up()


def _warm_up_on_this_rank(data_root: Path) -> tuple[str, float]:
    """The pieces on this rank, of which only the second one has little memory."""
    with start_ranks() as ranks, pytest.MonkeyPatch.context() as monkeypatch:
        fits = 1000 if ranks.is_first else 2
        limit_memory("galaxy_shape", fits * PIXELS["galaxy_shape"], monkeypatch)
        task = build(configuration("galaxy_shape", data_root), ranks)
        task.warm_up()
        task.step()
        return task.implementation()["execution"]["micro_batch"], float(task.model.head.bias[0])


def test_ranks_agree_on_the_size_of_pieces(data_root: Path) -> None:
    configuration("galaxy_shape", data_root)
    first, second = on_ranks(2, _warm_up_on_this_rank, data_root)
    assert first == second
    assert first[0] == "2"


def _lack_memory_on_this_rank(data_root: Path) -> tuple[str, str]:
    """What is said where ranks share images that do not fit."""
    settings = [SPAN, "spatial_partitions=2"]
    with start_ranks() as ranks, pytest.MonkeyPatch.context() as monkeypatch:
        task = build(narrow("resnet50", data_root, *settings), ranks)
        task.warm_up()
        reason = task.implementation()["execution"]["because"]["micro_batch"]
        limit_memory("resnet50", 0, monkeypatch)
        with pytest.raises(UserError) as raised:
            build(narrow("resnet50", data_root, *settings), ranks).warm_up()
    return reason, str(raised.value)


def test_ranks_that_share_images_say_which_pieces_to_ask_for(data_root: Path) -> None:
    configuration("resnet50", data_root)
    (reason, error), _ = on_ranks(2, _lack_memory_on_this_rank, data_root)
    assert reason == "a rank cannot try a step alone"
    assert "8 samples at once" in error
    assert error.endswith("--set micro_batch=4")


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("galaxy_shape", ["micro_batch=3"], "2 or 4, or leave it out"),
        ("galaxy_shape", ["micro_batch=16"], "set micro_batch to 8"),
        ("resnet50", ["micro_batch=2", "model_bn_span=4"], "of model_bn_span samples, here 4"),
        ("kfac", ["micro_batch=4"], "here 8; fix: set micro_batch to 8"),
    ],
)
def test_pieces_of_a_wrong_size_are_refused(
    name: str, settings: list[str], says: str, data_root: Path
) -> None:
    config = configuration(name, data_root, *settings)
    with pytest.raises(UserError, match=says):
        build(config)


def test_only_training_on_torch_has_pieces() -> None:
    for name, framework in (("galaxy_shape", "keras"), ("galaxy_generation", "torch")):
        chosen = definition.load(name, "mini")
        with pytest.raises(UserError, match="no such setting"):
            configure(chosen, overrides=["micro_batch=2"], framework=framework)
        assert configure(chosen, framework=framework).execution.micro_batch == "whole"


class OtherNorm(nn.Module):
    """A network whose second norm sees what the first one has made of parameters."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = GroupBatchNorm2d(6, 1e-3, 0.9), second
        self.head = nn.Linear(6 * 64 * 64, 2)

    def forward(self, images: Any) -> tuple[Any, Any]:
        """Means and scale matrices, (n, 2) and (n, 2, 2)."""
        features = self.second(self.first(images.float())).flatten(1)
        return self.head(features), torch.eye(2).expand(len(images), 2, 2)


@pytest.mark.parametrize(
    ("norm", "says"),
    [
        (nn.BatchNorm2d(6), r"second.*over the samples of a piece"),
        (GroupBatchNorm2d(6, 1e-3, 0.9), "normalises what parameters"),
    ],
)
def test_norms_that_pieces_would_change_are_refused(
    norm: nn.Module, says: str, data_root: Path
) -> None:
    """A task of a submitter may have such norms."""
    from cepheid.benchmarks.galaxy_shape.task import WORKLOAD

    make = WORKLOAD.vary(make_network=lambda shape, norms: OtherNorm(norm))
    build(configuration("galaxy_shape", data_root), make=make).step()
    with pytest.raises(UserError, match=says):
        build(configuration("galaxy_shape", data_root, "micro_batch=4"), make=make).step()
