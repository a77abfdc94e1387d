"""kfac: what it adds to resnet50 (K-FAC, mixup, erasing, its schedule); the contract tests have the
rest."""

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.benchmarks.kfac import after_run
from cepheid.benchmarks.kfac.hyperparameters import make_schedule
from cepheid.benchmarks.kfac.model import RunningMixup, erase_rectangles, normalize_weights
from cepheid.benchmarks.kfac.preconditioner import KfacPreconditioner
from cepheid.measure.engine.byte_counts import measure_peak_bytes
from cepheid.measure.engine.phases import StepProfiler
from cepheid.measure.studies.costs.declared import load_costs
from cepheid.measure.studies.epochs import load_comparison
from cepheid.reference.optim.lars import BUFFER
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests import tasks
from tests.distributed import on_ranks
from tests.prepared import prepare

FULL, MINI = (definition.load("kfac", scale) for scale in ("full", "mini"))
SWITCHES = {  # of the studies
    **load_costs("kfac", "mini").switches,
    **load_comparison("kfac", "mini", "formats").switches,
    **load_comparison("kfac", "mini", "intervals").switches,
}


def build_task(data_root: Path, *overrides: str, ranks: TorchRanks = tasks.ALONE) -> Any:
    """The task of a narrow network with its data open."""
    task = tasks.build(
        tasks.configure_small(add_switches(MINI, SWITCHES), data_root, *overrides, width=4), ranks
    )
    task.model.train()
    return task


def weights_after(task: Any, steps: int) -> Any:
    """All weights, flat."""
    for _ in range(steps):
        task.step()
    return tasks.flatten_weights(task)


def test_the_scales_have_the_rates_of_chainerkfac_and_the_pictures_of_resnet50() -> None:
    config = configure(FULL)
    schedule, epoch = make_schedule(config), FULL.train_samples
    assert schedule.rate(epoch // 2) == schedule.rate(epoch) == 8.18e-3
    assert schedule.rate(27 * epoch) == pytest.approx(8.18e-3 * 0.5**11)
    assert schedule.rate(53 * epoch) == 0
    assert config.hyperparameters["opt_momentum"] == 0.997
    other = definition.load("resnet50", "mini")
    assert (MINI.data, MINI.data_digest) == (other.data, other.data_digest)
    overrides = [
        "opt_learning_rate_warmup_epochs=2",
        "opt_learning_rate_decay_start_epochs=4",
        "opt_learning_rate_decay_epochs=8",
        "opt_learning_rate_decay_poly_power=1",
        "opt_base_learning_rate=1",
    ]
    schedule = make_schedule(configure(MINI, overrides=overrides))
    rates = [schedule.rate(at * MINI.train_samples) for at in (1, 2, 3, 4, 6, 8, 9)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 0.5, 0, 0])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("opt_preconditioner=shampoo", "knows kfac, none"),
        ("kfac_inverses=everywhere", "kfac_inverses=distributed"),
        ("precision=fp16", "leave weight_update replicated"),
    ],
)
def test_what_cannot_be_is_told_before_a_run(data_root: Path, override: str, says: str) -> None:
    sharded = [] if override.startswith("opt") else ["weight_update=sharded"]
    with pytest.raises(UserError, match=says):
        build_task(data_root, override, *sharded)


def test_without_k_fac_all_else_is_equal(data_root: Path) -> None:
    plain, preconditioned = (
        build_task(data_root, f"opt_preconditioner={name}") for name in ("none", "kfac")
    )
    assert torch.equal(weights_after(plain, 0), weights_after(preconditioned, 0))
    torch.testing.assert_close(
        tasks.take_batch(plain), tasks.take_batch(preconditioned), rtol=0, atol=0
    )
    assert tasks.run_backward(plain) == tasks.run_backward(preconditioned)
    assert not isinstance(plain.preconditioner, KfacPreconditioner)
    assert not torch.equal(weights_after(plain, 1), weights_after(preconditioned, 1))


