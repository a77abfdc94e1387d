"""Definitions: every benchmark loads, wrong ones say what is wrong, the schedule keeps rule T8."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cepheid.rules import definition
from cepheid.rules.definition import Definition, QualityTarget, Timing
from cepheid.rules.errors import UserError
from cepheid.rules.hyperparameters import Hyperparameter
from tests.compliance.small import STAR_SHAPE

PAIRS = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


def parse(scale: str = "mini", **changes: Any) -> Definition:
    return definition.parse({**copy.deepcopy(STAR_SHAPE), **changes}, scale)


@pytest.mark.parametrize(("name", "scale"), PAIRS)
def test_every_definition_loads(name: str, scale: str) -> None:
    found = definition.load(name, scale)
    assert (found.name, found.scale) == (name, scale)
    assert found.train_samples > 0
    assert found.evaluation_samples > 0
    assert len(found.digest) == 64


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UserError, match='did you mean "galaxy_shape"'):
        definition.load("galaxy_shap", "mini")
    with pytest.raises(UserError, match='has no scale "mnii"; did you mean "mini"'):
        definition.load("galaxy_shape", "mnii")


def test_a_scale_is_merged_over_what_is_common() -> None:
    mini, full = parse(), parse("full")
    assert (mini.train_samples, full.train_samples) == (100, 1000)
    assert mini.timing == Timing(init_minutes_max=10, eval_every_samples=50, max_samples=400)
    assert mini.provisional is None
    assert full.provisional


def test_a_scale_replaces_the_rule_of_a_hyperparameter_whole() -> None:
    scales = copy.deepcopy(STAR_SHAPE["scales"])
    scales["mini"]["hyperparameters"] = {"global_batch_size": {"fixed": 4}}
    found = parse(scales=scales).hyperparameters["global_batch_size"]
    assert found == Hyperparameter("global_batch_size", 4, fixed=True)


def test_parameters_may_depend_on_a_choice() -> None:
    scales = copy.deepcopy(STAR_SHAPE["scales"])
    known = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    known["opt_name"] = {"default": "adam", "choices": ["adam", "sgd"]}
    scales["mini"]["model"]["parameters_with"] = {"opt_name": {"sgd": 99}}
    found = parse(scales=scales, hyperparameters=known)
    usual = found.model["parameters"]
    assert [
        found.count_parameters(values)
        for values in ({}, {"opt_name": "adam"}, {"opt_name": "sgd"}, {"opt_name": ["sgd"]})
    ] == [usual, usual, 99, usual]
    scales["mini"]["model"]["parameters_with"] = {"opt_name": {"lars": 99}}
    with pytest.raises(UserError, match="opt_name lars, which is not one of its choices"):
        parse(scales=scales, hyperparameters=known)


def test_targets_must_be_those_of_the_quality_metrics() -> None:
    scales = copy.deepcopy(STAR_SHAPE["scales"])
    scales["mini"]["targets"] = {"rsme": 0.1, "accuracy": 0.8}
    with pytest.raises(UserError, match="targets are given for"):
        parse(scales=scales)


def test_the_digest_covers_what_rules_read_and_nothing_else() -> None:
    assert parse().digest == parse(title="Another title").digest
    assert parse().digest != parse("full").digest
    runs = {"required": 3, "drop": {"fastest": 1, "slowest": 1}}
    assert parse().digest != parse(runs=runs).digest


def test_a_definition_cannot_be_changed() -> None:
    found = parse()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.model["parameters"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [", "not valid YAML"),
        ("name: star_shape", "required property"),
    ],
)
def test_a_wrong_file_is_named(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wrong" / "benchmark.yaml"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=says) as raised:
        definition.load("wrong", "mini")
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("better", "value", "holds"),
    [
        ("lower", 0.5, True),
        ("lower", 0.51, False),
        ("higher", 0.5, True),
        ("higher", 0.49, False),
        ("lower", float("-inf"), False),
        ("higher", float("nan"), False),
    ],
)
def test_a_target_holds(better: Any, value: float, holds: bool) -> None:
    assert QualityTarget("m", better, 0.5).holds(value) is holds


def test_all_targets_must_hold() -> None:
    found = parse()
    assert found.is_reached_by({"rmse": 0.1, "accuracy": 0.8})
    assert not found.is_reached_by({"rmse": 0.1, "accuracy": 0.7})


@pytest.mark.parametrize(
    ("rule", "value", "why"),
    [
        (Hyperparameter("a", "adam", fixed=True), "sgd", "must be adam"),
        (Hyperparameter("a", "adam", fixed=True), "adam", None),
        (Hyperparameter("a", 4, minimum=2), 1, "must be at least 2"),
        (Hyperparameter("a", 4, minimum=2), True, "must be of type int"),
        (Hyperparameter("a", 4, minimum=2), 4.0, "must be of type int"),
        (Hyperparameter("a", 0.5, maximum=1), 2, "must be at most 1"),
        (Hyperparameter("a", 0.5, maximum=1), 1, None),
        (Hyperparameter("a", 0.5), float("nan"), "must be finite"),
        (Hyperparameter("a", "x", choices=("x", "y")), "z", "must be one of x, y"),
        (Hyperparameter("a", True), 1, "must be of type bool"),
    ],
)
def test_what_the_closed_division_allows(
    rule: Hyperparameter, value: object, why: str | None
) -> None:
    assert rule.find_problem(value) == why


@given(
    every=st.integers(1, 300),
    budget=st.integers(1, 2000),
    batch=st.integers(1, 700),
)
def test_the_schedule_keeps_rule_t8(every: int, budget: int, batch: int) -> None:
    found = dataclasses.replace(
        parse(), timing=Timing(10, eval_every_samples=every, max_samples=budget)
    )
    blocks = list(found.schedule(batch))
    ends = [block.samples for block in blocks]
    assert blocks[0].first_sample == 0
    assert all(end % batch == 0 for end in ends)
    assert ends == sorted(set(ends))
    assert [block.first_sample for block in blocks[1:]] == ends[:-1]
    assert budget <= ends[-1] < budget + batch
    assert [block.number for block in blocks] == list(range(1, len(blocks) + 1))
    goals = {*range(every, budget + 1, every), budget}
    assert set(ends) == {-(-goal // batch) * batch for goal in goals}


@given(offset=st.integers(0, 3), batch=st.integers(1, 700))
def test_an_offset_moves_every_evaluation(offset: int, batch: int) -> None:
    every, budget = 4 * parse().train_samples, 23 * parse().train_samples
    found = dataclasses.replace(
        parse(), timing=Timing(10, eval_every_samples=every, max_samples=budget)
    )
    ends = {block.samples for block in found.schedule(batch, offset)}
    shift = offset * parse().train_samples
    goals = {*range(shift or every, budget + 1, every), budget}
    assert ends == {-(-goal // batch) * batch for goal in goals}


def test_words_for_readers_are_not_in_the_digest() -> None:
    told = parse(meanings={"nll": "how surprising the truth is"})
    assert told.meanings == {"nll": "how surprising the truth is"}
    assert told.digest == parse().digest


def test_the_summary_of_a_scale_is_not_in_the_digest() -> None:
    document = yaml.safe_load((definition.BENCHMARKS / "resnet50/benchmark.yaml").read_text())
    before = definition.parse(document, "mini")
    assert "not ImageNet" in before.summary
    del document["scales"]["mini"]["summary"]
    assert definition.parse(document, "mini").digest == before.digest


def test_settings_of_execution_are_not_in_the_digest() -> None:
    assert parse(execution={"all_reduce": ["flat", "two_level"]}).digest == parse().digest


def parse_related() -> Definition:
    """Learning rate up to a thousandth of the batch size, warm-up of 5 batches or more."""
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["max_of"] = {"global_batch_size": 0.001}
    hyperparameters["warmup_samples"] = {"default": 50, "min_of": {"global_batch_size": 5}}
    return parse(hyperparameters=hyperparameters)


@pytest.mark.parametrize(
    ("name", "value", "batch", "problem"),
    [
        ("opt_base_learning_rate", 0.01, 10, None),
        ("opt_base_learning_rate", 0.003, 3, None),  # 0.001 * 3 is a little less
        ("opt_base_learning_rate", 0.011, 10, "at most 0.001 × global_batch_size, that is 0.01"),
        ("warmup_samples", 50, 10, None),
        ("warmup_samples", 49, 10, "must be at least 5 × global_batch_size, that is 50"),
        ("warmup_samples", 49, "ten", None),
        ("warmup_samples", 49, None, None),
    ],
)
def test_a_value_may_depend_on_the_batch_size(
    name: str, value: float, batch: object, problem: str | None
) -> None:
    rule = parse_related().hyperparameters[name]
    found = rule.find_conflict(value, {"global_batch_size": batch})
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


def test_values_of_the_open_division_are_not_in_the_digest() -> None:
    known = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    known["opt_name"] = {"fixed": "adam"}
    before = parse(hyperparameters=copy.deepcopy(known))
    known["opt_name"]["open"] = ["sgd"]
    after = parse(hyperparameters=known)
    assert after.digest == before.digest
    assert after.hyperparameters["opt_name"].open == ("sgd",)
    assert after.hyperparameters["opt_name"].find_problem("sgd") == "must be adam"


def test_relations_are_part_of_the_digest_and_name_hyperparameters() -> None:
    assert parse_related().digest != parse().digest
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["max_of"] = {"global_batch_sise": 0.001}
    with pytest.raises(UserError, match='did you mean "global_batch_size"'):
        parse(hyperparameters=hyperparameters)
