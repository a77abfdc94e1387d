"""kfac: the formats in which factors and gradients travel, as settings and measured."""

import dataclasses
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.benchmarks.kfac.hyperparameters import Settings, make_options
from cepheid.measure.studies.epochs import load_comparison
from cepheid.measure.studies.speed import kfac as rounding
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.benchmarks.test_kfac import FULL, MINI, SWITCHES, build_task, make_subject
from tests.tasks import ALONE

TWO = TorchRanks(0, 2, torch.device("cpu"))


def test_formats_of_what_travels_are_execution_settings(data_root: Path) -> None:
    task = build_task(data_root, "kfac_factor_format=float16", "kfac_gradients=bfloat16")
    options = task.preconditioner.options
    assert (options.factor_format, options.gradient_format) == ("float16", "bfloat16")
    with pytest.raises(
        UserError, match="kfac_gradients=bfloat16: it has no effect without kfac_inv"
    ):
        build_task(data_root, "kfac_inverses=everywhere", "kfac_gradients=bfloat16")


@pytest.mark.parametrize(
    ("old", "current"),
    [
        (["kfac_float21=on"], "float21"),
        (["kfac_half_factors=float16"], "float16"),
        (["kfac_float21=off", "kfac_half_factors=off", "kfac_overlap=off"], "float32"),
    ],
)
def test_old_keys_of_formats_mean_the_same(old: list[str], current: str) -> None:
    config = configure(MINI, overrides=old)
    assert config.execution.read(Settings).kfac_factor_format == current
    assert config.execution.own.keys() == configure(MINI).execution.own.keys()
    assert all("from the next one on, " in note for note in config.notes)
    with pytest.raises(UserError, match="already travel as float21; fix: set kfac_factor_format="):
        configure(MINI, overrides=["kfac_float21=on", "kfac_half_factors=float16"])


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize(
    "override", ["kfac_simulated_ranks=4", "kfac_sums=as_sent", "kfac_overlap=on"]
)
def test_what_only_studies_compare_is_refused_in_a_run(override: str, division: str) -> None:
    with pytest.raises(UserError, match=f"--set {override}: only studies compare it now.*; fix: "):
        configure(MINI, division=division, overrides=[override])


def test_ranks_are_simulated_in_a_study(data_root: Path) -> None:
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
        (
            ["kfac_simulated_ranks=8", "opt_preconditioner=none"],
            "=8: it has no effect without opt_preconditioner=kfac; fix: ",
        ),
        (["kfac_simulated_ranks=8", "weight_update=sharded"], "ranks=8: with weight_up.*; fix: "),
        (["kfac_simulated_ranks=8", "kfac_overlap=on"], "ranks=8: nothing is sent.*; fix: "),
        (["kfac_simulated_ranks=100"], "ranks=100: 8 samples at once cannot be shared.*; fix: "),
        (
            ["kfac_simulated_ranks=8", "micro_batch=4", "model_bn_span=4"],
            "ranks=8: 4 samples at once.*; fix: ",
        ),
    ],
)
def test_simulated_ranks_without_effect_are_refused(
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
def test_the_arms_that_compare_formats_are_accepted(
    name: str, scale: definition.Definition
) -> None:
    comparison = load_comparison("kfac", scale.scale, name)
    chosen = add_switches(scale, comparison.switches)
    for arm in comparison.arms:
        options = make_options(configure(chosen, division="open", overrides=arm.overrides), ALONE)
        assert options.simulated_ranks == (8 if scale is MINI else 0)


def test_formats_are_measured_with_k_fac_on_one_rank(data_root: Path) -> None:
    subject = make_subject(data_root)
    with pytest.raises(UserError, match=r"opt_preconditioner=none: .*; fix: leave it out"):
        rounding.compare_formats(
            dataclasses.replace(subject, overrides=["opt_preconditioner=none"])
        )
    with pytest.raises(UserError, match="on one rank, and there are 2; fix: start one process"):
        rounding.compare_formats(dataclasses.replace(subject, ranks=TWO))


def test_formats_with_fewer_bits_change_the_update_more(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "SETTLE_UPDATES", 1)
    facts = rounding.compare_formats(make_subject(data_root)).facts["roundings"]
    assert len(facts) == 3 * len(rounding.DAMPINGS)
    change = {(each["form"], each["damping"]): each["change"] for each in facts}
    for damping in rounding.DAMPINGS:
        assert 0 < change["float21", damping] < change["bfloat16", damping]
    assert change["bfloat16", 1e-2] < change["bfloat16", 1e-6]
