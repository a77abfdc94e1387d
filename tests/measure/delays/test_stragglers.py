"""`cepheid measure stragglers`: when gradients arrive, and what the two ways then take."""

from itertools import islice, pairwise
from pathlib import Path

import pytest

from cepheid.measure.engine.trainings import Training
from cepheid.measure.studies.stragglers import RATE, SYNCHRONOUS, Way, find_best
from cepheid.reference.torch.parallel.stale import StaleGradients, list_arrivals
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.tools.measure.__main__ import main as measure
from tests.tools.no_training import FakeTraining, Points, replace_training

POOR, GOOD = {"e_rmse": 0.2, "nll": -1.0}, {"e_rmse": 0.09, "nll": -2.6}


def arrive(*paces: float, count: int) -> tuple[list[int], list[float]]:
    ages, times = zip(*islice(list_arrivals(paces), count), strict=True)
    return list(ages), list(times)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_equal_workers_have_gradients_of_one_age_that_arrive_evenly(workers: int) -> None:
    ages, times = arrive(*[1.0] * workers, count=20)
    assert ages == [min(place, workers - 1) for place in range(20)]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert gaps == pytest.approx([1 / workers] * 19)


def test_the_gradients_of_a_slow_worker_are_rare_and_old() -> None:
    ages, times = arrive(1.0, 1.0, 1.0, 2.0, count=70)
    # Three fast workers and a half: so many updates while one gradient is computed.
    assert 70 / times[-1] == pytest.approx(3.5, rel=0.05)
    settled = sorted(ages[10:])
    assert settled[-1] == 6  # as many of the others come in twice the time
    assert settled.count(6) == pytest.approx(60 / 7, abs=1)
    assert set(settled[:-10]) <= {2, 3}


def test_the_best_rate_reaches_with_all_seeds_and_synchronous_workers_wait() -> None:
    synchronous, server = Way(SYNCHRONOUS, 1.0, 2.0), Way(2, 1.0, 2.0)
    low = Way(2, 0.1, 2.0)
    updates = {
        (synchronous, 1): 100.0, (synchronous, 2): 120.0,
        (server, 1): 50.0, (server, 2): None, (low, 1): 130.0, (low, 2): 150.0,
    }  # fmt: skip
    waiting = find_best(updates, synchronous, 2)
    assert (waiting.updates, waiting.per_gradient) == (110, 110)  # half a batch in twice the time
    best = find_best(updates, server, 2)
    assert (best.rate, best.updates) == (0.1, 140)
    assert best.oldest == 3  # the first of the slow worker; later ones are 2 updates old
    assert best.per_gradient == pytest.approx(140 / 1.5, rel=0.02)
    lost = find_best({(server, 1): None}, server, 2)
    assert (lost.rate, lost.updates, lost.per_gradient) == (None, None, None)


def make_points(run: Training) -> Points:
    """Return the curve of a run: with a server only the lower rate reaches the target."""
    usual = run.config.definition.hyperparameters[RATE].default
    is_high = run.config.hyperparameters[RATE] == usual
    if "workers" in run.variant and is_high:
        return [(3000, POOR), (6000, POOR)]
    return [(3000, POOR), (6000 if is_high else 9000, GOOD)]


def test_both_ways_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    fake = FakeTraining(make_points)
    replace_training(fake, tmp_path, monkeypatch)
    figure = tmp_path / "stragglers.png"
    asked = ["stragglers", "galaxy_shape", "--workers", "2", "--rates", "1", "0.3", "--seeds", "1",
             "2", "--figure", str(figure), "--data", str(tmp_path)]  # fmt: skip
    assert measure(asked) == 0
    assert len(fake.runs) == 8
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (waiting,) = (row for row in rows if "synchronous" in row and row[0] == "2")
    (server,) = (row for row in rows if "asynchronous" in row)
    assert waiting[2:4] == ["×", "1"]
    assert server[2:4] == ["×", "0.3"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    task = fake.runs[2].create(TorchRanks(0, 1, torch.device("cpu")))
    assert isinstance(task.loss_and_gradients, StaleGradients)
    assert measure(asked) == 0
    assert len(fake.runs) == 8  # all are recorded
    assert measure([*asked, "--rates", "1"]) == 1  # no rate reaches the target there
