"""Overrides are validated once, before anything starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import AllReduce, Grid, Parallelism, Pipelining
from cepheid.reference.session.code_digest import digest_code
from cepheid.reference.session.request import replace_old_keys
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.hyperparameters import parse_hyperparameter

MINI = definition.load("galaxy_shape", "mini")
RESNET50 = definition.load("resnet50", "mini")
KFAC = definition.load("kfac", "mini")


def test_values_are_the_defaults_or_overrides_of_their_type() -> None:
    defaults = {name: rule.default for name, rule in MINI.hyperparameters.items()}
    assert dict(configure(MINI).hyperparameters) == defaults
    asked = {"opt_base_learning_rate": 1e-4, "global_batch_size": 32}
    overrides = [f"{name}={value}" for name, value in asked.items()]
    config = configure(MINI, overrides=[*overrides, "threads=3"])
    assert dict(config.hyperparameters) == {**defaults, **asked}
    assert config.execution.threads == "3"


OPEN, FULL_KFAC = {"division": "open"}, definition.load("kfac", "full")


@pytest.mark.parametrize(
    ("chosen", "override", "asked", "message"),
    [
        (MINI, "opt_base_learning_rat=1", {}, 'did you mean "opt_base_learning_rate"'),
        (MINI, "opt_name=sgd", {}, "closed division it must be adam"),
        (MINI, "opt_adam_epsilon=1e-8", {}, "closed division it must be 1e-07"),
        (MINI, "global_batch_size=2", {}, "must be at least 4"),
        (MINI, "global_batch_size=many", {}, "must be of type int"),
        (MINI, "global_batch_size=6.5", {}, "must be of type int"),
        (MINI, "opt_base_learning_rate=nan", {}, "must be finite"),
        (MINI, "precision=fp16", {}, "expected one of auto, fp32, bf16"),
        (MINI, "compile=yes", {}, "expected one of auto, on, off"),
        (MINI, "threads=0", {}, "expected one of auto, a number"),
        (MINI, "threads=1025", {}, "expected one of auto, a number from 1 to 1,024"),
        (MINI, "preset=batch_64", {}, "galaxy_shape has no presets at mini scale; its README says"),
        (FULL_KFAC, "preset=batch_819", {}, "no such preset at full .*batch_8192.*batch_81920"),
        (MINI, "micro_batch=0", {}, "expected one of auto, whole, a number"),
        (MINI, "micro_batch=1" + "0" * 5000, {}, "expected one of auto, whole, a number"),
        (MINI, "global_batch_size", {}, "expected key=value"),
        (MINI, "global_batch_size=[1,", {}, "must be of type int"),
        (MINI, "threads=1", {"seed": -1}, "expected a number from 0"),
        (MINI, "threads=1", {"seed": 2**32}, "expected a number from 0"),
        (MINI, "threads=1", {"division": "close"}, "expected one of closed, open"),
        # The open division allows other values, but only those that the code knows.
        (MINI, "global_batch_size=fast", OPEN, "must be of type int"),
        (MINI, "global_batch_size=0", OPEN, "expected 1 or more"),
        (MINI, "opt_name=sgd", OPEN, "knows only adam"),
        (MINI, "input_scaling=log", OPEN, "expected one of asinh, none"),
        (MINI, "input_scaling=none", {}, "input_scaling=none: the closed .* --division open"),
        # Settings that ranks share have forms of their own.
        (RESNET50, "all_reduce=ring", {}, "expected one of flat, two_level, mesh, mesh:ROWS"),
        (RESNET50, "all_reduce=flat:2", {}, "only mesh has .* rows; fix: write mesh or mesh:ROWS"),
        (RESNET50, "all_reduce=mesh:0", {}, "mesh:ROWS with a number from 1 to 1,024"),
        (RESNET50, "pipeline=3", {}, "expected one of 1, 2, 4, 8, 16; also STAGES:SCHEDULE:MICRO"),
        (RESNET50, "pipeline=1:gpipe:2", {}, "with 2 stages or more"),
        (RESNET50, "pipeline=2:ring:2", {}, "the schedule 1f1b or gpipe; .* pipeline=4:1f1b:8"),
        (RESNET50, "pipeline=4:1f1b:2", {}, "2 micro-batches cannot fill 4 stages; .*=4:1f1b:4"),
    ],
    ids=lambda each: each[:40] if isinstance(each, str) else None,
)
def test_what_cannot_be_is_refused_with_the_reason(
    chosen: Definition, override: str, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        configure(chosen, overrides=[override], **asked)


def test_values_that_depend_on_each_other_are_refused_together_but_not_in_open() -> None:
    rate = parse_hyperparameter(
        "opt_base_learning_rate",
        {"default": 1e-3, "closed": {"at_most": {"global_batch_size": 1e-4}}},
    )
    related = replace(
        MINI, hyperparameters={**MINI.hyperparameters, "opt_base_learning_rate": rate}
    )
    configure(related)
    with pytest.raises(UserError, match=r"at most 0.0001 × global_batch_size, that is 0.0008"):
        configure(related, overrides=["global_batch_size=8"])
    configure(related, division="open", overrides=["global_batch_size=8"])
    config = configure(MINI, division="open", overrides=["global_batch_size=2"])
    assert config.hyperparameters["global_batch_size"] == 2


def test_code_digest_covers_the_benchmarks_that_are_imported(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / "benchmarks" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks" / name / "model.py").write_text(text)
        return digest_code(tmp_path, "kfac")

    write("kfac", "from cepheid.benchmarks.resnet50 import model\n")
    before = write("resnet50", "")
    assert write("x", "") == write("x", "# changed\n") == before
    assert write("resnet50", "# changed\n") != before


def test_derived_seeds_differ_by_run_submitter_system_and_benchmark() -> None:
    config = configure(MINI).name_system("who", "a", "c")
    assert len({config.select_run(index).seed for index in range(5)}) == 5
    assert config.select_run(0).seed == configure(MINI).name_system("who", "a", "c").seed
    assert config.seed != configure(MINI).name_system("who", "b", "c").seed
    assert config.seed != configure(MINI).name_system("else", "a", "c").seed
    full = definition.load(MINI.name, "full")
    assert config.seed != configure(full).name_system("who", "a", "c").seed
    assert config.seed == replace(config, code_digest="d").select_run(0).seed  # not of the code


def test_given_seeds_count_up_are_marked_and_runs_share_all_else() -> None:
    config = configure(MINI, seed=100)
    assert [config.select_run(index).seed for index in (0, 1, 4)] == [100, 101, 104]
    assert config.select_run(4).select_run(2).seed == 102
    assert config.seed_origin == "given"
    assert config.select_run(3).list_shared_settings() == config.list_shared_settings()
    assert configure(MINI, seed=101).list_shared_settings() != config.list_shared_settings()


def test_a_definition_may_add_settings_of_execution_and_choices() -> None:
    chosen = replace(MINI, execution={"all_reduce": ("flat", "two_level"), "precision": ("fp16",)})
    config = configure(chosen, overrides=["all_reduce=two_level", "precision=fp16"])
    assert config.execution.own == {"all_reduce": "two_level"}
    assert config.execution.precision == "fp16"
    assert configure(chosen).execution.own == {"all_reduce": "flat"}
    assert config.execution.with_setting("all_reduce", "flat").own == {"all_reduce": "flat"}


@pytest.mark.parametrize(
    ("chosen", "old", "key", "current"),
    [
        (RESNET50, "all_reduce=mesh mesh_rows=4", "all_reduce", "mesh:4"),
        (RESNET50, "all_reduce=mesh mesh_rows=auto", "all_reduce", "mesh"),
        (RESNET50, "pipeline_stages=2 pipeline_schedule=gpipe", "pipeline", "2:gpipe:4"),
        (RESNET50, "pipeline_stages=4 pipeline_micro_batches=8", "pipeline", "4:1f1b:8"),
        (RESNET50, "pipeline_stages=1 pipeline_schedule=1f1b", "pipeline", "1"),
        (KFAC, "kfac_float21=on", "kfac_factor_format", "float21"),
        (KFAC, "kfac_half_factors=float16", "kfac_factor_format", "float16"),
        (KFAC, "kfac_half_factors=off kfac_overlap=off", "kfac_factor_format", "float32"),
    ],
)
def test_old_keys_mean_the_same_and_are_noted(
    chosen: Definition, old: str, key: str, current: str
) -> None:
    overrides, notes = replace_old_keys(old.split(), chosen.execution)
    assert configure(chosen, overrides=overrides).execution.own[key] == current
    assert notes
    assert all("from the next one on, " in note for note in notes)
    assert replace_old_keys([f"{key}={current}"], chosen.execution)[1] == ()


@pytest.mark.parametrize(
    ("chosen", "old", "message"),
    [
        (RESNET50, "mesh_rows=2", "it has no effect without .*fix: set all_reduce=mesh:2"),
        (RESNET50, "pipeline_schedule=gpipe", "without .*fix: set pipeline=2:gpipe:4"),
        (KFAC, "kfac_float21=on kfac_half_factors=float16", "already travel as float21; fix: set"),
        (KFAC, "kfac_simulated_ranks=4", "only studies compare it now.*; fix: leave"),
    ],
)
def test_an_old_key_that_means_nothing_today_is_refused(
    chosen: Definition, old: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        replace_old_keys(old.split(), chosen.execution)


def test_settings_that_ranks_share_have_types() -> None:
    overrides = ["pipeline=8", "all_reduce=mesh:2", "spatial_partitions=2x2"]
    assert configure(RESNET50, overrides=overrides).execution.parallelism == Parallelism(
        all_reduce=AllReduce("mesh", 2),
        spatial_partitions=Grid(2, 2),
        pipeline=Pipelining(8, "1f1b", 8),
    )


def test_a_variant_is_for_the_open_division_and_keeps_the_digest() -> None:
    varied = configure(MINI, division="open", overrides=["input_scaling=none"])
    assert varied.definition.model["input_scaling"] == "none"
    assert varied.definition.digest == MINI.digest
    assert varied.execution.own == {"input_scaling": "none", "pipeline": "1"}
    assert configure(MINI, overrides=["input_scaling=asinh"]).definition == MINI


PRESETS = [
    (name, scale, preset)
    for name in definition.names()
    for scale in definition.scales(name)
    for preset in definition.load(name, scale).presets
]


@pytest.mark.parametrize(("name", "scale", "preset"), PRESETS)
def test_the_closed_division_accepts_every_preset(name: str, scale: str, preset: str) -> None:
    chosen = definition.load(name, scale)
    config = configure(chosen, overrides=[f"preset={preset}"])
    stated = [override.split("=")[0] for override in chosen.presets[preset]]
    assert len(set(stated)) == len(stated)
    assert preset == f"batch_{config.global_batch_size}"


def test_settings_after_a_preset_replace_its_own() -> None:
    config = configure(FULL_KFAC, overrides=["preset=batch_8192", "opt_momentum=0.9"])
    values = config.hyperparameters
    assert (values["global_batch_size"], values["opt_momentum"]) == (8192, 0.9)
    config = configure(FULL_KFAC, overrides=["opt_momentum=0.9", "preset=batch_8192"])
    assert config.hyperparameters["opt_momentum"] == 0.993
