"""Numbers per device: minutes, throughput, parallel efficiency; claims that no machine can have."""

from pathlib import Path

import pytest

from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.pages.benchmark_page import improves_steadily, list_device_columns
from cepheid.leaderboard.plots.plot import Axis, Series, find_front, make_plot
from cepheid.leaderboard.rows import entry
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.facts import read_hardware
from cepheid.rules.definition import Definition
from tests.compliance.builder import run_records, write_log, write_result
from tests.compliance.field import write_field
from tests.compliance.judging import judge_folder
from tests.leaderboard.test_plot import look

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


def test_training(field: dict[str, Entry], lines: dict[str, Numbers]) -> None:
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


def test_generation(lines: dict[str, Numbers]) -> None:
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
