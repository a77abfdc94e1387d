"""Plots: everything inside the frame, round ticks, no number that an SVG does not take."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.leaderboard.plots.plot import Axis, Guide, Plot, Series, make_plot

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)
MODEST = st.floats(-1e9, 1e9).map(lambda value: float(f"{value:.6g}"))


def draw(points: list[tuple[float, float]], x: Axis | None = None, y: Axis | None = None) -> Plot:
    made = make_plot("p", "t", x or Axis("x"), y or Axis("y"), [Series("s", tuple(points), 0)])
    assert made is not None
    return made


def inside(made: Plot) -> None:
    marks = [mark for series in made.series for mark in series.marks]
    assert all(made.left - 0.1 <= mark.x <= made.right + 0.1 for mark in marks)
    assert all(made.top - 0.1 <= mark.y <= made.bottom + 0.1 for mark in marks)
    assert all(made.left - 0.1 <= tick.place <= made.right + 0.1 for tick in made.x_ticks)
    assert all(made.top - 0.1 <= tick.place <= made.bottom + 0.1 for tick in made.y_ticks)


@given(st.lists(st.tuples(MODEST, MODEST), min_size=1, max_size=20))
def test_all_is_inside_the_frame(points: list[tuple[float, float]]) -> None:
    made = draw(points)
    inside(made)
    assert len(made.x_ticks) <= 12
    assert len(made.y_ticks) <= 12


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=10), st.booleans())
def test_what_is_not_finite_is_left_out(points: list[tuple[float, float]], is_log: bool) -> None:
    made = make_plot("p", "t", Axis("x", is_log=is_log), Axis("y"), [Series("s", tuple(points), 0)])
    finite = [p for p in points if all(map(math.isfinite, p)) and (p[0] > 0 or not is_log)]
    assert (made is None) == (not finite)
    if made:
        assert sum(len(series.marks) for series in made.series) == len(finite)
        places = [place for series in made.series for m in series.marks for place in (m.x, m.y)]
        assert all(map(math.isfinite, places))


def test_a_wide_range_is_logarithmic() -> None:
    made = draw([(1, 1), (10, 1), (1000, 2)])
    assert made.x_label == "x, log scale"
    assert made.y_label == "y"
    assert [tick.label for tick in made.x_ticks] == ["1", "10", "100", "1,000"]


def test_ticks_stand_where_they_are_asked_for() -> None:
    made = draw([(4, 1), (16, 2), (32, 3)], Axis("x", is_log=True, values=(4.0, 16.0, 32.0)))
    assert [tick.label for tick in made.x_ticks] == ["4", "16", "32"]
    inside(made)


def test_an_axis_from_zero_begins_at_zero() -> None:
    made = draw([(1, 5), (2, 6)], Axis("x", from_zero=True))
    assert made.x_ticks[0].label == "0"
    assert made.x_ticks[0].place == made.left


def test_a_guide_is_within_the_frame() -> None:
    made = make_plot("p", "t", Axis("x"), Axis("y"), [Series("s", ((0, 5), (1, 6)), 0)],
                guides=[Guide(1.0, "one")])  # fmt: skip
    assert made is not None
    assert made.top <= made.guides[0].y <= made.bottom


@pytest.mark.parametrize("points", [[(1.0, 1.0)], [(0.0, 0.0)], [(-5.0, 3.0)], [(1e-99, 1e99)]])
def test_a_single_point(points: list[tuple[float, float]]) -> None:
    inside(draw(points))
