"""Competitors that take half of the processors, and what is lost of the other half."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from reference.measure import beside_work
from reference.measure.beside_work import BesideWork, Training, compare_with_fair_share
from rules.host import usable_processors
from tests.processes import have_ended, kill_after_a_line


def test_what_is_lost_of_a_fair_share() -> None:
    fair = BesideWork(Training(200.0, 2, ""), Training(100.0, 1, "busy"))
    assert fair.lost == pytest.approx(1.0)
    assert BesideWork(Training(200.0, 2, ""), Training(20.0, 2, "")).lost == pytest.approx(5.0)
    assert str(fair.beside) == "100 samples/s on 1 thread"
    assert fair.as_json()["times_of_a_fair_share"] == fair.lost


def test_the_second_training_has_competitors(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    def train(function: Any, *arguments: Any) -> Training:
        assert function is beside_work.train_for
        happened.append("train")
        return Training(1.0, 1, "")

    @contextmanager
    def compete() -> Iterator[None]:
        happened.append("compete")
        yield
        happened.append("end")

    monkeypatch.setattr(beside_work, "run_alone", train)
    monkeypatch.setattr(beside_work, "compete", compete)
    assert compare_with_fair_share("galaxy_shape", "mini", (), Path("data")).lost == 0.5
    assert happened == ["train", "compete", "train", "end"]


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
