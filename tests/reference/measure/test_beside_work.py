"""Competitors that take half of the processors, and what is lost of the other half."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from reference.measure import beside_work
from reference.measure.beside_work import BesideWork, Pace, compare_with_fair_share
from rules.host import usable_processors
from tests.processes import have_ended, kill_after_a_line


def test_what_is_lost_of_a_fair_share() -> None:
    alone, slow = Pace(200.0, 2, ""), Pace(20.0, 2, "")
    fair = BesideWork(alone, Pace(100.0, 1, "busy"), slow)
    assert fair.find_loss(fair.process) == pytest.approx(1.0)
    assert fair.find_loss(slow) == pytest.approx(5.0)
    assert str(fair.process) == "100 samples/s on 1 thread"
    assert str(Pace(80.0, 1, "", 4)) == "80 samples/s on 4 ranks of 1 thread"
    assert fair.as_json()["times_of_a_fair_share"] == pytest.approx({"process": 1, "ranks": 5})
    assert "ranks" not in BesideWork(alone, slow, None).as_json()["times_of_a_fair_share"]


@pytest.mark.parametrize(("processors", "expected"), [(2, 2), (1, None), (3, None)])
def test_the_other_trainings_have_competitors(
    processors: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch of 32 cannot be shared by three ranks."""
    happened: list[str] = []

    def train(function: Any, *arguments: Any) -> Pace:
        assert function is beside_work.measure_pace
        happened.append("train")
        return Pace(1.0, 1, "")

    def train_on_ranks(count: int, function: Any, *arguments: Any) -> Pace:
        happened.append(f"{count} ranks")
        return dataclasses.replace(train(function, *arguments), ranks=count)

    @contextmanager
    def compete() -> Iterator[None]:
        happened.append("compete")
        yield
        happened.append("end")

    monkeypatch.setattr(beside_work, "run_alone", train)
    monkeypatch.setattr(beside_work, "run_on_ranks", train_on_ranks)
    monkeypatch.setattr(beside_work, "compete", compete)
    monkeypatch.setattr(beside_work, "usable_processors", lambda: processors)
    done: list[tuple[int, int]] = []
    found = compare_with_fair_share(
        "galaxy_shape", "mini", (), Path("data"), lambda *counts: done.append(counts)
    )
    assert done == [(1, 3 if expected else 2), (2, 3 if expected else 2)]
    assert found.find_loss(found.process) == 0.5
    assert (found.ranks.ranks if found.ranks else None) == expected
    shared = ["2 ranks", "train"] if expected else []
    assert happened == ["train", "compete", "train", *shared, "end"]


def test_a_competitor_on_each_processor() -> None:
    with beside_work.compete() as ids:
        assert len(ids) == usable_processors()
        assert all(map(psutil.pid_exists, ids))
    assert not any(map(psutil.pid_exists, ids))


def test_competitors_end_with_a_killed_command() -> None:
    script = (
        "import time\nfrom reference.measure.beside_work import compete\n"
        "if __name__ == '__main__':\n"
        "    with compete() as ids:\n        print(*ids, flush=True)\n        time.sleep(60)\n"
    )
    line, _ = kill_after_a_line(script)
    ids = [int(one) for one in line.split()]
    assert len(ids) == usable_processors()
    assert have_ended(ids)
