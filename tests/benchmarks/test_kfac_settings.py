"""kfac: its Fisher matrices, damping, formats and networks, what it refuses, what a plan notes."""

import dataclasses
from pathlib import Path

import pytest
import torch

from cepheid.benchmarks.kfac.hyperparameters import make_damping_schedule, make_options
from cepheid.measure.studies.costs.declared import load_costs
from cepheid.measure.studies.epochs import load_comparison
from cepheid.measure.studies.speed import kfac as speed
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from tests.benchmarks.test_kfac import (
    FULL,
    MINI,
    SWITCHES,
    assert_ranks_equal_one,
    build_task,
    weights_after,
)
from tests.benchmarks.test_kfac_studies import TWO, make_subject
from tests.tasks import ALONE, create


def test_fisher_matrices_that_cannot_be_are_told_before_a_run(data_root: Path) -> None:
    with pytest.raises(UserError, match="knows only empirical, sampled, sampled_2"):
        configure(MINI, division="open", overrides=["kfac_fisher=sampled_3"])
    for fisher in ("exact", "gauss_newton"):
        config = configure(FULL, division="open", overrides=[f"kfac_fisher={fisher}"])
        with pytest.raises(UserError, match="1,000 outputs, more than 128"):
            create(config)


def test_the_gauss_newton_matrix_of_cross_entropy_is_the_exact_fisher_matrix(
    data_root: Path,
) -> None:
    """Up to signs that batch norms mix, so the layer behind all of them is compared."""
    factors = []
    for fisher in ("exact", "gauss_newton", "empirical"):
        task = build_task(data_root, f"kfac_fisher={fisher}")
        assert task.preconditioner.options.fisher == fisher
        task.step()
        factors.append(task.preconditioner.kfac.state_dict()["factors"]["fc.B"]["tensors"][1])
    exact, gauss_newton, empirical = factors
    assert torch.allclose(gauss_newton, exact, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(empirical, exact, rtol=1e-2)


@pytest.mark.parametrize("fisher", ["sampled_2", "exact"])
def test_the_fisher_matrix_of_pieces_is_that_of_the_batch(data_root: Path, fisher: str) -> None:
    settings = [f"kfac_fisher={fisher}", "kfac_stale=false", "model_bn_span=4"]
    whole, pieces = (build_task(data_root, *settings, *more) for more in ((), ("micro_batch=4",)))
    expected = weights_after(whole, 1)
    assert torch.allclose(weights_after(pieces, 1), expected, rtol=1e-3, atol=1e-4)
    empirical = build_task(data_root, *settings[1:])
    assert not torch.allclose(weights_after(empirical, 1), expected, rtol=1e-3, atol=1e-4)


SLOW = [  # seconds each, or on four ranks
    *((2, fisher) for fisher in ("exact", "gauss_newton")),
    *((4, fisher) for fisher in ("sampled", "sampled_2", "exact", "gauss_newton")),
]


@pytest.mark.parametrize(
    ("ranks", "fisher"),
    # Draws of sampled_2 belong to samples, not to ranks.
    [(2, "sampled_2"), *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_ranks_equal_one_with_their_own_fisher_matrix(
    ranks: int, fisher: str, data_root: Path
) -> None:
    assert_ranks_equal_one(ranks, data_root, f"kfac_fisher={fisher}")


@pytest.mark.parametrize(
    "override", ["kfac_factor_format=float16", "kfac_overlap=on", "kfac_gradients=float21"]
)
def test_settings_of_k_fac_are_refused_without_it(data_root: Path, override: str) -> None:
    build_task(data_root, override)
    with pytest.raises(UserError, match=f"{override}: it has no effect without opt_precond"):
        build_task(data_root, override, "opt_preconditioner=none")
    for chosen in (FULL, MINI):  # with which K-FAC is measured against SGD
        baseline = load_costs("kfac", chosen.scale).baseline.overrides
        definition = add_switches(chosen, SWITCHES)
        config = configure(definition, division="open", overrides=[override, *baseline])
        make_options(config, ALONE)
    subject = dataclasses.replace(make_subject(data_root), overrides=(override,))
    make_options(speed._configure(subject, speed.SGD, 1), ALONE)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("preset=batch_65536", ["falls until epoch 64.5, but a run ends after 53 ep", "36.8 GiB"]),
        ("preset=batch_4096", ["2.3 GiB, in memory or, in pieces (micro_batch), in"]),
        ("global_batch_size=32", []),
    ],
)
def test_a_plan_notes_what_is_allowed_but_large(override: str, says: list[str]) -> None:
    overrides = [override, "model_bn_span=32"]
    notes = create(configure(FULL, division="open", overrides=overrides)).list_notes()
    assert len(notes) == len(says)
    for note, part in zip(notes, says, strict=True):
        assert part in note


def test_damping_may_follow_a_schedule(data_root: Path) -> None:
    with pytest.raises(UserError, match="the closed division has constant only"):
        configure(MINI, overrides=["kfac_damping_schedule=falling"])
    half, whole = 12_000, 24_000  # samples: half and all of the 3 epochs
    for chosen, values in (
        ("constant", (0.01, 0.01, 0.01)),
        ("falling", (0.01, 0.1**2.5, 0.001)),
        ("rising", (0.001, 0.1**2.5, 0.01)),
    ):
        config = configure(MINI, division="open", overrides=[f"kfac_damping_schedule={chosen}"])
        schedule = make_damping_schedule(config)
        found = [schedule.find_damping(samples) for samples in (0, half, whole, 2 * whole)]
        assert found == pytest.approx([*values, values[-1]])
    task = build_task(data_root, "kfac_damping_schedule=falling")
    task.step()
    assert task.preconditioner.kfac.damping == task.shape.damping.find_damping(task.samples) < 0.01


@pytest.mark.parametrize("network", ["resnet50", "resnet18"])
def test_no_layer_of_a_network_is_left_out(data_root: Path, network: str) -> None:
    assert not build_task(data_root, f"network={network}").preconditioner.kfac.left_out


def test_formats_are_execution_settings_and_ranks_simulated_in_a_study(data_root: Path) -> None:
    task = build_task(data_root, "kfac_factor_format=float16", "kfac_gradients=bfloat16")
    options = task.preconditioner.options
    assert (options.factor_format, options.gradient_format) == ("float16", "bfloat16")
    settings = ["kfac_simulated_ranks=4", "kfac_sums=as_sent", "kfac_factor_format=float16"]
    options = build_task(data_root, *settings).preconditioner.options
    assert (options.simulated_ranks, options.sums) == (4, "as_sent")
    options = build_task(data_root).preconditioner.options
    assert (options.simulated_ranks, options.sums) == (0, "float32")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["kfac_simulated_ranks=0"], "ranks=0: expected one of off, a number"),
        (["kfac_sums=as_sent"], "kfac_sums=as_sent: it has no effect without kfac_sim"),
        (["kfac_simulated_ranks=8", "kfac_sums=as_sent"], "ranks=8 .*in float32.*; fix: "),
        (["kfac_simulated_ranks=8", "opt_preconditioner=none"],
         "=8: it has no effect without opt_preconditioner=kfac; fix: "),
        (["kfac_simulated_ranks=8", "weight_update=sharded"], "ranks=8: with weight_up.*; fix: "),
        (["kfac_simulated_ranks=8", "kfac_overlap=on"], "ranks=8: nothing is sent.*; fix: "),
        (["kfac_simulated_ranks=100"], "ranks=100: 8 samples at once cannot be shared.*; fix: "),
        (["kfac_simulated_ranks=8", "micro_batch=4", "model_bn_span=4"],
         "ranks=8: 4 samples at once.*; fix: "),
        (["kfac_stale_interval=often"], "interval=often: expected one of off, a number from 1"),
        (["kfac_stale_interval=5", "kfac_stale=false"],
         "interval=5: it has no effect without kfac_stale=true; fix: "),
        (["kfac_inverses=everywhere", "kfac_gradients=bfloat16"],
         "kfac_gradients=bfloat16: it has no effect without kfac_inv"),
        (["kfac_damping_schedule=rising", "opt_preconditioner=none"],
         "without K-FAC nothing is damped; fix: leave it out"),
        # Pieces within the span of a norm: the message says what would make them possible.
        (["micro_batch=4"], "out, or set model_bn_span=4 too, which changes what"),
        (["micro_batch=3", "model_bn_span=4"], r"leave it out$"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_settings_without_effect_and_those_that_cannot_be_are_refused(
    data_root: Path, overrides: list[str], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        build_task(data_root, *overrides)


def test_simulated_ranks_are_refused_on_several_ranks() -> None:
    definition = add_switches(MINI, SWITCHES)
    config = configure(definition, division="open", overrides=["kfac_simulated_ranks=8"])
    assert make_options(config, ALONE).simulated_ranks == 8
    with pytest.raises(UserError, match=r"--set kfac_simulated_ranks=8: .*there are 2; fix: leave"):
        make_options(config, TWO)


@pytest.mark.parametrize(
    ("name", "scale"),
    [("formats", FULL), ("formats", MINI), ("formats_weakly_damped", MINI)],
    ids=["full", "mini", "weakly damped"],
)
def test_the_arms_that_compare_formats_are_accepted(name: str, scale: Definition) -> None:
    comparison = load_comparison("kfac", scale.scale, name)
    chosen = add_switches(scale, comparison.switches)
    for arm in comparison.arms:
        options = make_options(configure(chosen, division="open", overrides=arm.overrides), ALONE)
        assert options.simulated_ranks == (8 if scale is MINI else 0)


@pytest.mark.parametrize("scale", [FULL, MINI], ids=["full", "mini"])
def test_other_networks_are_choices_of_the_open_division(
    scale: Definition, data_root: Path
) -> None:
    with pytest.raises(UserError, match="network=resnet18: the closed division has resnet50 only"):
        configure(scale, overrides=["network=resnet18"])
    with pytest.raises(UserError, match="network=resnet19"):
        configure(scale, division="open", overrides=["network=resnet19"])
    meta = torch.device("meta")
    counts = []
    for name in scale.variants["network"]:
        settings = [f"network={name}", "model_variant=v1_5"]
        config = configure(scale, division="open", overrides=settings, data_root=data_root)
        assert config.definition.digest == scale.digest
        with meta:
            counts.append(create(config, TorchRanks(0, 1, meta)).build())
    published = [25_557_032, 11_689_512, 21_797_672, 44_549_160]
    mini = [1_486_106, 703_386, 1_336_538, 2_682_906]
    assert counts == (published if scale is FULL else mini)
