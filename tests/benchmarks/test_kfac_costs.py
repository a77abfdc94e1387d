"""kfac: which rank computes which inverse."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from benchmarks.kfac.costs import PARTS, share_inverses
from reference.measure.costs import OptimizerParts

LAYERS = [
    {"layer": "a", "milliseconds": 5.0, "cost": 50.0},
    {"layer": "b", "milliseconds": 3.0, "cost": 30.0},
    {"layer": "c", "milliseconds": 2.0, "cost": 20.0},
]


def test_the_costliest_layer_goes_to_the_rank_with_the_least_to_do() -> None:
    assert share_inverses(LAYERS, 1) == [10.0]
    assert share_inverses(LAYERS, 2) == [5.0, 5.0]
    assert share_inverses(LAYERS, 4) == [5.0, 3.0, 2.0, 0.0]


def test_inverses_take_as_long_as_those_of_the_busiest_rank() -> None:
    facts = {"inverses_ms": LAYERS}
    assert PARTS.stretch(facts, measured_ranks=1, ranks=4) == {"inverse": 0.5}
    assert PARTS.stretch(facts, measured_ranks=2, ranks=128) == {"inverse": 1.0}


def test_an_optimizer_without_parts_of_its_own_adds_nothing() -> None:
    parts = OptimizerParts()
    parts.refuse({})
    assert parts.stretch(parts.measure(None), 1, 4) == {}
    assert not parts.list_tables({})
