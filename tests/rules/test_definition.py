"""Definitions: how they are read and refused, their schedule, and what holds between metrics."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cepheid.rules import definition
from cepheid.rules.definition import Definition, Timing
from cepheid.rules.documents import find_schema_problem
from cepheid.rules.errors import UserError
from cepheid.rules.hyperparameters import canonicalise, parse_hyperparameter
from cepheid.rules.metrics import QualityTarget, Relations
from tests import assert_refused
from tests.compliance.asserting import Patch
from tests.compliance.builder import quality
from tests.compliance.small import STAR_SHAPE

EARLIER = {"opt_name": {"fixed": "adam"}}  # the notation of the first definitions
PAIRS = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


def parse(scale: str = "mini", **changes: Any) -> Definition:
    return definition.parse({**copy.deepcopy(STAR_SHAPE), **changes}, scale)


def test_unknown_names_and_targets_are_refused() -> None:
    assert_refused('did you mean "galaxy_shape"', definition.load, "galaxy_shap", "mini")
    with pytest.raises(UserError, match='has no scale "mnii"; did you mean "mini"'):
        definition.load("galaxy_shape", "mnii")
    scales = copy.deepcopy(STAR_SHAPE["scales"])
    scales["mini"]["targets"] = {"rsme": 0.1, "accuracy": 0.8}
    assert_refused("targets are given for", parse, scales=scales)


def test_a_scale_is_merged_over_what_is_common_rule_by_rule() -> None:
    mini, full = parse(), parse("full")
    assert (mini.train_samples, full.train_samples) == (100, 1000)
    assert mini.timing == Timing(init_minutes_max=10, eval_every_samples=50, max_samples=400)
    assert mini.provisional is None
    assert full.provisional
    scales = copy.deepcopy(STAR_SHAPE["scales"])
    scales["mini"]["hyperparameters"] = {"global_batch_size": {"closed": 4}}
    found = parse(scales=scales).hyperparameters["global_batch_size"]
    assert found == parse_hyperparameter("global_batch_size", {"closed": 4})


def test_parameters_may_depend_on_a_choice() -> None:
    scales = copy.deepcopy(STAR_SHAPE["scales"])
    known = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    known["opt_name"] = {"closed": ["adam", "sgd"]}
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


def test_the_digest_covers_the_scale() -> None:
    assert parse().digest != parse("full").digest
    full, mini = (definition.load("video_prediction", scale).runs for scale in ("full", "mini"))
    assert (full.required, mini.required) == (5, 20)


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
        (yaml.safe_dump({**STAR_SHAPE, "hyperparameters": EARLIER}), "write closed: and open:"),
    ],
)
def test_a_wrong_file_is_named(text: str, says: str, tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "wrong" / "benchmark.yaml"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=says) as raised:
        definition.load("wrong", "mini")
    assert str(path) in str(raised.value)


def test_a_target_holds_and_all_targets_must() -> None:
    lower, higher = (QualityTarget("m", better, 0.5) for better in ("lower", "higher"))
    assert [lower.holds(value) for value in (0.5, 0.51, -math.inf)] == [True, False, False]
    assert [higher.holds(value) for value in (0.5, 0.49, math.nan)] == [True, False, False]
    assert parse().is_reached_by({"rmse": 0.1, "accuracy": 0.8})
    assert not parse().is_reached_by({"rmse": 0.1, "accuracy": 0.7})


@pytest.mark.parametrize(
    ("rule", "value", "why"),
    [
        ({"closed": "adam"}, "sgd", "must be adam"),
        ({"closed": "adam"}, "adam", None),
        ({"closed": "adam", "open": ["sgd"]}, "sgd", "must be adam"),
        ({"default": 4, "closed": {"from": 2}}, 1, "must be at least 2"),
        ({"default": 4, "closed": {"from": 2}}, True, "must be of type int"),
        ({"default": 4, "closed": {"from": 2}}, 4.0, "must be of type int"),
        ({"default": 0.5, "closed": {"to": 1}}, 2, "must be at most 1"),
        ({"default": 0.5, "closed": {"to": 1}}, 1, None),
        ({"default": 0.5, "closed": "any"}, float("nan"), "must be finite"),
        ({"closed": ["x", "y"]}, "z", "must be one of x, y"),
        ({"default": "y", "closed": ["x", "y"]}, "y", None),
        ({"closed": [True, False]}, 1, "must be of type bool"),
    ],
)
def test_what_closed_allows(rule: dict[str, Any], value: object, why: str | None) -> None:
    assert parse_hyperparameter("a", rule).find_problem(value) == why


@pytest.mark.parametrize(
    ("rule", "earlier"),
    [
        ({"closed": 0.9}, {"fixed": 0.9}),
        ({"closed": "adam", "open": ["sgd"]}, {"fixed": "adam"}),
        ({"closed": "adam", "open": "any"}, {"default": "adam", "choices": ["adam"]}),
        ({"closed": 2, "open": {"from": 0}}, {"default": 2, "min": 2, "max": 2}),
        ({"closed": [1, 2]}, {"default": 1, "choices": [1, 2]}),
        ({"default": 2, "closed": [1, 2]}, {"default": 2, "choices": [1, 2]}),
        ({"default": 2, "closed": {"from": 1}}, {"default": 2, "min": 1}),
        ({"default": 2, "closed": {"to": 9, "at_most": {"b": 0.5}}},
         {"default": 2, "max": 9, "max_of": {"b": 0.5}}),
        ({"default": 2, "closed": {"from": 0.5, "at_least": {"b": 1}}},
         {"default": 2, "min": 0.5, "min_of": {"b": 1}}),
        ({"default": 0.5, "closed": "any"}, {"default": 0.5}),
    ],
)  # fmt: skip
def test_digests_are_of_the_earlier_notation(rule: dict[str, Any], earlier: dict[str, Any]) -> None:
    assert canonicalise(rule) == earlier


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"closed": {"from": 1}}, "'default' is a required property"),
        ({"closed": "any"}, "'default' is a required property"),
        ({"closed": ["adam"]}, "hyperparameters.opt_name.closed: "),
        ({"default": 1, "closed": {"least": 1}}, "hyperparameters.opt_name.closed: "),
        ({"default": "sgd", "closed": "adam"}, "hyperparameters.opt_name"),
    ],
)
def test_a_wrong_hyperparameter_is_refused(rule: dict[str, Any], says: str) -> None:
    document = copy.deepcopy(STAR_SHAPE)
    document["hyperparameters"]["opt_name"] = rule
    assert says in str(find_schema_problem(document, "benchmark"))


@given(every=st.integers(1, 300), budget=st.integers(1, 2000), batch=st.integers(1, 700))
def test_the_schedule_keeps_rule_t8(every: int, budget: int, batch: int) -> None:
    timing = Timing(10, eval_every_samples=every, max_samples=budget)
    blocks = list(dataclasses.replace(parse(), timing=timing).schedule(batch))
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
    timing = Timing(10, eval_every_samples=every, max_samples=budget)
    found = dataclasses.replace(parse(), timing=timing)
    ends = {block.samples for block in found.schedule(batch, offset)}
    shift = offset * parse().train_samples
    goals = {*range(shift or every, budget + 1, every), budget}
    assert ends == {-(-goal // batch) * batch for goal in goals}


def allow(name: str, rule: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters with other rules of one."""
    return {"hyperparameters": {**copy.deepcopy(STAR_SHAPE["hyperparameters"]), name: rule}}


