"""What an update costs: what is compared, and what is projected."""

import pytest

from reference.measure import costs
from rules.errors import UserError

PHASES = {"forward": 8.0, "backward": 16.0, "factors": 8.0, "communication": 6.0, "inverse": 10.0}


def test_samples_are_shared_out_and_inverses_go_to_their_owners() -> None:
    alone = {name: value for name, value in PHASES.items() if name != "communication"}
    assert costs.projected_ms(alone, 1, 1, 1.0) == 42
    assert costs.projected_ms(alone, 1, 4, 0.3) == pytest.approx(32 / 4 + 3)
    assert costs.projected_ms({**alone, "update": 2.0}, 1, 4, 0.3) == pytest.approx(13)


def test_inverses_that_were_shared_out_when_measured() -> None:
    # The first of two ranks took 6 of 10 ms of inverses; the busiest of four takes 4.
    assert costs.projected_ms({"inverse": 6.0}, 2, 4, 4 / 6) == pytest.approx(4.0)


def test_communication_grows_as_that_of_a_ring() -> None:
    assert costs.projected_ms({"communication": 6.0}, 2, 4, 1.0) == pytest.approx(9.0)
    assert costs.projected_ms({"communication": 6.0}, 2, 10**9, 1.0) == pytest.approx(12.0)


def test_the_inverses_of_each_rank() -> None:
    assert costs.by_rank([5.0, 3.0, 2.0], [1, 0, 0], 3) == [5.0, 5.0, 0.0]


def test_published_ratios_are_those_of_table_1() -> None:
    found = costs.load("kfac")
    base = found.baseline.published_ms
    assert base
    ratios = [round(s.published_ms / base, 2) for s in found.steps if s.published_ms]
    assert ratios == [4.40, 3.49, 3.19, 3.88, 3.37, 1.89]
    assert "simulated" in found.note


def test_a_benchmark_without_steps() -> None:
    with pytest.raises(UserError, match="of kfac"):
        costs.load("resnet50")
