"""transformer with K-FAC: directions as of dense matrices, on one and on two ranks."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.benchmarks.transformer.task import WORKLOAD, Sentences
from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.run.config import RunConfig, configure
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.tasks import (
    assert_ranks_agree,
    build,
    configure_small,
    create,
    flatten_weights,
    run_backward,
    train,
)

pytest.importorskip("sentencepiece", reason="needs the extra translation")

MINI = definition.load("transformer", "mini")
NARROW: dict[str, Any] = {"layers": 1, "width": 8, "heads": 2, "feed_forward": 12}
KFAC = "opt_preconditioner=kfac"
BATCH, DAMPING = 40, 1e-5


def small_config(data_root: Path, *overrides: str) -> RunConfig:
    settings = [f"global_batch_size={BATCH}", "pass_tokens=512", "opt_base_learning_rate=0.002"]
    settings += ["opt_learning_rate_warmup_samples=0", *overrides]
    return configure_small("transformer", data_root, *settings, samples=(160, 4), **NARROW)


def build_task(config: RunConfig, **options: Any) -> Any:
    """Return a task that is ready to train, with other options of K-FAC."""

    def read_shape(config: RunConfig) -> Sentences:
        shape = WORKLOAD.read_shape(config)
        if shape.preconditioning is None:
            return shape
        changed = dataclasses.replace(shape.preconditioning.options, **options)
        return dataclasses.replace(
            shape, preconditioning=dataclasses.replace(shape.preconditioning, options=changed)
        )

    task = build(config, make=WORKLOAD.vary(read_shape=read_shape))
    task.model.train()
    return task


def compute_dense_directions(task: Any) -> dict[str, Any]:
    """(B ⊗ A + λI)⁻¹ g of all linear layers, from the tokens of all passes of the first batch."""
    inputs: dict[str, list[Any]] = {}
    slopes: dict[str, list[Any]] = {}
    places: dict[str, Any] = {}

    def keep(name: str, given: Any, output: Any) -> None:
        is_source = name.startswith("encoder") or name.endswith("source.inputs")
        real = places["source" if is_source else "target"]
        inputs.setdefault(name, []).append(given.detach()[real])
        output.register_hook(lambda slope: slopes.setdefault(name, []).append(slope[real]))

    layers = {n: m for n, m in task.model.named_modules() if isinstance(m, torch.nn.Linear)}
    for name, module in layers.items():
        module.register_forward_hook(
            lambda _, given, out: out.clone()
        )  # no view, which ReLU changes
        module.register_forward_hook(lambda _, given, out, name=name: keep(name, given[0], out))
    pieces = task.next_pieces()
    assert len(pieces) > 1
    for piece in pieces:
        places["source"], places["target"] = piece.inputs != PADDING, piece.targets != PADDING
        (piece.weight * task.compute_loss(piece.inputs, piece.targets)).backward()
    assert not all(bool((piece.inputs != PADDING).all()) for piece in pieces)
    found = {}
    for name, module in layers.items():
        rows, columns = torch.cat(inputs[name]).double(), torch.cat(slopes[name]).double()
        if module.bias is not None:
            rows = torch.cat([rows, torch.ones(len(rows), 1).double()], 1)
        a, b = rows.T @ rows / len(rows), BATCH * columns.T @ columns
        fisher = torch.kron(b, a) + DAMPING * torch.eye(len(a) * len(b))
        found[name] = torch.linalg.solve(fisher, join_gradients(module).flatten().double())
    return found


def join_gradients(module: Any) -> Any:
    """The gradients of weight and bias as rows of outputs."""
    return torch.cat([p.grad.view(len(p.grad), -1) for p in module.parameters()], 1)


def test_directions_are_those_of_dense_matrices_without_padding(data_root: Path) -> None:
    plain = build_task(small_config(data_root))
    expected = compute_dense_directions(plain)
    assert len(expected) == 4 + 7
    exact: dict[str, Any] = {
        "inverse": "eigen",
        "damping": DAMPING,
        "average_decay": 0.0,
        "rescaling": "none",
    }
    task = build_task(small_config(data_root, KFAC), **exact)
    run_backward(task)
    gradient = join_gradients(task.model.get_submodule("encoder.0.feed_forward.first"))
    other = join_gradients(plain.model.get_submodule("encoder.0.feed_forward.first"))
    assert torch.allclose(gradient, other, rtol=1e-4, atol=1e-7)
    task.preconditioner.kfac.step()
    for name, direction in expected.items():
        found = join_gradients(task.model.get_submodule(name)).flatten()
        assert (found - direction).norm() / direction.norm() < 1e-3, name
        before = join_gradients(plain.model.get_submodule(name)).flatten()
        assert (before / DAMPING - direction).norm() / direction.norm() > 1e-2, name


def test_what_stays_with_adam(data_root: Path) -> None:
    task = build_task(small_config(data_root, KFAC))
    with_adam = {p for group in task.optimizer.param_groups for p in group["params"]}
    names = [name for name, p in task.model.named_parameters() if p in with_adam]
    assert [name for name in names if "norm" not in name] == ["embedding"]
    assert len(with_adam) + len(task.preconditioner.sgd.param_groups[0]["params"]) == len(
        list(task.model.parameters())
    )
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    task.step()
    for name, parameter in task.model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
        assert parameter.grad is None


def test_training_goes_on_bit_for_bit(data_root: Path) -> None:
    config = small_config(data_root, KFAC)
    straight, broken_off, resumed = (build_task(config) for _ in range(3))
    train(straight, 120)
    train(broken_off, 80)
    resumed.restore(broken_off.state())
    train(resumed, 120)
    assert torch.equal(flatten_weights(straight), flatten_weights(resumed))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([KFAC, "compile=auto"], "K-FAC needs compile=off, because it observes layers with hooks"),
        (
            [KFAC, "weight_update=sharded"],
            "K-FAC needs weight_update=replicated, because it needs the whole gradients",
        ),
        (["kfac_damping=0.01"], "no effect without opt_preconditioner=kfac"),
    ],
)
def test_what_cannot_be_is_told_before_a_run(
    data_root: Path, overrides: list[str], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        create(small_config(data_root, *overrides))


def test_it_is_a_choice_of_the_open_division() -> None:
    with pytest.raises(UserError, match="opt_preconditioner=kfac: the closed division has none"):
        configure(MINI, overrides=[KFAC])
    assert configure(MINI, division="open", overrides=[KFAC]).definition.digest == MINI.digest


def test_two_ranks_equal_one(data_root: Path) -> None:
    settings = (KFAC, "kfac_damping=0.03")
    assert_ranks_agree(2, small_config, data_root, *settings, tolerance=1e-3)