@pytest.mark.parametrize(
    ("changes", "is_covered"),
    [
        ({"title": "Another title"}, False),
        ({"meanings": {"nll": "how surprising the truth is"}}, False),
        ({"units": {"nll": "nats"}}, False),
        ({"execution": {"all_reduce": ["flat", "two_level"]}}, False),
        (allow("opt_name", {"closed": "adam", "open": ["sgd"]}), False),
        (allow("opt_name", {"closed": "sgd"}), True),
        ({"runs": {"required": 3, "drop": {"fastest": 1, "slowest": 1}}}, True),
    ],
)
def test_the_digest_covers_what_a_rule_reads(changes: dict[str, Any], is_covered: bool) -> None:
    changed = parse(**changes)
    assert (changed.digest != parse().digest) == is_covered
    assert changed != parse()
    optimizer = changed.hyperparameters["opt_name"]
    assert "open" not in str(changes) or optimizer.open.choices == ("sgd",)
    assert "open" not in str(changes) or optimizer.find_problem("sgd") == "must be adam"


def parse_related() -> Definition:
    """Learning rate up to a thousandth of the batch size, warm-up of 5 batches or more."""
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["closed"]["at_most"] = {"global_batch_size": 0.001}
    warm_up = {"default": 50, "closed": {"at_least": {"global_batch_size": 5}}}
    hyperparameters["warmup_samples"] = warm_up
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


