"""What an update costs: what is compared, and what is projected."""

import pytest

from reference.measure.costs import load_costs, project_ms
from rules.errors import UserError

SAMPLES = ("forward", "backward")
PHASES = {"forward": 8.0, "backward": 24.0, "communication": 6.0, "inverse": 10.0}


def test_samples_are_divided_and_an_optimizer_stretches_its_own_phases() -> None:
    alone = {name: value for name, value in PHASES.items() if name != "communication"}
    assert project_ms(alone, 1, 1, SAMPLES, {}) == 42
    assert project_ms(alone, 1, 4, SAMPLES, {"inverse": 0.3}) == pytest.approx(32 / 4 + 3)
    longer = {**alone, "update": 2.0}
    assert project_ms(longer, 1, 4, SAMPLES, {"inverse": 0.3}) == pytest.approx(13)


def test_parts_that_were_shared_out_when_measured() -> None:
    # The first of two ranks took 6 of 10 ms of inverses; the busiest of four takes 4.
    assert project_ms({"inverse": 6.0}, 2, 4, SAMPLES, {"inverse": 4 / 6}) == pytest.approx(4.0)


def test_communication_grows_as_that_of_a_ring() -> None:
    assert project_ms({"communication": 6.0}, 2, 4, SAMPLES, {}) == pytest.approx(9.0)
    assert project_ms({"communication": 6.0}, 2, 10**9, SAMPLES, {}) == pytest.approx(12.0)


def test_published_ratios_are_those_of_table_1() -> None:
    found = load_costs("kfac")
    base = found.baseline.published_ms
    assert base
    ratios = [round(s.published_ms / base, 2) for s in found.steps if s.published_ms]
    assert ratios == [4.40, 3.49, 3.19, 3.88, 3.37, 1.89]
    assert "simulated" in found.note


def test_a_benchmark_without_steps() -> None:
    with pytest.raises(UserError, match="benchmarks that do: kfac"):
        load_costs("resnet50")
