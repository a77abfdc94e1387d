"""What holds between the metrics of an evaluation, for every definition."""

from collections.abc import Iterator

import pytest

from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.relations import Relations
from tests.compliance.builder import quality

NAMED = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


def find_all(chosen: Definition, metrics: dict[str, float]) -> list[str]:
    relations = chosen.relations
    wrong = [name for name, _ in relations.find_wrong_counts(metrics, chosen.evaluation_samples)]
    return [*wrong, *(name for name, _, _ in relations.find_contradictions(metrics))]


@pytest.mark.parametrize(("name", "scale"), NAMED)
def test_relations_concern_the_metrics_of_the_definition(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    known = {target.metric for target in chosen.quality} | set(chosen.reported)
    assert set(_list_names(chosen.relations)) <= known
    assert find_all(chosen, quality(chosen, 2, reached=True, index=3)) == []


def _list_names(relations: Relations) -> Iterator[str]:
    yield from relations.counted
    for names in (*relations.ascending, *relations.means.values()):
        yield from names
    yield from (*relations.means, *relations.distances, *relations.losses)
    yield from relations.losses.values()
    yield from (other for other, _ in relations.distances.values())


@pytest.mark.parametrize(("name", "scale"), NAMED)
def test_whatever_breaks_a_relation_is_found(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    honest = quality(chosen, 2, reached=True, index=3)
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


def test_rounding_is_no_cheat() -> None:
    relations = Relations(("accuracy",), (("accuracy", "top5"),))
    for accuracy in (0.7591400146484375, 0.75914, 1 / 3):  # float32, and digits of 50,001
        metrics = {"accuracy": accuracy, "top5": accuracy - 1e-7}
        samples = 3 if accuracy == 1 / 3 else 50_000
        assert not list(relations.find_wrong_counts(metrics, samples))
        assert not list(relations.find_contradictions(metrics))