@pytest.mark.parametrize("size", [1, 2])
def test_mixup_goes_on_from_what_was_mixed(size: int) -> None:
    batches = [
        (torch.full((2, 2), label + 1, dtype=torch.uint8), torch.eye(3)[[label, label]])
        for label in range(3)
    ]
    mixup = RunningMixup(2)
    for step, (share, batch) in enumerate(zip((0.1, 0.5, 0.25), batches, strict=True)):
        for first in range(0, 2, size):  # in pieces, or whole
            piece = batch[0][first : first + size], batch[1][first : first + size]
            images, labels = mixup.mix(piece, 2 * step, first, share)
            assert images[0].tolist() == pytest.approx([[1, 1.5, 1.875][step]] * 2)
    assert labels[0].tolist() == pytest.approx([0.375, 0.375, 0.25])
    assert mixup.batch is not None
    assert mixup.batch[0].tolist() == [[1.875, 1.875]] * 2


def test_large_batches_have_no_second_copy_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (1030, 8, 8, 3), generator=generator, dtype=torch.uint8)
    labels = torch.eye(4).repeat(300, 1)[:1030]
    before = images.flip(0).float(), labels.flip(0)
    expected = [before[0].lerp(images.float(), 0.3), before[1].lerp(labels, 0.3)]
    mixup = RunningMixup(1030)
    mixup.resume(*before)
    peak = measure_peak_bytes(lambda: mixup.mix((images, labels), 0, 0, 0.3))
    assert peak < before[0].nbytes / 3
    torch.testing.assert_close(mixup.batch or (), expected, rtol=0, atol=0)
    draws = np.random.default_rng(1)
    assert measure_peak_bytes(lambda: erase_rectangles(images, 0.5, draws, 0, 1030)) < images.nbytes


@pytest.mark.parametrize("available", [2**40, 0])  # 0: what is mixed lies in a file
def test_a_share_in_pieces_is_mixed_as_a_whole_one(
    available: int, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=available))
    settings = ["mixup_alpha=0.4", "random_erasing_probability=0.5", "model_bn_span=2"]
    whole, pieces = (
        build_task(data_root, *settings, f"micro_batch={size}") for size in ("whole", "2")
    )
    for _ in range(3):
        (share,), parts = whole.next_pieces(), list(pieces.next_pieces())
        assert [len(part.inputs) for part in parts] == [2, 2, 2, 2]
        assert torch.equal(share.inputs, torch.cat([part.inputs for part in parts]))
        assert torch.equal(share.targets, torch.cat([part.targets for part in parts]))
        for task in (whole, pieces):
            task.samples += 8


def test_labels_are_mixed_with_the_pictures(data_root: Path) -> None:
    task = build_task(data_root, "mixup_alpha=0.4")
    for _ in range(2):
        images, labels = tasks.take_batch(task)
        task.samples += 8
    assert images.dtype == torch.float32
    assert labels.sum(1).tolist() == pytest.approx([1.0] * 8)
    assert (labels > 0).sum() > 8


def test_weights_are_normalised() -> None:
    first, last = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
    normalize_weights(torch.nn.Sequential(first, last))
    assert float(first.weight.detach().norm()) == pytest.approx(4.0)
    assert float(last.weight.detach().norm()) == pytest.approx(8**0.5)


def test_erasing_takes_a_rectangle_of_the_published_area_on_any_number_of_ranks() -> None:
    images = torch.zeros(400, 40, 40, 3, dtype=torch.uint8)
    erase_rectangles(images, 0.5, np.random.default_rng(1), 0, 400)
    gone = images.ne(0)
    shares = gone.any(3).flatten(1).float().mean(1)
    assert 0.4 < (shares > 0).float().mean() < 0.6
    assert shares.max() <= 0.25 + 0.02
    assert shares[shares > 0].min() >= 0.01
    one = gone[shares > 0][0].any(2)
    assert one.sum() == one.any(0).sum() * one.any(1).sum()
    whole, half = (torch.zeros(n, 16, 16, 3, dtype=torch.uint8) for n in (8, 4))
    erase_rectangles(whole, 0.5, np.random.default_rng(1), 0, 8)
    erase_rectangles(half, 0.5, np.random.default_rng(1), 4, 8)
    assert half.any()
    assert torch.equal(whole[4:], half)


