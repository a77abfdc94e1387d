"""Competitors that take half of the processors, and what is lost of the other half."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from cepheid.measure.studies.speed import beside_work
from cepheid.measure.studies.speed.beside_work import (
    BesideWork,
    Case,
    Pace,
    compare_with_fair_share,
)
from cepheid.rules.host import usable_processors
from tests.processes import have_ended, kill_after_a_line


def test_what_is_lost_of_a_fair_share() -> None:
    alone, half = Pace(200.0, 2, "", 9), Pace(100.0, 1, "busy", 9)
    paces = (half, half, Pace(20.0, 1, "", 9, ranks=2))
    cases = [Case("", number, pace) for number, pace in zip((1, 2, 2), paces, strict=True)]
    fair = BesideWork(2, alone, tuple(cases))
    assert [fair.find_loss(case) for case in cases] == pytest.approx([1.5, 1.0, 5.0])
    assert str(half) == "100 samples/s on 1 thread"
    assert str(Pace(80.0, 1, "", 9, ranks=4)) == "80 samples/s on 4 ranks of 1 thread"
    lost = [case["times_of_a_fair_share"] for case in fair.as_json()["cases"]]
    assert lost == pytest.approx([1.5, 1.0, 5.0])


@pytest.mark.parametrize(
    ("processors", "expected"), [(2, [1, 2, 2]), (1, [1]), (3, [1, 3])], ids=["2", "1", "3"]
)
def test_the_other_trainings_have_competitors(
    processors: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch of 32 cannot be shared by three ranks."""
    happened: list[str] = []

    def train(function: Any, *arguments: Any) -> Pace:
        assert function is beside_work.measure_pace
        happened.append("train")
        given = arguments[4:]  # after name, scale, settings and data
        assert given == (() if len(happened) == 1 else (7,)), "not the steps of the one alone"
        return Pace(1.0, 1, "", 7)

    def train_on_ranks(count: int, function: Any, *arguments: Any) -> Pace:
        happened.append(f"{count} ranks")
        return dataclasses.replace(train(function, *arguments), ranks=count)

    @contextmanager
    def compete(count: int) -> Iterator[None]:
        happened.append(f"compete on {count}")
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
    total = 1 + len(expected)
    assert done == [(count, total) for count in range(1, total + 1)]
    assert [case.competitors for case in found.cases] == expected
    assert [case.pace.ranks for case in found.cases] == [1, 1, 2][: len(expected)]
    assert found.find_loss(found.cases[0]) == 1 - 1 / (2 * processors)
    work = [["train"], ["train"], ["2 ranks", "train"]]
    turns = [
        [f"compete on {count}", *ours, "end"] for count, ours in zip(expected, work, strict=False)
    ]
    assert happened == ["train", *(step for turn in turns for step in turn)]


def test_a_competitor_on_each_processor() -> None:
    with beside_work.compete(usable_processors()) as ids:
        assert len(ids) == usable_processors()
        assert all(map(psutil.pid_exists, ids))
    assert not any(map(psutil.pid_exists, ids))


def test_competitors_end_with_a_killed_command() -> None:
    script = (
        "import time\nfrom cepheid.measure.studies.speed.beside_work import compete\n"
        "if __name__ == '__main__':\n"
        f"    with compete({usable_processors()}) as ids:\n"
        "        print(*ids, flush=True)\n        time.sleep(60)\n"
    )
    line, _ = kill_after_a_line(script)
    ids = [int(one) for one in line.split()]
    assert len(ids) == usable_processors()
    assert have_ended(ids)
