"""Plots, all inside the frame with colours that stay apart, and numbers per device."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.score.kinds import GENERATION, TRAINING, BenchmarkKind
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.pages.benchmark_page import improves_steadily, list_device_columns
from cepheid.leaderboard.plots import drawing
from cepheid.leaderboard.plots.drawing import BOTTOM, LEFT, RIGHT, TOP
from cepheid.leaderboard.plots.plot import (
    Axis,
    Guide,
    Plot,
    Series,
    find_front,
    get_shape,
    make_plot,
    name_look,
    pick_colour,
)
from cepheid.leaderboard.plots.ranking import make_axis
from cepheid.leaderboard.rows import entry
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.facts import read_hardware
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from tests.compliance.builder import run_records, write_log, write_result
from tests.compliance.field import write_field
from tests.compliance.judging import judge_folder

Numbers = dict[str, float]


def list_entries(root: Path) -> list[Entry]:
    return entry.list_entries(judge_folder(root, with_course=True).results)


def measure(group: list[Entry]) -> dict[str, Numbers]:
    columns = list_device_columns([one for one in group if one.has_score])
    found: dict[str, Numbers] = {}
    for one in (one for one in group if one.has_score):
        numbers = found[f"{one.names.benchmark} {one.names.system}"] = {}
        for column in columns:
            value = column.find(one)
            if value is not None:
                numbers[column.key] = value.mean if isinstance(value, Estimate) else value
    return found


@pytest.fixture
def field(star_shape: Definition) -> dict[str, Entry]:
    entries = list_entries(write_field(Path("submissions"), star_shape))
    return {f"{e.names.benchmark} {e.names.system}": e for e in entries}


@pytest.fixture
def lines(field: dict[str, Entry]) -> dict[str, Numbers]:
    """What each result of the field needs, by benchmark and system."""
    names = {entry.names.benchmark for entry in field.values()}
    groups = [[e for e in field.values() if e.names.benchmark == name] for name in sorted(names)]
    return {name: numbers for group in groups for name, numbers in measure(group).items()}


def test_training_and_generation(field: dict[str, Entry], lines: dict[str, Numbers]) -> None:
    one, eight = lines["star_shape a100.x1"], lines["star_shape a100.x8"]
    assert eight["device_minutes"] == pytest.approx(8 * eight["score"])
    samples = field["star_shape a100.x8"].progress.samples
    assert samples is not None
    assert eight["throughput"] == pytest.approx(samples / (60 * eight["score"]) / 8)
    assert one["efficiency"] == 1
    scores = [field[f"star_shape a100.{size}"].standing.cost for size in ("x1", "x8")]
    assert eight["efficiency"] == pytest.approx(scores[0] / scores[1] / 8)
    assert "efficiency" not in lines["star_shape reference"]
    assert "energy" in one
    assert "energy" not in eight
    one, eight = lines["star_images a100.x1"], lines["star_images a100.x8"]
    assert eight["throughput"] == pytest.approx(eight["score"] / 8)
    assert eight["efficiency"] == pytest.approx(eight["score"] / one["score"] / 8)
    assert "device_minutes" not in eight


@pytest.mark.parametrize("claim", [10**30, "999999999", -1, True, 1.5])
def test_a_number_of_nodes_that_no_machine_has_is_unknown(claim: object) -> None:
    found = read_hardware({"number_of_nodes": claim, "accelerators_per_node": 8})
    assert (found.nodes, found.accelerators) == (0, 8)


def test_a_claim_beyond_an_axis_is_drawn_at_its_end_and_said() -> None:
    honest = Series("honest", ((1.0, 8.0), (8.0, 1.0)), 0, key="a")
    liar = Series("liar", ((1e30, 1.0),), 1, key="b")
    alone = make_plot("p", "t", Axis("n", is_log=True, limit=100), Axis("y"), [honest])
    both = make_plot("p", "t", Axis("n", is_log=True, limit=100), Axis("y"), [honest, liar])
    assert alone is not None
    assert both is not None
    assert "1 point lies beyond the axis" in both.note
    places = sorted(x for x, _ in look(both).marks)
    assert places[2] <= 466
    assert places[1] - places[0] > 100
    assert "beyond" not in alone.note


def test_the_front_leaves_out_results_that_another_beats_in_both() -> None:
    assert find_front([(2, 5), (1, 9), (3, 6), (4, 1), (4, 2)]) == [(1, 9), (2, 5), (4, 1)]
    assert find_front([]) == []


def test_only_metrics_that_improve_steadily_have_other_targets(star_shape: Definition) -> None:
    steady, wild = Path("steady"), Path("wild")
    write_result(steady, star_shape, blocks=lambda index: 5)
    folder = write_result(wild, star_shape, runs=0)
    for index in range(star_shape.runs.required):
        records = run_records(star_shape, index, blocks=5)
        seen = [r["metadata"]["metrics"] for r in records if r["key"] == "eval_accuracy"]
        for place, metrics in enumerate(seen[:-1]):
            metrics["rmse"] = 0.9 if place % 2 else 0.2
        write_log(folder / f"result_{index}.txt", records)
    rmse = star_shape.quality[0]
    assert improves_steadily(list_entries(steady), rmse)
    assert not improves_steadily(list_entries(wild), rmse)


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)
MODEST = st.floats(-1e9, 1e9).map(lambda value: float(f"{value:.6g}"))
NUMBER = r"(-?[0-9.e+]+)"


@dataclass(frozen=True)
class Drawn:
    """What an SVG shows: places of marks, numbers of the axes with their places, names of axes."""

    marks: Sequence[tuple[float, float]]
    x_ticks: Mapping[str, float]
    y_ticks: Mapping[str, float]
    labels: Sequence[str]


def look(made: Plot) -> Drawn:
    svg = str(drawing.draw(made)).partition("</svg>\n")[0]
    marks = re.findall(rf'class="mark"[^>]*translate\({NUMBER} {NUMBER}\)', svg)
    ticks = re.findall(rf'<text text-anchor="(\w+)" x="{NUMBER}" y="{NUMBER}">([^<]*)</text>', svg)
    return Drawn(
        [(float(x), float(y)) for x, y in marks],
        {text: float(x) for anchor, x, _, text in ticks if anchor == "middle"},
        {text: float(y) - 4 for anchor, _, y, text in ticks if anchor == "end"},
        re.findall(r'class="label"[^>]*>([^<]*)<', svg),
    )


def draw(points: list[tuple[float, float]], x: Axis | None = None, y: Axis | None = None) -> Plot:
    made = make_plot("p", "t", x or Axis("x"), y or Axis("y"), [Series("s", tuple(points), 0)])
    assert made is not None
    return made


def inside(made: Plot) -> None:
    seen = look(made)
    assert all(LEFT - 0.1 <= x <= RIGHT + 0.1 for x, _ in seen.marks)
    assert all(TOP - 0.1 <= y <= BOTTOM + 0.1 for _, y in seen.marks)
    assert all(LEFT - 0.1 <= x <= RIGHT + 0.1 for x in seen.x_ticks.values())
    assert all(TOP - 0.1 <= y <= BOTTOM + 0.1 for y in seen.y_ticks.values())


@given(st.lists(st.tuples(MODEST, MODEST), min_size=1, max_size=20))
def test_all_is_inside_the_frame(points: list[tuple[float, float]]) -> None:
    made = draw(points)
    inside(made)
    seen = look(made)
    assert len(seen.marks) == len(points)
    assert 0 < len(seen.x_ticks) <= 12
    assert 0 < len(seen.y_ticks) <= 12


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=10), st.booleans())
def test_what_is_not_finite_is_left_out(points: list[tuple[float, float]], is_log: bool) -> None:
    made = make_plot("p", "t", Axis("x", is_log=is_log), Axis("y"), [Series("s", tuple(points), 0)])
    finite = [p for p in points if all(map(math.isfinite, p)) and (p[0] > 0 or not is_log)]
    assert (made is None) == (not finite)
    if made:
        marks = look(made).marks
        assert len(marks) == len(finite)
        assert all(math.isfinite(place) for mark in marks for place in mark)


def test_axes_are_logarithmic_have_ticks_and_begin_as_asked() -> None:
    seen = look(draw([(1, 1), (10, 1), (1000, 2)]))
    assert seen.labels == ["x, log scale", "y"]
    assert [*seen.x_ticks] == ["1", "3", "10", "30", "100", "300", "1,000"]
    made = draw([(4, 1), (16, 2), (32, 3)], Axis("x", is_log=True, values=(4.0, 16.0, 32.0)))
    assert [*look(made).x_ticks] == ["4", "16", "32"]
    inside(made)
    assert look(draw([(1, 5), (2, 6)], Axis("x", from_zero=True))).x_ticks["0"] == LEFT


def test_a_guide_is_within_the_frame() -> None:
    made = make_plot("p", "t", Axis("x"), Axis("y"), [Series("s", ((0, 5), (1, 6)), 0)],
                guides=[Guide(1.0, "one")])  # fmt: skip
    assert made is not None
    (y,) = re.findall(rf'class="guide" x1="[0-9.]+" x2="[0-9.]+" y1="{NUMBER}"', drawing.draw(made))
    assert TOP <= float(y) <= BOTTOM


@pytest.mark.parametrize("points", [[(1.0, 1.0)], [(0.0, 0.0)], [(-5.0, 3.0)], [(1e-99, 1e99)]])
def test_a_single_point(points: list[tuple[float, float]]) -> None:
    inside(draw(points))


# What protan, deutan and tritan readers see of a colour, of linear RGB: Machado, Oliveira and
# Fernandes, IEEE Trans. Vis. Comput. Graph. 15 (2009) 1291, severity 1.
SEEN_BY = {
    "all": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                        [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                        [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
# Linear RGB to Oklab (B. Ottosson 2020), in which distances are those that people see.
TO_CONES = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451,
                      0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
TO_OKLAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050,
                      0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
LEAST_DISTANCE = 0.09  # blue and purple of the former colours: 0.02


@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e6), st.sampled_from([TRAINING, GENERATION]))
def test_lines_lie_on_the_axis_in_order(low: float, factor: float, kind: BenchmarkKind) -> None:
    find_place, lines = make_axis(low, low * factor, kind.choose_unit(low))
    places = [line.place for line in lines]
    assert places == sorted(places)
    assert len(places) <= 6
    assert all(0 <= place <= 100 for place in [*places, find_place(low), find_place(low * factor)])
    assert find_place(low) <= find_place(low * factor)


def test_small_differences_do_not_fill_the_axis() -> None:
    find_place, _ = make_axis(1.0, 1.001, TRAINING.choose_unit(1.0))
    assert find_place(1.001) - find_place(1.0) < 1


def _read_colours() -> dict[str, list[np.ndarray]]:
    """The colours of series, linear RGB, on a white and on a dark page."""
    style = (ROOT / "leaderboard/static/site.css").read_text(encoding="utf-8")
    found = re.findall(r"--c([0-7]): #([0-9a-f]{6})", style)
    assert [number for number, _ in found] == [*"01234567"] * 2
    values = [np.array(list(bytes.fromhex(text))) / 255 for _, text in found]
    linear = [np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4) for v in values]
    return {"light": linear[:8], "dark": linear[8:]}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("reader", SEEN_BY)
def test_colours_stay_apart(theme: str, reader: str) -> None:
    seen = [np.clip(SEEN_BY[reader] @ colour, 0, 1) for colour in _read_colours()[theme]]
    points = [TO_OKLAB @ np.cbrt(TO_CONES @ colour) for colour in seen]
    distance = min(np.linalg.norm(one - other) for one, other in combinations(points, 2))
    assert distance > LEAST_DISTANCE


@pytest.mark.parametrize(("theme", "page"), [("light", 1.0), ("dark", 0.0085)])
def test_colours_stand_out_from_the_page(theme: str, page: float) -> None:
    """By 3 to 1, as WCAG 2.2 asks of graphics (1.4.11)."""
    for colour in _read_colours()[theme]:
        own = float(np.dot([0.2126, 0.7152, 0.0722], colour))
        assert (max(own, page) + 0.05) / (min(own, page) + 0.05) >= 3


def test_forty_devices_look_different() -> None:
    looks = [pick_colour(number) for number in range(41)]
    assert len({(name_look(look), get_shape(look)) for look in looks}) == 41
    assert name_look(looks[-1]) == "c8"  # grey: all further ones together