def test_plain_resnet_50_is_closed_too(data_root: Path) -> None:
    chosen = dataclasses.replace(FULL, data=tasks.shrink(MINI).data)
    prepare(chosen.data, data_root)
    for variant in ("d", "v1_5"):
        settings = [f"model_variant={variant}", "precision=fp32"]
        config = configure(chosen, overrides=settings, data_root=data_root, seed=3)
        meta = torch.device("meta")
        with meta:
            count = tasks.create(config, TorchRanks(0, 1, meta)).build()
        assert count == FULL.count_parameters(config.hyperparameters)
    assert FULL.count_parameters({"model_variant": "v1_5"}) != FULL.model["parameters"]


def test_the_published_form_of_the_update(data_root: Path) -> None:
    task = build_task(
        data_root,
        "opt_momentum_form=unscaled",
        "opt_momentum_follows_rate=true",
        "opt_weight_normalisation=true",
        "mixup_alpha=0.4",
    )
    weights_after(task, 2)
    group = task.optimizer.param_groups[0]
    share = task.shape.schedule.rate(16) / task.shape.schedule.peak
    assert group["momentum"] == pytest.approx(0.9 * share)
    assert float(task.model.conv1.weight.detach().norm()) == pytest.approx((2 * 4) ** 0.5)


def test_a_plain_update_is_measured_and_changes_nothing(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_run, "PLAIN_TURNS", 2)
    task, other = (build_task(data_root, "mixup_alpha=0.4") for _ in range(2))
    for each in (task, other):
        weights_after(each, 3)
    assert task.preconditioner.kfac is not None
    known = task.preconditioner.kfac.state_dict()
    assert task.measure_afterwards()["plain_update_ms"] > 0
    assert task.samples == other.samples
    rates = [[group["lr"] for group in each.optimizer.param_groups] for each in (task, other)]
    assert rates[0] == rates[1]
    after = task.preconditioner.kfac.state_dict()
    for name, factor in known["factors"].items():
        assert factor["interval"] == after["factors"][name]["interval"]
    torch.testing.assert_close(weights_after(other, 2), weights_after(task, 2), rtol=0, atol=0)
    assert build_task(data_root, "opt_preconditioner=none").measure_afterwards() == {}


@pytest.mark.parametrize(
    ("settings", "is_half"),
    [
        (["precision=bf16"], True),
        (["precision=bf16", "kfac_products=fp32"], False),
        (["precision=fp32"], False),
        (["precision=fp32", "kfac_products=bf16"], True),
    ],
)
def test_products_are_computed_as_the_model_unless_asked_otherwise(
    data_root: Path, settings: list[str], is_half: bool
) -> None:
    assert build_task(data_root, *settings).preconditioner.kfac.options.bfloat16_products == is_half


def test_the_report_tells_how_stale_factors_were(data_root: Path) -> None:
    task = build_task(data_root, "kfac_stale_tolerance=9")
    weights_after(task, 6)
    staleness, inverses = task.report(lambda done, total: None)
    made = sum(row["number"] * row["refreshes of each, mean"] for row in staleness.rows)
    assert made == sum(
        interval.refreshes for interval in task.preconditioner.kfac.intervals.values()
    )
    assert made < 6 * len(task.preconditioner.kfac.intervals)
    assert sum(row["share"] for row in inverses.rows) == 1
    assert not build_task(data_root, "opt_preconditioner=none").report(lambda done, total: None)


def test_the_step_profiler_tells_factors_and_inverses_apart(data_root: Path) -> None:
    task = build_task(data_root)
    task.phase = profiler = StepProfiler(task.synchronize)
    task.step()
    assert all(
        profiler.seconds[phase] > 0 for phase in ("forward", "backward", "factors", "inverse")
    )


def weights_on_this_rank(data_root: Path, *overrides: str) -> list[float]:
    after_run.PLAIN_TURNS = after_run.PLAIN_UPDATES = 1  # each rank is a process of its own
    with start_ranks() as ranks:
        task = build_task(data_root, "kfac_stale=false", *overrides, ranks=ranks)
        weights_after(task, 1)
        assert task.measure_afterwards()["plain_update_ms"] > 0  # which changes nothing
        flat = weights_after(task, 1)
    return list(map(float, flat[::7]))


