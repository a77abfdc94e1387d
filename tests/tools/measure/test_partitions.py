"""`cepheid measure partitions` as its user meets it, on tiny images."""

import contextlib
import io

import pytest

pytest.importorskip("torch", reason="measuring needs the extra torch")

from cepheid.measure.engine.turns import Timing
from cepheid.measure.studies.partitions import ALONE, SizeTimings, find_break_even
from cepheid.reference.machine import placement
from cepheid.tools.measure.__main__ import main
from tests.distributed import on_ranks


def _measure() -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "end_rank", lambda code: None)
        main(["partitions", "resnet50", "--sizes", "32", "--rounds", "3"])
    return out.getvalue()


@pytest.mark.promise  # networks of two ranks are timed in turns
def test_two_ranks_print_one_table() -> None:
    first, other = on_ranks(2, _measure)
    assert not other
    header = next(line for line in first.splitlines() if line.startswith("pixels"))
    assert header.split("  ")[0] == "pixels"
    assert "batch, processor" in header
    assert "2 parts are faster than one rank in wall time: " in first
    row = [line for line in first.splitlines() if line.startswith("32 ")][-1]
    alone, batch, shared = (float(each) for each in row.rpartition("  ")[2].split(", "))
    assert batch == pytest.approx(alone / 2, rel=0.15)
    assert alone / 2 < shared < 0.8 * alone  # a half, and rows of the neighbour


def test_the_size_from_which_on_it_pays() -> None:
    def time_size(pixels: int, seconds: float) -> SizeTimings:
        times = {ALONE: Timing(ALONE, (1.0,)), "2": Timing("2", (seconds,))}
        return SizeTimings(pixels, times, times)

    sizes = [time_size(64, 0.9), time_size(128, 1.1), time_size(256, 0.8), time_size(512, 0.7)]
    assert find_break_even(sizes, "2", by_processor=False) == 256
    assert find_break_even(sizes[:2], "2", by_processor=True) is None