def test_relations_are_part_of_the_digest_and_name_hyperparameters() -> None:
    assert parse_related().digest != parse().digest
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["closed"]["at_most"] = {"global_batch_sise": 0.001}
    assert_refused('did you mean "global_batch_size"', parse, hyperparameters=hyperparameters)


def find_all(chosen: Definition, metrics: dict[str, float]) -> list[str]:
    relations = chosen.relations
    wrong = [name for name, _ in relations.find_wrong_counts(metrics, chosen.evaluation_samples)]
    contradictions = relations.find_contradictions(metrics, chosen.evaluation_samples)
    return [*wrong, *(name for name, _, _ in contradictions)]


@pytest.mark.parametrize(("name", "scale"), PAIRS)
def test_relations_concern_known_metrics_and_are_found_broken(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    known = {target.metric for target in chosen.quality} | set(chosen.reported)
    assert set(_list_names(chosen.relations)) <= known
    assert set(chosen.relations.choices.values()) <= chosen.model.keys()
    honest = quality(chosen, 2, reached=True, index=3)
    assert find_all(chosen, honest) == []
    for metric in chosen.relations.counted:
        changed = {**honest, metric: honest[metric] - 0.3 / chosen.evaluation_samples}
        assert metric in find_all(chosen, changed)
    for low, high in chosen.relations.ascending:
        changed = {**honest, low: honest[high] + 1 / chosen.evaluation_samples}
        assert low in find_all(chosen, changed)
    for metric in (*chosen.relations.means, *chosen.relations.distances):
        assert metric in find_all(chosen, {**honest, metric: honest[metric] - 0.001})
    for loss, accuracy in chosen.relations.losses.items():
        assert loss in find_all(chosen, {**honest, accuracy: 0.9, loss: 0.06})
        assert loss not in find_all(chosen, {**honest, accuracy: 0.9, loss: 0.07})
    for metric, usual in chosen.relations.excesses.items():
        for share in usual:
            assert metric in find_all(chosen, {**honest, share: 0.5})
    for name, at_50, at_75 in chosen.relations.precisions:
        course = {**honest, at_50: 0.6, at_75: 0.4}
        possible = {ap for ap in (0.2, 0.25, 0.27, 0.49, 0.51, 0.6)
                    if name not in find_all(chosen, {**course, name: ap})}  # fmt: skip
        assert possible == {0.27, 0.49}


def _list_names(relations: Relations) -> Iterator[str]:
    yield from relations.counted
    for names in (*relations.ascending, *relations.means.values(), *relations.excesses.values()):
        yield from names
    yield from (*relations.means, *relations.distances, *relations.losses)
    yield from (*relations.choices, *relations.least, *relations.excesses)
    yield from relations.losses.values()
    yield from (name for names in relations.precisions for name in names)
    yield from (other for other, _ in relations.distances.values())


def test_rounding_is_no_cheat() -> None:
    relations = Relations(("accuracy",), (("accuracy", "top5"),))
    for accuracy in (0.7591400146484375, 0.75914, 1 / 3):  # float32, and digits of 50,001
        metrics = {"accuracy": accuracy, "top5": accuracy - 1e-7}
        samples = 3 if accuracy == 1 / 3 else 50_000
        assert not list(relations.find_wrong_counts(metrics, samples))
        assert not list(relations.find_contradictions(metrics, samples))