@pytest.mark.parametrize(
    "overrides",
    [
        ("weight_update=sharded",),
        ("kfac_inverses=everywhere", "kfac_overlap=on"),
        # In d no 1×1 convolution strides. With 4 channels, last in memory, the backward pass of
        # such a one writes beyond its memory (torch 2.13, processors); real networks have 16.
        ("network=resnet18", "model_variant=d"),
        pytest.param(("network=resnet101", "weight_update=sharded"), marks=pytest.mark.slow),
    ],
    ids=["algorithm 1", "inverses everywhere, overlap", "resnet18", "resnet101"],
)
def test_two_ranks_equal_one(data_root: Path, overrides: tuple[str, ...]) -> None:
    assert_ranks_equal_one(2, data_root, *overrides)


def assert_ranks_equal_one(count: int, data_root: Path, *overrides: str) -> None:
    """Require of ranks with these settings what one rank computes with those of the model."""
    build_task(data_root)
    alike = [each for each in overrides if each.startswith(("network", "model", "kfac_fisher"))]
    (alone,) = on_ranks(1, weights_on_this_rank, data_root, *alike)
    first, *others = on_ranks(count, weights_on_this_rank, data_root, *overrides)
    assert all(other == first for other in others)
    assert first == pytest.approx(alone, rel=1e-3, abs=1e-4)


def _state_on_this_rank(data_root: Path) -> tuple[str, list[str]]:
    with start_ranks() as ranks:
        task = build_task(data_root, "mixup_alpha=0.4", "kfac_stale=false", ranks=ranks)
        weights_after(task, 1)
        state = task.state()
    averages = [kept["tensors"][0] for kept in state["kfac"]["factors"].values()]
    return str([float(average.norm()) for average in averages]), list(state["mixed"])


def test_each_of_several_ranks_has_all_factors_to_save(data_root: Path) -> None:
    build_task(data_root)
    first, second = on_ranks(2, _state_on_this_rank, data_root)
    assert first == second
    assert first[0] != "[]"
    assert first[1] == []


def _resume_on_this_rank(data_root: Path) -> tuple[bool, list[float], bytes]:
    """Whether a resumed task trains on with the same bits, weights, and what a rank saves."""
    settings = ("weight_update=sharded", "mixup_alpha=0")
    with start_ranks() as ranks:
        straight, resumed = (build_task(data_root, *settings, ranks=ranks) for _ in range(2))
        assert not straight.state()["optimizer"]["state"]
        weights_after(straight, 2)
        saved = io.BytesIO()
        torch.save(straight.state(), saved)
        resumed.restore(torch.load(io.BytesIO(saved.getvalue())))
        weights = weights_after(straight, 2)
        are_alike = torch.equal(weights, weights_after(resumed, 2))
        return are_alike, weights[::7].tolist(), saved.getvalue()


def test_training_goes_on_bit_for_bit_where_two_ranks_share_the_update(data_root: Path) -> None:
    alone = build_task(data_root, "mixup_alpha=0")
    first, second = on_ranks(2, _resume_on_this_rank, data_root)
    assert first[0]
    assert second[0]
    assert first[1] == second[1]
    states = [torch.load(io.BytesIO(saved)) for _, _, saved in (first, second)]
    momentum, others = (state["optimizer"]["state"] for state in states)
    assert len(momentum) == len(list(alone.model.parameters()))
    for place, values in momentum.items():  # each rank has that of all layers
        assert values[BUFFER].any()
        assert torch.equal(values[BUFFER], others[place][BUFFER])
    alone.restore(states[0])  # any number of ranks can go on
    assert weights_after(alone, 2)[::7].tolist() == pytest.approx(first[1], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("alpha", ["0", "0.4"])
def test_noise_has_the_form_of_batches(data_root: Path, alpha: str) -> None:
    task = build_task(data_root, f"mixup_alpha={alpha}")  # else it would compile in the timed part
    for made, read in zip(task.draw_noise(8), tasks.take_batch(task), strict=True):
        assert (made.shape, made.dtype) == (read.shape, read.dtype)


def test_training_goes_on_bit_for_bit_with_mixup(data_root: Path) -> None:
    straight, broken_off, resumed = (build_task(data_root, "mixup_alpha=0.4") for _ in range(3))
    tasks.train(straight, 32)
    tasks.train(broken_off, 16)
    resumed.restore(broken_off.state())
    tasks.train(resumed, 32)
    assert torch.equal(weights_after(straight, 0), weights_after(resumed, 0))
